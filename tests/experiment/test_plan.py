"""What leaves a protected run beside its release must not depend on the private train split."""

from pathlib import Path

import pytest

from discreet.data.corpus import Corpus
from discreet.data.sources import Columns
from discreet.experiment.plan import RunRequest, public_corpus
from discreet.models.classifier import ModelSettings
from discreet.protections.instance_encoding_settings import InstanceEncodingSettings
from discreet.protections.ldp_settings import LDPSettings
from discreet.protections.texthide import TextHideSettings
from discreet.training.settings import TrainSettings

TEXTS = ("a bright film", "the plot was slow", "nobody laughed", "two good jokes")


@pytest.mark.parametrize(
    ("protect", "kept"),
    [
        (lambda path: LDPSettings(epsilon=8.0, public=path), TEXTS[:3]),
        (lambda path: InstanceEncodingSettings(epsilon=8.0, public=path, dimension=2), TEXTS[:3]),
        (lambda path: TextHideSettings(public=path), TEXTS[1:3]),
    ],
    ids=["ldp", "dp-ie", "texthide"],
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
    request = RunRequest(str(path), Columns(), ModelSettings(), TrainSettings(), protect(str(path)))  # type: ignore[operator]
    found = public_corpus(request, private, lambda text: None)
    assert found is not None and found.texts == kept
