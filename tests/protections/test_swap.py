from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.core.errors import DataError, ModelError, SettingError
from discreet.data.corpus import Corpus
from discreet.mechanisms import word_metric as word_neighbours
from discreet.mechanisms.word_metric import choose, nearest_to_noisy
from discreet.protections.words.swap import NoisyWords, SanText, SanTextPlus, WordSwap, read_words
from discreet.protections.words.table import WordTable, farthest, listed_words, rare_words
from discreet.protections.words.token_noise import TokenNoise

TEXTS = ("The patient was calm.", "sharp pain, week 3", "dull KNEE")


@pytest.fixture(scope="module")
def table(tiny_encoder: Callable[[str], Path]) -> WordTable:
    return WordTable.of_encoder(str(tiny_encoder("bert")))


def test_the_table_holds_whole_words_only(table: WordTable) -> None:
    assert "patient" in table.words
    assert not any(word.startswith(("##", "[")) for word in table.words)
    assert table.split("The PATIENT, calm") == ["the", "patient", ",", "calm"]


def test_a_word_outside_the_vocabulary_lies_at_the_mean_of_its_pieces(table: WordTable) -> None:
    ids = table.tokenizer.encode("zebra", add_special_tokens=False).ids
    assert len(ids) == 5
    torch.testing.assert_close(table.vectors_of(["zebra"])[0], table.pieces[torch.tensor(ids)].mean(0))
    torch.testing.assert_close(table.vectors_of(["雪"])[0], table.pieces[table.unknown])


def test_nothing_is_further_apart_than_the_diameter(table: WordTable) -> None:
    places = torch.cat([table.vectors, table.vectors_of(["zebra", "雪", "abcdefg", "9"])])
    largest = float(torch.cdist(places, places).max())
    assert largest <= table.diameter
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(900, 4)) ** 3)
    assert farthest(rows) == pytest.approx(float(torch.cdist(rows, rows).max()), rel=1e-12)


@pytest.mark.slow
def test_the_stored_diameter_is_that_of_the_built_in_encoder() -> None:
    built_in = WordTable.of_encoder("minilm")
    assert built_in.measured_diameter() <= built_in.diameter <= 1.0001 * built_in.measured_diameter()


def test_choices_have_the_stated_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_neighbours, "_CHOICE_BLOCK", 2)
    words = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 3)))
    place = words[:3] + 0.1
    place[1] = words[1]
    which = np.repeat(np.arange(3), 40_000)
    drawn = choose(place, words, 1.7, which, Rng(4), lambda done: None)
    for row in range(3):
        weight = np.exp(-1.7 / 2 * torch.cdist(place[row : row + 1], words)[0].numpy())
        counts = np.bincount(drawn[which == row], minlength=7)
        assert stats.chisquare(counts, weight / weight.sum() * 40_000).pvalue > 1e-3


def test_noise_takes_the_nearest_word(monkeypatch: pytest.MonkeyPatch) -> None:
    words = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 6)))
    seen: list[torch.Tensor] = []
    plain = word_neighbours.noisy_points

    def remember(places: torch.Tensor, price: float, rng: Rng) -> torch.Tensor:
        seen.append(plain(places, price, rng))
        return seen[-1]

    monkeypatch.setattr(word_neighbours, "noisy_points", remember)
    drawn = nearest_to_noisy(words, words, 3.0, np.arange(40), Rng(2), lambda done: None)
    np.testing.assert_array_equal(drawn, torch.cdist(torch.cat(seen), words).argmin(1).numpy())
    assert (drawn != np.arange(40)).any()


def test_noise_has_the_length_that_its_price_says() -> None:
    noise = word_neighbours.noisy_points(torch.zeros(4000, 12, dtype=torch.float64), 2.0, Rng(3))
    assert float(noise.norm(dim=1).mean()) == pytest.approx(6.0, rel=0.03)
    assert float(noise.mean(0).abs().max()) < 0.15


@pytest.mark.parametrize("mechanism", ["santext", "noise"])
def test_a_high_price_keeps_known_words_and_a_low_one_does_not(table: WordTable, mechanism: str) -> None:
    kept, few = WordSwap(table, 1e5, mechanism).swap(TEXTS, Rng(1))
    assert kept == ("the patient was calm .", "sharp pain , week 3", "dull knee")
    assert (few.changed, few.unknown, few.words, few.longest) == (0, 0, 12, 5)
    changed, many = WordSwap(table, 0.1, mechanism).swap(TEXTS, Rng(1))
    assert many.changed >= 8
    assert [len(text.split()) for text in changed] == [5, 5, 2]


def test_every_word_out_is_a_word_of_the_table_also_for_unknown_ones(table: WordTable) -> None:
    texts = ["zebra quagga 雪 🙂 \u200b", "x" * 300, "\x01"]
    for mechanism in ("santext", "noise"):
        out, changes = WordSwap(table, 1e5, mechanism).swap(texts, Rng(1))
        assert set(" ".join(out).split()) <= set(table.words)
        assert changes.unknown == changes.words == changes.changed
    with pytest.raises(DataError, match="word 2 of text 2 is not"):
        WordSwap(table, 8, unknown="refuse").swap(["calm", "calm zebra"], Rng(1))


def test_marks_are_drawn_too_unless_they_are_kept(table: WordTable) -> None:
    drawn, _ = WordSwap(table, 0.01).swap([". . . . . . . . . ."], Rng(1))
    assert drawn[0].split().count(".") < 5
    kept, changes = WordSwap(table, 0.01, keep_marks=True).swap([". , calm !"], Rng(1))
    assert kept[0].split()[:2] == [".", ","]
    assert changes.kept_marks == 3


def test_two_draws_from_one_source_differ_and_a_seed_repeats(table: WordTable) -> None:
    swap = WordSwap(table, 5.0)
    rng = Rng(7)
    first, second = swap.swap(TEXTS, rng)[0], swap.swap(TEXTS, rng)[0]
    assert first != second
    assert swap.swap(TEXTS, Rng(7))[0] == first


def test_sensitive_words_stay_among_themselves_and_others_mostly_stay(table: WordTable) -> None:
    sensitive = listed_words(table, ["knee", "heart", "Lung"])
    swap = WordSwap(table, 1.0, "santext+", sensitive, sample_others=0.25)
    text = " ".join(["heart calm zebra"] * 2000)
    out = swap.swap([text], Rng(1))[0][0].split()
    hearts, calms, zebras = set(out[0::3]), out[1::3], set(out[2::3])
    assert hearts == zebras == {"knee", "heart", "lung"}
    assert set(calms) == {"calm", "knee", "heart", "lung"}
    assert calms.count("calm") / 2000 == pytest.approx(0.75, abs=0.04)
    assert not swap.text_guarantee(4).exists
    assert "as they are" in str(swap.word_guarantee())


def test_rare_words_are_those_that_public_text_uses_least(table: WordTable) -> None:
    sensitive = rare_words(table, ["the the film was good"] * 3, share=0.99)
    assert not sensitive[table.rows["the"]]
    assert sensitive[table.rows["good"]]
    assert sensitive[table.rows["cough"]]
    with pytest.raises(DataError, match="public text"):
        rare_words(table, ["雪"])


def test_the_guarantee_is_pure_per_word_and_adds_up_over_a_text(table: WordTable) -> None:
    swap = WordSwap(table, 2.0)
    word, text = swap.word_guarantee(), swap.text_guarantee(6)
    assert (word.epsilon, word.delta, word.unit, word.certified) == (2.0, 0.0, "word", True)
    assert (text.epsilon, text.delta) == (12.0, 0.0)
    assert not swap.word_guarantee(secret=False).certified
    assert WordSwap(table, 0.1).text_guarantee(100, 1e-5).epsilon < 6
    assert swap.release(TEXTS, Rng.secret()).guarantee == swap.text_guarantee(5)


def test_the_worst_loss_of_a_choice_is_within_the_price(table: WordTable) -> None:
    swap = WordSwap(table, 3.0)
    places = torch.cat([table.vectors, table.vectors_of(["zebra", "雪", "quagga"])])
    logs = -swap.price / 2 * torch.cdist(places, table.vectors)
    logs = logs - logs.logsumexp(1, keepdim=True)
    loss = (logs[:, None] - logs[None]).amax(-1)
    share = torch.cdist(places, places) / table.diameter
    assert bool((loss <= 3.0 * share + 1e-6).all())
    assert float(loss.max()) > 1.0


def test_a_corpus_costs_its_wordiest_unit(table: WordTable) -> None:
    corpus = Corpus("toy", TEXTS, labels=(0, 1, 0), units=("a", "b", "a"), second=("calm", "calm day", "rest"))
    swap = WordSwap(table, 2.0)
    assert swap.cost(corpus).count == 9  # a: 5 + 1 + 2 + 1
    new = swap.rewrite(corpus, Rng(1))
    assert (new.labels, new.units) == (corpus.labels, corpus.units)
    assert [len(text.split()) for text in new.texts] == [5, 5, 2]
    assert new.second is not None
    assert [len(text.split()) for text in new.second] == [1, 2, 1]
    assert any("alone has epsilon = 2" in each for each in swap.stated(swap.text_guarantee(9)).assumptions)
    dearer = WordSwap(table, 2.000001)
    assert any("epsilon = 2.00001 and" in each for each in dearer.stated(dearer.text_guarantee(9)).assumptions)


def test_token_noise_releases_a_vector_for_each_word(table: WordTable) -> None:
    release = TokenNoise(table, 1e6).release(["calm knee", "zebra"], Rng.secret())
    assert release.vectors.shape == (2, 2, 16)
    torch.testing.assert_close(release.vectors[0].double(), table.vectors_of(["calm", "knee"]), atol=1e-3, rtol=0)
    assert float(release.vectors[1, 1].abs().max()) == 0
    assert release.guarantee is not None
    assert release.guarantee.epsilon == 2e6


def test_settings_refuse_what_they_cannot_mean(table: WordTable, tmp_path: Path) -> None:
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SettingError, match="epsilon_per_word"):
            SanText(bad)
        with pytest.raises(SettingError, match="epsilon_per_word"):
            WordSwap(table, bad)
    with pytest.raises(SettingError, match="Expected epsilon_per_word"):
        NoisyWords()
    with pytest.raises(SettingError, match="Expected sensitive"):
        SanTextPlus(8.0)
    with pytest.raises(SettingError, match="santext\\+"):
        WordSwap(table, 8.0, "santext+")
    with pytest.raises(DataError, match="at least 2 words"):
        listed_words(table, ["knee", "雪"])
    with pytest.raises(ModelError, match="tokenizer.json"):
        WordTable.of_encoder(str(tmp_path))


def test_another_list_is_another_draw(table: WordTable) -> None:
    one = WordSwap(table, 8.0, "santext+", listed_words(table, ["knee", "heart"]))
    two = WordSwap(table, 8.0, "santext+", listed_words(table, ["knee", "lung"]))
    assert repr(one) != repr(two)


def test_a_list_of_words_is_read_however_its_lines_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that is missed would not count as sensitive."""
    path = tmp_path / "words.txt"
    for end in ("\n", "\r\n", "\r", "\u2028"):
        path.write_bytes(f"\ufeffKnee {end}{end} heart{end}caf\u00e9".encode())
        assert read_words(path) == ["Knee", "heart", "caf\u00e9"]
    path.write_bytes("caf\u00e9".encode("cp1252"))
    with pytest.raises(DataError, match="iconv"):
        read_words(path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="Expected a file"):
        read_words(Path("-"))  # stdin holds the text, not the list
