from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.attacks.encoder_layers import dissect
from discreet.attacks.matching.candidate_gradients import Imitation, Target, alive_masks
from discreet.attacks.matching.objective import MeanCosine, Objective, SquaredAndAbsolute, SquaredDistance
from discreet.attacks.matching.problems import Problems
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"), labels=(0, 1, 0))
KINDS = ["bert", "roberta", "distilbert", "gpt2"]
LOSSES = [SquaredDistance(), MeanCosine(), MeanCosine(rows=0.5), SquaredAndAbsolute(0.01)]


def objective_of(model: Classifier, seens: list[GradientRelease], loss: object) -> Objective:
    return Objective(Imitation(model, seens, "this"), Problems.of(seens, model, "this"), loss)  # type: ignore[arg-type]


def truth_of(model: Classifier, batch: Corpus, length: int) -> Tensor:
    rows = model.tokenizer(list(batch.texts), padding="max_length", max_length=length, return_tensors="pt")
    return rows["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", [[0], [0, 1, 2]])
def test_the_loss_at_the_truth_is_zero(tiny_model: Build, kind: str, loss: object, rows: list[int]) -> None:
    model, batch = tiny_model(kind), BATCH.take(rows)
    objective = objective_of(model, [open_release(model, batch)], loss)
    truth = truth_of(model, batch, objective.problems.mask.shape[-1])
    wrong = truth.clone()
    wrong[0, [1, 2]] = truth[0, [2, 1]]
    losses = objective.of_tokens(torch.stack([truth, wrong])[None])
    assert abs(float(losses[0, 0])) < 1e-4 < float(losses[0, 1])


def slow_loss(model: Classifier, seen: GradientRelease, x: Tensor, mask: Tensor, loss: object) -> Tensor:
    """The same loss through every weight's gradient, differentiated twice by autograd."""
    word = dissect(model).embeddings.word_name
    alive = alive_masks(model, dissect(model).embeddings.words)
    names = [n for n in seen.gradients if n != word and (n not in alive or bool(alive[n].any()))]
    inputs = {"inputs_embeds": x, "attention_mask": mask}
    if "token_type_ids" in model.tokenizer.model_input_names:
        inputs["token_type_ids"] = torch.zeros_like(mask)
    model.encoder.set_attn_implementation("eager")  # type: ignore[operator]
    losses = model.eval().losses(inputs, torch.tensor(seen.labels)).sum() / seen.divisor
    found = torch.autograd.grad(losses, [model.get_parameter(n) for n in names], create_graph=True)
    pairs = [
        (g * alive[n] if n in alive else g, seen.gradients[n] * alive[n] if n in alive else seen.gradients[n])
        for n, g in zip(names, found, strict=True)
    ]
    if isinstance(loss, MeanCosine):
        whole = torch.stack([1 - (g * t).sum() / (g.norm() * t.norm()) for g, t in pairs]).mean()
        place = next(i for i, n in enumerate(names) if "position" in n or "wpe" in n)
        rows = [1 - F.cosine_similarity(g, t, dim=0) for g, t in zip(*pairs[place], strict=True) if bool(t.any())]
        return (1 - loss.rows) * whole + loss.rows * torch.stack(rows).mean()
    square = torch.stack([(g - t).square().sum() for g, t in pairs]).sum()
    size = torch.stack([t.square().sum() for _, t in pairs]).sum()
    if isinstance(loss, SquaredDistance):
        return square / size
    absolute = torch.stack([(g - t).abs().sum() for g, t in pairs]).sum()
    return square / size + 0.01 * absolute / size.sqrt()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_and_slopes_are_those_through_all_weight_gradients(tiny_model: Build, kind: str, loss: object) -> None:
    model = tiny_model(kind)
    seen = open_release(model, BATCH)
    objective = objective_of(model, [seen], loss)
    mask = objective.problems.mask
    x = torch.randn(1, 2, *mask.shape[1:], model.width, generator=torch.Generator().manual_seed(0))
    fast, slopes = objective.slopes(x)
    for i in range(2):
        one = x[0, i].clone().requires_grad_()
        slow = slow_loss(model, seen, one, mask[0], loss)
        (expected,) = torch.autograd.grad(slow, one)
        torch.testing.assert_close(fast[0, i], slow.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(slopes[0, i], expected, rtol=2e-3, atol=1e-4 * float(expected.abs().max()))


def test_problems_attacked_together_have_the_losses_they_have_alone(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seens = [open_release(model, BATCH.take([i])) for i in range(3)]
    together = objective_of(model, seens, MeanCosine(rows=0.5))
    x = torch.randn(3, 2, 1, together.problems.mask.shape[-1], model.width)
    losses = together(x)
    for i, seen in enumerate(seens):
        alone = objective_of(model, [seen], MeanCosine(rows=0.5))
        length = alone.problems.mask.shape[-1]
        torch.testing.assert_close(losses[i], alone(x[i : i + 1, :, :, :length])[0], rtol=1e-4, atol=1e-5)


def test_rows_of_positions_count_without_noise_alone(tiny_model: Build) -> None:
    model, batch = tiny_model("bert"), BATCH.take([2])
    seen = open_release(model, batch)
    swapped = truth_of(model, batch, 8)
    swapped[0, [2, 5]] = swapped[0, [5, 2]]
    rows = float(objective_of(model, [seen], MeanCosine(1)).of_tokens(swapped[None, None]))
    assert rows > 1e-3
    noisy = protected_release(model, batch, DPSGD(0.1, clip_norm=1.0), Rng(0), delta=1e-5)
    plain, other = (objective_of(model, [noisy], MeanCosine(share)).of_tokens(swapped[None, None]) for share in (0, 1))
    torch.testing.assert_close(plain, other)
    unsaid = objective_of(model, [replace(seen, lengths=None)], MeanCosine(1)).of_tokens(swapped[None, None])
    assert float(unsaid) == pytest.approx(rows, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_only_key_biases_are_dead(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    masks = alive_masks(model, dissect(model).embeddings.words)
    assert len(masks) == 3
    for name, alive in masks.items():
        width = model.width
        if kind == "gpt2":  # queries, keys and values share one bias
            assert "c_attn" in name and not bool(alive[width : 2 * width].any())
            assert bool(alive[:width].all()) and bool(alive[2 * width :].all())
        else:
            assert ("key" in name or "k_lin" in name) and not bool(alive.any())


def test_the_noise_is_read_off_the_dead_numbers(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = protected_release(model, BATCH, DPSGD(0.3, clip_norm=1.0), Rng(0), delta=1e-5)
    told = Imitation(model, [seen], "this").noise_std
    read = Imitation(model, [replace(seen, noise_std=0.0)], "this").noise_std
    torch.testing.assert_close(told, torch.tensor([0.1]))
    assert abs(float(read) - 0.1) < 0.03


def test_low_rank_targets_are_kept_as_factors_and_say_the_same(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = open_release(model, BATCH.take([1]))
    imitation = Imitation(model, [seen], "this")
    factored = [n for n in imitation.names if imitation._targets[n].value is None]
    assert factored
    for name in factored:
        gradient = seen.gradients[name]
        scale = 1e-5 * float(gradient.abs().max())
        torch.testing.assert_close(imitation.target(name)[0], gradient, rtol=1e-4, atol=scale)


def test_releases_that_cannot_be_matched_are_refused(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = open_release(model, BATCH)
    heads = {n: g for n, g in seen.gradients.items() if n.startswith("head")}
    with pytest.raises(UnsupportedError, match="gradients of the encoder's layers"):
        Imitation(model, [replace(seen, gradients=heads)], "this")
    name = next(n for n in seen.gradients if "dense.weight" in n)
    with pytest.raises(SettingError, match="Pass the same model"):
        Imitation(model, [replace(seen, gradients={**seen.gradients, name: torch.zeros(3)})], "this")
    broken = {**seen.gradients, name: torch.full_like(seen.gradients[name], torch.nan)}
    with pytest.raises(UnsupportedError, match="finite"):
        Imitation(model, [replace(seen, gradients=broken)], "this")
    with pytest.raises(UnsupportedError, match="lengths of the texts"):
        Problems.of([replace(seen, lengths=None)], model, "this")
    with pytest.raises(UnsupportedError, match="one batch size"):
        Problems.of([seen, open_release(model, BATCH.take([0]))], model, "this")


@pytest.mark.parametrize("noisy", [(), (0,), (1,), (0, 1)])
def test_targets_are_factored_only_where_all_are_of_low_rank(noisy: tuple[int, ...]) -> None:
    source = torch.Generator().manual_seed(0)
    value = torch.randn(2, 40, 3, generator=source) @ torch.randn(2, 3, 30, generator=source)
    for i in noisy:
        value[i] += 0.1 * torch.randn(40, 30, generator=source)
    found = Target.of(value, rank=6)
    assert (found.value is None) == (not noisy)
    assert torch.allclose(found.dense(), value, atol=1e-4)
    assert Target.of(value, rank=15).value is not None  # factors would hold more numbers than the matrix
