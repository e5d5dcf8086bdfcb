"""Search for settings privately: load the text, plan, train a random number of candidates, write the best as a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.accounting.events import event_to_json
from discreet.core.device import find_device
from discreet.core.errors import DataError, Message, invalid, setting
from discreet.core.guarantee import in_digits
from discreet.data.corpus import PRIVATE_DETAIL
from discreet.data.overlap import overlapping, without_overlap
from discreet.experiment.training import (
    RunOptions,
    RunRequest,
    check_other_text,
    check_private_labels,
    check_validation,
    describe_guarantee,
    evaluate_utility,
    load_corpus,
    model_for,
    run_settings,
    shared_accounting,
    warn_of_classes,
    warn_of_size,
)
from discreet.models.encode import cache_folder
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.checkpoint import LEDGER
from discreet.runs.folder import check_kind, finish, prepared, workspace_of
from discreet.training.loop import Job, Trained
from discreet.training.public_text import public_text
from discreet.training.tuning import SearchPlan, Tuned, tune

if TYPE_CHECKING:
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


def run_tuning(
    request: TuneRequest, out: Path, *, corpus: Corpus | None = None, options: RunOptions | None = None
) -> dict[str, Any]:
    """Load, search, evaluate the best and write it as a run folder; return the values that `tune --json` prints.

    Guarantee: one epsilon for the search and its winner, in the result.
    """
    start, options = time.monotonic(), options or RunOptions()
    say, device = options.say, find_device(options.device)
    for name in ("audit", "canaries"):
        if getattr(request, name) is not None:
            remedy = "A search releases one of many trained models; audit a training run with its settings."
            raise invalid(name, getattr(request, name), "left out of a private search", remedy)
    if request.protect is None:
        raise invalid("protect", None, "dp-sgd with an epsilon", "Without a protection nothing is certified.")
    corpus = corpus or load_corpus(request.data, request.population)
    for remark in corpus.remarks:
        say(remark)
    check_private_labels(request, corpus)
    check_validation(corpus)
    check_other_text(request.score_on, request.data.source, "score_on")
    workspace = workspace_of(out, resume=options.resume)
    check_kind(workspace, search=True)
    model = model_for(request, corpus, device, options)
    cache = cache_folder() if options.cache else None
    with prepared(workspace):
        search = SearchPlan.make(
            model,
            corpus,
            request.grid,
            protect=request.protect,
            trials=request.trials,
            train=request.train,
            public=_scored_on(request, corpus, say),
            population=request.population,
            seed=request.seed,
            noise_seed=request.noise_seed,
            max_per_unit=request.data.max_per_unit,
        )
        plan = search.whole
        warn_of_size(request, plan, corpus, say)
        warn_of_classes(plan, corpus, say)
        say(sentence(search))
        secret = plan.secret(workspace)
        planned = {event_to_json(search.event): 1}
        with shared_accounting(plan, model, corpus, workspace / LEDGER, out, options, planned) as (ledger, total):
            job = Job(workspace, cache, options.checkpoint_seconds, options.watch, options.should_stop)
            tuned = tune(model, corpus, search, ledger=ledger, secret=secret, job=job)
            if not tuned.finished or tuned.plan is None:
                return {"out": str(out), "finished": False}
            if tuned.truncated:
                rows = len(corpus.split("train"))
                say(f"{tuned.truncated} of {rows} texts were truncated to {model.max_length} tokens.")
            winner = Trained(True, tuned.plan.steps, 0.0, tuned.truncated, (), tuned.guarantee)
            result: dict[str, Any] = {
                "out": str(out),
                "finished": True,
                **evaluate_utility(tuned.plan, secret, model, corpus, cache, options.watch),
                **describe_guarantee(tuned.plan, winner, ledger),
                "tuning": {**search.facts(model), **_winner(search, tuned)},
                "steps": tuned.plan.steps,
                "trained": request.model.train,
                "device": str(device),
                "seed": request.seed,
            }
            text, people = total()
    assert isinstance(request.protect, DPSGD) and isinstance(tuned.plan.protect, DPSGD)
    # The noise of the winner, and the budget of the search: who trains with these settings stays within it.
    protect = replace(tuned.plan.protect, epsilon=request.protect.epsilon, delta=request.protect.delta)
    settings = run_settings(replace(request, train=tuned.plan.settings, protect=protect), corpus)
    finish(workspace, out, model, settings, {**result, "history": []}, tuned.guarantee)
    # For the owner alone: the duration shows how many trials there were.
    return {**result, "seconds": time.monotonic() - start, "people": {**people, "sentence": text}}


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


def _winner(search: SearchPlan, tuned: Tuned) -> dict[str, Any]:
    return {"chosen": dict(search.candidates[tuned.winner]), "chosen_score": tuned.score}


def _scored_on(request: TuneRequest, corpus: Corpus, say: Callable[[str], None]) -> Corpus | None:
    """Return the public text that trials are scored on, without texts of held-out rows, or None."""
    if request.score_on is None:
        return None
    columns = request.data.columns if corpus.is_pairs else replace(request.data.columns, text_pair=None)
    public = public_text(request.score_on, columns, request.seed, scores=corpus.task == "regression")
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
