"""Public text is read like the private one, and is not sifted by what is private."""

from pathlib import Path

import pytest

from discreet.core.errors import DataError
from discreet.data.corpus import Corpus
from discreet.data.sources import Columns
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.protection import LocalPrivacy
from discreet.protections.texthide import TextHide
from discreet.training.plan import public_corpus

TEXTS = ("a bright film", "the plot was slow", "nobody laughed", "two good jokes")


@pytest.mark.parametrize(
    ("protect", "kept"),
    [
        (lambda path: LocalPrivacy(epsilon=8.0, public=path), TEXTS[:3]),
        (lambda path: LocalPrivacy(epsilon_per_message=8.0, public=path), TEXTS[:3]),
        (lambda path: InstanceEncoding(epsilon=8.0, public=path, dimension=2), TEXTS[:3]),
        (lambda path: TextHide(public=path), TEXTS[1:3]),
    ],
    ids=["ldp", "ldp per message", "dp-ie", "texthide"],
)
def test_public_text_is_not_sifted_by_what_is_private(tmp_path: Path, protect: object, kept: tuple[str, ...]) -> None:
    """A projection from public text less the train split's would tell which public texts are in it."""
    path = tmp_path / "public.csv"
    path.write_text("text,label\n" + "".join(f"{text},{i % 2}\n" for i, text in enumerate(TEXTS)), encoding="utf-8")
    private = Corpus(
        "ward",
        ("A bright film!", "irena called", "Two good jokes"),
        labels=(0, 1, 1),
        splits=("train",) * 2 + ("test",),
    )
    found = public_corpus(protect(str(path)), private, Columns())  # type: ignore[operator]
    assert found is not None and found.texts == kept


def test_public_text_is_read_like_the_private_one(tmp_path: Path) -> None:
    private = Corpus("ward", ("a bright film", "two jokes"), scores=(0.5, 1.0), splits=("train", "validation"))
    for name, text in (("train", "One day"), ("validation", "A night"), ("test", "Two jokes!")):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{text},3\n", encoding="utf-8")
    public = public_corpus(DPSGD(1.0, public=str(tmp_path)), private, Columns())
    assert public is not None and (public.texts, public.scores) == (("One day", "A night"), (3.0, 3.0))
    assert set(public.splits) == {"train"}
    with pytest.raises(DataError, match="Expected public text that is not in 'ward', got none"):
        public_corpus(DPSGD(1.0, public=str(tmp_path / "test.csv")), private, Columns())


def test_labels_that_cannot_be_read_are_reported_only_where_they_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("text,label\nfine,1\nbetter,1\n", encoding="utf-8")
    private = Corpus("ward", ("a bright film", "two jokes"), labels=(0, 1))
    with pytest.raises(DataError, match="at least 2 classes"):
        public_corpus(DPSGD(1.0, public=str(path)), private, Columns())
    mixed = public_corpus(TextHide(public=str(path)), private, Columns())
    assert mixed is not None and mixed.labels is None
    assert DPSGD(1.0, public="web").starts_from_public and not DPSGD(1.0).starts_from_public
    assert not TextHide(public="web").starts_from_public
