"""1-of-n identification: which of n known candidates produced a noisy gradient, by maximum likelihood.

Paper: Hayes, Mahloujifar and Balle 2023, Bounding training data reconstruction in DP-SGD.
Differs: a sweep over noise needs only the candidates' inner products, not their gradients; von Mises–Fisher noise is
attacked too; for a training run, the evidence of all its noisy sums is simulated from inner products, and the
candidates' gradients are computed at one set of weights and used for every step.

No attack on the same release does better, so it is the reference attack for calibration. The gap between its success
and the bound from accounting depends on the similarity of the candidates' gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.attacks.base import Family, GradientAttack, Need, Returns
from discreet.clipping.tape import Clip, Flat, Tape, clipped_sum
from discreet.core.errors import UnsupportedError, invalid, non_negative, positive, probability, whole
from discreet.core.randomness import Rng
from discreet.core.rules import OneOf, check_fields, ruled
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.data.batches import Tokens, tokens_for
from discreet.data.corpus import Corpus
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.models.base import TextModel, evaluating

NOISES = ("gaussian", "von-mises-fisher")
Floats = npt.NDArray[np.float64]
_CHUNK = 1 << 20  # draws times candidates that are simulated at once


@dataclass(frozen=True)
class OneOfN(GradientAttack):
    """Guess which candidate a release of one record came from.

    `noise` is the protection of the release: clipping to `clip_norm` with Gaussian noise, or a random direction around
    the gradient. The candidates, a corpus with one row each, and the public model are in `Knowledge`. The other members
    of the batch are assumed to be known and subtracted.

    In the guess, `indices` are the candidates, most likely first, and `scores` their log-likelihoods up to a constant.
    """

    noise: str = ruled("gaussian", OneOf(NOISES))
    clip_norm: float = 1.0

    name: ClassVar[str] = "one-of-n"
    family: ClassVar[Family] = Family.IDENTIFICATION
    returns: ClassVar[Returns] = Returns.INDICES
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES})

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self)
        positive("clip_norm", self.clip_norm)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the candidates in order of likelihood."""
        if not isinstance(knows.model, TextModel) or not isinstance(knows.extra.get("candidates"), Corpus):
            raise UnsupportedError(
                "Expected the public model and extra['candidates'], a corpus of candidates, in the attacker's "
                "knowledge. 1-of-n identification compares their gradients with the release."
            )
        if seen.batch_size != 1:
            raise invalid("batch_size", seen.batch_size, "1", "Subtract the known members of the batch first.")
        inner, squares = self._compare(seen, knows.model, knows.extra["candidates"])
        lengths = np.sqrt(np.maximum(squares, 1e-300))
        scores = inner - squares / 2 if self.noise == "gaussian" else inner / lengths
        order = np.argsort(-scores, kind="stable")
        return Guess(
            indices=tuple(int(i) for i in order),
            scores=tuple(float(scores[i]) for i in order),
            texts=(knows.extra["candidates"].texts[int(order[0])],),
        )

    def _compare(self, seen: GradientRelease, model: TextModel, candidates: Corpus) -> tuple[Floats, Floats]:
        """Return <release, c_j> and |c_j|^2 for the candidates' contributions c_j, clipped like the release."""
        inner: list[float] = []
        squares: list[float] = []
        clip = Flat(self.clip_norm)
        for j in range(len(candidates)):
            gradients = contribution(model, candidates.take([j]), clip if self.noise == "gaussian" else None)
            if set(gradients) != set(seen.gradients):
                odd = sorted(set(gradients) ^ set(seen.gradients))[0]
                raise UnsupportedError(
                    f"Expected a release of the parameters that the model trains, but only one of the two has {odd!r}. "
                    "Freeze the same layers as the client."
                )
            pairs = [
                (value.double(), seen.gradients[name].double() * seen.divisor) for name, value in gradients.items()
            ]
            inner.append(sum(float((a * b).sum()) for a, b in pairs))
            squares.append(sum(float(a.square().sum()) for a, _ in pairs))
        return np.array(inner), np.array(squares)


def contribution(model: TextModel, row: Corpus, clip: Clip | None) -> dict[str, Tensor]:
    """Return the contribution of one candidate to the sum."""
    tape, losses = losses_of(model, tokens_for(model, row))
    record = tape.backward(losses)
    if clip is not None:
        return clipped_sum(record, clip).gradients
    return record.weighted_sum(torch.ones(1, device=model.device))


def losses_of(model: TextModel, tokens: Tokens, rows: npt.NDArray[np.int64] | None = None) -> tuple[Tape, Tensor]:
    """Return the losses of some rows, by default of all, and the tape that has recorded them."""
    batch = tokens.batch(np.arange(len(tokens), dtype=np.int64) if rows is None else rows)
    tape = Tape(model)
    with evaluating(model), tape:
        losses = model.losses(batch.inputs, batch.targets)
    return tape, losses


def gram_matrix(model: TextModel, candidates: Corpus) -> Floats:
    """Return the inner products of the candidates' unclipped gradients, (n, n), the input of the sweeps.

    Guarantee: none, the candidates are known to the attacker.
    """
    tape, losses = losses_of(model, tokens_for(model, candidates))
    square = tape.backward(losses).gram().double().cpu().numpy()
    return np.asarray((square + square.T) / 2)


@dataclass(frozen=True)
class Identified:
    """How often the true candidate was identified among n, over simulated releases, at one noise strength."""

    strength: float
    hits: int
    draws: int
    candidates: int

    @property
    def chance(self) -> float:
        """The success rate of random guessing."""
        return 1 / self.candidates

    @property
    def success(self) -> float:
        """The success rate."""
        return self.hits / self.draws


def gaussian_sweep(
    gram: Floats,
    noise_multipliers: Sequence[float],
    rng: Rng,
    *,
    clip_norm: float = 1.0,
    steps: int = 1,
    draws: int = 20_000,
) -> list[Identified]:
    """Return the attack's success at each noise multiplier, simulated exactly from the inner products.

    With the contributions c_j = g_j min(1, C / |g_j|), a release of candidate i has scores <c_i, c_j> - |c_j|^2 / 2
    plus noise of covariance sigma^2 C^2 <c_j, c_k>; over several steps with the same gradients they add up.
    """
    n, square = _checked(gram, draws)
    clipped = _clipped(square, clip_norm)
    root = _root(clipped)
    results = []
    for strength in noise_multipliers:
        non_negative("noise_multiplier", strength)
        generator = rng.fork("gaussian", f"{strength!r}").numpy("OneOfN")
        truth = generator.integers(n, size=draws)
        noise = generator.standard_normal((draws, root.shape[1])) @ root.T  # gradients may be linearly dependent
        std = strength * clip_norm / np.sqrt(whole("steps", steps))
        scores = clipped[truth] - np.diag(clipped) / 2 + std * noise
        results.append(Identified(float(strength), int((scores.argmax(axis=1) == truth).sum()), draws, n))
    return results


def direction_sweep(
    gram: Floats, kappas: Sequence[float], dimension: int, rng: Rng, *, steps: int = 1, draws: int = 20_000
) -> list[Identified]:
    """Return the attack's success at each concentration, simulated exactly from the inner products.

    A draw is w u_i + sqrt(1 - w^2) v with v uniform and orthogonal to u_i. The scores <y, u_j> depend only on v's
    projection onto the span of the candidates; its coordinates there are normally distributed values divided by the
    norm of a normally distributed vector of the full dimension.
    Over several steps with the same gradients the scores of independent draws add up.
    """
    n, square = _checked(gram, draws)
    whole("steps", steps)
    norms = np.sqrt(np.maximum(np.diag(square), 1e-300))
    cosines = square / norms[:, None] / norms[None, :]
    root = _root(cosines)  # rows: the candidates' directions in an orthonormal basis of their span
    rank = root.shape[1]
    if dimension <= rank:
        raise invalid("dimension", dimension, f"> {rank}", "It is the number of trained parameters.")
    results = []
    for strength in kappas:
        source = rng.fork("direction", f"{strength!r}")
        generator = source.numpy("OneOfN")
        truth = generator.integers(n, size=draws)
        own = root[truth]
        total = np.zeros((draws, rank))
        for step in range(steps):
            w = VonMisesFisher(strength, dimension).cosines(draws, source.fork("cosine", step)).numpy()
            normal = generator.standard_normal((draws, rank))
            along = (normal * own).sum(axis=1)
            across = normal - along[:, None] * own
            rest = generator.chisquare(dimension - rank, size=draws)
            length = np.sqrt((across**2).sum(axis=1) + rest)
            total += w[:, None] * own + (np.sqrt(1 - w**2) / length)[:, None] * across
        results.append(Identified(float(strength), int(((total @ root.T).argmax(axis=1) == truth).sum()), draws, n))
    return results


def _checked(gram: Floats, draws: int) -> tuple[int, Floats]:
    square = np.asarray(gram, dtype=np.float64)
    if square.ndim != 2 or square.shape[0] != square.shape[1] or len(square) < 2:
        raise invalid("gram.shape", square.shape, "(n, n) with n >= 2", "Pass the inner products of the candidates.")
    whole("draws", draws)
    return len(square), square


def _clipped(gram: Floats, clip_norm: float) -> Floats:
    """Return the inner products of the clipped gradients."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0))
    factors = np.minimum(1, positive("clip_norm", clip_norm) / np.maximum(norms, 1e-300))
    return np.asarray(gram * factors[:, None] * factors[None, :])


def _root(square: Floats) -> Floats:
    """Return R with R R^T = the matrix; its columns are the coordinates in an orthonormal basis of the span."""
    values, vectors = np.linalg.eigh(square)
    kept = values > values.max() * 1e-12
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def training_sweep(
    gram: Floats,
    noise_multipliers: Sequence[float],
    rng: Rng,
    *,
    sampling_rate: float,
    steps: int,
    clip_norm: float = 1.0,
    draws: int = 2000,
) -> list[Identified]:
    """Return how often the right candidate is identified from all sums of a training run with Poisson batches.

    The attacker knows all other members of every batch and subtracts them; it does not know which batches contain the
    target. A step whose noisy remainder is y adds log(1 - q + q exp((<y, c_j> - |c_j|^2 / 2) / std^2)) to candidate j.
    That is the likelihood, so no attack on these sums does better. Gradients change during training; here they are
    those of one set of weights, so the result is an estimate for the training run.

    Guarantee: none, it is an attack; the candidates are known to the attacker.
    """
    n, square = _checked(gram, draws)
    rate, count = probability("sampling_rate", sampling_rate), whole("steps", steps)
    clipped = _clipped(square, clip_norm)
    # The sum over the steps has full precision; the rounding error of one step is far below its noise.
    root, half = _root(clipped).astype(np.float32), (np.diag(clipped) / 2).astype(np.float32)
    own = clipped.astype(np.float32)
    chunk = max(1, _CHUNK // (draws * n))
    results = []
    for strength in noise_multipliers:
        std = positive("noise_multiplier", strength) * clip_norm
        # One stream for all strengths: with the same noise, rescaled, success decreases smoothly with its strength.
        generator = rng.fork("training").numpy("training_sweep")
        truth = generator.integers(n, size=draws)
        scores = np.zeros((draws, n))
        for start in range(0, count, chunk):
            size = min(chunk, count - start)
            present = generator.random((size, draws)) < rate
            noise = generator.standard_normal((size, draws, root.shape[1]), dtype=np.float32) @ root.T
            noise *= np.float32(std)
            noise += present[:, :, None] * own[truth][None] - half
            noise /= np.float32(std**2)  # the log-likelihood ratio of each candidate's presence
            if rate < 1:
                noise = np.log1p(np.float32(rate) * np.expm1(np.minimum(noise, 80)))
            scores += noise.sum(axis=0, dtype=np.float64)
        results.append(Identified(float(strength), int((scores.argmax(axis=1) == truth).sum()), draws, n))
    return results
