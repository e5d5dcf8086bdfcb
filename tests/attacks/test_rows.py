"""One inner product for each place and word names the words of a sentence; rows of words name the set of tokens."""

import dataclasses
from collections.abc import Callable

import pytest

from discreet.attacks.rows import EmbeddingRows, PositionRows
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.metrics.text import token_accuracy
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
TEXT = "very slow walk and sharp pain"
BATCH = Corpus("toy", (TEXT, "a knee"), labels=(0, 1))
ONE = BATCH.take([0])
THREE = Corpus("toy", ("the heart was dull", "a knee", TEXT), labels=(0, 1, 0))
PUBLIC = ("very slow walk and rest", "a sharp pain", "walk and sharp pain", "the heart was dull", "very slow walk")


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_every_word_is_named_in_its_place(tiny_model: Build, kind: str, pooling: str) -> None:
    model = tiny_model(kind, pooling=pooling)
    bare = dataclasses.replace(open_release(model, ONE), lengths=None, labels=None)
    guess = PositionRows().run(bare, Knowledge(model=model), Rng(0))
    assert guess.texts == (TEXT,) and guess.details["noise"] == 0
    assert list(guess.indices) == model.tokenizer(TEXT)["input_ids"]


@pytest.mark.parametrize("strength", ["gaussian", "direction"])
def test_noise_is_measured_on_the_rows_that_no_text_reaches(tiny_model: Build, strength: str) -> None:
    model = tiny_model("bert")
    kappa = 1e10
    protect = DPSGD(1e-5, clip_norm=1.0) if strength == "gaussian" else DirDPSGD.for_model(model, kappa)
    seen = protected_release(model, ONE, protect, Rng(0), delta=1e-5)
    found = PositionRows().run(seen, Knowledge(model=model), Rng(0)).details["noise"]
    assert found == pytest.approx(1e-5, rel=0.1)  # a direction's coordinates have about 1/sqrt(kappa)


def test_a_prior_decides_between_the_words_that_noise_leaves_possible(tiny_model: Build) -> None:
    model = tiny_model("bert")
    right = {"alone": 0.0, "with public text": 0.0}
    for seed in range(8):
        seen = protected_release(model, ONE, DPSGD(3e-5, clip_norm=1.0), Rng(seed), delta=1e-5)
        for name, texts in (("alone", ()), ("with public text", PUBLIC)):
            guess = PositionRows().run(seen, Knowledge(model=model, auxiliary=texts), Rng(0))
            right[name] += token_accuracy(guess.texts[0], TEXT) / 8
    assert right["alone"] < 0.75 and right["with public text"] > right["alone"] + 0.15


def test_what_it_cannot_read_is_refused_with_the_reason(tiny_model: Build) -> None:
    model = tiny_model("bert")
    with pytest.raises(UnsupportedError, match=r"Expected one text for the position-row attack, got 2"):
        PositionRows().run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    frozen = tiny_model("bert", embeddings=False)
    with pytest.raises(UnsupportedError, match=r"position_embeddings.weight' for the position-row attack, got none"):
        PositionRows().run(open_release(frozen, ONE), Knowledge(model=frozen), Rng(0))
    beside = tiny_model("gpt2")
    with pytest.raises(UnsupportedError, match="bypasses the norm"):
        PositionRows().run(open_release(beside, ONE), Knowledge(model=beside), Rng(0))
    noisy = protected_release(model, ONE, DPSGD(1e-3, clip_norm=1.0), Rng(0), delta=1e-5)
    with pytest.raises(UnsupportedError, match="the text's length, or no noise"):
        PositionRows().run(dataclasses.replace(noisy, lengths=None), Knowledge(model=model), Rng(0))


@pytest.mark.parametrize("settings", [{"kept": 0}, {"beams": 0}, {"prior": -1.0}])
def test_settings_outside_their_rules_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=f"Expected {next(iter(settings))} to be"):
        PositionRows(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_every_token_and_no_other_is_read(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    guess = EmbeddingRows().run(open_release(model, THREE), Knowledge(model=model), Rng(0))
    rows = model.tokenizer(list(THREE.texts))["input_ids"]
    assert set(guess.indices) == {token for row in rows for token in row}
    assert set(guess.texts[0].split()) == set(" ".join(THREE.texts).split())


def test_noise_hides_the_rows(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = protected_release(model, THREE, DPSGD(1.0, clip_norm=1.0), Rng(0), delta=1e-5)
    assert len(EmbeddingRows().run(seen, Knowledge(model=model), Rng(0)).indices) <= 1


def test_a_release_without_the_embeddings_is_refused(tiny_model: Build) -> None:
    model = tiny_model("bert", embeddings=False)
    with pytest.raises(UnsupportedError, match=r"word_embeddings.weight' for the embedding-row attack, got none"):
        EmbeddingRows().run(open_release(model, THREE), Knowledge(model=model), Rng(0))
    assert not GradientRelease({}, 1).gradients


def test_noise_of_unknown_size_is_not_taken_for_tokens(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = protected_release(model, THREE, DirDPSGD.for_model(model, 20.0), Rng(0), delta=1e-5)
    assert seen.noise_std == 0 and len(EmbeddingRows().run(seen, Knowledge(model=model), Rng(0)).indices) <= 1
    weak = protected_release(model, THREE, DirDPSGD.for_model(model, 1e9), Rng(0), delta=1e-5)
    found = EmbeddingRows().run(weak, Knowledge(model=model), Rng(0)).indices
    assert set(found) == {token for row in model.tokenizer(list(THREE.texts))["input_ids"] for token in row}
