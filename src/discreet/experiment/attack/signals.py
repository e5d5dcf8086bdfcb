"""The outputs of a model on texts, as the arrays that membership attacks read, and those of reference models.

Reference models are trained for the attack, or are finished runs that the attacker has already. A run folder holds no
text. It names its source, its seed and how its rows were split, so its training rows are read again from there. An
example counts as one that a run was trained on if its text, without case and spacing, or its unit is among them.

If a run was trained on members and non-members of the target at the same rate, such as on a random half of the same
text, the attacker knows which examples it was trained on, and online attacks use them. A run that was trained on
members significantly more often than on non-members is rejected, because its training rows reveal who is a member.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import hypergeom
from torch import Tensor

from discreet.attacks.membership.signals import Bools, Floats, Ints, Outputs, TokenScores
from discreet.core.device import autocast
from discreet.core.errors import DataError, ModelError, invalid, setting
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors, tokens_for
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import Progress
from discreet.experiment.attack.scene import corpus_of_run, text_keys
from discreet.experiment.run import RunOptions, RunRequest, make_plan, train_once
from discreet.models.base import TextModel, evaluating
from discreet.models.build import build_model, matched
from discreet.models.classifier import Classifier, classifier_of, head
from discreet.models.language_model import LanguageModel
from discreet.protections.base import Protection
from discreet.runs.folder import Run, RunChoices, is_run, load_run
from discreet.training.evaluation import by_length, represent
from discreet.training.loop import Job, ready_secret, start_from_public
from discreet.training.many_heads import HeadJob, can_train_together, train_heads
from discreet.training.plan import TrainingPlan

_TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}  # a language model scores its whole vocabulary for each token
_ROWS_AT_ONCE = 256


def outputs_of(model: TextModel, rows: Tokens | Vectors, precision: str = "float32") -> Outputs:
    """Return the losses and confidences of a model on texts with their true labels.

    Guarantee: none for the texts; that of the model does not change, as this is post-processing.
    """
    if isinstance(model, LanguageModel):
        assert isinstance(rows, Tokens)
        scores = token_scores(model, rows, precision=precision)
        losses = -(scores.target * scores.real).sum(axis=1) / scores.real.sum(axis=1)
        return Outputs(losses, -losses)
    classifier = classifier_of(model, "membership")
    answers = _answers(classifier, rows, precision)
    targets = rows.targets.cpu().numpy()
    if classifier.task.has_scores:
        losses = np.square(answers[:, 0] - targets)
        return Outputs(losses, -losses)
    return classified(answers, targets)


def classified(log_probabilities: Floats, labels: Ints) -> Outputs:
    """Return the outputs of a classifier from its log-probabilities, (..., examples, classes), and the true classes.

    The confidence log p - log(1 - p) is computed from the other classes' probabilities, so that it keeps its precision
    for p near 1.

    >>> one = classified(np.log(np.array([[0.9, 0.1]])), np.array([0]))
    >>> round(float(one.logits[0]), 4), round(float(one.losses[0]), 4)
    (2.1972, 0.1054)
    """
    at = np.broadcast_to(labels[:, None], (*log_probabilities.shape[:-1], 1))
    own = np.take_along_axis(log_probabilities, at, axis=-1)[..., 0]
    others = log_probabilities.copy()
    np.put_along_axis(others, at, -np.inf, axis=-1)
    largest = others.max(axis=-1)
    rest = largest + np.log(np.exp(others - largest[..., None]).sum(axis=-1))
    return Outputs(-own, own - rest, np.exp(log_probabilities))


@torch.inference_mode()
def _answers(model: Classifier, rows: Tokens | Vectors, precision: str) -> Floats:
    """Return log-probabilities of the classes, or scores, in float64."""
    with evaluating(model):
        with autocast(model.device, precision):
            vectors = rows.vectors if isinstance(rows, Vectors) else represent(model, rows, precision)
        parts: list[Tensor] = []
        for part in torch.split(vectors, _ROWS_AT_ONCE):
            inputs = part if model.query is None else model.query(part)
            scores = model.decide(inputs.float()).double()
            if model.task.has_classes:
                scores = scores.log_softmax(dim=-1)
                if inputs.ndim > 2:  # several views of a text, whose predictions are averaged
                    scores = scores.logsumexp(dim=0) - float(np.log(len(scores)))
            elif inputs.ndim > 2:
                scores = scores.mean(dim=0)
            parts.append(scores.cpu())
    return torch.cat(parts).numpy()


@torch.inference_mode()
def token_scores(
    model: LanguageModel, tokens: Tokens, pretrained: LanguageModel | None = None, precision: str = "float32"
) -> TokenScores:
    """Return the log-probability of every true token under a language model, and under the model it started from.

    A model of another vocabulary is rejected: its probabilities are not those of the same tokens.

    Guarantee: none for the texts; that of the model does not change, as this is post-processing.
    """
    if pretrained is not None:
        check_same_tokens(model, pretrained)
    width = int(tokens.columns["input_ids"].shape[1])  # on a GPU, batches are padded beyond the longest text
    target = np.zeros((len(tokens), width))
    hits, real = np.zeros(target.shape, dtype=bool), np.zeros(target.shape, dtype=bool)
    before = None if pretrained is None else np.zeros(target.shape)
    for rows in by_length(tokens.lengths, _TOKENS_AT_ONCE[model.device.type]):
        values, best, mask = _token_scores(model, tokens, rows, precision)
        columns = min(values.shape[1], width)  # on a GPU batches are padded to fixed lengths
        target[rows, :columns], hits[rows, :columns] = values[:, :columns], best[:, :columns]
        real[rows, :columns] = mask[:, :columns]
        if before is not None and pretrained is not None:
            before[rows, :columns] = _token_scores(pretrained, tokens, rows, precision)[0][:, :columns]
    return TokenScores(target, hits, real, before)


def _token_scores(model: LanguageModel, tokens: Tokens, rows: Ints, precision: str) -> tuple[Floats, Bools, Bools]:
    with evaluating(model), autocast(model.device, precision):
        scores, targets, mask = model.token_scores(tokens.batch(rows).inputs)
    logs = scores.float().log_softmax(dim=-1)
    values = logs.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1).double() * mask
    hits = (scores.argmax(dim=-1) == targets) & mask
    return values.cpu().numpy(), hits.cpu().numpy(), mask.bool().cpu().numpy()


def check_same_tokens(model: TextModel, other: TextModel) -> None:
    """Reject a model that reads texts as other tokens than the target does."""
    if model.tokenizer.get_vocab() != other.tokenizer.get_vocab() or model.frame != other.frame:
        raise DataError(
            f"Expected a reference with the tokenizer of the target ({len(model.tokenizer):,} tokens), got another "
            f"({len(other.tokenizer):,} tokens). Use the model that the target was fine-tuned from."
        )


def stacked(outputs: Sequence[Outputs]) -> Outputs:
    """Return the outputs of several models as one, with a row for each."""
    probabilities = [one.probabilities for one in outputs if one.probabilities is not None]
    return Outputs(
        np.stack([one.losses for one in outputs]),
        np.stack([one.logits for one in outputs]),
        np.stack(probabilities) if len(probabilities) == len(outputs) else None,
    )


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
    parts = tuple(text.subset(one) for one in included)
    references = ReferenceTraining(choices, choices.protect if protected else None, model, text, parts, seed, progress)
    if text.vectors is not None and can_train_together(
        model.settings, choices.training, references.protect, model.task
    ):
        return references.heads_at_once(text.vectors, asked)
    return references.one_by_one(asked)


@dataclass(frozen=True)
class ReferenceTraining:
    """The training of reference models: the target that they repeat, their protection, and the rows of each."""

    choices: RunChoices
    protect: Protection | None
    model: TextModel
    text: ReferenceText
    parts: tuple[tuple[Corpus, Ints], ...]
    seed: int
    progress: Progress

    def heads_at_once(self, vectors: Vectors, asked: Sequence[Ints]) -> list[Outputs]:
        """Train the heads of all models together on the vectors of a frozen encoder."""
        model = classifier_of(self.model, "membership")
        plans, start, jobs = self._plans(model), self._public_start(), []
        for number, ((corpus, rows), plan) in enumerate(zip(self.parts, plans, strict=True)):
            weight, bias = first_head(model, Rng(self.seed + number)) if start is None else _weights(start.head)
            jobs.append(HeadJob(rows, corpus, plan, None if self.protect is None else ready_secret(plan), weight, bias))
        weights, biases = train_heads(vectors, jobs, lambda done, total: self.progress(STAGE, done, total))
        outputs = []
        for rows in asked:
            at = torch.from_numpy(rows)
            inputs, labels = vectors.vectors.cpu()[at].double(), vectors.targets.cpu().numpy()[rows]
            scores = torch.einsum("nd,mcd->mnc", inputs, weights.cpu().double()) + biases.cpu().double()[:, None, :]
            outputs.append(classified(scores.log_softmax(dim=-1).numpy(), labels))
        return outputs

    def one_by_one(self, asked: Sequence[Ints]) -> list[Outputs]:
        """Train one model after the other, each as the target was."""
        collected: list[list[Outputs]] = [[] for _ in asked]
        text, count = self.text, len(self.parts)
        base: Any = self._public_start()
        from_public = base is not None
        plans: list[TrainingPlan] = []
        for number, (corpus, rows) in enumerate(self.parts):
            self.progress(STAGE, number, count)
            own = Rng(self.seed + number).fork("model")
            if from_public:
                reference = copy.deepcopy(base)
            elif text.vectors is None or base is None:
                reference = fresh_model(self.choices, self.model, corpus, own)
                base = copy.deepcopy(reference) if text.vectors is not None else reference
            else:
                reference = copy.deepcopy(base)
                reference.replace_head(reference.width, own.fork("head"))
            if not plans:
                plans = self._plans(reference)
                plans = [replace(plan, public=None) for plan in plans] if from_public else plans
            encoded = None if text.vectors is None else text.vectors.take(rows)
            options = RunOptions(cache=False, evaluated=False, released=False, encoded=encoded)
            train_once(self._request(self.protect), corpus=corpus, model=reference, plan=plans[number], options=options)
            for place, wanted in enumerate(asked):
                read: Tokens | Vectors
                if text.vectors is None:
                    read = tokens_for(reference, text.corpus.take(wanted))
                else:
                    read = text.vectors.take(wanted)
                collected[place].append(outputs_of(reference, read))
        self.progress(STAGE, count, count)
        return [stacked(one) for one in collected]

    def _plans(self, model: TextModel) -> list[TrainingPlan]:
        """Return the plan of each reference model; the noise is solved once for models of the same size."""
        request = self._request(self.protect)
        made: dict[tuple[int, int], TrainingPlan] = {}
        plans = []
        for own, (subset, _) in enumerate(self.parts, start=self.seed):
            size = (len(subset), subset.unit_count)
            if size not in made:
                made[size] = make_plan(request, model, subset)
            plans.append(replace(made[size], seed=own, noise_seed=None if self.protect is None else own))
        return plans

    def _request(self, protect: Protection | None) -> RunRequest:
        """Return the request that repeats the choices of the target, under a protection of its own."""
        population = None if protect is None else self.choices.population
        return RunRequest.of(self.choices, protect=protect, population=population, canaries=None)

    def _public_start(self) -> TextModel | None:
        """Return a model like the target after its training on public text; None if the target did not start from any.

        The public text and the settings are known, so an attacker can repeat that training: once, for all references.
        It reads the same texts as the target, which leaves out those of its held-out rows: the corpus has all splits.
        """
        protect, corpus = self.choices.protect, self.text.corpus
        if protect is None or not protect.starts_from_public:
            return None
        start = fresh_model(self.choices, self.model, corpus, Rng(self.choices.seed).fork("model"))
        plan = make_plan(self._request(protect), start, corpus)
        start_from_public(start, plan, Job(watch=lambda report: self.progress(PUBLIC_STAGE, report.step, report.steps)))
        return start


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


_ASKING = "asking reference models"
# Of a run whose training rows do not depend on who is a member, one in ten thousand is rejected.
_LEVEL = 1e-4
_REMEDY = "Train reference models on other text, or on random halves of all of it."


def runs_in(paths: Sequence[Path], target: Path | None = None) -> tuple[Path, ...]:
    """Return the run folders that are named, or are in a named folder; the target's own is left out of the latter."""
    runs: list[Path] = []
    for path in paths:
        if is_run(path):
            runs.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if is_run(one)) if path.is_dir() else []
        runs += [one for one in inside if target is None or one.resolve() != target.resolve()]
        if not inside:
            raise ModelError(f"Expected a run folder, or a folder with runs, at {str(path)!r}. Check the path.")
    if len({one.resolve() for one in runs}) < len(runs):
        raise invalid("references_from", len(runs), "different folders", "A model that counts twice adds nothing.")
    if len(runs) < 2:
        remedy = "The spread of their outputs is needed; train more of them."
        raise invalid("references_from", len(runs), "at least 2 runs", remedy)
    return tuple(runs)


@dataclass(frozen=True)
class GivenReferences:
    """Finished runs, (models,), and whether each was trained on each row of the target's corpus, (models, rows)."""

    names: tuple[str, ...]
    models: tuple[TextModel, ...] = field(repr=False)
    trained: Bools = field(repr=False)

    @classmethod
    def load(cls, folders: Sequence[Path], corpus: Corpus, model: TextModel, progress: Progress) -> GivenReferences:
        """Load runs that have the task and, for language models, the tokens of the target.

        Guarantee: none; it reads the training text of the runs, to find out what they were trained on.
        """
        models, trained = [], []
        for number, folder in enumerate(folders):
            progress("loading reference models", number, len(folders))
            run = load_run(folder, model.device)
            if run.model.task != model.task:
                raise DataError(
                    f"Expected a reference model for {model.task}, as the target, got {str(folder)!r} for "
                    f"{run.model.task}. {_REMEDY}"
                )
            if model.task.is_language:
                check_same_tokens(model, run.model)
            if set(run.model.label_names) != set(model.label_names):
                raise DataError(
                    f"Expected a reference model with the labels of the target ({', '.join(model.label_names)}), got "
                    f"{str(folder)!r} with {', '.join(run.model.label_names)}. {_REMEDY}"
                )
            models.append(run.model)
            trained.append(trained_on(run, folder, corpus))
        return cls(tuple(map(str, folders)), tuple(models), np.stack(trained))

    def check(self, members: Ints, others: Ints) -> None:
        """Reject runs that were trained on members of the target more often than on non-members."""
        for name, row in zip(self.names, self.trained, strict=True):
            inside, outside = int(row[members].sum()), int(row[others].sum())
            chance = hypergeom.sf(inside - 1, len(members) + len(others), inside + outside, len(members))
            if chance < _LEVEL:
                raise DataError(
                    f"Expected reference models that were not trained on the target's own members, but {name!r} was "
                    f"trained on {inside:,} of {len(members):,} members and on {outside:,} of {len(others):,} "
                    f"non-members. {_REMEDY}"
                )

    def usable(self, rows: Ints) -> Bools:
        """Return which of the rows at least two of the models were not trained on."""
        return np.asarray((~self.trained[:, rows]).sum(axis=0) >= 2)

    def outputs(
        self, target: TextModel, corpus: Corpus, rows: Ints, vectors: Vectors | None, progress: Progress
    ) -> Outputs:
        """Return the outputs of all models on rows; `vectors` are those of the target's frozen encoder.

        Guarantee: none for the rows; this is post-processing of the models.
        """
        collected = []
        for number, model in enumerate(self.models):
            progress(_ASKING, number, len(self.models))
            labelled = matched(corpus, model)
            if vectors is None or not _same_vectors(model, target):
                collected.append(outputs_of(model, tokens_for(model, labelled.take(rows))))
                continue
            own = vectors.take(rows)
            if labelled.labels is not None:
                labels = torch.tensor(np.asarray(labelled.labels)[rows], device=own.targets.device)
                own = replace(own, targets=labels)
            collected.append(outputs_of(model, own))
        progress(_ASKING, len(self.models), len(self.models))
        return stacked(collected)


def trained_on(run: Run, folder: Path, corpus: Corpus) -> Bools:
    """Return which rows of a corpus a run was trained on, by their text or their unit."""
    own = corpus_of_run(run)
    rows = own.split("train") if own.splits else own
    recorded, planted = run.metrics.get("rows"), run.settings.canaries is not None or (folder / "audit.json").exists()
    if recorded is not None and recorded != len(rows) and not planted:
        raise DataError(
            f"Expected the text that {str(folder)!r} was trained on, {recorded:,} rows, but its source "
            f"{run.settings.data.source!r} now gives {len(rows):,}. Restore the text, or leave this run out."
        )
    texts = set(text_keys(rows))
    found = np.array([key in texts for key in text_keys(corpus)], dtype=bool)
    if rows.units is not None and corpus.units is not None and rows.unit_name == corpus.unit_name:
        units = set(rows.units)
        found |= np.array([unit in units for unit in corpus.units], dtype=bool)
    return found


def _same_vectors(model: TextModel, target: TextModel) -> bool:
    """Return whether two models have the same frozen encoder, so that its vectors serve both."""
    if not isinstance(model, Classifier) or not isinstance(target, Classifier):
        return False
    one, other = (
        replace(settings, head="linear", hidden=(), pooler=None, dropout=None)
        for settings in (model.settings, target.settings)
    )
    return one == other and same_encoder(model, target)


def same_encoder(model: TextModel, other: TextModel) -> bool:
    """Return whether the encoders of two models have the same weights."""
    own, its = model.encoder.state_dict(), other.encoder.state_dict()
    return own.keys() == its.keys() and all(torch.equal(value, its[name]) for name, value in own.items())


def too_few(members: int, others: int) -> DataError:
    """Return the error of runs that leave too few examples which at least two of them were not trained on."""
    return DataError(
        f"Expected examples that at least two reference models were not trained on, got {members:,} members and "
        f"{others:,} non-members. {_REMEDY} More of them ({setting('references_from')}) help too."
    )
