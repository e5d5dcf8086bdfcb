from pathlib import Path

import pytest
import torch

from discreet.core.errors import DataError, ModelError, SettingError
from discreet.models.ngram import NGram

ROWS = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 4, 4], [6, 2, 3, 4], [1]]


@pytest.mark.parametrize("least", [1, 2])
def test_every_context_spreads_a_probability_of_one(least: int) -> None:
    model = NGram.from_ids(ROWS, 9, least=least)
    every = torch.arange(9)
    for context in ([1, 2], [2, 3], [6, 2], [7, 8], [3, 1], [4, 4]):
        rows = torch.cat([torch.tensor(context).expand(9, 2), every[:, None]], 1)
        third = model.logs(rows)[:, 2].exp()
        second = model.logs(rows[:, 1:])[:, 1].exp()
        assert third.sum() == pytest.approx(1, abs=1e-5) and second.sum() == pytest.approx(1, abs=1e-5)
        assert bool((third > 0).all())
    assert model.unigrams.sum() == pytest.approx(1, abs=1e-5)


def test_probabilities_are_kneser_ney_by_hand() -> None:
    model = NGram.from_ids(ROWS, 9)
    # c(1 2 3) = 2, c(1 2 4) = 1: of three continuations, two kinds, each less 0.75.
    share, left = (2 - 0.75) / 3, 2 * 0.75 / 3
    # after 2: the kinds 1-2-3, 6-2-3 and 1-2-4, and the pairs 2-3 and 2-4 themselves
    below, rest = (3 - 0.75) / 5, 2 * 0.75 / 5
    # 3 ends one kind of pair (2 3) of the six kinds there are: 12, 62, 23, 24, 34, 35, 44
    lowest = 0.99 * 1 / 7 + 0.01 / 9
    expected = share + left * (below + rest * lowest)
    assert float(model.logs(torch.tensor([[1, 2, 3]]))[0, 2].exp()) == pytest.approx(expected, rel=1e-5)


def test_padding_and_batches_do_not_change_a_row() -> None:
    model = NGram.from_ids(ROWS, 9)
    alone = model.surprise(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.int64))
    padded = model.surprise(torch.tensor([[1, 2, 3, 0], [8, 8, 8, 8]]), torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]))
    assert float(alone[0]) == pytest.approx(float(padded[0])) and float(padded[1]) > float(padded[0])


def test_tables_survive_a_file(tmp_path: Path) -> None:
    model = NGram.from_ids(ROWS, 9)
    model.save(tmp_path / "prior.safetensors")
    again = NGram.load(tmp_path / "prior.safetensors")
    assert all(torch.equal(value, getattr(again, name)) for name, value in vars(model).items())
    (tmp_path / "other").write_text("no tables")
    with pytest.raises(ModelError, match="n-gram model"):
        NGram.load(tmp_path / "other")
    with pytest.raises(ModelError):
        NGram.load(tmp_path / "none")


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(DataError):
        NGram.fit([], None)
    with pytest.raises(DataError):
        NGram.from_ids([[], []], 9)
    with pytest.raises(SettingError, match="vocabulary is too small"):
        NGram.from_ids([[1, 2, 10]], 9)
    with pytest.raises(SettingError):
        NGram.from_ids(ROWS, 9, least=0)


def test_likely_tokens_are_those_that_surprise_least() -> None:
    model = NGram.from_ids(ROWS, 9)
    row, pool = torch.tensor([[1, 2, 7, 4, 5]]), torch.tensor([1, 3, 4, 5, 8])
    found = model.likely(row, pool, 2)
    for place in range(5):
        tried = row.repeat(5, 1)
        tried[:, place] = pool
        order = model.surprise(tried, torch.ones_like(tried)).argsort()
        assert found[0, place].tolist() == pool[order[:2]].tolist()


def test_choices_fit_as_the_whole_row_says() -> None:
    source = torch.Generator().manual_seed(0)
    model = NGram.from_ids(torch.randint(12, (60, 9), generator=source).tolist(), 12)
    rows = torch.randint(12, (5, 8), generator=source)
    choices = torch.randint(12, (5, 6), generator=source)
    for place in range(8):
        tried = rows[:, None].repeat(1, 6, 1)
        tried[:, :, place] = choices
        whole = model.logs(tried.flatten(0, 1)).sum(-1).view(5, 6)
        near = model.fitting(rows, place, choices)
        assert torch.allclose(near - near[:, :1], whole - whole[:, :1], atol=1e-4)


def test_the_token_that_is_out_of_range_is_named() -> None:
    for rows, said in (([[1, 7]], "token to be .*, got 7"), ([[1, -2]], "token to be .*, got -2")):
        with pytest.raises(SettingError, match=said):
            NGram.from_ids(rows, 5)
