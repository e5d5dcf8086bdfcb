import pytest

from discreet.core.errors import BudgetError, DataError
from discreet.core.remedies import reworded, saying


def known(name: str, value: str | None) -> str | None:
    return f"<{name} {value}>" if name in {"batch_size", "pooler", "epsilon", "mechanism", "sensitive"} else None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("larger batches (--batch-size), or fewer.", "larger batches (<batch_size None>), or fewer."),
        ("use --no-pooler.", "use <pooler false>."),
        ("--epsilon 3 is a start, --epsilon 0.5 less.", "<epsilon 3> is a start, <epsilon 0.5> less."),
        ("--epsilon 1e-3, --epsilon 2.5e+4.", "<epsilon 1e-3>, <epsilon 2.5e+4>."),
        ("Add --mechanism gaussian, or --mechanism vmf", "Add <mechanism gaussian>, or <mechanism vmf>"),
        ("--sensitive FILE for it", "<sensitive None> for it"),
        ("--epsilon or --out", "<epsilon None> or --out"),
        ("a -- b, --unknown word.", "a -- b, --unknown word."),
    ],
)
def test_options_are_said_otherwise_and_nothing_else_is(text: str, told: str) -> None:
    assert reworded(text, known) == told


def test_an_error_keeps_its_kind_and_one_without_options_itself() -> None:
    with pytest.raises(BudgetError, match="<epsilon None>"), saying(known):
        raise BudgetError("Give a larger --epsilon.")
    plain = DataError("Expected rows.")
    with pytest.raises(DataError) as found, saying(known):
        raise plain
    assert found.value is plain
