import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from discreet.models.encoder import minilm_folder, pieces, spelled, unknown_share, unknown_words, written

TICKET = "我被重复收费了 订单375"


@pytest.fixture(scope="module")
def minilm() -> PreTrainedTokenizerBase:
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(minilm_folder(), local_files_only=True)
    return found


def test_the_share_of_unknown_tokens(minilm: PreTrainedTokenizerBase) -> None:
    assert unknown_share(minilm, [TICKET]) == pytest.approx(0.8)
    assert unknown_share(minilm, ["Knee swollen after a fall."]) == 0
    assert unknown_share(minilm, []) == 0
    assert 0.3 < unknown_share(minilm, [TICKET, "plain words"] * 3000) < 0.8
    assert unknown_share(minilm, ["x" * 101]) == 1  # a word that is too long is unknown as a whole


def test_unknown_characters_stay_as_they_were_written(minilm: PreTrainedTokenizerBase) -> None:
    assert spelled(minilm, TICKET, 64) == "我 被 重 复 收 费 了 订 单 375"
    assert pieces(minilm, "ok 😀") == ["ok", "😀"]
    assert spelled(minilm, "ok 😀 then", 64) == "ok 😀 then"


def test_a_known_text_is_spelled_as_its_tokens_are(minilm: PreTrainedTokenizerBase) -> None:
    text = "Knee SWOLLEN (left), don't café – 5.5 cm"
    ids = minilm(text, truncation=True, max_length=8)["input_ids"]
    assert spelled(minilm, text, 8) == minilm.decode(ids, skip_special_tokens=True)


def test_what_was_written_ends_where_the_model_cuts(minilm: PreTrainedTokenizerBase) -> None:
    assert written(minilm, "Knee Swollen After a fall.", 5) == "Knee Swollen After"
    assert written(minilm, "Knee Swollen", 64) == "Knee Swollen"


def test_only_a_share_that_matters_is_said() -> None:
    assert unknown_words(0.005, "minilm") is None
    assert (unknown_words(0.8, "minilm") or "").startswith("80% of the tokens are unknown to minilm")
