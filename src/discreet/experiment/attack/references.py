"""Reference models of a membership attack: trained like the target, each on a random half of the same text.

On a frozen encoder, linear heads are trained all at once from the vectors that were computed for the target.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from discreet.attacks.membership.signals import Outputs
from discreet.core.errors import invalid
from discreet.core.randomness import Rng
from discreet.data.batches import Vectors, tokens_for
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import Progress
from discreet.experiment.attack.signals import classified, outputs_of, stacked
from discreet.experiment.run import RunOptions, RunRequest, make_plan, train_once
from discreet.models.base import TextModel
from discreet.models.build import build_model
from discreet.models.classifier import Classifier, head
from discreet.protections.base import Protection
from discreet.runs.folder import RunChoices
from discreet.training.job import Job, ready_secret
from discreet.training.loop import start_from_public
from discreet.training.many_heads import HeadJob, can_train_together, train_heads
from discreet.training.plan import TrainingPlan

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
STAGE = "training reference models"
PUBLIC_STAGE = "training on public text"


def random_halves(units: Ints, count: int, rng: Rng) -> Bools:
    """Return which rows each of `count` reference models is trained on: (models, rows), by whole units.

    Models come in pairs, a random half of the units and the other half, so that every unit is in half of the models.

    >>> halves = random_halves(np.array([0, 0, 1, 2, 3]), 4, Rng(0))
    >>> halves.sum(axis=0).tolist(), bool((halves[:, 0] == halves[:, 1]).all())
    ([2, 2, 2, 2, 2], True)
    """
    if count < 2 or count % 2:
        raise invalid("references", count, "an even number >= 2", "Models come in pairs, one for each half.")
    names, index = np.unique(units, return_inverse=True)
    included = np.zeros((count, len(names)), dtype=bool)
    for pair in range(count // 2):
        order = rng.fork("half", pair).permutation(len(names))
        included[2 * pair, order[: len(names) // 2]] = True
        included[2 * pair + 1] = ~included[2 * pair]
    return included[:, index]


@dataclass(frozen=True)
class ReferenceText:
    """The text that reference models are trained on, as rows of a corpus, with the vectors of a frozen encoder."""

    corpus: Corpus
    rows: Ints
    vectors: Vectors | None = None

    def subset(self, included: Bools) -> tuple[Corpus, Ints]:
        """Return the chosen rows as a corpus with a train split only, and their numbers."""
        rows = self.rows[included]
        chosen = self.corpus.take(rows)
        return replace(chosen, splits=("train",) * len(chosen)), rows


def reference_outputs(
    choices: RunChoices,
    model: TextModel,
    text: ReferenceText,
    included: Bools,
    asked: Sequence[Ints],
    *,
    protected: bool,
    seed: int,
    progress: Progress,
) -> list[Outputs]:
    """Train one reference model for each row of `included`, and return the outputs of all on each set of `asked` rows.

    They have the model, the training settings and, unless `protected` is False, the protection of the target, with
    seeds of their own. The attacker may train as many as it likes on text that it has.

    Guarantee: none; reference models are for measuring the target, and are not released.
    """
    protect = choices.protect if protected else None
    if text.vectors is not None and can_train_together(model.settings, choices.train, protect, model.task):
        assert isinstance(model, Classifier)
        return _heads_at_once(choices, protect, model, text, included, asked, seed, progress)
    return _one_by_one(choices, protect, model, text, included, asked, seed, progress)


def _plans(
    choices: RunChoices, protect: Protection | None, model: TextModel, subsets: Sequence[Corpus], seed: int
) -> list[TrainingPlan]:
    """Return the plan of each reference model; the noise is solved once for models of the same size."""
    request = _request(choices, protect)
    made: dict[tuple[int, int], TrainingPlan] = {}
    plans = []
    for number, subset in enumerate(subsets):
        size = (len(subset), subset.unit_count)
        if size not in made:
            made[size] = make_plan(request, model, subset)
        plans.append(replace(made[size], seed=seed + number, noise_seed=None if protect is None else seed + number))
    return plans


def _request(choices: RunChoices, protect: Protection | None) -> RunRequest:
    """Return the request of a reference model: the choices of the target, under a protection of its own."""
    population = None if protect is None else choices.population
    return RunRequest.of(choices, protect=protect, population=population, canaries=None)


def _heads_at_once(
    choices: RunChoices,
    protect: Protection | None,
    model: Classifier,
    text: ReferenceText,
    included: Bools,
    asked: Sequence[Ints],
    seed: int,
    progress: Progress,
) -> list[Outputs]:
    assert text.vectors is not None
    parts = [text.subset(one) for one in included]
    plans = _plans(choices, protect, model, [corpus for corpus, _ in parts], seed)
    start, jobs = _public_start(choices, model, text.corpus, progress), []
    for number, ((corpus, rows), plan) in enumerate(zip(parts, plans, strict=True)):
        weight, bias = first_head(model, Rng(seed + number)) if start is None else _weights(start.head)
        jobs.append(HeadJob(rows, corpus, plan, None if protect is None else ready_secret(plan), weight, bias))
    weights, biases = train_heads(text.vectors, jobs, lambda done, total: progress(STAGE, done, total))
    outputs = []
    for rows in asked:
        at = torch.from_numpy(rows)
        inputs, labels = text.vectors.vectors.cpu()[at].double(), text.vectors.targets.cpu().numpy()[rows]
        scores = torch.einsum("nd,mcd->mnc", inputs, weights.cpu().double()) + biases.cpu().double()[:, None, :]
        outputs.append(classified(scores.log_softmax(dim=-1).numpy(), labels))
    return outputs


def fresh_model(choices: RunChoices, model: TextModel, corpus: Corpus, rng: Rng) -> TextModel:
    """Return a model like the target, as it was before its training."""
    return build_model(corpus, choices.model, rng=rng, task=model.task).to(model.device)


def first_head(model: Classifier, rng: Rng) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first weight and bias of a linear head, as a model that is built from this source has them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.fork("model").fork("head").seed())
        fresh = head("linear", model.width, model.classes)
    return _weights(fresh.to(model.device))


def _weights(linear: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = (parameter.detach() for parameter in linear.parameters())
    return weight, bias


def _public_start(choices: RunChoices, model: TextModel, corpus: Corpus, progress: Progress) -> TextModel | None:
    """Return a model like the target after its training on public text; None if the target did not start from any.

    The public text and the settings are known, so an attacker can repeat that training: once, for all references. It
    reads the same texts as the target, which leaves out those of its held-out rows: `corpus` has all splits.
    """
    protect = choices.protect
    if protect is None or not protect.starts_from_public:
        return None
    start = fresh_model(choices, model, corpus, Rng(choices.seed).fork("model"))
    plan = make_plan(_request(choices, protect), start, corpus)
    start_from_public(start, plan, Job(watch=lambda report: progress(PUBLIC_STAGE, report.step, report.steps)))
    return start


def _one_by_one(
    choices: RunChoices,
    protect: Protection | None,
    model: TextModel,
    text: ReferenceText,
    included: Bools,
    asked: Sequence[Ints],
    seed: int,
    progress: Progress,
) -> list[Outputs]:
    collected: list[list[Outputs]] = [[] for _ in asked]
    parts = [text.subset(one) for one in included]
    base: Any = _public_start(choices, model, text.corpus, progress)
    from_public = base is not None
    plans: list[TrainingPlan] = []
    for number, (corpus, rows) in enumerate(parts):
        progress(STAGE, number, len(parts))
        own = Rng(seed + number).fork("model")
        if from_public:
            reference = copy.deepcopy(base)
        elif text.vectors is None or base is None:
            reference = fresh_model(choices, model, corpus, own)
            base = copy.deepcopy(reference) if text.vectors is not None else reference
        else:
            reference = copy.deepcopy(base)
            reference.replace_head(reference.width, own.fork("head"))
        if not plans:
            plans = _plans(choices, protect, reference, [part for part, _ in parts], seed)
            plans = [replace(plan, public=None) for plan in plans] if from_public else plans
        encoded = None
        if text.vectors is not None:
            batch = text.vectors.batch(rows)
            encoded = Vectors(batch.inputs["vectors"], batch.targets, steady=text.vectors.steady)
        request = _request(choices, protect)
        options = RunOptions(cache=False, evaluated=False, released=False, encoded=encoded)
        train_once(request, corpus=corpus, model=reference, plan=plans[number], options=options)
        for place, wanted in enumerate(asked):
            if text.vectors is not None:
                batch = text.vectors.batch(wanted)
                collected[place].append(outputs_of(reference, Vectors(batch.inputs["vectors"], batch.targets)))
            else:
                collected[place].append(outputs_of(reference, tokens_for(reference, text.corpus.take(wanted))))
    progress(STAGE, len(parts), len(parts))
    return [stacked(one) for one in collected]
