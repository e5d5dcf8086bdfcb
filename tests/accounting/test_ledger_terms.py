"""What the guarantee of a ledger rests on is in the ledger, so that everyone who reads it states the same."""

from pathlib import Path

import pytest

from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.ledger import Ledger, Terms
from discreet.accounting.ledger_file import UNSTATED
from discreet.core.errors import LedgerError
from discreet.core.guarantee import Adjacency, Caveat, Guarantee

SECRET = Terms(("the seed is secret",))
FIXED = Terms(("rows are public",), frozenset({Caveat.FIXED_SEED}))
ONE = GaussianDpEvent(1.0)


def opened(path: Path | None = None) -> Ledger:
    return Ledger.open(path, unit="row", adjacency="add/remove")


def test_terms_are_stated_with_the_guarantee_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        ledger.spend(ONE, "a", terms=SECRET)
        stated = ledger.guarantee(1e-5)
    read = Ledger.read(path).guarantee(1e-5)
    assert read == stated and stated.certified and SECRET.assumptions[0] in stated.assumptions
    assert UNSTATED not in stated.assumptions


def test_one_spend_from_a_fixed_seed_makes_the_whole_ledger_an_estimate(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        ledger.spend(ONE, "a", terms=SECRET)
        ledger.spend(ONE, "b", terms=FIXED)
    with opened(path) as ledger:
        ledger.spend(ONE, "c", terms=SECRET)
        stated = ledger.guarantee(1e-5)
    assert not stated.certified and stated.caveats == {Caveat.FIXED_SEED}
    assert Ledger.read(path).guarantee(1e-5) == stated
    assert set(stated.assumptions) >= {*SECRET.assumptions, *FIXED.assumptions}


def test_a_repeated_id_cannot_lose_its_caveat() -> None:
    with opened() as ledger:
        ledger.spend(ONE, "a", terms=SECRET)
        assert ledger.spend(ONE, "a", terms=FIXED).repeated
        assert ledger.guarantee(1e-5).caveats == {Caveat.FIXED_SEED} and ledger.statement.spends == 1


def test_a_spend_without_terms_assumes_that_its_randomness_was_secret() -> None:
    with opened() as ledger:
        ledger.spend(ONE, "a", terms=SECRET)
        assert UNSTATED not in ledger.guarantee(1e-5).assumptions
        ledger.spend(ONE, "b")
        assert UNSTATED in ledger.guarantee(1e-5).assumptions


def test_cut_anywhere_a_ledger_with_terms_counts_no_less_and_keeps_its_caveats(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ends: list[tuple[int, int, bool]] = []  # the size when a spend returned, the spends, and whether a caveat was used
    with opened(path) as ledger:
        for number, terms in enumerate((None, SECRET, FIXED, FIXED, None)):
            ledger.spend(GaussianDpEvent(1.0 + number % 2), f"step {number}", terms=terms)
            ends.append((path.stat().st_size, number + 1, number >= 2))
    whole = path.read_bytes()
    for size in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:size])
        used = [(count, caveat) for end, count, caveat in ends if end <= size]
        with opened(path) as ledger:
            count, caveat = used[-1] if used else (0, False)
            assert ledger.statement.spends >= count
            assert not caveat or ledger.statement.terms.caveats == {Caveat.FIXED_SEED}
            ledger.spend(ONE, "after", terms=FIXED)
        assert Ledger.read(path).terms.caveats == {Caveat.FIXED_SEED}


def test_spends_without_terms_are_stated_with_an_assumption(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        ledger.spend(ONE, "first")
    before = Ledger.read(path)
    assert before.spends == 1 and before.unstated and UNSTATED in before.guarantee(1e-5).assumptions
    with pytest.raises(LedgerError, match="adjacency='add/remove'"):
        Ledger.open(path, unit="row", adjacency="zero-out")
    with opened(path) as ledger:
        ledger.spend(ONE, "later", terms=FIXED)
    after = Ledger.read(path)
    assert after.spends == 2 and not after.guarantee(1e-5).certified


def test_a_caveat_takes_the_certificate_away_and_gives_it_back() -> None:
    proven = Guarantee(1.0, 1e-5, "row", Adjacency.ADD_REMOVE, "pld")
    doubted = proven.with_caveats({Caveat.FIXED_SEED})
    assert not doubted.certified and doubted.reason == Caveat.FIXED_SEED.sentence
    assert doubted.without_caveat(Caveat.FIXED_SEED) == proven
    both = doubted.with_caveats({Caveat.TRAINED_ENCODER})
    assert both.as_dict()["caveats"] == ["fixed-seed", "trained-encoder"]
    for caveat, other in ((Caveat.FIXED_SEED, Caveat.TRAINED_ENCODER), (Caveat.TRAINED_ENCODER, Caveat.FIXED_SEED)):
        left = both.without_caveat(caveat)
        assert not left.certified and left.caveats == {other} and left.reason == other.sentence
        assert left.without_caveat(caveat) is left
    assert not Guarantee(1.0, 1e-5, "row", "add/remove", "pld", caveats=frozenset({"fixed-seed"})).certified
