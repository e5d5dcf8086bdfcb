from collections.abc import Callable

import pytest

from discreet.attacks.gradient.embedding_rows import EmbeddingRows
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.release import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"), labels=(0, 1, 0))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_every_token_and_no_other_is_read(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    guess = EmbeddingRows().run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    rows = model.tokenizer(list(BATCH.texts))["input_ids"]
    assert set(guess.indices) == {token for row in rows for token in row}
    assert set(guess.texts[0].split()) == set(" ".join(BATCH.texts).split())


def test_noise_hides_the_rows(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = protected_release(model, BATCH, DPSGD(1.0, clip_norm=1.0), Rng(0), delta=1e-5)
    assert len(EmbeddingRows().run(seen, Knowledge(model=model), Rng(0)).indices) <= 1


def test_a_release_without_the_embeddings_is_refused(tiny_model: Build) -> None:
    model = tiny_model("bert", embeddings=False)
    with pytest.raises(UnsupportedError, match=r"word_embeddings.weight' for the embedding-row attack, found none"):
        EmbeddingRows().run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    assert not GradientRelease({}, 1).gradients


def test_noise_of_unknown_size_is_not_taken_for_tokens(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = protected_release(model, BATCH, DirDPSGD.for_model(model, 20.0), Rng(0), delta=1e-5)
    assert seen.noise_std == 0 and len(EmbeddingRows().run(seen, Knowledge(model=model), Rng(0)).indices) <= 1
    weak = protected_release(model, BATCH, DirDPSGD.for_model(model, 1e9), Rng(0), delta=1e-5)
    found = EmbeddingRows().run(weak, Knowledge(model=model), Rng(0)).indices
    assert set(found) == {token for row in model.tokenizer(list(BATCH.texts))["input_ids"] for token in row}
