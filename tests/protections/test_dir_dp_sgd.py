import math
from functools import partial

import pytest
import torch
from scipy import stats
from torch import nn

from discreet.accounting.events import ComposedDpEvent, VonMisesFisherDpEvent
from discreet.clipping.tape import Tape
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.protections.dir_dp_sgd import DirDPSGD


def model_and_record(rows: int, seed: int = 0, blank: int | None = None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    x = torch.randn(rows, 4)
    tape = Tape(model)
    with tape:
        losses = nn.functional.cross_entropy(model(x), torch.arange(rows) % 2, reduction="none")
        if blank is not None:
            losses = losses * (torch.arange(rows) != blank)
    return model, tape.backward(losses)


def flat(sums: dict[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    return torch.cat([sums[name].flatten() for name in names]).double()


def own_direction(model: nn.Module) -> torch.Tensor:
    gradients = model_and_record(1)[1].gradients()
    g = torch.cat([gradients[n][0].flatten() for n, _ in model.named_parameters()]).double()
    return g / g.norm()


@pytest.mark.parametrize("way", ["gather_formed", "gather_streamed"])
def test_one_unit_gives_an_exact_draw_around_its_direction(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosine with the true direction has the von Mises–Fisher law, and the draw has length one."""
    kappa = 25.0
    model, _ = model_and_record(1)
    names = [name for name, _ in model.named_parameters()]
    protect = DirDPSGD.for_model(model, kappa)
    u = own_direction(model)
    found, lengths, across = [], [], []
    record = model_and_record(1)[1]
    monkeypatch.setattr(record, "weighted_sum", partial(record.weighted_sum, keep=True))
    for seed in range(1500):
        sums: dict[str, torch.Tensor] = {}
        getattr(protect, way)(record, sums, Rng(seed))
        y = flat(sums, names)
        found.append(float(y @ u))
        lengths.append(float(y.norm()))
        across.append((y - (y @ u) * u) / (y - (y @ u) * u).norm())
    assert max(abs(length - 1) for length in lengths) < 1e-4
    expected = VonMisesFisher(kappa, protect.dimension).cosines(200_000, Rng(7)).numpy()
    assert stats.ks_2samp(found, expected).pvalue > 1e-4
    # what is left is uniform across: no coordinate is preferred
    mean = torch.stack(across).mean(0)
    assert float(mean.norm()) < 4 / math.sqrt(1500)


@pytest.mark.parametrize("way", ["gather_formed", "gather_streamed"])
def test_a_concentrated_draw_is_the_sum_of_the_directions(way: str) -> None:
    model, record = model_and_record(5, blank=2)
    gradients = record.gradients()
    names = [name for name, _ in model.named_parameters()]
    rows = torch.cat([gradients[n].flatten(1) for n in names], dim=1).double()
    lengths = rows.norm(dim=1, keepdim=True)
    protect = DirDPSGD.for_model(model, 1e9)
    sums: dict[str, torch.Tensor] = {}
    getattr(protect, way)(record, sums, Rng(0))
    known = torch.where(lengths > 0, rows / lengths.clamp_min(1e-30), 0.0).sum(0)
    left = flat(sums, names) - known
    # the unit without a gradient gave a uniform direction of length one
    assert float(left.norm()) == pytest.approx(1.0, abs=2e-3)
    assert float(lengths[2]) == 0.0


@pytest.mark.parametrize("way", ["gather_formed", "gather_streamed"])
def test_blocks_are_turned_each_by_itself(way: str) -> None:
    model, record = model_and_record(3)
    parts = [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
    protect = DirDPSGD.for_model(model, 1e9, parts)
    gradients = record.gradients()
    sums: dict[str, torch.Tensor] = {}
    getattr(protect, way)(record, sums, Rng(0))
    for names in parts:
        rows = torch.cat([gradients[n].flatten(1) for n in names], dim=1).double()
        expected = (rows / rows.norm(dim=1, keepdim=True)).sum(0)
        torch.testing.assert_close(flat(sums, names), expected, atol=2e-3, rtol=0)
    assert protect.event == ComposedDpEvent([VonMisesFisherDpEvent(1e9, 30), VonMisesFisherDpEvent(1e9, 14)])


def test_parameters_of_one_layer_may_lie_in_different_blocks() -> None:
    model, record = model_and_record(3)
    parts = [["0.weight", "2.bias"], ["2.weight", "0.bias"]]
    gradients = record.gradients()
    sums: dict[str, torch.Tensor] = {}
    DirDPSGD.for_model(model, 1e9, parts).gather_streamed(record, sums, Rng(0))
    for names in parts:
        rows = torch.cat([gradients[n].flatten(1) for n in names], dim=1).double()
        torch.testing.assert_close(flat(sums, names), (rows / rows.norm(dim=1, keepdim=True)).sum(0), atol=2e-3, rtol=0)


def test_an_empty_batch_adds_nothing() -> None:
    model, _ = model_and_record(1)
    sums: dict[str, torch.Tensor] = {}
    DirDPSGD.for_model(model, 10.0).gather(Tape(model).empty(), sums, Rng(0))
    assert set(sums) == {name for name, _ in model.named_parameters()}
    assert all(float(value.abs().sum()) == 0 for value in sums.values())


def test_the_pure_bound_counts_every_use_of_every_block() -> None:
    model, _ = model_and_record(1)
    assert DirDPSGD.for_model(model, 10.0).pure_epsilon(7) == 140.0
    assert DirDPSGD.for_model(model, 10.0, [["0.weight", "0.bias"], ["2.weight", "2.bias"]]).pure_epsilon(7) == 280.0


@pytest.mark.parametrize("parts", [[["0.weight"]], [["0.weight", "0.bias", "2.weight", "2.bias"], ["0.weight"]], []])
def test_a_partition_holds_every_parameter_once(parts: list[list[str]]) -> None:
    model, _ = model_and_record(1)
    with pytest.raises(SettingError, match="in exactly one block"):
        DirDPSGD.for_model(model, 1.0, parts)
    with pytest.raises(SettingError, match="kappa to be .*, got inf"):
        DirDPSGD.for_model(model, math.inf)
