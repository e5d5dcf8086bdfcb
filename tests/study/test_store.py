from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from discreet.core.errors import DataError, OutputError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.types import Leakage, Trial
from discreet.study.store import NAME, Store, read_trials

TRIAL = Trial(
    settings={"protect": {"name": "dp-sgd", "epsilon": 1.0}},
    seed=3,
    utility={"accuracy": 0.8, "matthews": math.nan},
    leakages=(Leakage("dager/rouge_l", 0.5, 0.4, 0.6, 10, 0.1),),
    guarantee=Guarantee(1.0, 1e-5, "note", Adjacency.ADD_REMOVE, "pld", assumptions=("a",)),
    seconds=1.5,
    bytes=7,
    details={"texts": [{"truth": "é </script>", "guess": "b"}], "odd": math.inf},
)


def test_a_trial_comes_back_as_it_was(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append("k", TRIAL)
    back = read_trials(tmp_path)["k"]
    assert back.leakages == TRIAL.leakages
    assert back.guarantee == TRIAL.guarantee
    assert (back.seed, back.seconds, back.bytes) == (3, 1.5, 7)
    assert back.utility == {"accuracy": 0.8, "matthews": None}
    assert back.details == {"texts": [{"truth": "é </script>", "guess": "b"}], "odd": None}


def test_no_guarantee_stays_none_at_all(tmp_path: Path) -> None:
    nothing = Guarantee(math.inf, 1e-5, "note", Adjacency.ADD_REMOVE, "pld", reason="no noise")
    with Store(tmp_path) as store:
        store.append("k", Trial({"protect": {}}, 0, {}, guarantee=nothing))
    back = read_trials(tmp_path)["k"].guarantee
    assert back is not None
    assert not back.exists


def test_a_key_is_written_once(tmp_path: Path) -> None:
    for _ in range(2):
        with Store(tmp_path) as store:
            store.append("k", TRIAL)
            store.append("k", TRIAL)
    assert len((tmp_path / NAME).read_text().splitlines()) == 1


def test_a_line_torn_at_any_byte_is_dropped_and_written_again(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for key in ("a", "b"):
            store.append(key, TRIAL)
    whole = (tmp_path / NAME).read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        (tmp_path / NAME).write_bytes(whole[:cut])
        assert set(read_trials(tmp_path)) == {"a"}
        if cut % 97 == 0 or cut in (first, first + 1, len(whole) - 1):
            with Store(tmp_path) as store:
                assert store.keys == {"a"}
                store.append("b", TRIAL)
            assert (tmp_path / NAME).read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for key in ("a", "b", "c"):
            store.append(key, TRIAL)
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(lines[0] + b"{half\n" + lines[2])
    with pytest.raises(DataError, match="line 2"):
        read_trials(tmp_path)
    with pytest.raises(DataError, match="line 2"):
        Store(tmp_path)
    assert (tmp_path / NAME).read_bytes().count(b"\n") == 3


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(OutputError, match="One is running"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_what_is_no_trial_is_said(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"key": "a", "settings": {}}) + "\n")
    with pytest.raises(DataError, match="line 1"):
        read_trials(tmp_path)
    with pytest.raises(DataError, match="run `discreet calibrate` first"):
        read_trials(tmp_path / "nowhere")
