import pytest

from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.protections.local.decoys import Decoys


def test_decoys_are_made_of_public_words_alone() -> None:
    decoys = Decoys.of_vocabulary(["good", "film", "##ing", "[CLS]", "Bad", "x", "knee"], shortest=2, longest=5)
    drawn = decoys.draw(200, Rng(0))
    assert {word for text in drawn for word in text.split()} == {"good", "film", "knee"}
    assert {len(text.split()) for text in drawn} == {2, 3, 4, 5}
    assert drawn == decoys.draw(200, Rng(0))
    assert decoys.draw(0, Rng(0)) == ()


def test_public_sentences_serve_as_well() -> None:
    assert set(Decoys(sentences=("one text", "another")).draw(50, Rng(0))) == {"one text", "another"}


def test_decoys_of_nothing_are_refused() -> None:
    with pytest.raises(SettingError, match="words"):
        Decoys()
    with pytest.raises(DataError, match="complete words"):
        Decoys.of_vocabulary(["##a", "[PAD]"])
    with pytest.raises(SettingError, match="longest"):
        Decoys(words=("a",), shortest=4, longest=3)
