"""Checks of the implementation: whether the steps of a run are those of the mechanism that its figure is about.

Each check is a statistical test of what the run recorded (`discreet.audit.watch`) against the law that the certificate
assumes, with an exact p-value, or a fact that admits no exception. All checks together refute a correct run with
probability at most `LEVEL`. A check that fails refutes the claim, whatever the lower bound is: the figure is then that
of another mechanism.

| aspect | law |
|---|---|
| noise scale | squares of the noise over its variance: chi-squared, for all parameters together and for each of them |
| noise of steps | squares of totals over steps: chi-squared; cosines of pairs of steps: those of random directions |
| noise of parameters | squares of sums over two parameters: chi-squared |
| clip | what a unit with a very large gradient adds to the sum of a real part: at most the clip norm |
| batches | sizes and counts of units: those of the sampler, in sum and in spread |
| cost | epsilon of the recorded noise, sampler and steps: at most the stated one |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, binom, chi2, hypergeom

from discreet.accounting.events import DpEvent
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.audit.aspects import Aspect, Untested
from discreet.audit.watch import CANARIES
from discreet.core.errors import DataError
from discreet.core.guarantee import Guarantee
from discreet.data.samplers import KINDS, CyclicPoisson, FixedSize, Poisson, RandomAllocation, Sampler, TruncatedPoisson
from discreet.protections.base import GradientProtection
from discreet.protections.dp_sgd import DPSGD

LEVEL = 1e-6  # probability that any check fails for a correct run
CHECKED = (
    Aspect.NOISE_SCALE,
    Aspect.NOISE_STEPS,
    Aspect.NOISE_PARAMETERS,
    Aspect.CLIP_UNIT,
    Aspect.CLIP_PART,
    Aspect.CANARY_BATCHES,
    Aspect.MODEL_BATCHES,
    Aspect.COST,
)
_TOLERANCE = 0.01  # of the clip norm, for the rounding of sums; a fault of clipping is of the size of the norm itself
_LEVELS, _LATTICE = 1024, 1 << 22  # of squared deviations, and the longest exact distribution of a sum
_MOST = 1 << 20  # batches, or units, in an exact distribution

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One aspect of a run that was tested: its p-value, corrected for the tests in it, and what was found."""

    aspect: Aspect
    p_value: float
    found: str

    @property
    def failed(self) -> bool:
        """Whether this refutes the claim."""
        return self.p_value < LEVEL / len(CHECKED)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which is stored with a run: whether it passed, and no figure of the steps."""
        return {"aspect": self.aspect.value, "what": self.aspect.sentence, "passed": not self.failed}


def failure(failed: Sequence[Check]) -> str:
    """Return a sentence about the checks that failed."""
    names = ", ".join(one.aspect.label for one in failed)
    return f"The implementation is not the mechanism that the figure is about: {names}."


def checks_of(
    record: Mapping[str, Any] | None, why: str, protect: object, stated: Guarantee | None
) -> tuple[tuple[Check, ...], tuple[Untested, ...]]:
    """Return the checks of a run, and what they do not test; without a record nothing is tested, for the reason `why`.

    Guarantee: none; it reads what the owner of a run keeps secret, and is for the owner.
    """
    if record is None:
        return (), tuple(Untested(one, why) for one in CHECKED)
    try:
        found = list(_tested(record, protect, stated))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"Expected a complete record of the steps of a run, got a damaged one: {error!r}.") from None
    checks = tuple(one for one in found if isinstance(one, Check))
    return checks, tuple(one for one in found if isinstance(one, Untested))


def _tested(record: Mapping[str, Any], protect: object, stated: Guarantee | None) -> Iterable[Check | Untested]:
    noise, clips, canaries = record.get("noise"), record.get("clips"), record.get("canaries")
    if noise is None:
        name = record["protect"]["name"]
        why = "no noise was added" if name == DPSGD.name else f"{name} draws its noise for each unit, before the sum"
        yield from (Untested(one, why) for one in CHECKED[:3])
    else:
        yield _noise_scale(noise)
        yield _noise_steps(noise)
        yield _noise_parameters(noise)
    if clips is None:
        why = f"{record['protect']['name']} does not clip"
        yield from (Untested(one, why) for one in (Aspect.CLIP_UNIT, Aspect.CLIP_PART))
    else:
        yield _clip(clips, Aspect.CLIP_UNIT)
        yield _clip(clips, Aspect.CLIP_PART)
    if canaries is None:
        yield Untested(Aspect.CANARY_BATCHES, "canaries of text are units of the model's batches")
    else:
        yield _batches(canaries, Aspect.CANARY_BATCHES, 0)
    yield _batches(record["batches"], Aspect.MODEL_BATCHES, int(record["misread"]))
    yield _cost(record, protect, stated)


def _noise_scale(noise: Mapping[str, Any]) -> Check:
    parts = noise["parameters"]
    alone = min((_chi_squared(one["squares"], one["numbers"]) for one in parts), default=1.0) * len(parts)
    numbers = sum(one["numbers"] for one in parts)
    squares = sum(one["squares"] for one in parts)
    found = f"{math.sqrt(squares / max(numbers, 1)):.4f} of the declared deviation, {numbers:,} numbers"
    return Check(Aspect.NOISE_SCALE, _corrected([alone, *_by_block(parts, "squares", "numbers")]), found)


def _noise_steps(noise: Mapping[str, Any]) -> Check | Untested:
    cosines = [test for one in noise["pairs"] for test in one["tests"]]
    pairs = [_cosine(one["largest"], one["width"], one["pairs"]) for one in cosines]
    if not pairs:
        return Untested(Aspect.NOISE_STEPS, "the run has one step")
    parts = noise["parameters"]
    tested, largest = sum(one["pairs"] for one in cosines), max(one["largest"] for one in cosines)
    ratio = sum(one["totals"] for one in parts) / max(1, sum(one["width"] for one in parts))
    found = f"largest cosine {largest:.3f} of {tested:,} pairs, variance of totals {ratio:.3f} of the declared one"
    return Check(Aspect.NOISE_STEPS, _corrected([*pairs, *_by_block(parts, "totals", "width")]), found)


def _by_block(parts: Sequence[Mapping[str, Any]], squares: str, numbers: str) -> list[float]:
    """Return the p-values of sums of squares over the canaries and over the model's own parameters."""
    blocks = [[one for one in parts if (one["name"] == CANARIES) is own] for own in (True, False)]
    return [_chi_squared(sum(one[squares] for one in block), sum(one[numbers] for one in block)) for block in blocks]


def _noise_parameters(noise: Mapping[str, Any]) -> Check | Untested:
    shared = noise["shared"]
    if not shared["numbers"]:
        return Untested(Aspect.NOISE_PARAMETERS, "the sums have one parameter")
    ratio = shared["squares"] / shared["numbers"]
    found = f"variance of sums {ratio:.4f} of the declared one, {shared['numbers']:,} numbers"
    return Check(Aspect.NOISE_PARAMETERS, _chi_squared(shared["squares"], shared["numbers"]), found)


def _clip(clips: Mapping[str, Any], aspect: Aspect) -> Check | Untested:
    alone = aspect is Aspect.CLIP_UNIT
    measured, largest = (
        (clips["measured"], clips["largest"]) if alone else (clips["together"], clips["largest_together"])
    )
    if not measured:
        return Untested(aspect, "no part of a batch had a unit" if alone else "every measured part had a single unit")
    if not clips["reached"]:
        return Untested(aspect, "no gradient reached the clip norm")
    found = f"at most {largest:.4g} of the clip norm, {measured:,} units measured"
    return Check(aspect, 1.0 if largest <= 1 + _TOLERANCE else 0.0, found)


def _cost(record: Mapping[str, Any], protect: object, stated: Guarantee | None) -> Check | Untested:
    if stated is None or not stated.exists or not isinstance(protect, GradientProtection):
        return Untested(Aspect.COST, "nothing is claimed")
    if not isinstance(protect, DPSGD):
        return Untested(Aspect.COST, f"the noise of {protect.name} depends on the model")
    event: DpEvent = protect.with_noise(float(record["protect"]["noise"])).training_cost(
        _sampler(record["batches"]), int(record["steps"]), int(record["public_units"])
    )
    cost = epsilon_of(event, stated.delta, stated.adjacency)
    found = f"epsilon {cost:.4g} for {record['steps']:,} steps, stated {stated.epsilon:.4g}"
    return Check(Aspect.COST, 1.0 if cost <= stated.epsilon * (1 + 1e-6) else 0.0, found)


def _sampler(batches: Mapping[str, Any]) -> Sampler:
    values = dict(batches["sampler"])
    kind = values.pop("kind")
    sampler: Sampler = {one.__name__: one for one in KINDS}[kind](**values)
    return sampler


def _batches(batches: Mapping[str, Any], aspect: Aspect, misread: int) -> Check:
    sampler, units, steps = _sampler(batches), int(batches["units"]), int(batches["steps"])
    sizes = np.asarray(batches["sizes"], dtype=np.int64)
    times, how_many = np.asarray(batches["counts"], dtype=np.int64).reshape(-1, 2).T
    mean = float(sizes.mean()) if len(sizes) else 0.0
    found = f"mean size {mean:.4g} of {units:,}, expected {sampler.expected_size(units):.4g}, {steps:,} steps"
    if batches["outside"] or misread:
        wrong = batches["outside"] + misread
        return Check(aspect, 0.0, f"{wrong:,} draws or rows that these batches cannot have; {found}")
    counts = np.repeat(times, how_many)
    return Check(
        aspect, _corrected(list(_batch_tests(sampler, units, steps, sizes, counts, batches["overlaps"]))), found
    )


def _batch_tests(
    sampler: Sampler,
    units: int,
    steps: int,
    sizes: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    overlaps: Sequence[int],
) -> Iterable[float]:
    """Yield the p-values of the sizes of batches and of how often each unit was in one."""
    if isinstance(sampler, Poisson | TruncatedPoisson):
        rate, of_size, cut = sampler.rate, _binomial(units, sampler.rate), 0.0
        if isinstance(sampler, TruncatedPoisson):
            cut = steps * float(of_size[sampler.largest + 1 :].sum())  # probability that any batch was truncated
            of_size = np.append(of_size[: sampler.largest], of_size[sampler.largest :].sum())
        yield _shifted(of_size, sizes) if cut else _two_sided(binom(units * steps, rate), int(sizes.sum()))
        yield spread([(of_size, sizes)])
        yield spread([(_binomial(steps, rate), counts)]) + cut
    elif isinstance(sampler, RandomAllocation):
        # the first batch of each epoch, as the batches of one are not independent; and who is allocated as before
        first = sizes[:: sampler.bins]
        yield _two_sided(binom(units * len(first), 1 / sampler.bins), int(first.sum()))
        yield spread([(_binomial(units, 1 / sampler.bins), first)])
        if overlaps:
            yield _two_sided(binom(units * len(overlaps), 1 / sampler.bins), sum(overlaps))
    elif isinstance(sampler, CyclicPoisson):
        groups = [sizes[group :: sampler.groups] for group in range(sampler.groups)]
        members = [len(range(group, units, sampler.groups)) for group in range(sampler.groups)]
        draws = sum(count * len(one) for count, one in zip(members, groups, strict=True))
        yield _two_sided(binom(draws, sampler.rate), int(sizes.sum()))
        yield spread([(_binomial(count, sampler.rate), one) for count, one in zip(members, groups, strict=True)])
        cycles = steps // sampler.groups
        if cycles and steps == cycles * sampler.groups:
            yield spread([(_binomial(cycles, sampler.rate), counts)])
    elif isinstance(sampler, FixedSize):
        yield float((sizes == sampler.size).all())
        if overlaps:
            law = hypergeom(units, sampler.size, sampler.size)
            pmf = np.asarray(law.pmf(np.arange(sampler.size + 1)), dtype=np.float64)
            yield spread([(pmf, np.asarray(overlaps, dtype=np.int64))])
            yield _shifted(pmf, np.asarray(overlaps, dtype=np.int64))


def _binomial(count: int, rate: float) -> Floats:
    return np.asarray(binom.pmf(np.arange(count + 1), count, rate), dtype=np.float64)


def spread(samples: Sequence[tuple[Floats, npt.NDArray[np.int64]]]) -> float:
    """Return the two-sided p-value of the spread of independent counts, by the exact distribution of a sum of scores.

    Each sample is the probabilities of 0, 1, 2, … and observed counts. A score is a squared deviation over its
    variance, rounded down to a lattice.

    >>> pmf = _binomial(40, 0.2)
    >>> spread([(pmf, np.array([4, 12, 8, 7, 9, 11, 5, 8]))]) > 0.5, spread([(pmf, np.full(40, 8))]) < 1e-12
    (True, True)
    """
    return _sum_of_scores(samples, _squares)


def _shifted(pmf: Floats, counts: npt.NDArray[np.int64]) -> float:
    """Return the two-sided p-value of the sum of independent counts."""
    return _sum_of_scores([(pmf, counts)], _deviations)


def _squares(deviations: Floats, variance: float, levels: int) -> Floats:
    if variance < 1e-9:  # a single count is possible
        return np.where(np.abs(deviations) < 0.5, 0.0, levels)
    return np.minimum(deviations**2 / variance * levels / 16, levels)


def _deviations(deviations: Floats, variance: float, levels: int) -> Floats:
    width = 12 * math.sqrt(variance) + 1
    return np.asarray(np.clip((deviations + width) / (2 * width) * levels, 0, levels), dtype=np.float64)


def _sum_of_scores(
    samples: Sequence[tuple[Floats, npt.NDArray[np.int64]]], scores: Callable[[Floats, float, int], Floats]
) -> float:
    """Return the two-sided p-value of a sum of scores of independent counts, from its exact distribution.

    `scores` returns numbers from 0 to `levels` for deviations from the mean and their variance; they are rounded down.
    """
    samples = [(pmf, counts[:_MOST]) for pmf, counts in samples if len(counts)]
    repeated = sum(len(counts) for _, counts in samples)
    levels = max(4, min(_LEVELS, _LATTICE // max(repeated, 1)))
    length = levels * repeated + 1
    size = 1 << (length - 1).bit_length()
    transform = np.ones(size // 2 + 1, dtype=np.complex128)
    observed = 0
    for pmf, counts in samples:
        if (counts >= len(pmf)).any():
            return 0.0
        at = np.arange(len(pmf), dtype=np.float64)
        deviations = np.asarray(at - pmf @ at, dtype=np.float64)
        of_count = scores(deviations, float(pmf @ deviations**2), levels).astype(np.int64)
        law = np.bincount(of_count, weights=pmf, minlength=levels + 1)
        transform *= np.fft.rfft(law, size) ** len(counts)
        observed += int(of_count[counts].sum())
    total = np.clip(np.fft.irfft(transform, size)[:length], 0.0, None)
    return float(min(1.0, 2 * min(total[: observed + 1].sum(), total[observed:].sum())))


def _two_sided(law: Any, observed: int) -> float:
    return float(min(1.0, 2 * min(law.cdf(observed), law.sf(observed - 1))))


def _chi_squared(squares: float, numbers: int) -> float:
    """Return the two-sided p-value of a sum of squares of standard normal numbers."""
    if not numbers:
        return 1.0
    if not math.isfinite(squares):
        return 0.0
    return float(min(1.0, 2 * min(chi2.cdf(squares, numbers), chi2.sf(squares, numbers))))


def _cosine(largest: float, width: int, pairs: int) -> float:
    """Return the p-value of the largest cosine of many pairs of random directions: its square has a beta law."""
    if width < 2:
        return 1.0
    return float(min(1.0, pairs * beta.sf(min(largest, 1.0) ** 2, 0.5, (width - 1) / 2)))


def _corrected(p_values: Sequence[float]) -> float:
    """Return the Bonferroni-corrected least p-value."""
    return min(1.0, min(p_values, default=1.0) * len(p_values))
