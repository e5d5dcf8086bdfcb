from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from discreet.attacks.base import TimeLimit
from discreet.attacks.matching.engine import set_up
from discreet.attacks.matching.objective import MeanCosine, Objective
from discreet.attacks.matching.problems import Vocabulary
from discreet.attacks.matching.word_draws import TextSampler, WordDraws
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.models.ngram import NGram
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"), labels=(0, 1, 0))
PUBLIC = ("the knee was dull and the heart was slow", "a sharp pain", "very slow walk", "the walk was dull")
QUICK = WordDraws(rounds=15, texts=16, parents=4, polish=4)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_it_reads_sentences_attacked_together(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    releases = [open_release(model, BATCH.take([i])) for i in range(3)]
    guesses = QUICK.run_many(releases, Knowledge(model=model, auxiliary=PUBLIC), Rng(0))
    exact = sum(guess.texts[0] == text for guess, text in zip(guesses, BATCH.texts, strict=True))
    assert exact >= 2
    assert all(guess.details["steps"] == 15 for guess in guesses)


def test_it_reads_through_noise_and_the_prior_helps(tiny_model: Build) -> None:
    model, defence = tiny_model("bert"), DPSGD(0.02, clip_norm=1.0)
    releases = [protected_release(model, BATCH.take([0]), defence, Rng(seed), delta=1e-5) for seed in range(4)]
    guesses = QUICK.run_many(releases, Knowledge(model=model, defence=defence, auxiliary=PUBLIC), Rng(0))
    blind = QUICK.run_many(releases, Knowledge(model=model, defence=defence), Rng(0))
    right = [sum(guess.texts[0] == BATCH.texts[0] for guess in some) for some in (guesses, blind)]
    assert right[0] >= 3
    assert right[0] >= right[1]


def test_labels_that_are_not_known_are_drawn(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = open_release(model, BATCH.take([0, 1]))
    knows = Knowledge(model=model, auxiliary=PUBLIC)
    told = replace(QUICK, polish=0).run(seen, knows, Rng(0))
    drawn = replace(QUICK, polish=0).run(replace(seen, labels=None), knows, Rng(0))
    assert len(drawn.texts) == 2
    assert drawn.details["loss"] < 2 * told.details["loss"] + 0.1
    assert len(QUICK.run(replace(seen, labels=None), knows, Rng(0)).texts) == 2


def test_the_best_texts_are_kept_in_order_and_none_twice(tiny_model: Build) -> None:
    model = tiny_model("bert")
    _, objective = set_up(
        [open_release(model, BATCH.take([i])) for i in range(2)], Knowledge(model=model), MeanCosine(), ""
    )
    vocabulary = Vocabulary.of(model, objective.imitation.words)
    settings = replace(QUICK, rounds=6)
    drawing = TextSampler(settings, objective, vocabulary, NGram.fit(PUBLIC, model.tokenizer), Rng(1))
    before = drawing.scores[:, 0].clone()
    drawing.resample(TimeLimit(), 1.0)
    assert drawing.tokens.shape[:2] == (2, 4) and drawing.rounds_done == 6
    assert bool((drawing.scores[:, 0] <= before).all())
    assert bool((drawing.scores.diff(dim=1) >= 0).all())
    for texts in drawing.tokens.flatten(2):
        assert len({tuple(text.tolist()) for text in texts}) == len(texts)
    free = objective.problems.free[:, None].expand_as(drawing.tokens)
    assert bool(torch.isin(drawing.tokens[free], vocabulary.allowed).all())
    assert torch.equal(drawing.tokens[~free], objective.problems.ids[:, None].expand_as(drawing.tokens)[~free])


def test_the_mean_slope_over_draws_ranks_the_true_words_well(tiny_model: Build) -> None:
    model, defence = tiny_model("bert"), DPSGD(0.02, clip_norm=1.0)
    seen = protected_release(model, BATCH.take([2]), defence, Rng(2), delta=1e-5)
    _, objective = set_up([seen], Knowledge(model=model, defence=defence), MeanCosine(), "")
    vocabulary = Vocabulary.of(model, objective.imitation.words)
    drawing = TextSampler(replace(QUICK, texts=64), objective, vocabulary, None, Rng(1))
    truth = torch.tensor(model.tokenizer(BATCH.texts[2])["input_ids"])
    ranks = []
    for place in objective.problems.free[0, 0].nonzero().flatten().tolist():
        pulls = drawing.slopes[0, 0, place] @ vocabulary.table[vocabulary.allowed].mT
        ranks.append(float((pulls < drawing.slopes[0, 0, place] @ vocabulary.table[truth[place]]).float().mean()))
    assert sum(ranks) / len(ranks) < 0.25  # half of the words by chance


@pytest.mark.usefixtures("slow_clock")
def test_a_time_limit_ends_the_search_with_what_it_has(tiny_model: Build) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([2]))
    guess = WordDraws(rounds=100_000, seconds=0.5).run(seen, Knowledge(model=model), Rng(0))
    assert guess.details["steps"] < 50 and guess.details["stopped_by_time_limit"]
    assert len(guess.texts) == 1


def test_a_time_limit_that_is_not_reached_changes_nothing(tiny_model: Build) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([1]))
    attack = replace(QUICK, rounds=6, polish=1)
    free = attack.run(seen, Knowledge(model=model), Rng(3))
    limited = replace(attack, seconds=1e6).run(seen, Knowledge(model=model), Rng(3))
    assert free.texts == limited.texts and free.details["loss"] == limited.details["loss"]
    assert not limited.details["stopped_by_time_limit"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0),
        ("texts", 0),
        ("parents", 99),
        ("memory", 1.0),
        ("moved", 1.5),
        ("last_sharpness", 0),
        ("seconds", 0),
    ],
)
def test_settings_outside_their_rules_are_refused(name: str, value: float) -> None:
    with pytest.raises(SettingError, match=name):
        replace(WordDraws(), **{name: value})


def test_a_text_of_one_word_is_read(tiny_model: Build) -> None:
    model = tiny_model("bert")
    seen = open_release(model, Corpus("toy", ("knee",), labels=(0,), label_names=("a", "b")))
    assert QUICK.run(seen, Knowledge(model=model, auxiliary=PUBLIC), Rng(0)).texts == ("knee",)


class Judge:
    """A prior that is no n-gram model: it only judges."""

    def surprise(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (mask.sum(-1) > 0).float()


def test_another_prior_judges_texts_and_draws_none(tiny_model: Build) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([1]))
    judged = QUICK.run(seen, Knowledge(model=model, extra={"prior": Judge()}), Rng(0))
    alone = QUICK.run(seen, Knowledge(model=model), Rng(0))
    assert judged.texts == alone.texts  # a judge that finds all texts alike changes nothing
    assert judged.details["loss"] > alone.details["loss"]


def test_slopes_and_losses_that_are_no_numbers_end_nothing(tiny_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny_model("bert"), open_release(tiny_model("bert"), BATCH.take([1]))
    right = Objective.slopes

    def broken(self: Objective, x: torch.Tensor, labels: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        losses, slopes = right(self, x, labels)
        losses[:, 0], slopes[:, :, :, 1], slopes[:, :, :, 2] = torch.nan, torch.nan, torch.inf
        return losses, slopes

    monkeypatch.setattr(Objective, "slopes", broken)
    guess = QUICK.run(seen, Knowledge(model=model, auxiliary=PUBLIC), Rng(0))
    assert len(guess.details["tokens"][0]) == 4 and guess.details["loss"] < 1


def test_more_is_asked_of_a_small_vocabulary_than_it_has(tiny_model: Build) -> None:
    model = tiny_model("bert")
    table = model.encoder.get_input_embeddings().weight.detach()
    few = Vocabulary(table, torch.tensor([7, 8]), torch.nn.functional.normalize(table[[7, 8]], dim=-1))
    assert few.nearest(table[[7]], 5).tolist() == [[7, 8]]
    assert few.cheapest(torch.tensor([7]), table[[8]], 5).shape == (1, 2)
