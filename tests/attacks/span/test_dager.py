from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from discreet.attacks.encoder_layers import Projection, dissect
from discreet.attacks.span.dager import Dager
from discreet.attacks.span.spans import shares, span_of, token_sets
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.texthide import TextHide
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"), labels=(0, 1, 0))


def rows_of(model: Classifier, batch: Corpus) -> set[tuple[int, ...]]:
    return {tuple(row) for row in model.tokenizer(list(batch.texts))["input_ids"]}


def random_release(model: Classifier, seed: int = 0, noise_std: float = 0.0) -> GradientRelease:
    source = torch.Generator().manual_seed(seed)
    drawn = {n: torch.randn(p.shape, generator=source) for n, p in model.named_parameters()}
    return GradientRelease(drawn, 1, noise_std=noise_std)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("lengths", [True, False])
def test_a_batch_is_read_exactly(tiny_model: Build, kind: str, pooling: str, lengths: bool) -> None:
    model = tiny_model(kind, pooling=pooling)
    seen = open_release(model, BATCH)
    seen = replace(seen, labels=None, lengths=seen.lengths if lengths else None)
    guess = Dager().run(seen, Knowledge(model=model), Rng(0))
    assert set(guess.details["tokens"]) == rows_of(model, BATCH)
    assert set(guess.texts) == set(BATCH.texts) and all(guess.details["confirmed"])


def test_the_same_source_gives_the_same_guess(tiny_model: Build) -> None:
    model = tiny_model("bert")
    attack, seen = Dager(all_at_most=1, steps=20), open_release(model, BATCH)
    first, second = (attack.run(seen, Knowledge(model=model), Rng(3)) for _ in range(2))
    assert first == second


def test_relaxation_and_descent_find_what_trying_all_finds(tiny_model: Build) -> None:
    model = tiny_model("bert")
    guess = Dager(all_at_most=1).run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    assert set(guess.details["tokens"]) == rows_of(model, BATCH)


def test_clipping_alone_hides_nothing_and_noise_hides_all(tiny_model: Build) -> None:
    model = tiny_model("bert")
    knows = Knowledge(model=model)
    sums = open_release(model, BATCH)
    clipped = replace(sums, gradients={n: 1e-3 * g for n, g in sums.gradients.items()})
    assert set(Dager().run(clipped, knows, Rng(0)).texts) == set(BATCH.texts)
    for protect in (DPSGD(1.0, clip_norm=1.0), DirDPSGD.for_model(model, 20.0)):
        seen = protected_release(model, BATCH, protect, Rng(0), delta=1e-5)
        guess = Dager().run(seen, knows, Rng(0))
        assert not set(guess.texts) & set(BATCH.texts)
        assert len(guess.details["pairs"]) == 0


def test_random_gradients_give_nothing(tiny_model: Build) -> None:
    model = tiny_model("bert")
    assert Dager().run(random_release(model, noise_std=1.0), Knowledge(model=model), Rng(0)).texts == ()
    low = {n: torch.outer(g[:, 0], g[0]) if g.dim() == 2 else g for n, g in random_release(model).gradients.items()}
    low = {n: g for n, g in low.items() if "token_type" not in n}
    assert Dager().run(GradientRelease(low, 1), Knowledge(model=model), Rng(0)).texts == ()


def test_what_cannot_be_attacked_is_refused_by_name(tiny_model: Build) -> None:
    model = tiny_model("bert", train="head")
    with pytest.raises(UnsupportedError, match=r"query.weight' or its neighbours for DAGER, got none.*A head alone"):
        Dager().run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    model = tiny_model("bert")
    order = np.random.default_rng(0)
    many = Corpus("many", tuple(" ".join(order.permutation(list("abcdefghijklmnop"))[:8]) for _ in range(12)))
    seen = open_release(model, many)
    with pytest.raises(UnsupportedError, match=r"fewer than 64 tokens for DAGER, got 120"):
        Dager().run(seen, Knowledge(model=model), Rng(0))
    with pytest.raises(UnsupportedError, match=r"fewer than 64 tokens for DAGER, got gradients of rank 63"):
        Dager().run(replace(seen, lengths=None), Knowledge(model=model), Rng(0))
    pairs = Corpus("pairs", ("the heart", "a knee"), second=("was dull", "pain"), labels=(0, 1))
    with pytest.raises(UnsupportedError, match="single texts for DAGER, got pairs"):
        Dager().run(open_release(model, pairs), Knowledge(model=model), Rng(0))
    broken = {n: g * float("nan") for n, g in open_release(model, BATCH).gradients.items() if "token_type" not in n}
    with pytest.raises(UnsupportedError, match="finite gradients"):
        Dager().run(GradientRelease(broken, 3), Knowledge(model=model), Rng(0))
    with pytest.raises(SettingError, match="token_distance to be .*, got 0"):
        Dager(token_distance=0)


def test_a_part_of_the_gradients_is_enough(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = open_release(model, BATCH)
    some = {n: g for n, g in seen.gradients.items() if "attention.self" in n}
    guess = Dager().run(replace(seen, gradients=some), Knowledge(model=model), Rng(0))
    assert set(guess.texts) == set(BATCH.texts)


def test_the_quick_screen_agrees_with_one_state_at_a_time(tiny_model: Build) -> None:
    model = tiny_model("bert")
    parts = dissect(model)
    span = span_of(open_release(model, BATCH), parts.first, 4e-7, "DAGER")
    slow = []
    for place in range(8):
        tokens = torch.arange(parts.embeddings.words.shape[0])
        away = span.distance(parts.embeddings.inputs(tokens, torch.full_like(tokens, place)))
        slow.append(tokens[away <= 1e-3].tolist())
    assert token_sets(parts.embeddings, span, 1e-3, 48)[:8] == [s for s in slow if s]


def test_shares_prefer_the_states_that_made_the_span() -> None:
    source = torch.Generator().manual_seed(0)
    true = torch.randn(4, 12, generator=source, dtype=torch.double)
    alias = (true[0] + true[1] - true[2])[None]
    gradient = torch.randn(30, 4, generator=source, dtype=torch.double) @ torch.nn.functional.normalize(true, dim=1)
    seen = GradientRelease({"w": gradient}, 1)
    span = span_of(seen, [Projection("w", torch.nn.Identity(), False)], 1e-9, "DAGER")
    found = shares(span, torch.cat([true, alias]))
    assert span.rank == 4 and float(found[4]) < 0.2 * float(found[:4].min())


def test_the_built_in_encoder_is_read_exactly() -> None:
    batch = Corpus("two", ("a gorgeous , witty , seductive movie .", "the plot is dull"), labels=(1, 0))
    model = Classifier.build(batch, rng=Rng(0))
    guess = Dager().run(open_release(model, batch), Knowledge(model=model), Rng(0))
    assert set(guess.details["tokens"]) == rows_of(model, batch)
    again = open_release(model, batch)
    source = torch.Generator().manual_seed(0)
    noisy = {n: g + 1e-3 * torch.randn(g.shape, generator=source) for n, g in again.gradients.items()}
    hidden = Dager().run(replace(again, gradients=noisy, noise_std=1e-3), Knowledge(model=model), Rng(0))
    assert not set(hidden.details["tokens"]) & rows_of(model, batch)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_time_limit_ends_with_the_best_so_far(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    seen, knows = open_release(model, BATCH), Knowledge(model=model)
    hurried = Dager(all_at_most=1, seconds=1e-9).run(seen, knows, Rng(0))
    patient = Dager(all_at_most=1, seconds=1e9).run(seen, knows, Rng(0))
    assert set(patient.texts) == set(BATCH.texts)
    assert hurried.texts and hurried.details["pairs"] == patient.details["pairs"]
    assert set(hurried.texts) != set(patient.texts)
    assert hurried.details["stopped_by_time_limit"] and not patient.details["stopped_by_time_limit"]
    assert patient == Dager(all_at_most=1).run(seen, knows, Rng(0))
    with pytest.raises(SettingError, match="seconds to be .*, got 0"):
        Dager(seconds=0)


def adapted(model: Classifier, rank: int, second_factor: float = 0.1) -> Classifier:
    """Return a model whose first maps are trained through low-rank adapters alone, after some steps."""
    peft = pytest.importorskip("peft")
    targets = ["query", "value", "q_lin", "v_lin", "c_attn"]
    names = {name.rsplit(".", 1)[-1] for name, _ in model.encoder.named_modules()}
    fan = "c_attn" in names
    config = peft.LoraConfig(r=rank, target_modules=[t for t in targets if t in names], fan_in_fan_out=fan)
    model.encoder = peft.get_peft_model(model.encoder, config)
    source = torch.Generator().manual_seed(7)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(second_factor * torch.randn(weight.shape, generator=source))
    return model


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2"])
def test_low_rank_adapters_give_the_same_span(tiny_model: Build, kind: str) -> None:
    model = adapted(tiny_model(kind), 32)
    seen = open_release(model, BATCH)
    assert all("lora" in name or name.startswith("head") for name in seen.gradients)
    guess = Dager().run(seen, Knowledge(model=model), Rng(0))
    assert set(guess.details["tokens"]) == rows_of(model, BATCH) and all(guess.details["confirmed"])


def test_adapters_that_show_too_little_are_refused(tiny_model: Build) -> None:
    model = adapted(tiny_model("bert"), 4)
    with pytest.raises(UnsupportedError, match=r"fewer than 8 tokens for DAGER, got gradients.*of 8 rows"):
        Dager().run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    model = adapted(tiny_model("bert"), 32, second_factor=0.0)
    with pytest.raises(UnsupportedError, match=r"nonzero gradients of .*lora_A.* for DAGER.*attack a later step"):
        Dager().run(open_release(model, BATCH), Knowledge(model=model), Rng(0))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_texthide_hides_nothing_from_it(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    seen = texthide_release(model, BATCH, TextHide(256, 3), Rng(5))
    guess = Dager().run(seen, Knowledge(model=model), Rng(0))
    assert set(guess.details["tokens"]) == rows_of(model, BATCH) and all(guess.details["confirmed"])


def texthide_release(model: Classifier, batch: Corpus, protect: TextHide, secret: Rng) -> GradientRelease:
    """Return the gradient of a batch whose sentence vectors were mixed and masked before the head."""
    tokens = tokenise(batch, model.tokenizer, model.max_length)
    rows = np.arange(len(batch), dtype=np.int64)
    drawn = tokens.batch(rows)
    model.eval()
    vectors = model.represent(drawn.inputs)
    hidden = protect.live(len(batch), model.width, len(model.label_names), secret, model.device)
    secrets = hidden.draw(rows, tuple(vectors.shape), 0, 0)
    masked, soft = hidden.hide(vectors, drawn.targets, secrets)
    loss = torch.nn.functional.cross_entropy(model.decide(masked), soft)
    names, weights = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    found = torch.autograd.grad(loss, weights)
    return GradientRelease(dict(zip(names, found, strict=True)), len(batch), lengths=tuple(tokens.lengths.tolist()))
