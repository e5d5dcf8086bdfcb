from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from reproductions.texthide.masked_dlg import hidden_gradients
from torch import Tensor, nn

from discreet.attacks.matching.lbfgs import minimise
from discreet.attacks.matching.masked_dlg import MaskedDLG
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.texthide import TextHide
from discreet.releases.gradient import hidden_release, open_release

pytestmark = pytest.mark.search

SHAPE = (6,)


class TwoLayers(nn.Module):
    """A hidden layer of sigmoids, a representation, and a head."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.map, self.head = nn.Linear(6, 12), nn.Linear(12, width), nn.Linear(width, 3)
        source = torch.Generator().manual_seed(0)
        for weight in self.parameters():
            weight.data.uniform_(-0.5, 0.5, generator=source)

    def represent(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.map(torch.sigmoid(self.first(inputs)))
        return found

    def decide(self, vectors: Tensor) -> Tensor:
        scores: Tensor = self.head(vectors)
        return scores


def private(runs: int, mix: int = 1, width: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    inputs = torch.rand(runs, mix, *SHAPE, generator=source)
    masks = 2.0 * torch.randint(2, (runs, width), generator=source) - 1
    weights = torch.full((runs, mix), 1 / mix)
    return inputs, masks, weights, nn.functional.one_hot(torch.arange(runs) % 3, 3).float()


def test_the_gradient_of_a_masked_mixture_is_the_slow_one() -> None:
    model = TwoLayers()
    inputs, masks, weights, targets = private(3, mix=2)
    found = hidden_gradients(model, inputs, masks, weights, targets)
    for row in range(3):
        model.zero_grad()
        mixed = masks[row] * (weights[row] @ model.represent(inputs[row]))
        nn.functional.cross_entropy(model.decide(mixed[None]), targets[row][None]).backward()
        for name, weight in model.named_parameters():
            assert weight.grad is not None
            torch.testing.assert_close(found[name][row], weight.grad)


def test_a_small_mask_does_not_save_the_input() -> None:
    model = TwoLayers()
    inputs, masks, weights, targets = private(12)
    gradients = hidden_gradients(model, inputs, masks, weights, targets)
    found = MaskedDLG(steps=200).recover(model, gradients, targets, SHAPE, Rng(0))
    errors = (found.inputs - inputs).square().mean(dim=(1, 2))
    assert int((errors <= 1e-3).sum()) >= 6
    hit = errors <= 1e-3  # where the input is found, so is the mask
    assert float((found.masks - masks)[hit].abs().median()) < 0.1


def test_one_release_is_attacked_as_one_of_many_and_the_same_twice() -> None:
    model = TwoLayers()
    inputs, masks, weights, targets = private(1)
    gradients = {n: g[0] for n, g in hidden_gradients(model, inputs, masks, weights, targets).items()}
    seen = GradientRelease(gradients, 1, labels=(0,))
    knows = Knowledge(model=model, extra={"shape": SHAPE})
    attack = MaskedDLG(steps=150)
    first, second = (attack.run(seen, knows, Rng(2)).details for _ in range(2))
    assert torch.equal(first["inputs"], second["inputs"])
    many = attack.recover(model, {n: g[None] for n, g in gradients.items()}, targets, SHAPE, Rng(2))
    assert torch.equal(many.inputs[0], first["inputs"])
    soft = Knowledge(model=model, extra={"shape": SHAPE, "targets": (1.0, 0.0, 0.0)})
    assert torch.equal(attack.run(seen, soft, Rng(2)).details["inputs"], first["inputs"])


def test_two_dummy_inputs_have_weights_that_add_up() -> None:
    model = TwoLayers()
    inputs, masks, weights, targets = private(2, mix=2)
    gradients = hidden_gradients(model, inputs, masks, weights, targets)
    found = MaskedDLG(steps=30, inputs=2).recover(model, gradients, targets, SHAPE, Rng(0))
    assert found.inputs.shape == (2, 2, *SHAPE)
    torch.testing.assert_close(found.weights.sum(dim=1), torch.ones(2))


def test_random_gradients_give_nothing() -> None:
    model = TwoLayers()
    inputs, _, _, targets = private(8)
    source = torch.Generator().manual_seed(5)
    drawn = {n: torch.randn((8, *p.shape), generator=source) for n, p in model.named_parameters()}
    found = MaskedDLG(steps=50).recover(model, drawn, targets, SHAPE, Rng(0))
    assert not bool(((found.inputs - inputs).square().mean(dim=(1, 2)) <= 1e-3).any())


def test_what_cannot_be_attacked_is_refused_by_name() -> None:
    model = TwoLayers()
    gradients = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    knows = Knowledge(model=model, extra={"shape": SHAPE})
    head = {n: g for n, g in gradients.items() if n.startswith("head")}
    attack = MaskedDLG(steps=5)
    with pytest.raises(UnsupportedError, match="got those of the head only"):
        attack.run(GradientRelease(head, 1, labels=(0,)), knows, Rng(0))
    with pytest.raises(UnsupportedError, match="own parameters for masked DLG, got 'other'"):
        attack.run(GradientRelease({"other": torch.zeros(1)}, 1, labels=(0,)), knows, Rng(0))
    with pytest.raises(UnsupportedError, match="got a batch of 2"):
        attack.run(GradientRelease(gradients, 2, labels=(0, 1)), knows, Rng(0))
    with pytest.raises(UnsupportedError, match="Expected a label"):
        attack.run(GradientRelease(gradients, 1), knows, Rng(0))
    with pytest.raises(UnsupportedError, match="the shape of an input"):
        attack.run(GradientRelease(gradients, 1, labels=(0,)), Knowledge(model=model), Rng(0))
    with pytest.raises(UnsupportedError, match="represent and decide on tensors, for masked DLG, got Linear"):
        attack.run(GradientRelease(gradients, 1), Knowledge(model=nn.Linear(2, 2)), Rng(0))
    for bad in ({"inputs": 0}, {"rate": 0}, {"restarts": -1}):
        with pytest.raises(SettingError):
            MaskedDLG(**bad)  # type: ignore[arg-type]


def bowl(points: Tensor) -> tuple[Tensor, Tensor]:
    scales = torch.tensor([1.0, 10.0, 100.0])
    return 0.5 * (scales * points**2).sum(dim=1), scales * points


def test_many_problems_end_as_each_alone_and_at_the_minimum() -> None:
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    together = minimise(bowl, start, rate=1.0, history=10, steps=40, enough=0.0)
    assert float(together.points.abs().max()) < 1e-3 and not bool(together.broken.any())
    for row in range(5):
        alone = minimise(bowl, start[row : row + 1], rate=1.0, history=10, steps=40, enough=0.0)
        torch.testing.assert_close(alone.points[0], together.points[row], atol=1e-5, rtol=0)


def test_it_walks_where_the_optimiser_of_torch_walks() -> None:
    start = torch.tensor([[1.0, -1.0, 0.5]])
    point = start[0].clone().requires_grad_()
    peer = torch.optim.LBFGS([point], lr=1.0, max_iter=6, history_size=10, tolerance_change=0.0, tolerance_grad=0.0)

    def closure() -> Tensor:
        peer.zero_grad()
        value = bowl(point[None])[0][0]
        value.backward()
        return value

    peer.step(closure)  # type: ignore[arg-type]
    found = minimise(bowl, start, rate=1.0, history=10, steps=6, enough=0.0)
    torch.testing.assert_close(found.points[0], point.detach(), atol=1e-4, rtol=1e-3)


def test_a_row_that_meets_no_number_is_marked_and_the_others_go_on() -> None:
    def objective(points: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = bowl(points)
        bad = points[:, 0] > 5
        return torch.where(bad, torch.nan, values), torch.where(bad[:, None], torch.nan, slopes)

    start = torch.tensor([[9.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    found = minimise(objective, start, rate=1.0, history=5, steps=40, enough=0.0)
    assert found.broken.tolist() == [True, False] and float(found.points[1].abs().max()) < 1e-2


@pytest.mark.parametrize("hidden", [False, True])
def test_a_text_is_read_through_a_mask_that_is_learned(tiny_model: Callable[..., Classifier], hidden: bool) -> None:
    model = tiny_model("bert")
    text = Corpus("toy", ("a knee",), labels=(1,), label_names=("0", "1"))
    seen = hidden_release(model, text, TextHide(masks=4, mix=1), Rng(0)) if hidden else open_release(model, text)
    assert MaskedDLG(steps=120).run(seen, Knowledge(model=model), Rng(0)).texts == ("a knee",)
    steps = 40 if hidden else 120  # without the mask nothing fits, however long: the distance stays large
    plain = MaskedDLG(learn_mask=False, steps=steps).run(seen, Knowledge(model=model), Rng(0))
    assert (plain.texts == ("a knee",)) == (not hidden)
    assert (-plain.scores[0] > 0.5) == hidden


def test_a_head_alone_or_no_label_is_rejected_for_text(tiny_model: Callable[..., Classifier]) -> None:
    text = Corpus("toy", ("a knee",), labels=(1,), label_names=("0", "1"))
    head = tiny_model("bert", train="head")
    with pytest.raises(UnsupportedError, match="head alone does not determine the text"):
        MaskedDLG().run(open_release(head, text), Knowledge(model=head), Rng(0))
    model = tiny_model("bert", head="mlp")
    without = replace(open_release(model, text), labels=None)
    bare = {name: value for name, value in without.gradients.items() if not name.endswith("bias")}
    with pytest.raises(UnsupportedError, match="the label in the release"):
        MaskedDLG().run(replace(without, gradients=bare), Knowledge(model=model), Rng(0))
