import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.protections import base as _vectors
from discreet.protections.texthide import TextHide, capped, mixtures, signs

CPU = torch.device("cpu")


def batch(asked: TextHide, rows: int = 12, width: int = 32, epoch: int = 0, step: int = 0, seed: int = 0):  # type: ignore[no-untyped-def]
    live = asked.live(rows, width, 2, Rng(seed), CPU)
    vectors = torch.randn(rows, width, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(rows) % 2
    public = torch.randn(rows, width, generator=torch.Generator().manual_seed(2)) if asked.public else None
    drawn = live.draw(np.arange(rows), (rows, width), step, epoch)
    hidden, soft = live.hide(vectors, targets, drawn, public)
    return live, vectors, targets, public, drawn, hidden, soft


def test_the_fast_mixture_is_the_slow_one_of_algorithm_1() -> None:
    _live, vectors, targets, _, drawn, hidden, soft = batch(TextHide(masks=4, mix=3))
    one_hot = torch.nn.functional.one_hot(targets, 2).float()
    for i in range(len(vectors)):
        vector = sum(drawn["mix"][i, j] * vectors[j] for j in range(len(vectors)))
        label = sum(drawn["mix"][i, j] * one_hot[j] for j in range(len(vectors)))
        torch.testing.assert_close(hidden[i], drawn["mask"][i] * vector)
        torch.testing.assert_close(soft[i], label)
    assert set(drawn["mask"].unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(len(soft)))


def test_every_row_enters_k_mixtures_and_leads_its_own() -> None:
    tables = mixtures(3, 50, 4, None, False, np.random.default_rng(0))
    assert not np.allclose(tables[0], tables[1])
    table = tables[2]
    np.testing.assert_allclose(table.sum(axis=1), 1)
    assert (np.diag(table) > 0).all()
    # four permutations: a column has at most four entries, fewer where two of them agree
    assert (table > 0).sum(axis=0).max() <= 4 and (table > 0).sum() >= 4 * 50 - 20


def test_public_partners_take_half_and_their_labels_count_for_nothing() -> None:
    asked = TextHide(masks=0, mix=4, public="given")
    _, vectors, targets, public, drawn, hidden, soft = batch(asked)
    assert public is not None and drawn["mix"].shape == (12, 24)
    own, other = drawn["mix"][:, :12], drawn["mix"][:, 12:]
    assert ((other > 0).sum(dim=1) <= 2).all() and ((other > 0).sum(dim=1) >= 1).all()
    torch.testing.assert_close(hidden, own @ vectors + other @ public)
    one_hot = torch.nn.functional.one_hot(targets, 2).float()
    torch.testing.assert_close(soft, (own / own.sum(dim=1, keepdim=True)) @ one_hot)


def test_public_partners_may_count_as_evenly_of_every_class() -> None:
    _, _, targets, _, drawn, _, soft = batch(TextHide(masks=0, mix=4, public="given", public_label="even"))
    own = drawn["mix"][:, :12]
    for i in range(len(soft)):
        private = sum(own[i, j] * torch.eye(2)[targets[j]] for j in range(12))
        torch.testing.assert_close(soft[i], private + drawn["mix"][i, 12:].sum() / 2)
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(len(soft)))


def test_scores_are_not_shared_evenly_and_other_labels_are_refused() -> None:
    with pytest.raises(SettingError, match="public_label to be 'dropped' for scores, got 'even'"):
        TextHide(mix=4, public="given", public_label="even").live(6, 8, 0, Rng(0), CPU)
    with pytest.raises(SettingError, match="public_label to be .*, got 'evn'"):
        TextHide(public_label="evn")


def test_no_masks_and_no_mixing_change_nothing() -> None:
    _, vectors, _, _, _, hidden, soft = batch(TextHide(masks=0, mix=1))
    torch.testing.assert_close(hidden, vectors)
    assert set(soft.flatten().tolist()) == {0.0, 1.0}


def test_scores_are_mixed_like_labels() -> None:
    live = TextHide(masks=1, mix=2).live(6, 8, 0, Rng(0), CPU)
    drawn = live.draw(np.arange(6), (6, 8), 0, 0)
    scores = torch.arange(6.0)
    _, mixed = live.hide(torch.ones(6, 8), scores, drawn)
    torch.testing.assert_close(mixed, drawn["mix"] @ scores)


def test_a_sentence_gets_another_mask_in_every_epoch_and_the_pool_is_used_evenly() -> None:
    live = TextHide(masks=8, mix=1).live(4000, 8, 2, Rng(3), CPU)
    epochs = [live.masks_at(e).copy() for e in range(6)]
    for before, after in itertools.pairwise(epochs):
        assert (before != after).all()
    counts = np.bincount(epochs[5], minlength=8)
    assert counts.min() > 400 and counts.max() < 600
    again = TextHide(masks=8, mix=1).live(4000, 8, 2, Rng(3), CPU)
    np.testing.assert_array_equal(again.masks_at(5), epochs[5])


def test_fresh_masks_differ_from_vector_to_vector_and_step_to_step() -> None:
    asked = TextHide(mix=1, fresh_masks=True)
    first = batch(asked, width=64, step=0)[4]["mask"]
    second = batch(asked, width=64, step=1)[4]["mask"]
    assert len({tuple(row.tolist()) for row in torch.cat([first, second])}) == 24


@given(st.integers(2, 8), st.integers(0, 1000), st.floats(0, 1))
def test_weights_add_up_to_one_below_their_cap(k: int, seed: int, share: float) -> None:
    cap = 1 / k + share * (1 - 1 / k)
    found = capped(np.abs(np.random.default_rng(seed).standard_normal((20, k))), cap)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert (found <= cap + 1e-12).all() and (found >= 0).all()


def test_secrets_are_in_no_repr() -> None:
    live, _, _, _, _drawn, _, _ = batch(TextHide(masks=4, mix=2), width=4)
    assert (
        repr(live)
        == "Hidden(TextHide(masks=4, mix=2, fresh_masks=False, mix_cap=None, public=None, public_label='dropped'))"
    )
    query = TextHide(masks=4, mix=2).averaged(4, Rng(0))
    assert "tensor" not in repr(query) and not query.state_dict()


def test_nothing_is_guaranteed_and_it_says_why() -> None:
    from discreet.accounting.interpret import guarantee_of

    event, name = TextHide().live(4, 4, 2, Rng(0), CPU).cost(0, 0)
    found = guarantee_of(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert not found.exists
    assert "absolute value" in found.sentence() and "span the tokens" in found.sentence()
    assert name == TextHide().live(4, 4, 2, Rng(0), CPU).cost(99, 3)[1]


def test_masks_are_even_signs() -> None:
    found = signs(200, 100, Rng(1))
    assert set(found.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(found.mean())) < 0.03


def test_what_does_not_go_is_refused() -> None:
    with pytest.raises(SettingError, match="mix to be <= 32, the rows of a batch.*, got 40"):
        TextHide(mix=40).check(32, 1000)
    with pytest.raises(SettingError, match="mix to be <= 3, the rows of a batch.*, got 4"):
        TextHide(mix=4).check(32, 3)
    with pytest.raises(SettingError, match="masks to be at least 1 and not fresh.*, got 0"):
        TextHide(masks=0).averaged(8, Rng(0))
    assert TextHide(masks=0).views(8, Rng(0)) is None and TextHide(fresh_masks=True).views(8, Rng(0)) is None
    assert len(TextHide(masks=4).views(8, Rng(0))(torch.ones(2, 8))) == 4  # type: ignore[misc]
    with pytest.raises(SettingError, match="masks to be <= 65536.*, got 100000"):
        TextHide(masks=100_000)
    with pytest.raises(UnsupportedError, match="got texthide"):
        TextHide().once(np.arange(3), 8, 2, Rng(0))


def test_large_batches_mix_fewer_steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vectors, "_NUMBERS", 5000)
    live = TextHide(masks=4, mix=3).live(60, 8, 2, Rng(0), CPU)
    mixed = [live.draw(np.arange(count), (count, 8), step, 0)["mix"] for step, count in enumerate([30, 30, 30, 5] * 3)]
    assert sum(table.numel() for table in live.ahead.values()) <= 2 * 5000
    assert all(not torch.equal(mixed[0], other) for other in mixed[1:])
    assert torch.equal(live.draw(np.arange(30), (30, 8), 5, 0)["mix"], mixed[5])
