import hashlib

import pytest

from discreet.attacks.base import Need
from discreet.attacks.extraction.pseudonyms import HASHES, PseudonymDictionary, pseudonymizer, spellings
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, TextRelease

NAMES = tuple(f"{first} {last}" for first in ("Ana", "Bo", "Cleo") for last in ("Ruiz", "Lee", "Okafor"))


def reversed_names(scheme: str, digits: int = 16, spelling: int = 0) -> list[bool]:
    pseudonym = pseudonymizer(scheme, digits, Rng(0))
    texts = tuple(f"{pseudonym(list(spellings(name))[spelling])} came with a cough." for name in NAMES)
    guess = PseudonymDictionary().run(TextRelease(texts), Knowledge(extra={Need.DICTIONARY.value: NAMES}), Rng(1))
    return [found == name for found, name in zip(guess.texts, NAMES, strict=True)]


@pytest.mark.parametrize("scheme", HASHES)
@pytest.mark.parametrize("digits", [8, 16, 200])
def test_a_hash_without_a_key_is_reversed(scheme: str, digits: int) -> None:
    assert all(reversed_names(scheme, digits))


@pytest.mark.parametrize("scheme", ["hmac", "random"])
def test_a_secret_key_protects_the_names(scheme: str) -> None:
    assert not any(reversed_names(scheme))


def test_other_spellings_are_tried() -> None:
    assert all(reversed_names("sha1", spelling=3))


def test_a_pseudonym_is_the_known_hash_and_the_same_for_the_same_name() -> None:
    pseudonym = pseudonymizer("sha256", 64, Rng(0))
    assert pseudonym("Ana Ruiz") == hashlib.sha256(b"Ana Ruiz").hexdigest() == pseudonym("Ana Ruiz")
    random = pseudonymizer("random", 16, Rng(0))
    assert random("Ana Ruiz") == random("Ana Ruiz") != random("Bo Lee")


def test_bad_settings_are_rejected() -> None:
    with pytest.raises(SettingError, match="scheme"):
        PseudonymDictionary(scheme="rot13")
    with pytest.raises(SettingError, match="digits"):
        PseudonymDictionary(digits=2)
    with pytest.raises(UnsupportedError, match="names to try"):
        PseudonymDictionary().run(TextRelease(("a",)), Knowledge(), Rng(0))
