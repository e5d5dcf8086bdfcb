"""Private tuning: train a random number of candidates with DP-SGD, score each with noise, release only the best.

`SearchPlan` holds everything the search needs and costs, and `tune` executes it. The whole search is one event in the
ledger, written before the first trial: a random number of trials, each with settings that are drawn from the grid
without the data, all with the same epsilon. `discreet.accounting.selection` has the proof.

Paper: Papernot and Steinke 2022, Hyperparameter tuning with Renyi differential privacy.
Differs: the number of trials is Poisson, conditioned on at least one; its cost is computed from the privacy curve of a
    trial; the score is a noisy sum over the training units, or computed on public text.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.calibrate import search_noise
from discreet.accounting.events import event_to_json
from discreet.accounting.ledger import Budget, Ledger
from discreet.accounting.selection import runs_for
from discreet.core.errors import LedgerError, did_you_mean, invalid, setting
from discreet.core.files import load_tensors, save_tensors, write_atomic
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng, weights_digest
from discreet.core.settings import parse
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus, Grouped, unit_numbers
from discreet.mechanisms.gaussian import Gaussian
from discreet.models.base import TextModel
from discreet.models.build import matched, matched_split, ready
from discreet.models.classifier import classifier_of
from discreet.models.language_model import LanguageModel
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection, trust_in
from discreet.protections.dp_sgd import DPSGD
from discreet.runs import checkpoint
from discreet.runs.checkpoint import copy_weights, restore_weights
from discreet.runs.folder import BEST, SEARCH, TRIAL
from discreet.runs.people import Entry
from discreet.training.account import Account, of_gradients
from discreet.training.evaluation import predict, token_totals
from discreet.training.loop import Job, ready_ledger, ready_secret, train
from discreet.training.plan import PrivatePlan
from discreet.training.steps import encoding_watch

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def row_scores(model: TextModel, rows: Tokens | Vectors, precision: str = "auto") -> Floats:
    """Return the score of every row, in [0, 1]; a NaN, of a model whose training diverged, counts as 0.

    NaN has no place in an order, and the cost of choosing the best holds for an order of all results.

    Guarantee: none, the scores are computed from private rows; `private_score` releases their mean with noise.
    """
    if isinstance(model, LanguageModel):
        assert isinstance(rows, Tokens)
        losses, counts, _ = token_totals(model, rows, precision)
        return np.nan_to_num(np.asarray(np.exp(-losses / np.maximum(counts, 1)), dtype=np.float64), nan=0.0)
    predictions = predict(classifier_of(model, "scores"), rows, precision).best
    truth = rows.targets.cpu().numpy()
    if model.task.has_scores:
        errors = np.asarray(predictions - truth.reshape(-1), dtype=np.float64)
        return np.nan_to_num(1 / (1 + np.square(errors)), nan=0.0)
    return np.asarray(predictions == truth, dtype=np.float64)


def unit_scores(scores: Floats, unit_index: Ints) -> Floats:
    """Return the score of every unit, the mean of its rows.

    >>> unit_scores(np.array([1.0, 0.0, 1.0]), np.array([0, 0, 1]))
    array([0.5, 1. ])
    """
    return np.asarray(np.bincount(unit_index, weights=scores) / np.bincount(unit_index), dtype=np.float64)


def private_score(scores: Floats, unit_index: Ints, units: int, noise: float, rng: Rng) -> float:
    """Return the mean score of the units with Gaussian noise of standard deviation noise / units.

    `units` is their public number, the divisor. A NaN, of a model whose training diverged, counts as 0.

    Guarantee: that of `ClippedSumDpEvent(noise)`: adding, removing or emptying one unit changes the sum by at most 1.
    """
    total = float(np.clip(np.nan_to_num(unit_scores(scores, unit_index), nan=0.0), 0.0, 1.0).sum())
    return float(Gaussian(noise)(np.array([total]), rng)[0]) / units


OF_TRAINING = (
    "epochs", "batch_size", "learning_rate", "head_rate", "warmup", "weight_decay", "optimizer", "momentum",
    "averaging",
)  # fmt: skip
OF_PROTECTION = ("clip_norm", "clipping")
_MOST_CANDIDATES = 10_000
_MOST_BY_DEFAULT = 10  # mean number of trials, if it is not set
_SEARCHED = "search"  # the name of the spend of a whole search
ROUNDED = "the score of a row is computed from that row alone; the rounding of float32 is treated as exact"


def candidates_of(grid: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], ...]:
    """Return every combination of the values of a grid.

    >>> candidates_of({"learning_rate": [0.01, 0.1], "epochs": [10]})
    ({'learning_rate': 0.01, 'epochs': 10}, {'learning_rate': 0.1, 'epochs': 10})
    """
    known = (*OF_TRAINING, *OF_PROTECTION)
    for name, values in grid.items():
        if name not in known:
            remedy = did_you_mean(name, known) or f"Known: {', '.join(known)}."
            raise invalid("try", name, "the name of a setting that can be tried", remedy)
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise invalid("try", {name: values}, "one or more values for each setting", f"For example {_EXAMPLE}.")
        if len({repr(value) for value in values}) < len(values):
            raise invalid("try", {name: list(values)}, "different values", "Name every value once.")
    count = math.prod(len(values) for values in grid.values())
    if not 2 <= count <= _MOST_CANDIDATES or not grid:
        remedy = f"One combination needs no search: train with it. {_EXAMPLE} tries three."
        if count > _MOST_CANDIDATES:
            remedy = "Try fewer values: a search sees only a few combinations."
        raise invalid("try", count if grid else 0, f"2 to {_MOST_CANDIDATES:,} combinations of settings", remedy)
    return tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


_EXAMPLE = "learning_rate=0.01,0.03,0.1"


@dataclass(frozen=True)
class SearchPlan:
    """Everything a private search needs and costs.

    `plans` are the training plans of the `candidates`. `shares` are the probabilities with which a trial draws them:
    the default settings, if they are a candidate, are drawn as often as all others together. `event` is the cost of
    the whole search, at most `budget`; `trial_epsilon` is that of one trial alone. Trials are scored on the `public`
    corpus, or else on the training rows with noise of standard deviation `score_noise`, in units.
    """

    candidates: tuple[Mapping[str, Any], ...]
    plans: tuple[PrivatePlan, ...]
    shares: tuple[float, ...]
    trials: float
    event: DpEvent
    budget: Budget
    trial_epsilon: float
    score_noise: float | None
    public: Corpus | None = field(default=None, repr=False)

    @classmethod
    def make(
        cls,
        model: TextModel,
        corpus: Corpus,
        grid: Mapping[str, Sequence[Any]],
        *,
        protect: Protection,
        trials: float | None = None,
        training: TrainSettings | None = None,
        public: Corpus | None = None,
        population: int | None = None,
        seed: int = 0,
        noise_seed: int | None = None,
        max_per_unit: int | None = None,
    ) -> SearchPlan:
        """Return the plan of a search over a grid of settings, such as {"learning_rate": [0.01, 0.1]}.

        Args:
            model: The model, with its first weights.
            corpus: The text; its train split is trained on.
            grid: The values of each setting that is tried.
            protect: The budget of the whole search, and settings of the protection that are not tried.
            trials: The mean of the random number of trials; by default the number of candidates, at most 10.
            training: Settings of the training that are not tried.
            public: Labelled text that needs no protection: trials are then scored on it, at no cost; otherwise on the
                training rows, with noise.
            population: A public number of units in place of the actual one.
            seed: Seed of everything that is not noise.
            noise_seed: Makes batches and noise repeatable, and the guarantee an estimate.
            max_per_unit: The largest number of rows of one unit, chosen without looking at the corpus.

        Guarantee: the search and its winner spend at most the epsilon of `protect` for each unit.
        """
        total = _checked(protect)
        if training is not None and training.patience is not None:
            remedy = "Early stopping reads held-out rows; try several numbers of epochs instead."
            raise invalid("patience", training.patience, "left out of a private search", remedy)
        candidates = candidates_of(grid)
        mean = float(min(len(candidates), _MOST_BY_DEFAULT)) if trials is None else trials
        choices = []
        for candidate in ({}, *candidates):
            chosen = {name: value for name, value in candidate.items() if name in OF_TRAINING}
            own = {name: value for name, value in candidate.items() if name in OF_PROTECTION}
            settings = parse(TrainSettings, {**vars(training or TrainSettings()), **chosen}, "try")
            table = {**vars(total), "epsilon": None, "noise_multiplier": 1.0, **own}
            choices.append((settings, parse(DPSGD, table, "try")))
        first, *plans = PrivatePlan.candidates(
            model,
            corpus,
            choices,
            population=population,
            seed=seed,
            noise_seed=noise_seed,
            max_per_unit=max_per_unit,
        )
        usual = [(plan.settings, plan.protect) == (first.settings, first.protect) for plan in plans]
        kinds = list(dict.fromkeys(map(_kind, plans)))
        search = search_noise(
            [_training(plans[[_kind(plan) for plan in plans].index(kind)]) for kind in kinds],
            mean=mean,
            epsilon=total.epsilon or 0.0,
            delta=first.delta,
            adjacency=first.adjacency,
            scored=public is None,
        )
        noises = dict(zip(kinds, search.noises, strict=True))
        return cls(
            candidates,
            tuple(replace(plan, protect=_with_noise(plan, noises[_kind(plan)])) for plan in plans),
            _shares(usual),
            mean,
            search.event,
            Budget(total.epsilon or 0.0, first.delta),
            search.trial_epsilon,
            search.score_noise,
            public,
        )

    @property
    def whole(self) -> PrivatePlan:
        """The plan of a trial, with the budget of the whole search."""
        return replace(self.plans[0], budget=self.budget)

    def facts(self, model: TextModel) -> dict[str, Any]:
        """Return what may be released about the search besides its winner; never the number of trials."""
        units = self.whole.units
        return {
            "candidates": [dict(candidate) for candidate in self.candidates],
            "shares": list(self.shares),
            "mean_trials": self.trials,
            "distribution": "Poisson, at least one trial",
            "trial_epsilon": self.trial_epsilon,
            "score": model.task.row_score,
            "scored_on": "training rows" if self.public is None else f"public text ({self.public.name})",
            "score_noise": None if self.score_noise is None else self.score_noise / units,
        }


@dataclass(frozen=True)
class Tuned:
    """Result of a search: the winner's number among the candidates, its score and plan, and the guarantee of all.

    `finished` is False if the search was stopped; then there is no winner yet.
    """

    finished: bool
    winner: int = 0
    score: float = math.nan
    plan: PrivatePlan | None = None
    guarantee: Guarantee | None = None
    truncated: int = 0


def tune(
    model: TextModel,
    corpus: Corpus,
    search: SearchPlan,
    *,
    ledger: Ledger | None = None,
    secret: Rng | None = None,
    job: Job | None = None,
) -> Tuned:
    """Search for the best settings and leave the winner's weights in the model; the model is changed in place.

    The cost of the whole search is written to the ledger, and to this machine's record of the people in the corpus
    (`people_totals`, `discreet ledger`), before the first trial. The number of trials, the candidates
    and all noise come from `secret`: called again with the same arguments and workspace, a stopped search resumes with
    the same trials, and is counted once. Only the winner may be released: progress shows the others to the data holder.

    Args:
        model: The model, with its first weights.
        corpus: The text; its train split is trained on.
        search: The plan of the search.
        ledger: An open ledger that every step is counted in; by default one in the workspace of the job, or in memory.
        secret: The source of batches and noise; by default that of the plan.
        job: Where checkpoints go, what is told to whom, and when to stop.

    Guarantee: that of the event of the search, for the units of the train split, in the result.
    """
    job, plan = job or Job(), search.whole
    split = matched_split(corpus, model, "train")
    plan.check(split)
    with ExitStack() as opened:
        secret = ready_secret(plan, secret, job.workspace)
        planned = {event_to_json(search.event): 1}
        ledger = ready_ledger(plan, ledger, secret, job.workspace, opened, split, "discreet.training.tune", planned)
        rows = job.encoded
        if rows is None:
            rows = ready(model, split, job.cache, plan.settings.precision, encoding_watch(job.watch))
        public = None
        if search.public is not None:
            public = ready(model, matched(search.public, model), None, plan.settings.precision)
        tuned = _Search(model, corpus, split, search, ledger, secret, job, rows, public).run()
        if isinstance(ledger.also, Entry):
            ledger.also.ended = tuned.finished
        return tuned


@dataclass
class _Search:
    """The state of one search while it runs."""

    model: TextModel
    corpus: Corpus
    split: Corpus
    search: SearchPlan
    ledger: Ledger
    secret: Rng
    job: Job
    rows: Tokens | Vectors
    public: Tokens | Vectors | None

    def __post_init__(self) -> None:
        self.plan = self.search.whole
        self.first = copy_weights(self.model)
        start = weights_digest(self.model, leave_out="encoder" if self.model.settings.frozen else None)
        described = (
            [(plan.settings, plan.protect, plan.sampler, plan.steps) for plan in self.search.plans],
            self.search.shares,
            event_to_json(self.search.event),
            Grouped.of(unit_numbers(self.split)),
            self.plan.population,
            None if self.public is None else (checkpoint.columns_of(self.public), self.public.targets),
            self.secret,
        )
        self.identity = checkpoint.identity(self.model, self.rows, self.plan.settings, described, self.plan.rng, start)
        scored = () if self.public is not None else (ROUNDED,)
        run = checkpoint.spend_name(self.identity, self.secret, self.ledger)
        self.account = Account(self.plan, self.ledger, self.secret, (*of_gradients(self.plan), *scored), run=run)

    @property
    def source(self) -> Rng:
        """Source of the number of trials, their settings and all noise, different for every search with one secret.

        A fixed seed is there to repeat a search, and its guarantee is an estimate in any case.
        """
        return self.secret.fork("search", self.identity) if self.secret.is_secret else self.secret

    def run(self) -> Tuned:
        """Take every trial, and restore the best."""
        progress = self.resume()
        self.account.spend((self.search.event, _SEARCHED))
        runs = runs_for(self.search.trials, self.source.fork("runs"))
        limits = np.cumsum(self.search.shares)[:-1]
        choices = np.searchsorted(limits, self.source.fork("candidates").uniform(runs), side="right")
        best: dict[str, Any] | None = progress["best"]
        weights: dict[str, Any] = self.load(best) if best is not None else {}
        for trial in range(progress["done"], runs):
            score = self.trial(trial, int(choices[trial]))
            if score is None:
                return Tuned(False)
            # Trials are alike but for their randomness, so that the first of two equal scores is a random one of them.
            if best is None or score > best["score"]:
                best = {"trial": trial, "candidate": int(choices[trial]), "score": score}
                weights = copy_weights(self.model)
                self.store(weights, best)
            self.save(trial + 1, best)
            if self.job.should_stop() and trial + 1 < runs:
                return Tuned(False)
        assert best is not None
        restore_weights(self.model, weights)
        self.model.eval()
        plan = self.search.plans[best["candidate"]]
        stated = self.account.guarantee()
        return Tuned(True, best["candidate"], best["score"], plan, stated, self.rows.truncated)

    def trial(self, number: int, candidate: int) -> float | None:
        """Train one candidate and return its score, or None if it was stopped."""
        plan = self.search.plans[candidate]
        restore_weights(self.model, self.first)
        folder = self.clean(number)
        # The cost of the search covers all of its trials.
        job = replace(self.job, workspace=folder, encoded=self.rows, watch=self.watch(number), recorded=False)
        trained = train(self.model, self.corpus, plan, secret=self.source.fork("trial", number), job=job)
        if not trained.finished:
            return None
        assert trained.guarantee is not None
        if trained.guarantee.caveats - self.account.caveats:
            self.account.caveats |= trained.guarantee.caveats
            self.account.state()
        if self.public is not None:
            return float(row_scores(self.model, self.public, plan.settings.precision).mean())
        assert self.search.score_noise is not None
        scores = row_scores(self.model, self.rows, plan.settings.precision)
        noise = self.search.score_noise
        return private_score(scores, self.split.unit_index, plan.units, noise, self.source.fork("score", number))

    def watch(self, number: int) -> Any:
        """Return the progress callback of a trial, which shows the epsilon of the whole search."""
        show = self.job.watch
        if show is None:
            return None
        return lambda report: show(replace(report, stage=f"trial {number + 1}", epsilon=self.search.budget.epsilon))

    def resume(self) -> dict[str, Any]:
        """Return the progress of a stopped search; a new one is written before anything is spent."""
        path = self.path(SEARCH)
        if path is None:
            return {"done": 0, "best": None}
        if not path.exists():
            self.save(0, None)
        progress: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if progress["identity"] != self.identity:
            raise checkpoint.changed(path.parent)
        if progress["done"] and not self.ledger.holds(f"{self.account.run} {_SEARCHED}"):
            raise LedgerError(
                "Expected this search in its ledger, because trials of it are finished. The ledger is another one, or "
                "was lost; without it nothing is guaranteed. Start again."
            )
        return progress

    def save(self, done: int, best: Mapping[str, Any] | None) -> None:
        """Write the progress of the search, atomically; it is deleted when the run is finished."""
        path = self.path(SEARCH)
        if path is not None:
            write_atomic(path, json.dumps({"identity": self.identity, "done": done, "best": best}))

    def store(self, weights: dict[str, Any], best: Mapping[str, Any]) -> None:
        """Write the weights of the best trial so far."""
        path = self.path(f"{BEST}{best['trial']}.safetensors")
        if path is not None:
            save_tensors(weights, path)

    def load(self, best: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights of the best trial of a resumed search."""
        path = self.path(f"{BEST}{best['trial']}.safetensors")
        assert path is not None
        device = self.model.device
        return {name: tensor.to(device) for name, tensor in load_tensors(path)[0].items()}

    def clean(self, number: int) -> Path | None:
        """Return the folder of a trial, and delete what earlier trials left."""
        folder = self.path(f"{TRIAL}{number}")
        if folder is None or self.job.workspace is None:
            return None
        for old in self.job.workspace.glob(f"{TRIAL}*"):
            if old != folder:
                shutil.rmtree(old)
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder

    def path(self, name: str) -> Path | None:
        return None if self.job.workspace is None else self.job.workspace / name


def _shares(usual: Sequence[bool]) -> tuple[float, ...]:
    """Return how often each candidate is drawn: the default settings as often as all others together.

    >>> _shares([False, True, False]), _shares([False, False])
    ((0.25, 0.5, 0.25), (0.5, 0.5))
    """
    others = usual.count(False)
    if len(usual) - others != 1:
        return (1 / len(usual),) * len(usual)
    return tuple(0.5 if default else 0.5 / others for default in usual)


def _checked(protect: Protection) -> DPSGD:
    """Return the protection of a search; reject one whose cost is not known to be a budget of DP-SGD."""
    if not isinstance(protect, DPSGD) or trust_in(protect):  # trials are trained together, which other code is not
        raise invalid("protect", protect.found_by, "dp-sgd in a private search", "Train with this protection instead.")
    if protect.epsilon is None or protect.noise_multiplier is not None or protect.true_positive_rate is not None:
        remedy = f"The search divides a budget: set {setting('epsilon', 3)}, and no noise."
        raise invalid("protect", protect.facts(), "dp-sgd with an epsilon alone", remedy)
    for name in ("public", "correlation"):
        if getattr(protect, name) is not None:
            remedy = "Every trial trains alike, from the same weights and with independent noise."
            raise invalid(name, getattr(protect, name), "left out of a private search", remedy)
    return protect


def _kind(plan: PrivatePlan) -> tuple[float, int]:
    """Return what the cost of a trial depends on besides its noise: how many units a batch expects, and the steps."""
    return plan.sampler.expected_size(plan.units), plan.steps


def _with_noise(plan: PrivatePlan, noise: float) -> DPSGD:
    assert isinstance(plan.protect, DPSGD)
    return plan.protect.with_noise(noise)


def _training(plan: PrivatePlan) -> Callable[[float], DpEvent]:
    """Return the event of a whole training as a function of its noise."""
    return lambda noise: replace(plan, protect=_with_noise(plan, noise)).training_cost()
