"""What a trained model memorized: exposure of planted canaries, extractable texts, and the text a class likes best.

Each function prepares what the attacker has, runs the attack, and measures its guess against the truth, which only the
owner of the run has, beside chance and beside what the certificate of the training allows.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from discreet.accounting.events import DpEvent
from discreet.accounting.risk import most_exposure, most_true_positives
from discreet.attacks.base import Need
from discreet.attacks.extraction.class_inversion import ClassInversion, invertible
from discreet.attacks.extraction.discoverable import (
    TRIALS,
    DiscoverableExtraction,
    Prompt,
    Sampling,
    causal,
    extractable_shares,
    extracted_within,
    prompts_of,
    suffix_log_probabilities,
)
from discreet.attacks.extraction.exposure import (
    FITTED,
    CanaryExposure,
    Candidates,
    Exposure,
    candidates_of,
    chance_exposure,
    exposure,
)
from discreet.attacks.membership.signals import Floats
from discreet.core.errors import DataError, UnsupportedError, setting
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, Leakage, ModelRelease
from discreet.data.batches import Tokens, Vectors, tokens_for
from discreet.data.canaries import Canary
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import AttackRequest, Callbacks, Example, Findings, Progress
from discreet.experiment.attack.scene import Scene, Target, findings_of_model
from discreet.experiment.attack.signals import outputs_of, token_scores
from discreet.metrics.categories import fragments, table_of_items
from discreet.metrics.intervals import rate_of, score_interval
from discreet.metrics.text import leakage_of
from discreet.models.base import TextModel
from discreet.models.build import matched, ready
from discreet.models.language_model import LanguageModel
from discreet.training.evaluation import represent

TRAIN = "train"
EXPOSURE, NAMED = "exposure", "secrets_named"
EXTRACTABLE = {1: "extractable_at_1", 1_000: "extractable_at_1000", 1_000_000: "extractable_at_1000000"}
GREEDY, CANARIES_EXTRACTED, CLASS_WORDS = "extractable_greedy", "canaries_extracted", "class_words_read"
METRICS = (EXPOSURE, NAMED, *EXTRACTABLE.values(), GREEDY, CANARIES_EXTRACTED, CLASS_WORDS)
_EVEN = 0.5  # the p of (n, p)-extractable texts in the table
_TEXTS = 100  # training texts, and unseen ones, that are measured by default
_PROMPTS = 16  # texts whose continuations are sampled
_CANARY_SAMPLES = 100  # samples within which a canary's secret may be extracted
_SIGNIFICANT = 0.05
_TYPICAL = 100  # words of a class that are counted as typical of it
_CHUNK = 1000  # texts between two reports of progress
_OTHER_SECRETS = 16  # secrets that are compared to find where in a text the secret's tokens are


def extract(request: AttackRequest, scene: Scene, callbacks: Callbacks) -> Findings:
    """Run an attack on what the trained model of a scene memorized, and measure it.

    Guarantee: none for the result, which holds private texts; it states the guarantee of the model.
    """
    attack, target = request.attack, scene.target
    assert target is not None
    if isinstance(attack, CanaryExposure):
        measured = _expose(attack, request, scene, target, callbacks.progress)
    elif isinstance(attack, DiscoverableExtraction):
        measured = _discover(attack, request, scene, target, callbacks.progress)
    elif isinstance(attack, ClassInversion):
        measured = _invert(attack, request, scene, target, callbacks.progress)
    else:
        raise UnsupportedError(f"Expected an attack on what a model memorized, got {request.label}.")
    found = dict(vars(measured))
    return findings_of_model(scene, ["the model, which it can query", *found.pop("given")], {}, **found)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured of one attack, and what the attacker was given."""

    leakages: tuple[Leakage, ...]
    verdict: str
    given: Sequence[str]
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    examples: tuple[Example, ...] = ()


def _expose(
    attack: CanaryExposure, request: AttackRequest, scene: Scene, target: Target, progress: Progress
) -> Measured:
    canaries = [canary for canary in target.canaries if canary.included]
    if not canaries:
        raise DataError(
            "Expected a run with planted canaries for exposure, got one without. Train it with canaries "
            f"({setting('canaries', 10)}), and keep the file of secrets beside its folder."
        )
    rng = Rng(request.seed).fork("exposure")
    candidates = [candidates_of(canary, canaries, attack.candidates, rng.fork("candidates")) for canary in canaries]
    losses = candidate_losses(scene.model, canaries, candidates, progress, target.cache)
    knows = Knowledge(scene.model, extra={Need.CANARIES.value: losses})
    guess = attack.run(ModelRelease(scene.model, guarantee=target.guarantee), knows, rng.fork("attack"))
    exposures = [
        exposure(float(row[one.truth]), np.delete(row, one.truth), space=one.space, fit=attack.fit)
        for row, one in zip(losses, candidates, strict=True)
    ]
    named = [index == one.truth for index, one in zip(guess.indices, candidates, strict=True)]
    return measure_exposure(canaries, exposures, named, target, rng)


def measure_exposure(
    canaries: Sequence[Canary], exposures: Sequence[Exposure], named: Sequence[bool], target: Target, rng: Rng
) -> Measured:
    """Return the mean exposure over all canaries and by their number of copies, beside chance and the certificate."""
    groups: dict[int, list[int]] = {}
    for place, canary in enumerate(canaries):
        groups.setdefault(canary.copies, []).append(place)
    size = min(one.candidates for one in exposures)
    spread = target.choices.canaries is not None and target.choices.canaries.spread
    certified = proven(target)
    table: list[dict[str, Any]] = []
    by_copies: list[Leakage] = []
    for copies, places in sorted(groups.items()):
        units = copies if spread else 1
        space = max(_ranked_among(exposures[place]) for place in places)
        bound = None if certified is None else most_exposure(certified[0], space, certified[1], copies=units)
        leakage = _mean_exposure(f"{EXPOSURE}_{copies}", [exposures[place] for place in places], rng)
        by_copies.append(leakage)
        table.append(
            {
                "copies": copies,
                "canaries": len(places),
                "mean": leakage.value,
                "low": leakage.low,
                "high": leakage.high,
                "chance": leakage.chance,
                "bound": bound,
                "units": units,
                "first_rank": sum(named[place] for place in places),
            }
        )
    overall = _mean_exposure(EXPOSURE, exposures, rng)
    leakages = [overall, rate_of(NAMED, sum(named), len(named), 1 / size)]
    bounds: dict[str, float] = {}
    if certified is not None and not spread:
        event, adjacency = certified
        bounds = {
            EXPOSURE: most_exposure(event, max(map(_ranked_among, exposures)), adjacency),
            NAMED: most_true_positives(event, 1 / size, adjacency),
        }
    if len(groups) > 1:
        leakages += by_copies
        bounds |= {f"{EXPOSURE}_{row['copies']}": row["bound"] for row in table if row["bound"] is not None}
    details = {
        "exposure": table,
        "canaries": [
            {"name": canary.name, "copies": canary.copies, **dataclasses.asdict(one)}
            for canary, one in zip(canaries, exposures, strict=True)
        ],
        "space": exposures[0].candidates if exposures[0].method == "enumerated" else canaries[0].space.size,
        "largest": max(one.largest for one in exposures),
        "spread": spread,
        "p_value": p_value(exposures),
    }
    given = [f"the texts of {len(canaries)} canaries without their secrets, and {size:,} candidates for each"]
    return Measured(tuple(leakages), _exposure_verdict(table, details, spread), given, details, bounds)


def _ranked_among(one: Exposure) -> int:
    """Return the number of secrets that an exposure is a rank among: a fit extrapolates to the whole space."""
    return round(2**one.largest) if one.method == FITTED else one.candidates


def p_value(exposures: Sequence[Exposure]) -> float:
    """Return the probability of so large a mean exposure if the model never saw the canaries.

    Every rank is then equally likely and independent of the others, so that a canary's exposure exceeds t bits with
    probability at most 2^-t, and the sum of n of them has at most the tail of a gamma distribution. Ranks count, and
    not a fit beyond them, which is an estimate.
    """
    from scipy.stats import gamma

    return float(gamma.sf(sum(math.log(one.candidates / one.rank) for one in exposures), len(exposures)))


def proven(target: Target) -> tuple[DpEvent, Adjacency] | None:
    """Return what the training cost if it bounds every attack, or None if nothing is proven about the model."""
    with suppress(UnsupportedError):
        if target.certified is not None:
            most_true_positives(target.certified[0], 0.5, target.certified[1])
            return target.certified
    return None


def _mean_exposure(metric: str, exposures: Sequence[Exposure], rng: Rng) -> Leakage:
    largest = max(one.largest for one in exposures)
    values = [one.bits for one in exposures]
    low, high = score_interval([max(0.0, bits) / largest for bits in values], rng=rng.fork("interval", metric))
    mean = float(np.mean(values))
    chance = float(np.mean([chance_exposure(one.candidates) for one in exposures]))
    return Leakage(metric, mean, min(low * largest, mean), max(high * largest, mean), len(values), chance)


def _exposure_verdict(table: Sequence[Mapping[str, Any]], details: Mapping[str, Any], spread: bool) -> str:
    parts = [
        f"{row['mean']:.1f} bits planted once"
        if row["copies"] == 1
        else f"{row['mean']:.1f} bits in {row['copies']} copies"
        for row in table
    ]
    proven = [row["bound"] for row in table if row["bound"] is not None]
    most = math.ceil(10 * max(proven) * (1 - 1e-12)) / 10 if proven else 0.0  # a bound is rounded up
    limit = f" The certificate allows at most {most:.1f} bits in the mean." if proven else ""
    if proven and spread:
        limit = f" With every copy a unit of its own, the certificate allows at most {most:.1f} bits."
    finding = (
        f"The model memorized canaries (p = {details['p_value']:.2g})."
        if details["p_value"] < _SIGNIFICANT
        else f"This does not differ from chance (p = {details['p_value']:.2g}): no memorization was found."
    )
    return (
        f"Mean exposure of a secret: {', '.join(parts)}; a model that never saw it has {table[0]['chance']:.1f} bits. "
        f"{finding}{limit}"
    )


def candidate_losses(
    model: TextModel,
    canaries: Sequence[Canary],
    candidates: Sequence[Candidates],
    progress: Progress,
    cache: Path | None = None,
) -> list[Floats]:
    """Return the model's loss on every candidate of every canary; each text is read once.

    For a language model it is the sum over all tokens, for a classifier that of the planted label.
    """
    lists = [[canary.with_secret(one) for one in c.secrets] for canary, c in zip(canaries, candidates, strict=True)]
    names = sorted({text for texts in lists for text in texts})  # the same order for all canaries of a space
    place = {text: row for row, text in enumerate(names)}
    by_label: dict[Any, Floats] = {}
    read: list[Floats | Vectors] = []
    for start in range(0, len(names), _CHUNK):
        progress("scoring candidates", start, len(names))
        read.append(_read(model, names[start : start + _CHUNK], cache))
    result = []
    for canary, texts in zip(canaries, lists, strict=True):
        target = canary.label if model.task.has_classes else canary.score
        if target not in by_label:
            by_label[target] = np.concatenate([_losses(model, part, target) for part in read])
        result.append(by_label[target][[place[text] for text in texts]])
    return result


def _read(model: TextModel, texts: Sequence[str], cache: Path | None) -> Floats | Vectors:
    """Return the losses of a language model on texts, or a classifier's vectors, which do not depend on a label."""
    corpus = Corpus("candidates", tuple(texts))
    if isinstance(model, LanguageModel):
        scores = token_scores(model, tokens_for(model, corpus), precision="float32")
        return np.asarray(-(scores.target * scores.real).sum(axis=1), dtype=np.float64)
    rows = ready(model, corpus, cache, "float32")
    if isinstance(rows, Tokens):
        from discreet.models.classifier import classifier_of

        vectors = represent(classifier_of(model, "canaries"), rows, "float32")
        rows = Vectors(vectors, rows.targets)
    return rows


def _losses(model: TextModel, rows: Floats | Vectors, target: float | int | None) -> Floats:
    if not isinstance(rows, Vectors):
        return rows
    import torch

    kind = torch.int64 if model.task.has_classes else torch.float32
    targets = torch.full((len(rows),), target or 0, dtype=kind, device=rows.targets.device)
    return outputs_of(model, dataclasses.replace(rows, targets=targets), "float32").losses


def _discover(
    attack: DiscoverableExtraction, request: AttackRequest, scene: Scene, target: Target, progress: Progress
) -> Measured:
    model = causal(scene.model)
    rng = Rng(request.seed).fork("extraction")
    count = request.members or _TEXTS
    corpus = matched(target.corpus, model)
    training = list(dict.fromkeys(corpus.split(TRAIN).texts))
    other = [text for text, split in zip(corpus.texts, corpus.splits, strict=True) if split != TRAIN]
    other = [text for text in dict.fromkeys(other) if text not in set(training)]
    progress("log-probabilities", 0, 2)
    texts, prompts = _long_enough(model, attack, training, count, rng.fork("training"))
    if not prompts:
        raise DataError(
            f"Expected training texts of at least {attack.prefix + attack.suffix} tokens, got none. Use a shorter "
            f"prompt ({setting('prefix')}, {setting('suffix')})."
        )
    unseen = _long_enough(model, attack, other, count, rng.fork("unseen"))[1]
    logs = suffix_log_probabilities(model, prompts, attack.sampling)
    progress("log-probabilities", 1, 2)
    others = suffix_log_probabilities(model, unseen, attack.sampling) if unseen else np.empty(0)
    greedy = [suffix_log_probabilities(model, part, Sampling(0.0, None)) for part in (prompts, unseen) if part]
    asked = prompts[:_PROMPTS]
    progress("sampling", 0, len(asked))
    knows = Knowledge(scene.model, extra={Need.PROMPTS.value: [prompt.prefix for prompt in asked]})
    guess = attack.run(ModelRelease(scene.model, guarantee=target.guarantee), knows, rng.fork("attack"))
    shares = extractable_shares(logs)
    of_unseen = extractable_shares(others) if len(others) else None
    n = len(logs)
    leakages = [
        rate_of(name, round(n * shares[_EVEN][place]), n, None if of_unseen is None else of_unseen[_EVEN][place])
        for place, name in ((TRIALS.index(trials), name) for trials, name in EXTRACTABLE.items())
    ]
    certain = [float(np.mean(part == 0.0)) for part in greedy]
    leakages.append(rate_of(GREEDY, round(n * certain[0]), n, certain[1] if len(certain) > 1 else None))
    bounds: dict[str, float] = {}
    of_canaries = _extract_canaries(model, target, attack.sampling)
    if of_canaries is not None:
        leakage, bound = of_canaries
        leakages.append(leakage)
        bounds |= {} if bound is None else {CANARIES_EXTRACTED: bound}
    examples = _examples(model, asked, guess.texts, attack.samples)
    details = {
        "trials": list(TRIALS),
        "training": {str(p): row for p, row in shares.items()},
        "unseen": None if of_unseen is None else {str(p): row for p, row in of_unseen.items()},
        "texts": len(prompts),
        "unseen_texts": len(unseen),
        "too_short": len(texts) - len(prompts),
        "sampled_texts": len(guess.texts),
        "items": table_of_items(guess.texts, training, other),
        "settings": {"prefix": attack.prefix, "suffix": attack.suffix, **vars(attack.sampling)},
    }
    given = [f"the first {attack.prefix} tokens of {len(prompts)} texts"]
    return Measured(tuple(leakages), _extraction_verdict(leakages, attack), given, details, bounds, examples)


def _long_enough(
    model: LanguageModel, attack: DiscoverableExtraction, texts: Sequence[str], count: int, rng: Rng
) -> tuple[list[str], list[Prompt]]:
    """Return a random sample of texts and the prompts of those that are long enough."""
    order = rng.permutation(len(texts))[: min(count, len(texts))].tolist()
    sample = [texts[place] for place in order]
    cut = prompts_of(model, sample, attack.prefix, attack.suffix)
    return sample, [prompt for prompt in cut if prompt is not None]


def _examples(
    model: LanguageModel, prompts: Sequence[Prompt], texts: Sequence[str], samples: int
) -> tuple[Example, ...]:
    """Return the first continuation of each prompt beside the true one."""
    decode: Callable[..., str] = model.tokenizer.decode
    return tuple(
        Example(decode(list(prompt.suffix)), texts[number * samples], {}, number)
        for number, prompt in enumerate(prompts)
    )


def _extraction_verdict(leakages: Sequence[Leakage], attack: DiscoverableExtraction) -> str:
    by_name = {leakage.metric: leakage for leakage in leakages}
    at = by_name[EXTRACTABLE[1_000]]
    beside = "" if at.chance is None else f"; of texts it never saw, {at.chance:.1%}"
    canaries = by_name.get(CANARIES_EXTRACTED)
    planted = (
        ""
        if canaries is None
        else f" A planted secret appears within {_CANARY_SAMPLES} samples with probability {canaries.value:.3g}."
    )
    return (
        f"Of {at.n} training texts, {at.value:.1%} have their next {attack.suffix} tokens extracted with probability "
        f"1/2 or more by 1,000 samples after the first {attack.prefix}{beside}.{planted}"
    )


def _extract_canaries(model: LanguageModel, target: Target, sampling: Sampling) -> tuple[Leakage, float | None] | None:
    """Return the mean probability that sampling yields the secret of a canary, and what the certificate allows.

    Each sample is a guess of one secret, so that n samples guess at most n of them.
    """
    canaries = [canary for canary in target.canaries if canary.included and canary.after and canary.before]
    if not canaries:
        return None
    prompts = [secret_prompt(model, canary) for canary in canaries]
    logs = suffix_log_probabilities(model, prompts, sampling)
    values = [extracted_within(float(log), _CANARY_SAMPLES) for log in logs]
    size = min(canary.space.size for canary in canaries) - len(canaries) + 1
    chance = extracted_within(-math.log(size), _CANARY_SAMPLES)  # every secret equally likely
    low, high = score_interval(values, rng=Rng(0).fork("canaries"))
    mean = float(np.mean(values))
    spread = target.choices.canaries is not None and target.choices.canaries.spread
    certified = None if spread else proven(target)
    guesses = min(1.0, _CANARY_SAMPLES / size)
    bound = None if certified is None else most_true_positives(certified[0], guesses, certified[1])
    return Leakage(CANARIES_EXTRACTED, mean, low, high, len(values), chance), bound


def secret_prompt(model: LanguageModel, canary: Canary) -> Prompt:
    """Return a canary cut before and after the tokens that depend on its secret."""
    rng = Rng(0).fork("secrets")
    others = {canary.space.draw(rng) for _ in range(_OTHER_SECRETS)} - {canary.secret}
    start = [] if model.start is None else [model.start]

    def ids(secret: str) -> list[int]:
        return [*start, *(int(token) for token in model.tokenizer(canary.with_secret(secret))["input_ids"])]

    own = ids(canary.secret)
    first, last = len(own), len(own)
    for other in map(ids, others):
        first = min(first, _common(own, other))
        last = min(last, _common(own[::-1], other[::-1]))
    first = max(1, min(first, len(own) - last - 1))
    return Prompt(tuple(own[:first]), tuple(own[first : len(own) - last]))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def _invert(
    attack: ClassInversion, request: AttackRequest, scene: Scene, target: Target, progress: Progress
) -> Measured:
    model = invertible(scene.model)
    classes = attack.classes(model)
    corpus = matched(target.corpus, model)
    progress("searching", 0, 1)
    guess = attack.run(
        ModelRelease(model, guarantee=target.guarantee), Knowledge(model), Rng(request.seed).fork("inversion")
    )
    typical = typical_words(corpus.split(TRAIN), len(model.label_names))
    values = [_typical_share(text, typical[number]) for text, number in zip(guess.texts, classes, strict=True)]
    chances = [
        _typical_share(text, typical[other])
        for text, number in zip(guess.texts, classes, strict=True)
        for other in range(len(typical))
        if other != number
    ]
    leakage = leakage_of(CLASS_WORDS, values, chances, Rng(request.seed))
    rows = [
        {"class": model.label_names[number], "text": text, "probability": score, "typical_words": value}
        for number, text, score, value in zip(classes, guess.texts, guess.scores, values, strict=True)
    ]
    verdict = (
        f"Of the words in the texts that the classes like best, {leakage.value:.1%} are typical of their class in the "
        f"training text; {leakage.chance:.1%} are typical of another."
    )
    examples = tuple(
        Example(str(row["class"]), str(row["text"]), {CLASS_WORDS: float(value)}, number)
        for number, (row, value) in enumerate(zip(rows, values, strict=True))
    )
    return Measured((leakage,), verdict, [], {"classes": rows}, {}, examples)


def typical_words(rows: Corpus, classes: int) -> list[frozenset[str]]:
    """Return the words that most distinguish the texts of each class, by the log odds of a text with the word."""
    counts = [Counter[str]() for _ in range(classes)]
    sizes = Counter(rows.labels or ())
    for text, label in zip(rows.texts, rows.labels or (), strict=True):
        counts[label].update(set(fragments(text)))
    total = sum(counts, Counter[str]())
    result = []
    for label, own in enumerate(counts):
        others = max(len(rows) - sizes[label], 1)
        odds = {
            word: math.log((count + 0.5) / (sizes[label] + 1)) - math.log((total[word] - count + 0.5) / (others + 1))
            for word, count in own.items()
            if count > 1
        }
        ranked = sorted(odds, key=lambda word: (-odds[word] * own[word], word))
        result.append(frozenset(word for word in ranked[:_TYPICAL] if odds[word] > 0))
    return result


def _typical_share(text: str, typical: frozenset[str]) -> float:
    words = fragments(text)
    return sum(word in typical for word in words) / len(words) if words else 0.0
