from typing import Any

import numpy as np
import pytest
import torch

from discreet.accounting.interpret import guarantee_of
from discreet.catalog import protection
from discreet.core.errors import SettingError
from discreet.core.guarantee import Adjacency, in_digits
from discreet.core.randomness import Rng
from discreet.protections import base as _vectors
from discreet.protections.instance_encoding import InstanceEncoding, learn_projection, load_of
from discreet.protections.local.projection import principal

ROWS, WIDTH = 200, 24


def vectors() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def once(asked: InstanceEncoding, owners: np.ndarray | None = None, seed: int = 0) -> Any:  # type: ignore[type-arg]
    return asked.once(np.arange(ROWS) if owners is None else owners, WIDTH, 2, Rng(seed))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "laplace-l2"])
@pytest.mark.parametrize("mix", [1, 4])
def test_the_cost_is_what_was_asked_for_and_the_noise_is_what_it_says(mechanism: str, mix: int) -> None:
    asked = InstanceEncoding(6.0, 1e-5, mechanism=mechanism, mix=mix, rounds=2)
    release = once(asked)
    found = guarantee_of(release.event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    # a delta lets pure noise cost a little less than its epsilon
    assert 4.5 < found.epsilon <= 6.0 * (1 + 1e-6)
    targets = torch.arange(ROWS) % 2
    out, goals = release(vectors(), targets)
    assert out.shape == (2 * ROWS, WIDTH)
    mean = torch.zeros(2 * ROWS, WIDTH, dtype=torch.float64)
    seen = asked.seen(vectors())
    for j in range(mix):
        mean += torch.from_numpy(release.weights[:, j : j + 1]) * seen[release.partners[:, j]]
    noise = (out.double() - mean).flatten()
    assert float(noise.var()) == pytest.approx(release.noise_variance, rel=0.05)
    assert goals.shape == ((2 * ROWS,) if mix == 1 else (2 * ROWS, 2))


def test_renyi_accounting_is_a_bound_above_the_exact_one() -> None:
    event = once(InstanceEncoding(6.0, 1e-5)).event
    exact, renyi = (
        guarantee_of(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, accountant=name) for name in ("pld", "rdp")
    )
    assert renyi.certified and exact.epsilon < renyi.epsilon < 1.2 * exact.epsilon


def test_every_output_has_noise_of_its_own() -> None:
    release = once(InstanceEncoding(1.0, 1e-5, rounds=2))
    out, _ = release(torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64))
    assert len({tuple(row.tolist()) for row in out}) == 2 * ROWS
    close = torch.corrcoef(out)
    close.fill_diagonal_(0)
    assert float(close.abs().max()) < 0.95


def test_vectors_are_cut_to_the_norm_and_what_is_not_finite_is_nothing() -> None:
    seen = InstanceEncoding(1.0, 1e-5, clip_norm=0.5).seen(torch.tensor([[3.0, 4.0], [float("nan"), 1.0], [0.1, 0.0]]))
    assert torch.linalg.vector_norm(seen, dim=1).tolist() == pytest.approx([0.5, 0.0, 0.1])


def test_a_unit_with_more_rows_pays_for_all_of_them() -> None:
    alone = once(InstanceEncoding(4.0, 1e-5))
    owners = np.arange(ROWS) // 2
    shared = once(InstanceEncoding(4.0, 1e-5), owners)
    assert alone.load.squares == 1.0 and shared.load.squares == 2.0
    assert shared.scale == pytest.approx(alone.scale * 2**0.5)
    # two rows of one unit in one output add up before they are squared
    assert load_of(np.array([[0, 1]]), np.array([[0.5, 0.5]]), np.array([0, 0])).squares == 1.0


def test_labels_are_noisy_at_their_share_or_declared_public() -> None:
    asked = InstanceEncoding(4.0, 1e-5, labels="noisy", label_epsilon=1.0)
    release = once(asked)
    found = guarantee_of(release.event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert 3.5 < found.epsilon <= 4.0
    _, told = release(vectors(), torch.zeros(ROWS, dtype=torch.int64))
    lies = float((told == 1).float().mean())
    assert lies == pytest.approx(1 - release.label_truth, abs=0.1) and 0.15 < lies < 0.4
    assert not any("labels" in said for said in release.stated(found).assumptions)
    public = once(InstanceEncoding(4.0, 1e-5))
    assert any("labels are public" in said for said in public.stated(found).assumptions)


@pytest.mark.parametrize(("claimed", "true"), [(1.0, 1.32), (4.0, 6.4), (10.0, 20.0), (20.0, 52.4)])
def test_the_paper_s_noise_costs_more_than_it_claims(claimed: float, true: float) -> None:
    release = once(InstanceEncoding(claimed, 1e-5, calibration="paper"))
    found = guarantee_of(release.event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert found.epsilon == pytest.approx(true, rel=0.01)
    said = release.stated(found)
    assert not said.certified and said.epsilon == claimed and in_digits(found.epsilon) in str(said.reason)


def test_at_every_step_an_epoch_is_counted_once_for_all_its_steps() -> None:
    asked = InstanceEncoding(4.0, 1e-5, stored=False, epochs=3, mix=2)
    live = asked.live(ROWS, WIDTH, 2, Rng(0), torch.device("cpu"))
    assert live.cost(0, 0) == live.cost(5, 0) and live.cost(0, 0)[1] != live.cost(9, 1)[1]
    from discreet.accounting.events import SelfComposedDpEvent

    found = guarantee_of(SelfComposedDpEvent(live.cost(0, 0)[0], 3), delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert found.epsilon == pytest.approx(4.0, rel=1e-3)
    drawn = live.draw(np.arange(50), (50, WIDTH), 0, 0)
    hidden, soft = live.hide(vectors()[:50], torch.arange(50) % 2, drawn)
    torch.testing.assert_close(
        hidden - drawn["noise"], drawn["mix"].double() @ asked.seen(vectors()[:50]), rtol=1e-4, atol=1e-4
    )
    assert float(drawn["noise"].std()) == pytest.approx(live.scale, rel=0.1) and soft.shape == (50, 2)


def test_noise_is_drawn_for_many_steps_at_once_and_no_two_steps_share_any() -> None:
    live = InstanceEncoding(4.0, 1e-5, stored=False, epochs=3, mix=2).live(ROWS, WIDTH, 2, Rng(0), torch.device("cpu"))
    rows = np.arange(8)
    drawn = [live.draw(rows, (8, WIDTH), step, 0) for step in range(130)]  # over the ends of two blocks
    noise = torch.cat([found["noise"] for found in drawn])
    assert len(torch.unique(noise, dim=0)) == len(noise)
    assert len({found["mix"].numpy().tobytes() for found in drawn}) == len(drawn)
    assert len(live.ahead) == 1  # what is behind is forgotten
    again = live.draw(rows, (8, WIDTH), 3, 0)
    assert all(torch.equal(again[name], drawn[3][name]) for name in again)


def test_large_batches_draw_noise_for_fewer_steps_at_once_and_never_the_same_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_vectors, "_NUMBERS", 5000)
    live = InstanceEncoding(4.0, 1e-5, stored=False, epochs=3, mix=2).live(ROWS, WIDTH, 2, Rng(0), torch.device("cpu"))
    noises = []
    for step in range(12):
        count = 5 if step % 4 == 3 else 30  # a last batch that is not full
        noises.append(live.draw(np.arange(count), (count, WIDTH), step, step // 4)["noise"])
        drawn = sum(value.numel() for tensors in live.ahead.values() for value in tensors.values())
        assert drawn <= 2 * 5000
    told = torch.cat([noise.flatten() for noise in noises])
    assert len(told.unique()) == len(told)
    for step in (11, 2, 7):  # as after a crash: the same noise for the same step
        count = 5 if step % 4 == 3 else 30
        assert torch.equal(live.draw(np.arange(count), (count, WIDTH), step, step // 4)["noise"], noises[step])


def test_noisy_labels_are_told_once_however_often_they_are_drawn() -> None:
    asked = InstanceEncoding(4.0, 1e-5, stored=False, epochs=3, labels="noisy", label_epsilon=0.5)
    live = asked.live(ROWS, WIDTH, 2, Rng(0), torch.device("cpu"))
    rows, targets = np.arange(50), torch.zeros(50, dtype=torch.int64)
    told = [live.hide(vectors()[:50], targets, live.draw(rows, (50, WIDTH), s, s))[1] for s in range(2)]
    assert torch.equal(told[0], told[1]) and 0 < float(told[0][:, 1].mean()) < 1


def test_a_projection_is_learned_from_public_text_and_makes_the_release_narrower() -> None:
    public = torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(3))
    found = learn_projection(public, None, 8)
    assert found.width == 8
    assert float(torch.linalg.vector_norm(found(public), dim=1).median()) == pytest.approx(1.0, rel=1e-4)
    release = once(InstanceEncoding(4.0, 1e-5, projection=found))
    assert release(vectors(), torch.zeros(ROWS, dtype=torch.int64))[0].shape == (ROWS, 8)
    assert learn_projection(public, torch.arange(300) % 2, 8).source == "public text with labels"
    wide = InstanceEncoding(4.0, 1e-5, mechanism="laplace-l2")
    narrow = InstanceEncoding(4.0, 1e-5, mechanism="laplace-l2", projection=principal(public, 8, "public"))
    assert once(narrow).noise_variance < once(wide).noise_variance


def test_secrets_are_in_no_repr() -> None:
    release = once(InstanceEncoding(4.0, 1e-5, mix=2))
    assert "partners" not in repr(release) and "Rng" not in repr(release) and "array" not in repr(release)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Expected epsilon for dp-ie"),
        ({"epsilon": 0.0}, "epsilon to be > 0.*, got 0.0"),
        ({"epsilon": 4.0, "mechanism": "gauss"}, "mechanism to be one of gaussian, laplace, laplace-l2.*, got 'gauss'"),
        ({"epsilon": 4.0, "labels": "noise"}, "labels to be one of public, noisy.*, got 'noise'"),
        ({"epsilon": 4.0, "label_epsilon": 1.0}, "label_epsilon to be left out.*, got 1.0"),
        ({"epsilon": 4.0, "labels": "noisy", "label_epsilon": 4.0}, r"label_epsilon to be in \(0, 4\).*, got 4.0"),
        ({"epsilon": 4.0, "mechanism": "laplace-l2", "calibration": "paper"}, "gaussian or laplace"),
        ({"epsilon": 4.0, "dimension": 8}, "Expected public together with dimension"),
        ({"epsilon": 4.0, "public": "reviews"}, "Expected dimension together with public"),
        ({"epsilon": 4.0, "clip_norm": 0.0}, "clip_norm to be .*, got 0.0"),
        ({"epsilon": 4.0, "masks": 4}, "masks to be left out for dp-ie.*, got 4. It belongs to texthide"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        protection("dp-ie", values)


def test_mixtures_larger_than_the_corpus_are_refused() -> None:
    with pytest.raises(SettingError, match="mix to be <= 200, the rows.*, got 300"):
        once(InstanceEncoding(4.0, 1e-5, mix=300))
    with pytest.raises(SettingError, match="mix to be <= 32, the rows of a batch.*, got 40"):
        InstanceEncoding(4.0, 1e-5, mix=40, stored=False).check(32, 1000)


@pytest.mark.parametrize(("mix", "cap"), [(2, 0.5), (3, 0.4), (4, 0.25), (4, None)])
def test_at_every_step_no_row_weighs_more_than_is_counted(mix: int, cap: float | None) -> None:
    """A row that meets itself in an output weighs there what both weigh: with two at the cap of 1/2 it stands alone."""
    live = InstanceEncoding(8.0, 1e-5, mix=mix, mix_cap=cap, stored=False).live(6, 8, 2, Rng(0), torch.device("cpu"))
    counted = live.load(1)
    rows = np.arange(6)
    for step in range(300):
        weights = live.draw(rows, (6, 8), step, 0)["mix"].numpy()
        assert (weights**2).sum(axis=0).max() <= counted.squares * (1 + 1e-6)
        assert weights.sum(axis=0).max() <= counted.total * (1 + 1e-6)
