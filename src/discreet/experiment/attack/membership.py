"""Membership inference: who was in the training data of a model, measured beside what its certificate allows.

Members are rows of the train split, non-members the rows of the other splits. Both are selected by privacy unit, and a
unit is never on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from discreet.accounting.risk import most_true_positives_at
from discreet.attacks.base import Need
from discreet.attacks.membership.signals import Bools, Floats, Ints, MembershipAttack, References, Signals, TokenScores
from discreet.attacks.membership.thresholds import Neighbourhood
from discreet.core.errors import DataError, DiscreetError, UnsupportedError, invalid, setting
from discreet.core.guarantee import Strength, strength
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, Leakage, ModelRelease
from discreet.data.batches import Tokens, Vectors, tokens_for
from discreet.data.corpus import Corpus
from discreet.experiment.attack.neighbours import neighbour_losses
from discreet.experiment.attack.request import AttackRequest, Callbacks, Findings, Progress
from discreet.experiment.attack.scene import Scene, Target, findings_of_model, text_keys
from discreet.experiment.attack.signals import (
    GivenReferences,
    ReferenceText,
    fresh_model,
    outputs_of,
    random_halves,
    reference_outputs,
    same_encoder,
    token_scores,
    too_few,
)
from discreet.metrics import membership as metric
from discreet.metrics.membership import Scored
from discreet.models.base import TextModel
from discreet.models.build import encode, matched
from discreet.models.language_model import LanguageModel

TRAIN = "train"
MOST_ROWS = 1000  # members, and non-members, that are asked about by default where each costs a pass of the network
_POPULATION_SHARE, _POPULATION_UNITS = 0.3, 1000  # non-members that the attacker has, of those there are, and at most
_RISKIEST = 10
VECTORS = "vectors of the corpus"  # keys in the cache of a scene
REFERENCES = "outputs of reference models"
# False-positive rates at which the certificate is evaluated for the AUC and the advantage.
_GRID = np.unique(np.concatenate([np.geomspace(1e-6, 1, 400), np.linspace(0, 1, 801)]))


@dataclass(frozen=True)
class Candidates:
    """The rows of a corpus that an attacker asks about, in random order; `is_member` is the truth, for scoring only.

    `population` are non-members that the attacker has besides, and `pool` are all rows that reference models are
    trained on halves of. `left_out` counts the rows that are neither: rows whose text another unit has in the training
    data, and held-out rows whose unit is in it. `uncovered` counts those that too few of the attacker's own reference
    models were not trained on.
    """

    corpus: Corpus = field(repr=False)
    rows: Ints = field(repr=False)
    is_member: Bools = field(repr=False)
    population: Ints = field(repr=False)
    pool: Ints = field(repr=False)
    left_out: int = 0
    uncovered: int = 0

    @property
    def units(self) -> Ints:
        """The number of the unit of each row."""
        return np.asarray(self.corpus.unit_index[self.rows])


def attack_members(request: AttackRequest, scene: Scene, callbacks: Callbacks) -> Findings:
    """Run a membership attack on the trained model of a scene, and measure it.

    Guarantee: none for the result, which says who was in the training data; it states the guarantee of the model.
    """
    start, attack, target = time.monotonic(), request.attack, scene.target
    assert isinstance(attack, MembershipAttack) and target is not None
    rng = Rng(request.seed).fork("membership")
    candidates = select(scene.model, target, request, rng.fork("candidates"))
    references: GivenReferences | None = None
    if request.references_from:
        if Need.REFERENCES not in attack.needs:
            shown = ", ".join(map(str, request.references_from))
            raise invalid("references_from", shown, f"left out for {request.label}", "It needs no reference models.")
        references = GivenReferences.load(request.references_from, candidates.corpus, scene.model, callbacks.progress)
        candidates = covered(candidates, references)
        asked = np.concatenate([candidates.rows, candidates.population])
        attack = attack.for_references(references.trained[:, asked])
        request = replace(request, attack=attack)
    signals = observe(request, scene, target, candidates, callbacks.progress, references)
    preparing = time.monotonic() - start
    knows = Knowledge(scene.model, defence=target.choices.protect, extra={Need.SIGNALS.value: signals})
    guess = attack.run(ModelRelease(scene.model, guarantee=target.guarantee), knows, rng.fork("attack"))
    scored = Scored.of(np.array(guess.scores), candidates.is_member, candidates.units)
    if attack.by_unit:
        scored = scored.one_per_unit()
    leakages = measure(scored, float(guess.details["threshold"]))
    certificate = Certificate.of(target)
    bounds = {} if certificate is None else certificate.bounds()
    return findings_of_model(
        scene,
        given(signals, candidates, target, request),
        {"members": len(scored.members), "others": len(scored.others)},
        leakages=leakages,
        preparing=preparing,
        bounds=bounds,
        details={
            "roc": roc(scored, certificate),
            "largest_advantage": metric.largest_advantage(scored),
            "loss_tail": tail_of_losses(signals, candidates, rng.fork("tail")),
            "riskiest": [] if attack.by_unit else riskiest(scored, candidates),
            "left_out": candidates.left_out,
            "warnings": list(warnings_of(leakages, scored, candidates)),
        },
        verdict=verdict_of(leakages, bounds),
    )


def select(model: TextModel, target: Target, request: AttackRequest, rng: Rng) -> Candidates:
    """Return members and non-members of the training data, by unit; the labels are those of the model.

    A text that another unit has in the training data is neither, on both sides: the model has seen it with and without
    the unit, so that the certificate does not bound how well such members are told from texts that it never saw.
    Held-out rows whose unit is in the training data are left out too.
    """
    corpus = matched(target.corpus, model)
    if isinstance(request.attack, MembershipAttack) and request.attack.by_unit and corpus.units is None:
        raise DataError(
            f"Expected a corpus with a unit column for {request.label}, which asks about authors, got one where every "
            "row is a unit. Train with the column that names the author of each text."
        )
    trained = np.array([split == TRAIN for split in corpus.splits])
    shared = _has_another_unit(corpus, trained)
    neither = shared | (~trained & np.isin(corpus.unit_index, corpus.unit_index[trained]))
    members, others = np.flatnonzero(trained & ~neither), np.flatnonzero(~trained & ~neither)
    if not len(others):
        raise DataError(
            "Expected held-out rows to compare the training rows with, got none. Train with held-out rows "
            f"({setting('validation')})."
        )
    pool, population = np.flatnonzero(trained | ~neither), np.zeros(0, dtype=np.int64)
    if Need.POPULATION in request.attack.needs:
        units = np.unique(corpus.unit_index[others])
        order = rng.fork("population").permutation(len(units))
        own = units[order][: min(_POPULATION_UNITS, max(1, round(_POPULATION_SHARE * len(units))))]
        is_own = np.isin(corpus.unit_index[others], own)
        population, others = others[is_own], others[~is_own]
    cheap = model.settings.frozen and Need.NEIGHBOURS not in request.attack.needs
    most = MOST_ROWS if request.members is None and not cheap else request.members
    members, others = (
        sample_units(corpus, rows, most, rng.fork(name)) for rows, name in ((members, "in"), (others, "out"))
    )
    for name, rows in (("members", members), ("non-members", others)):
        count = len(np.unique(corpus.unit_index[rows]))
        if count < metric.LEAST:
            raise DataError(
                f"Expected at least {metric.LEAST} {name} to tell apart, got {count}. Use a corpus with more of them, "
                f"or ask about more ({setting('members')})."
            )
    rows = np.concatenate([members, others])
    order = rng.fork("order").permutation(len(rows))
    return Candidates(corpus, rows[order], order < len(members), population, pool, int(neither.sum()))


def covered(candidates: Candidates, references: GivenReferences) -> Candidates:
    """Return the candidates that at least two of the attacker's own reference models were not trained on.

    Reference models that know who is a member are rejected.
    """
    members = candidates.rows[candidates.is_member]
    others = np.concatenate([candidates.rows[~candidates.is_member], candidates.population])
    references.check(members, others)
    keep, known = references.usable(candidates.rows), references.usable(candidates.population)
    inside = candidates.is_member[keep]
    if min(int(inside.sum()), int((~inside).sum())) < metric.LEAST:
        raise too_few(int(inside.sum()), int((~inside).sum()))
    return replace(
        candidates,
        rows=candidates.rows[keep],
        is_member=inside,
        population=candidates.population[known],
        uncovered=int((~keep).sum() + (~known).sum()),
    )


def sample_units(corpus: Corpus, rows: Ints, most: int | None, rng: Rng) -> Ints:
    """Return the rows of randomly chosen units, whole units and at most about `most` rows; all for None."""
    if most is None or len(rows) <= most:
        return rows
    units, sizes = np.unique(corpus.unit_index[rows], return_counts=True)
    order = rng.permutation(len(units))
    count = max(1, int(np.searchsorted(np.cumsum(sizes[order]), most, side="right")))
    return rows[np.isin(corpus.unit_index[rows], units[order[:count]])]


def _has_another_unit(corpus: Corpus, trained: Bools) -> Bools:
    """Return for each row whether a unit other than its own has the same text in the training data."""
    keys, units = text_keys(corpus), corpus.unit_index.tolist()
    owners: dict[tuple[str, ...], set[int]] = {}
    for row in np.flatnonzero(trained).tolist():
        owners.setdefault(keys[row], set()).add(units[row])
    return np.array([bool(owners.get(key, set()) - {unit}) for key, unit in zip(keys, units, strict=True)], dtype=bool)


def _by_appearance(units: Ints) -> Ints:
    """Return units numbered in the order in which they appear.

    The numbers of a corpus follow its file, where training rows may come first: an attack must not see them.

    >>> _by_appearance(np.array([7, 2, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    _, first, index = np.unique(units, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[index])


def observe(
    request: AttackRequest,
    scene: Scene,
    target: Target,
    candidates: Candidates,
    progress: Progress,
    references: GivenReferences | None = None,
) -> Signals:
    """Return the signals that the attack needs, by asking the model about every candidate.

    Without `references` the attacker trains its own.

    Guarantee: none for the candidates; that of the model does not change, as this is post-processing.
    """
    model, corpus, needs = scene.model, candidates.corpus, request.attack.needs
    signals = Signals(
        target=outputs_of(model, encoded(scene, target, corpus, candidates.rows, progress)),
        labels=None if corpus.labels is None else np.asarray(corpus.labels, dtype=np.int64)[candidates.rows],
        units=_by_appearance(candidates.units),
    )
    if Need.POPULATION in needs:
        population = outputs_of(model, encoded(scene, target, corpus, candidates.population, progress))
        signals = replace(signals, population=population)
    if Need.REFERENCES in needs:
        own, *beside = _references(request, scene, target, candidates, progress, references)
        signals = replace(signals, references=own, population_references=beside[0] if beside else None)
    if Need.NEIGHBOURS in needs:
        assert isinstance(request.attack, Neighbourhood)
        count, source = request.attack.neighbours, Rng(request.seed).fork("neighbours")
        signals = replace(
            signals, neighbours=neighbour_losses(model, corpus.take(candidates.rows), count, source, progress)
        )
    if Need.TOKENS in needs:
        signals = replace(signals, tokens=_tokens(request, model, target, corpus.take(candidates.rows)))
    return signals


def _references(
    request: AttackRequest,
    scene: Scene,
    target: Target,
    candidates: Candidates,
    progress: Progress,
    references: GivenReferences | None,
) -> list[References]:
    """Return the outputs of reference models on the candidates and, if there is one, on the attacker's population.

    Unless there are models already, each is trained on a random half of all rows, by unit. Attacks on the same scene
    with the same seed, number of models and candidates share them.
    """
    assert isinstance(request.attack, MembershipAttack)
    corpus, pool = candidates.corpus, candidates.pool
    vectors: Vectors | None = None
    if scene.model.settings.frozen:
        encoded(scene, target, corpus, pool[:1], progress)
        vectors = scene.cache[VECTORS]
    asked = [candidates.rows, *([candidates.population] if len(candidates.population) else [])]
    if references is not None:
        return [
            References(references.outputs(scene.model, corpus, rows, vectors, progress), references.trained[:, rows])
            for rows in asked
        ]
    count = request.references or request.attack.default_references
    key = (REFERENCES, count, request.seed, request.references_protected, *(rows.tobytes() for rows in asked))
    included = random_halves(corpus.unit_index[pool], count, Rng(request.seed).fork("halves"))
    trained_for, outputs = scene.cache.get(key, (None, []))
    if trained_for is not target:
        outputs = reference_outputs(
            target.choices,
            scene.model,
            ReferenceText(corpus, pool, vectors),
            included,
            asked,
            protected=request.references_protected,
            seed=Rng(request.seed).fork("references").seed() % 2**31,
            progress=progress,
        )
        scene.cache[key] = target, outputs
    places = [np.searchsorted(pool, rows) for rows in asked]
    return [References(one, included[:, at]) for one, at in zip(outputs, places, strict=True)]


def _tokens(request: AttackRequest, model: TextModel, target: Target, rows: Corpus) -> TokenScores:
    """Return the log-probabilities of all tokens under a language model, and under the model it started from."""
    if not isinstance(model, LanguageModel):
        raise UnsupportedError(
            f"Expected a language model for {request.label}, which reads the probability of every token, got a "
            f"{type(model).__name__}. Choose another attack, such as lira."
        )
    before = fresh_model(target.choices, model, rows, Rng(request.seed))
    assert isinstance(before, LanguageModel)
    return token_scores(model, tokens_for(model, rows), before)


def encoded(scene: Scene, target: Target, corpus: Corpus, rows: Ints, progress: Progress) -> Tokens | Vectors:
    """Return rows as the model reads them; the vectors of a frozen encoder are computed once for each scene."""
    model, key = scene.model, VECTORS
    if not model.settings.frozen:
        return tokens_for(model, corpus.take(rows))
    if key not in scene.cache:
        watch = partial(progress, "encoding")
        reader = _reader(scene, target, corpus)
        splits = np.array(corpus.splits)
        vectors = torch.empty(len(corpus), model.width, device=model.device)
        targets: torch.Tensor | None = None
        for name in corpus.split_names:  # by split, as in training, so that vectors in the cache are used
            at = np.flatnonzero(splits == name)
            part = encode(reader, corpus.take(at), target.cache, target.choices.training.precision, watch)
            targets = torch.empty(len(corpus), dtype=part.targets.dtype) if targets is None else targets
            vectors[torch.from_numpy(at)], targets[torch.from_numpy(at)] = part.vectors, part.targets.cpu()
        assert targets is not None
        scene.cache[key] = Vectors(vectors, targets.to(model.device))
    every: Vectors = scene.cache[key]
    return every.take(rows)


def _reader(scene: Scene, target: Target, corpus: Corpus) -> TextModel:
    """Return a model whose vectors are those of the target, and which the cache knows: the one it started from.

    The cache names vectors by the file of the encoder, and a run folder has a file of its own.
    """
    if target.cache is None or scene.run is None:
        return scene.model
    with suppress(DiscreetError):
        fresh = fresh_model(target.choices, scene.model, corpus, Rng(0))
        if same_encoder(scene.model, fresh):
            return fresh.eval()
    return scene.model


def measure(scored: Scored, threshold: float) -> tuple[Leakage, ...]:
    """Return AUC, true-positive rates at low false-positive rates, and the advantage at the attack's threshold.

    A false-positive rate that the number of non-members cannot show is left out.
    """
    leakages = [metric.auc(scored)]
    for rate in metric.RATES:
        at = metric.true_positives_at(scored, rate)
        if at is not None:
            leakages.append(Leakage(metric.tpr_metric(rate), at.value, at.low, at.high, scored.n, rate))
    return (*leakages, metric.advantage(scored, threshold))


@dataclass(frozen=True)
class Certificate:
    """Upper bounds on the success of every membership attack on a model, from what its training cost."""

    curve: Floats = field(repr=False)
    rates: Floats = field(repr=False)

    @classmethod
    def of(cls, target: Target) -> Certificate | None:
        """Return the certificate of a model, or None if nothing is proven about it."""
        if target.guarantee is None or target.certified is None:
            return None
        event, adjacency = target.certified
        rates = np.unique(np.concatenate([_GRID, metric.RATES]))
        if (
            strength(target.guarantee.epsilon) is Strength.NONE
        ):  # the curve is 1 nearly everywhere, and takes minutes to compute
            return cls(np.ones(len(rates)), rates)
        with suppress(UnsupportedError):
            return cls(most_true_positives_at(event, rates.tolist(), adjacency), rates)
        return None

    def at(self, rate: float) -> float:
        """Return the bound on the true-positive rate at a false-positive rate, rounded up to the next of the grid."""
        return float(self.curve[np.searchsorted(self.rates, rate - 1e-12).clip(0, len(self.rates) - 1)])

    def bounds(self) -> dict[str, float]:
        """Return the bound of each metric.

        The curve increases, so that its value at the right end of an interval bounds it from above.
        """
        return {
            metric.AUC: min(1.0, float((np.diff(self.rates) * self.curve[1:]).sum())),
            **{metric.tpr_metric(rate): self.at(rate) for rate in metric.RATES},
            metric.ADVANTAGE: min(1.0, float((self.curve[1:] - self.rates[:-1]).max())),
        }


def roc(scored: Scored, certificate: Certificate | None) -> dict[str, Any]:
    """Return the ROC curve for logarithmic axes, with the certified bound at each of its points."""
    points = metric.roc_points(scored)
    rates = [rate for rate, _ in points]
    return {
        "false_positives": rates,
        "true_positives": [value for _, value in points],
        "bound": None if certificate is None else [certificate.at(rate) for rate in rates],
        "members": len(scored.members),
        "others": len(scored.others),
    }


def tail_of_losses(signals: Signals, candidates: Candidates, rng: Rng) -> dict[str, Any] | None:
    """Return the one number that needs no reference models, or None for too few members."""
    losses, inside = signals.target.losses, candidates.is_member
    if inside.sum() <= 2 * metric.TAIL_MEMBERS:
        return None
    tail = metric.loss_tail(losses[inside], losses[~inside], rng)
    return {"value": tail.value, "low": tail.low, "high": tail.high, "chance": tail.chance, "n": tail.n}


def riskiest(scored: Scored, candidates: Candidates) -> list[dict[str, Any]]:
    """Return the members that are accused at the lowest false-positive rate, with their row numbers and texts.

    Guarantee: none; it names training rows, for their owner.
    """
    rates = metric.accusation_rates(scored)
    members = candidates.rows[candidates.is_member]
    order = np.argsort(rates, kind="stable")[:_RISKIEST]
    return [
        {
            "row": int(members[i]) + 1,
            "false_positive_rate": float(rates[i]),
            "text": candidates.corpus.texts[int(members[i])],
        }
        for i in order.tolist()
    ]


def given(signals: Signals, candidates: Candidates, target: Target, request: AttackRequest) -> Iterator[str]:
    """Yield, in words, everything that the attacker has besides the model."""
    yield "the texts asked about" + (", with their labels" if signals.labels is not None else "")
    if signals.population is not None:
        yield f"{len(candidates.population):,} texts that were not in the training data"
    if signals.references is not None and request.references_from:
        known = "some of the texts" if signals.references.included.any() else "none of the texts"
        yield f"{signals.references.count} reference models of its own, which saw {known} asked about"
    elif signals.references is not None:
        protected = request.references_protected
        how = "" if target.choices.protect is None else (", under its protection" if protected else ", unprotected")
        yield (
            f"{signals.references.count} reference models, trained like the target on random halves of "
            f"{len(candidates.pool):,} texts{how}"
        )
    if signals.neighbours is not None:
        yield f"{signals.neighbours.shape[1]} altered versions of each text"
    if signals.tokens is not None:
        yield "the model that the target was fine-tuned from"
    if target.choices.protect is not None:
        yield "the settings of the protection"


def warnings_of(leakages: tuple[Leakage, ...], scored: Scored, candidates: Candidates) -> Iterator[str]:
    """Yield what a reader must know about the figures, one sentence each."""
    if candidates.uncovered:
        yield (
            f"{candidates.uncovered:,} rows are not asked about: fewer than two reference models were trained without "
            "them."
        )
    if candidates.left_out:
        yield (
            f"{candidates.left_out:,} rows are neither members nor non-members: another unit has the same text in "
            "the training data, or they are held-out rows of a unit in it."
        )
    auc = leakages[0]
    if metric.is_below_chance(auc):
        yield (
            f"AUC is significantly below one half ({auc.value:.3f}, at most {auc.high:.3f}): the attack orders texts "
            "the wrong way round, so that members and non-members differ in more than membership. Do not read it as "
            "protection."
        )
    names = {leakage.metric for leakage in leakages}
    missing = [rate for rate in metric.RATES if metric.tpr_metric(rate) not in names]
    if missing:
        shown = _and([f"{100 * rate:g}%" for rate in missing])
        least = _and([f"{round(1 / rate):,}" for rate in missing])
        yield (
            f"There are {len(scored.others):,} non-members, too few to show a false-positive rate of {shown}: that "
            f"needs at least {least}."
        )


def verdict_of(leakages: tuple[Leakage, ...], bounds: dict[str, float]) -> str:
    """Return in plain words what the attacker finds, beside guessing and beside the certificate."""
    by_name = {leakage.metric: leakage for leakage in leakages}
    rate = next((rate for rate in (0.01, 0.1) if metric.tpr_metric(rate) in by_name), None)
    if rate is None:
        auc = by_name[metric.AUC]
        return f"An attacker ranks a member above a non-member {_percent(auc.value)} of the time; guessing does 50%."
    name = metric.tpr_metric(rate)
    found, allowed = by_name[name], bounds.get(name)
    certified = "nothing is certified" if allowed is None else f"the certificate allows at most {_at_most(allowed)}"
    return (
        f"An attacker who wrongly accuses {_percent(rate)} of outsiders finds {_percent(found.value)} of insiders; "
        f"guessing finds {_percent(rate)}; {certified}."
    )


def _and(words: list[str]) -> str:
    """Return words as a list in a sentence.

    >>> _and(["10", "100", "1,000"]), _and(["1,000"])
    ('10, 100 and 1,000', '1,000')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _at_most(share: float) -> str:
    return f"{np.ceil(1000 * share * (1 - 1e-12)) / 10:g}%"
