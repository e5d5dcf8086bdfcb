"""What leaves a protected run beside its release must not depend on the private train split."""

from pathlib import Path

import pytest

from discreet.data.corpus import Corpus
from discreet.data.sources import Columns
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
