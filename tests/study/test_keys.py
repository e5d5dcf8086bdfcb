from __future__ import annotations

import pytest

from discreet.catalog import PROTECTIONS
from discreet.core.errors import DataError, SettingError
from discreet.protections.settings import protect_settings
from discreet.protections.texthide import TextHide
from discreet.study.keys import in_keys, said_in_keys


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("larger batches (--batch-size)", "larger batches (batch_size)"),
        ("ask for fewer (--examples), or another --split.", "ask for fewer (examples), or another split."),
        ("Add --sampling fixed, --train all.", 'Add sampling = "fixed", train = "all".'),
        ("--epsilon 3 is a common start.", "epsilon = 3 is a common start."),
        ("Expected --noise-multiplier or --epsilon for dp-sgd.", "Expected noise_multiplier or epsilon for dp-sgd."),
        ("Expected --public DATA beside --dimension.", "Expected public beside dimension."),
        ("There is no usable GPU; use --device cpu.", "There is no usable GPU; use --device cpu."),
        ("choose another --out, or change it back.", "choose another --out, or change it back."),
        ("Known keys: mix, m -- and no option.", "Known keys: mix, m -- and no option."),
    ],
)
def test_options_that_are_keys_are_said_as_keys(said: str, told: str) -> None:
    assert in_keys(said) == told


@pytest.mark.parametrize("name", PROTECTIONS)
def test_no_protection_asks_a_study_for_an_option(name: str) -> None:
    try:
        with said_in_keys():
            protect_settings(name, {})
    except SettingError as error:
        assert "--" not in str(error)
    else:
        assert name == "texthide", "the one that needs nothing said"


def test_an_error_stays_of_its_kind() -> None:
    with pytest.raises(SettingError, match=r"\(batch_size\), or mix fewer \(mix\)"), said_in_keys():
        TextHide(masks=4, mix=4).check(1, 1)
    with pytest.raises(DataError, match="public corpus, found 3 rows"), said_in_keys():
        raise DataError("public corpus, found 3 rows")
