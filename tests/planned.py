"""Training by a plan that is made on the spot, for tests of the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from discreet.accounting.ledger import Ledger
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.training import loop
from discreet.training.loop import Job, Trained, optimizer_for
from discreet.training.plan import TrainingPlan
from discreet.training.steps import Parts, Report


def parts_of(
    model: Classifier, corpus: Corpus, rows: Tokens | Vectors, settings: TrainSettings, **planned: Any
) -> Parts:
    """Return what a step of all layers is made of, on a corpus whose rows are all for training."""
    if settings.head_share is None:
        settings = replace(settings, head_share=0.0)
    plan = TrainingPlan.make(model, corpus, training=settings, **planned)
    return Parts(model, optimizer_for(model, plan.settings), plan, rows, corpus)


def train(
    model: Classifier,
    corpus: Corpus,
    settings: TrainSettings | None = None,
    *,
    ledger: Ledger | None = None,
    secret: Rng | None = None,
    workspace: Path | None = None,
    cache: Path | None = None,
    checkpoint_seconds: float = 30.0,
    watch: Callable[[Report], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **planned: Any,
) -> Trained:
    """Make a plan and train by it."""
    plan = TrainingPlan.make(model, corpus, training=settings, **planned)
    job = Job(workspace, cache, checkpoint_seconds, watch, should_stop)
    return loop.train(model, corpus, plan, ledger=ledger, secret=secret, job=job)
