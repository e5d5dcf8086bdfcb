from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from discreet.attacks.crafted.decepticons import Decepticons
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.models.encoder import assemble
from discreet.models.language_model import LanguageModel
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
BATCH = Corpus("toy", ("the heart was dull", "the knee was dull", "very slow walk and sharp pain"), labels=(0, 1, 0))
ATTACK = Decepticons()


def language_model(model: Classifier, objective: str) -> LanguageModel:
    model.tokenizer.mask_token = "[MASK]"
    return LanguageModel(assemble("tiny", model.encoder, model.tokenizer, "tiny"), rng=Rng(1), objective=objective)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize("lengths", [True, False])
def test_a_batch_is_read_from_crafted_weights(tiny_model: Build, kind: str, pooling: str, lengths: bool) -> None:
    if (kind, pooling) == ("gpt2", "cls"):
        pytest.skip("the first state of a causal model depends on nothing that follows")
    crafted = ATTACK.craft(tiny_model(kind, pooling=pooling), Rng(3))
    seen = replace(open_release(crafted, BATCH), labels=None)
    seen = seen if lengths else replace(seen, lengths=None)
    guess = ATTACK.run(seen, Knowledge(model=crafted), Rng(0))
    assert set(guess.texts) == set(BATCH.texts)


@pytest.mark.parametrize(("kind", "objective"), [("gpt2", "next"), ("bert", "next"), ("bert", "masked")])
def test_a_language_model_is_read_too(tiny_model: Build, kind: str, objective: str) -> None:
    crafted = ATTACK.craft(language_model(tiny_model(kind), objective), Rng(3))
    guess = ATTACK.run(open_release(crafted, BATCH), Knowledge(model=crafted), Rng(0))
    if (kind, objective) == ("gpt2", "next"):  # nothing is asked of a last token, so its state has no gradient
        assert set(guess.texts) == {text.rsplit(" ", 1)[0] for text in BATCH.texts}
    else:
        assert set(guess.texts) == set(BATCH.texts)


def test_crafting_leaves_the_model_alone_and_repeats_itself(tiny_model: Build) -> None:
    model = tiny_model("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = (ATTACK.craft(model, Rng(3)).state_dict() for _ in range(2))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(first[name], value) for name, value in second.items())
    assert first.keys() == before.keys()


def test_clipping_alone_hides_nothing_and_noise_hides_all(tiny_model: Build) -> None:
    crafted = ATTACK.craft(tiny_model("bert"), Rng(3))
    knows = Knowledge(model=crafted)
    clipped = protected_release(crafted, BATCH, DPSGD(0.0, clip_norm=1e-3), Rng(0), delta=1e-5)
    assert max(float(g.abs().max()) for g in clipped.gradients.values()) <= 1e-3
    assert set(ATTACK.run(clipped, knows, Rng(0)).texts) == set(BATCH.texts)
    for protect in (DPSGD(1.0, clip_norm=1.0), DirDPSGD.for_model(crafted, 20.0)):
        seen = protected_release(crafted, BATCH, protect, Rng(0), delta=1e-5)
        assert not set(ATTACK.run(seen, knows, Rng(0)).texts) & set(BATCH.texts)


def test_random_gradients_give_nothing(tiny_model: Build) -> None:
    crafted = ATTACK.craft(tiny_model("bert"), Rng(3))
    source = torch.Generator().manual_seed(0)
    drawn = {n: torch.randn(p.shape, generator=source) for n, p in crafted.named_parameters()}
    words = set(" ".join(BATCH.texts).split())
    guess = Decepticons(least_match=0.9).run(GradientRelease(drawn, 3), Knowledge(model=crafted), Rng(0))
    assert len(set(" ".join(guess.texts).split()) & words) <= 1
    none = GradientRelease({n: torch.zeros_like(g) for n, g in drawn.items()}, 3)
    assert ATTACK.run(none, Knowledge(model=crafted), Rng(0)).texts == ()


def test_what_cannot_be_attacked_is_refused_by_name(tiny_model: Build) -> None:
    model = tiny_model("bert")
    with pytest.raises(UnsupportedError, match=r"the crafted model.*got ordinary weights in 'encoder.*dense.weight'"):
        ATTACK.run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    crafted = ATTACK.craft(tiny_model("bert", train="head"), Rng(3))
    with pytest.raises(UnsupportedError, match=r"gradient of .encoder.*weight. for Decepticons, got none.*head"):
        ATTACK.run(open_release(crafted, BATCH), Knowledge(model=crafted), Rng(0))
    crafted = ATTACK.craft(model, Rng(3))
    broken = {n: g * float("nan") for n, g in open_release(crafted, BATCH).gradients.items()}
    with pytest.raises(UnsupportedError, match="finite gradients"):
        ATTACK.run(GradientRelease(broken, 3), Knowledge(model=crafted), Rng(0))
    with pytest.raises(UnsupportedError, match="Expected a Classifier"):
        ATTACK.run(open_release(crafted, BATCH), Knowledge(), Rng(0))
    for bad in ({"sharpness": 0}, {"least_match": 2}, {"states": 0}):
        with pytest.raises(SettingError):
            Decepticons(**bad)  # type: ignore[arg-type]


def test_the_built_in_encoder_gives_eight_sentences() -> None:
    texts = (
        "a gorgeous , witty , seductive movie .",
        "the plot is dull and the actors are not good",
        "the movie is dull and the plot is not good",
        "i did not like any of it .",
        "a film that will be remembered for years",
        "one of the best films of the year",
        "one of the worst films of the year",
        "it is not clear what this was about , or for whom .",
    )
    batch = Corpus("eight", texts, labels=(1, 0, 0, 0, 1, 1, 0, 0))
    crafted = ATTACK.craft(Classifier.build(batch, rng=Rng(0)), Rng(3))
    guess = ATTACK.run(open_release(crafted, batch), Knowledge(model=crafted), Rng(0))
    rows = {tuple(row) for row in crafted.tokenizer(list(texts))["input_ids"]}
    assert set(guess.details["tokens"]) == rows
