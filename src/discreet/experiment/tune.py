"""Search for settings privately: a run that trains a random number of candidates and keeps the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from discreet.accounting.events import event_to_json
from discreet.core.errors import DataError, Message, invalid, setting
from discreet.core.guarantee import in_digits
from discreet.data.corpus import PRIVATE_DETAIL, overlapping, without_overlap
from discreet.experiment.run import RunRequest, Work
from discreet.models.base import TextModel
from discreet.protections.base import Protection
from discreet.protections.dp_sgd import DPSGD
from discreet.training.loop import Job, Trained
from discreet.training.plan import PrivatePlan, check_other_text, public_text, warn_of_classes, warn_of_size
from discreet.training.tuning import SearchPlan, Tuned, tune

if TYPE_CHECKING:
    from discreet.accounting.ledger import Ledger
    from discreet.core.randomness import Rng
    from discreet.data.corpus import Corpus


@dataclass(frozen=True)
class TuneRequest(RunRequest):
    """The choices of a private search: those of a run whose `protect` has the total budget, and what is tried.

    `grid` has the values of each setting that is tried, `trials` the mean of the random number of trials, and
    `score_on` names public text for the scores; by default trials are scored on the training rows, with noise.
    """

    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    trials: float | None = None
    score_on: str | None = None

    searches: ClassVar[bool] = True

    def check(self) -> None:
        """Reject what a search cannot do."""
        for name in ("audit", "canaries"):
            if getattr(self, name) is not None:
                remedy = "A search releases one of many trained models; audit a training run with its settings."
                raise invalid(name, getattr(self, name), "left out of a private search", remedy)
        if self.protect is None:
            raise invalid("protect", None, "dp-sgd with an epsilon", "Without a protection nothing is certified.")
        check_other_text(self.score_on, self.data.source, "score_on")

    def work(self, model: TextModel, corpus: Corpus, say: Callable[[str], None]) -> Work:
        """Return the search; warnings go to its owner."""
        assert self.protect is not None
        search = SearchPlan.make(
            model,
            corpus,
            self.grid,
            protect=self.protect,
            trials=self.trials,
            training=self.training,
            public=_scored_on(self, corpus, say),
            population=self.population,
            seed=self.seed,
            noise_seed=self.noise_seed,
            max_per_unit=self.data.max_per_unit,
        )
        warn_of_size(self, search.whole, corpus, say)
        warn_of_classes(search.whole, corpus, say)
        say(sentence(search))
        return Searching(search)


class Searching(Work):
    """A search for settings, whose winner is the model of the run."""

    def __init__(self, search: SearchPlan) -> None:
        """Count the whole search as one spend."""
        super().__init__(search.whole, {event_to_json(search.event): 1})
        self.search = search
        self.tuned: Tuned | None = None

    @property
    def trained_plan(self) -> PrivatePlan:
        """The plan of the winner."""
        assert self.tuned is not None and self.tuned.plan is not None
        return self.tuned.plan

    def execute(self, model: TextModel, corpus: Corpus, ledger: Ledger | None, secret: Rng | None, job: Job) -> Trained:
        """Search, and leave the winner's weights in the model."""
        tuned = self.tuned = tune(model, corpus, self.search, ledger=ledger, secret=secret, job=job)
        if not tuned.finished or tuned.plan is None or ledger is None:
            return Trained(False, 0, 0.0, tuned.truncated, ())
        return Trained(True, tuned.plan.steps, 0.0, tuned.truncated, (), tuned.guarantee, event=ledger.event)

    def protection(self, request: RunRequest) -> Protection | None:
        """Return the noise of the winner with the budget of the search: who trains with both stays within it."""
        asked, found = request.protect, self.trained_plan.protect
        assert isinstance(asked, DPSGD) and isinstance(found, DPSGD)
        return replace(found, epsilon=asked.epsilon, delta=asked.delta)

    def facts(self, model: TextModel) -> dict[str, Any]:
        """Return what may be released about the search; never the number of trials."""
        assert self.tuned is not None
        winner = {"chosen": dict(self.search.candidates[self.tuned.winner]), "chosen_score": self.tuned.score}
        return {"tuning": {**self.search.facts(model), **winner}}


def sentence(search: SearchPlan) -> str:
    """Return what a search does and costs, for its owner."""
    count, budget = len(search.candidates), search.budget
    usual = ", half of them with the default settings" if len(set(search.shares)) > 1 else ""
    where = "on public text" if search.public is not None else "on the training rows with counted noise"
    return Message(
        f"Searching {count} combinations of settings: a random number of trials, {search.trials:g} on average "
        f"({setting('trials')}){usual}, scored {where}. Each trial alone has epsilon "
        f"{in_digits(search.trial_epsilon)}; the search and its winner together have epsilon "
        f"{in_digits(budget.epsilon)}."
    )


def _scored_on(request: TuneRequest, corpus: Corpus, say: Callable[[str], None]) -> Corpus | None:
    """Return the public text that trials are scored on, without texts of held-out rows, or None."""
    if request.score_on is None:
        return None
    columns = request.data.columns if corpus.is_pairs else replace(request.data.columns, text_pair=None)
    public = public_text(request.score_on, columns, request.seed, scores=corpus.task.has_scores)
    if request.data.task != "unlabelled" and (public.labels is None) and public.task != corpus.task:
        raise DataError(
            f"Expected labels of {corpus.task} in the public text {request.score_on!r}, which scores need. Name a file "
            f"with the label column {request.data.label!r}, or leave {setting('score_on')} out."
        )
    # What is chosen is released, so it must not depend on which public texts are in the train split.
    shared = len(overlapping(public, corpus.split("train")))
    if shared:
        say(
            f"{PRIVATE_DETAIL}: {shared:,} of the public texts that trials are scored on occur in the training rows "
            "too. No noise protects these scores: use other text, unless these really are public."
        )
    held_out = [row for row, name in enumerate(corpus.splits) if name != "train"]
    return without_overlap(public, corpus.take(held_out)) if held_out else public
