"""A private search: one event in the ledger, the same trials after a stop, and only the winner left."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet.accounting.events import RepeatAndSelectDpEvent
from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Ledger
from discreet.core.errors import LedgerError, ModelError, SettingError
from discreet.core.guarantee import Adjacency, Caveat
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.checkpoint import copy_weights
from discreet.runs.folder import SEARCH, secret_of
from discreet.training.loop import Job
from discreet.training.tuning import SearchPlan, Tuned, candidates_of, tune

GRID = {"learning_rate": [0.001, 0.1], "clip_norm": [0.1, 1.0]}
SHORT = TrainSettings(epochs=2, batch_size=20)


@pytest.fixture(scope="module")
def corpus(toy_csv: Path) -> Corpus:
    return load(toy_csv, classes=("clinic", "ward"))


@pytest.fixture(scope="module")
def build(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> Callable[[], Classifier]:
    return lambda: Classifier.build(corpus, rng=Rng(1), encoder=str(tiny_encoder("bert")), train="head")


@pytest.fixture(scope="module")
def search(build: Callable[[], Classifier], corpus: Corpus) -> SearchPlan:
    return SearchPlan.make(build(), corpus, GRID, protect=DPSGD(epsilon=4), trials=4, training=SHORT)


def test_the_plan_stays_within_the_budget_and_names_its_cost(search: SearchPlan) -> None:
    plan = search.whole
    assert plan.delta is not None and plan.adjacency is Adjacency.ZERO_OUT
    assert 3.9 < epsilon(search.event, plan.delta, plan.adjacency) <= 4.0
    assert search.trial_epsilon < 4.0 and len(search.plans) == 4
    noises = {one.protect.noise for one in search.plans if isinstance(one.protect, DPSGD)}
    assert len(noises) == 1  # rates and clip norms do not change the cost
    assert {one.protect.clip_norm for one in search.plans if isinstance(one.protect, DPSGD)} == {0.1, 1.0}
    assert {one.settings.learning_rate for one in search.plans} == {0.001, 0.1}


def test_the_default_settings_are_drawn_as_often_as_all_others(build: Callable[[], Classifier], corpus: Corpus) -> None:
    def shares(**grid: Any) -> dict[Any, float]:
        plan = SearchPlan.make(build(), corpus, grid, protect=DPSGD(epsilon=4), trials=4, training=SHORT)
        return {tuple(one.values()): share for one, share in zip(plan.candidates, plan.shares, strict=True)}

    rates = [0.001, 0.02, 0.1]  # 0.02 is the default of a head
    assert shares(learning_rate=rates) == {(0.001,): 0.25, (0.02,): 0.5, (0.1,): 0.25}
    mixed = shares(learning_rate=[0.001, 0.02], epochs=[1.0, 2.0])  # two epochs are what the user asked for
    assert mixed[(0.02, 2.0)] == 0.5 and sum(mixed.values()) == pytest.approx(1.0)
    assert set(shares(learning_rate=[0.001, 0.1]).values()) == {0.5}


def test_a_search_is_one_event_and_leaves_the_winner_in_the_model(
    search: SearchPlan, build: Callable[[], Classifier], corpus: Corpus
) -> None:
    results = []
    for secret in (Rng.secret(bytes(32)), Rng.secret(bytes(32))):
        model = build()
        with search.whole.open_ledger() as ledger:
            tuned = tune(model, corpus, search, ledger=ledger, secret=secret)
            assert [count for _, count in ledger.statement.spent] == [1]
            assert isinstance(ledger.statement.spent[0][0], RepeatAndSelectDpEvent)
        results.append((tuned.winner, tuned.score, *copy_weights(model).values()))
        assert tuned.guarantee is not None and tuned.guarantee.certified and tuned.guarantee.epsilon <= 4.0
        assert tuned.plan == search.plans[tuned.winner]
    same, again = results
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(same, again, strict=True))


def test_two_searches_with_one_secret_share_no_noise_and_are_two_spends(
    search: SearchPlan, build: Callable[[], Classifier], corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They differ in their settings, in their first weights or in the text of their public rows alone."""
    from discreet.training import tuning

    draws: list[float] = []

    def trial(self: Any, number: int, candidate: int) -> float:
        draws.append(float(self.source.fork("score", number).uniform(1)[0]))
        return draws[-1]

    monkeypatch.setattr(tuning._Search, "trial", trial)
    public = replace(corpus.split("train"), name="public")
    other = replace(public, texts=("calm heart", *public.texts[1:]))
    searches = [search, replace(search, plans=search.plans[:2], shares=(0.5, 0.5))]
    searches += [replace(search, public=one, score_noise=None) for one in (public, other)]
    secret, moved = Rng.secret(bytes(32)), build()
    with torch.no_grad():
        next(moved.head.parameters()).add_(1.0)
    with Ledger.open(None, unit=search.whole.unit, adjacency=Adjacency.ZERO_OUT) as ledger:
        for one, model in (*((each, build()) for each in searches), (search, moved)):
            tune(model, corpus, one, ledger=ledger, secret=secret)
        assert ledger.statement.spends == 5 and len(set(draws)) == len(draws)
        tune(build(), corpus, search, ledger=ledger, secret=secret)
        assert ledger.statement.spends == 5 and len(set(draws)) < len(draws)


def test_the_winner_has_the_best_score_and_its_settings(
    build: Callable[[], Classifier], corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trial is scored by its learning rate; the largest one that was drawn wins."""
    from discreet.training import tuning

    model = build()
    grid = {"learning_rate": [0.001, 0.002, 0.003, 0.1]}
    search = SearchPlan.make(model, corpus, grid, protect=DPSGD(epsilon=4), trials=20, training=SHORT)
    rates: list[float] = []

    def trial(self: Any, number: int, candidate: int) -> float:
        rates.append(search.candidates[candidate]["learning_rate"])
        with torch.no_grad():
            next(iter(self.first.values()))
            for parameter in copy_weights(self.model):
                self.model.get_parameter(parameter).fill_(rates[-1])
        return rates[-1]

    monkeypatch.setattr(tuning._Search, "trial", trial)
    tuned = tune(model, corpus, search, secret=Rng.secret(bytes(32)))
    assert len(rates) > 4 and tuned.score == max(rates)
    assert search.candidates[tuned.winner] == {"learning_rate": max(rates)}
    assert all(bool((value == torch.tensor(max(rates))).all()) for value in copy_weights(model).values())


def test_a_stopped_search_resumes_with_the_same_trials_and_is_counted_once(
    search: SearchPlan, build: Callable[[], Classifier], corpus: Corpus, tmp_path: Path
) -> None:
    key = bytes(31) + b"7"
    whole = tune(model := build(), corpus, search, secret=Rng.secret(key))
    expected = copy_weights(model)
    stops = iter(range(1000))

    def run() -> tuple[Tuned, Classifier]:
        limit = next(stops)
        calls = iter(range(10_000))
        job = Job(
            tmp_path, checkpoint_seconds=1e9, should_stop=lambda: next(calls) >= 2 * limit + 2
        )  # less than a trial in two runs
        model = build()
        with search.whole.open_ledger(tmp_path / "ledger.jsonl") as ledger:
            return tune(model, corpus, search, ledger=ledger, secret=Rng.secret(key), job=job), model

    tuned, model = run()
    runs = 1
    assert not tuned.finished
    while not tuned.finished:
        tuned, model = run()
        runs += 1
    assert runs > 2
    assert (tuned.winner, tuned.score) == (whole.winner, whole.score)
    assert all(torch.equal(value, expected[name]) for name, value in copy_weights(model).items())
    assert Ledger.read(tmp_path / "ledger.jsonl").spends == 1


def test_a_search_resumes_only_with_its_data_settings_and_ledger(
    search: SearchPlan, build: Callable[[], Classifier], corpus: Corpus, tmp_path: Path
) -> None:
    job = Job(tmp_path, should_stop=lambda: True)
    secret = secret_of(tmp_path)
    with search.whole.open_ledger(tmp_path / "ledger.jsonl") as ledger:
        assert not tune(build(), corpus, search, ledger=ledger, secret=secret, job=job).finished
        rows = np.flatnonzero(np.array(corpus.splits) == "train")
        texts = list(corpus.texts)
        texts[int(rows[0])] = "another text"
        with pytest.raises(ModelError, match="something has changed"):
            tune(build(), replace(corpus, texts=tuple(texts)), search, ledger=ledger, secret=secret, job=job)
        longer = SearchPlan.make(build(), corpus, GRID, protect=DPSGD(epsilon=4), trials=5, training=SHORT)
        with pytest.raises(ModelError, match="something has changed"):
            tune(build(), corpus, longer, ledger=ledger, secret=secret, job=job)
    progress = json.loads((tmp_path / SEARCH).read_text())
    (tmp_path / SEARCH).write_text(json.dumps({**progress, "done": 1}))
    with pytest.raises(LedgerError, match="was lost"):
        tune(build(), corpus, search, ledger=search.whole.open_ledger(), secret=secret, job=job)


@pytest.mark.slow
def test_public_text_scores_for_free_and_fixed_seeds_give_an_estimate(
    search: SearchPlan, build: Callable[[], Classifier], corpus: Corpus
) -> None:
    public = corpus.split("validation")
    options: dict[str, Any] = {"protect": DPSGD(epsilon=4), "trials": 4, "train": SHORT}
    free = SearchPlan.make(build(), corpus, GRID, public=public, noise_seed=3, population=200, **options)
    assert free.score_noise is None and free.whole.adjacency is Adjacency.ADD_REMOVE
    assert free.facts(build())["scored_on"].startswith("public")
    tuned = tune(build(), corpus, free)
    assert tuned.guarantee is not None and tuned.guarantee.caveats == {Caveat.FIXED_SEED}
    assert (tuned.score * len(public)) == pytest.approx(round(tuned.score * len(public)))
    assert tune(build(), corpus, free).score == tuned.score
    assert search.facts(build())["score_noise"] > 0


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "2 to 10,000 combinations"),
        ({"learning_rate": [0.1]}, "needs no search"),
        ({"learning_rat": [0.1, 0.2]}, "Did you mean 'learning_rate'"),
        ({"patience": [1, 2]}, "can be tried"),
        ({"learning_rate": []}, "one or more values"),
        ({"learning_rate": "0.1"}, "one or more values"),
        ({"learning_rate": [0.1, 0.1]}, "different values"),
        ({"learning_rate": list(range(200)), "epochs": list(range(200))}, "fewer values"),
    ],
)
def test_grids_that_cannot_be_searched_are_rejected_with_a_remedy(grid: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        candidates_of(grid)


def test_what_a_search_cannot_do_is_rejected_with_a_remedy(build: Callable[[], Classifier], corpus: Corpus) -> None:
    model = build()
    for protect in (DPSGD(noise_multiplier=1.0), DPSGD(epsilon=3, noise_multiplier=1.0), DirDPSGD(kappa=10.0)):
        with pytest.raises(SettingError, match="protect"):
            SearchPlan.make(model, corpus, GRID, protect=protect, training=SHORT)
    with pytest.raises(SettingError, match="patience"):
        SearchPlan.make(model, corpus, GRID, protect=DPSGD(epsilon=3), training=replace(SHORT, patience=2))
    with pytest.raises(SettingError, match="learning_rate"):
        SearchPlan.make(model, corpus, {"learning_rate": [0.1, -1.0]}, protect=DPSGD(epsilon=3), training=SHORT)
    with pytest.raises(SettingError, match="of type float"):
        SearchPlan.make(model, corpus, {"learning_rate": [0.1, "x"]}, protect=DPSGD(epsilon=3), training=SHORT)
    with pytest.raises(SettingError, match="trials"):
        SearchPlan.make(model, corpus, GRID, protect=DPSGD(epsilon=3), trials=math.nan, training=SHORT)
