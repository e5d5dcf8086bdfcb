"""Captured steps of `discreet train` are eager ones; with a stand-in for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.planned import train
from tests.training.graphs import Graphs, captured_on_the_cpu, noise_on_the_cpu

from discreet import DPSGD, Rng
from discreet.core.guarantee import Caveat, Guarantee
from discreet.data.batches import Part
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.mechanisms import normals
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections import dp_sgd
from discreet.training.engine import Engine, PrivateParts, PrivateStep, part_to_measure


@pytest.fixture
def corpus(toy_csv: Path) -> Corpus:
    return load(toy_csv, classes=("clinic", "ward"))


def kernel_noise(values: Any, std: float, rng: Rng) -> Any:
    """Add the noise that the kernel of a GPU adds, eagerly."""
    noise = normals.RepeatedNormals(std, torch.device("cpu"))
    noise.use(rng)
    return noise.add(values)


def trained(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch, graphs: Graphs | None, dropout: float = 0.0
) -> tuple[torch.Tensor, Guarantee]:
    with monkeypatch.context() as patch:
        noise_on_the_cpu(patch)
        patch.setattr(dp_sgd, "add_normals", kernel_noise)
        captured_on_the_cpu(patch, graphs)
        model = Classifier.build(corpus, rng=Rng(1), encoder=str(folder), dropout=dropout, max_length=16)
        settings = TrainSettings(epochs=4, batch_size=12, learning_rate=1e-2, head_share=0.0)
        protect = DPSGD(0.5, clip_norm=0.5)
        done = train(model, corpus, settings, seed=0, protect=protect, secret=Rng(4), max_per_unit=None)
        assert done.guarantee is not None
        return torch.cat([p.detach().flatten() for p in model.parameters()]), done.guarantee


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_replayed_steps_give_the_weights_of_eager_ones(
    dropout: float, corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs()
    expected, eager = trained(corpus, tiny_encoder("bert"), monkeypatch, None, dropout)
    result, promise = trained(corpus, tiny_encoder("bert"), monkeypatch, graphs, dropout)
    assert graphs.captured and graphs.replayed > 2 * graphs.captured
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert promise == eager and promise.caveats == {Caveat.FIXED_SEED}


def test_a_graph_in_which_units_change_each_other_is_not_used(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs, used = Graphs(change=1e-6), []
    monkeypatch.setattr(Engine, "replay", lambda self, captured, batch, part: used.append(part))
    expected, _ = trained(corpus, tiny_encoder("bert"), monkeypatch, None)
    result, promise = trained(corpus, tiny_encoder("bert"), monkeypatch, graphs)
    assert graphs.captured and not used and torch.equal(result, expected)
    assert promise.caveats == {Caveat.FIXED_SEED}  # the eager kernels do not


def test_a_unit_that_is_not_finite_is_left_out_by_an_eager_step(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step begins again: its parts are the same, and so is its noise."""
    begun: list[int] = []
    begin = Engine.begin

    def counted(self: Engine, source: Rng, step: int, run: str = "") -> None:
        begun.append(step)
        begin(self, source, step, run)

    monkeypatch.setattr(Engine, "begin", counted)
    monkeypatch.setattr(Engine, "is_finite", property(lambda self: begun[-1] != 3 or begun.count(3) > 1))
    expected, _ = trained(corpus, tiny_encoder("bert"), monkeypatch, None)
    begun.clear()
    result, promise = trained(corpus, tiny_encoder("bert"), monkeypatch, Graphs())
    assert begun.count(3) == 2 and begun.count(2) == 1
    assert promise.caveats == {Caveat.FIXED_SEED, Caveat.UNSTEADY_KERNELS}  # that unit chose the others' kernels
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_memory_that_runs_out_drops_all_graphs_and_what_they_read(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a step was captured with the sums of graphs that are gone: it is captured again with other ones."""
    add, failed, steps = PrivateParts.add, [], []
    begin = Engine.begin

    def counted(self: Engine, source: Rng, step: int, run: str = "") -> None:
        steps.append(step)
        begin(self, source, step, run)

    def short_of_memory(self: PrivateParts, *given: Any, **options: Any) -> Any:
        if steps[-1] == 7 and not failed:
            failed.append(True)
            raise torch.OutOfMemoryError
        return add(self, *given, **options)

    monkeypatch.setattr(Engine, "begin", counted)
    monkeypatch.setattr(PrivateParts, "add", short_of_memory)
    expected, _ = trained(corpus, tiny_encoder("bert"), monkeypatch, None)
    failed.clear()
    graphs = Graphs()
    result, promise = trained(corpus, tiny_encoder("bert"), monkeypatch, graphs)
    assert failed and graphs.replayed > 20 and Caveat.UNSTEADY_KERNELS in promise.caveats
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_an_optimizer_whose_state_is_replaced_is_followed(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A federated client clears the state in every round."""
    gather = PrivateStep.gather

    def cleared(self: PrivateStep, parts: Any, step: int, *rest: Any) -> Any:
        if step % 5 == 4:
            self.optimizer.state.clear()
        return gather(self, parts, step, *rest)

    monkeypatch.setattr(PrivateStep, "gather", cleared)
    expected, _ = trained(corpus, tiny_encoder("bert"), monkeypatch, None)
    graphs = Graphs()
    result, _ = trained(corpus, tiny_encoder("bert"), monkeypatch, graphs)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_the_steps_of_a_corpus_are_not_added_up_over_processes(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun every process trains alone: a unit must not be in the sums of several of them."""
    expected, _ = trained(corpus, tiny_encoder("bert"), monkeypatch, None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    result, _ = trained(corpus, tiny_encoder("bert"), monkeypatch, None)
    assert torch.equal(result, expected)


def test_a_protection_with_a_release_of_its_own_is_not_ended_by_a_graph() -> None:
    class Rounded(DPSGD):
        def release(self, sums: Any, rng: Rng) -> Any:
            return {name: value.round() for name, value in super().release(sums, rng).items()}

    assert DPSGD(1.0, clip_norm=0.5).step_noise == 0.5
    assert Rounded(1.0).step_noise is None and DPSGD(0.0).step_noise is None
    assert DPSGD(1.0, correlation="banded").step_noise is None


def test_captured_and_eager_parts_are_measured_in_turn() -> None:
    captured, smaller, eager = (Part(np.arange(units), units, 1, 8, units) for units in (4, 3, 8))
    for parts, expected in (
        ([smaller, captured, eager], [captured, eager]),
        ([smaller, captured], [captured, captured]),
        ([eager], [eager, eager]),
        ([], [None, None]),
    ):
        assert [part_to_measure(parts, lambda part: part is not eager, step) for step in (4, 5)] == expected
