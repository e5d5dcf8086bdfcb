"""1-of-n identification: which of n known candidates is behind a noisy gradient, by maximum likelihood.

Paper: Hayes, Mahloujifar and Balle 2023, Bounding training data reconstruction in DP-SGD.
Differs: a whole sweep over noise needs only the candidates' inner products, not their gradients; von Mises–Fisher noise
is attacked too; for a whole training, the evidence of all its noisy sums is simulated from inner products, and the
candidates' gradients are taken at one set of weights and used for every step.

No attack on the same release does better, so beside accounting's bound it is the reference attack for calibration: what
is left between the two is how alike the candidates' gradients are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.attacks.base import Attack, Need, Returns
from discreet.clipping.clip import Clip, Flat, clipped_sum
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError, invalid, non_negative, one_of, positive, probability, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, Release
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.models.classifier import Classifier

NOISES = ("gaussian", "von-mises-fisher")
Floats = npt.NDArray[np.float64]
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class OneOfN(Attack):
    """Guess which candidate a release of one record came from.

    `noise` says how it was protected: clipped to `clip_norm` with Gaussian noise, or turned to a random direction. The
    candidates, a corpus with one row each, and the public model come in as knowledge; other members of the batch
    would be subtracted first and are taken to be known.

    The guess: `indices` holds the candidates, likeliest first, and `scores` their log-likelihoods up to a constant.
    """

    noise: str = "gaussian"
    clip_norm: float = 1.0

    name: ClassVar[str] = "one-of-n"
    sees: ClassVar[type[Release]] = GradientRelease
    returns: ClassVar[Returns] = Returns.INDICES
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES})

    def __post_init__(self) -> None:
        """Reject an unknown noise and a norm that is none."""
        one_of("noise", self.noise, NOISES)
        positive("clip_norm", self.clip_norm)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the candidates in the order of their likelihood."""
        if not isinstance(knows.model, Classifier) or not isinstance(knows.extra.get("candidates"), Corpus):
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

    def _compare(self, seen: GradientRelease, model: Classifier, candidates: Corpus) -> tuple[Floats, Floats]:
        """Return <release, c_j> and |c_j|^2 for the candidates' contributions c_j, clipped as the release was."""
        inner: list[float] = []
        squares: list[float] = []
        clip = Flat(self.clip_norm)
        for j in range(len(candidates)):
            mine = _contribution(model, candidates.take([j]), clip if self.noise == "gaussian" else None)
            if set(mine) != set(seen.gradients):
                odd = sorted(set(mine) ^ set(seen.gradients))[0]
                raise UnsupportedError(
                    f"Expected a release of the same parameters as the model trains, found {odd!r} in one only. "
                    "Freeze the model as the client did."
                )
            pairs = [(mine[name].double(), seen.gradients[name].double() * seen.divisor) for name in mine]
            inner.append(sum(float((a * b).sum()) for a, b in pairs))
            squares.append(sum(float(a.square().sum()) for a, _ in pairs))
        return np.array(inner), np.array(squares)


def _contribution(model: Classifier, row: Corpus, clip: Clip | None) -> dict[str, Tensor]:
    """Return what one candidate would add to the sum."""
    tape, losses = _forward(model, row)
    record = tape.backward(losses)
    if clip is not None:
        return clipped_sum(record, clip).gradients
    return record.weighted_sum(torch.ones(1, device=model.device))


def _forward(model: Classifier, rows: Corpus) -> tuple[Tape, Tensor]:
    tokens = tokenise(rows, model.tokenizer, model.max_length, model.device)
    batch = tokens.batch(np.arange(len(rows), dtype=np.int64))
    was_training = model.training
    model.eval()
    tape = Tape(model)
    with tape:
        losses = model.losses(batch.inputs, batch.targets)
    model.train(was_training)
    return tape, losses


def gram_matrix(model: Classifier, candidates: Corpus) -> Floats:
    """Return the inner products of the candidates' gradients, unclipped, (n, n): all that a sweep needs.

    Guarantee: none, the candidates are known to the attacker.
    """
    tape, losses = _forward(model, candidates)
    square = tape.backward(losses).gram().double().cpu().numpy()
    return np.asarray((square + square.T) / 2)


@dataclass(frozen=True)
class Identified:
    """How often the right one of n was named, over simulated releases, at one strength of noise."""

    strength: float
    hits: int
    draws: int
    candidates: int
    chance: float = field(init=False)

    def __post_init__(self) -> None:
        """Work out blind guessing."""
        object.__setattr__(self, "chance", 1 / self.candidates)

    @property
    def success(self) -> float:
        """The share of right answers."""
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
    """Return the attack's success at each noise multiplier, exactly simulated from the inner products alone.

    With the contributions c_j = g_j min(1, C / |g_j|), a release of candidate i has scores <c_i, c_j> - |c_j|^2 / 2
    plus noise of covariance sigma^2 C^2 <c_j, c_k>; over several steps with the same gradients they add up.
    """
    n, cut = _checked(gram, draws)
    norms = np.sqrt(np.maximum(np.diag(cut), 0))
    factors = np.minimum(1, positive("clip_norm", clip_norm) / np.maximum(norms, 1e-300))
    clipped = cut * factors[:, None] * factors[None, :]
    root = _root(clipped)
    found = []
    for strength in noise_multipliers:
        non_negative("noise_multiplier", strength)
        generator = rng.fork("gaussian", f"{strength!r}").numpy("OneOfN")
        truth = generator.integers(n, size=draws)
        noise = generator.standard_normal((draws, root.shape[1])) @ root.T  # gradients may depend on each other
        std = strength * clip_norm / np.sqrt(whole("steps", steps))
        scores = clipped[truth] - np.diag(clipped) / 2 + std * noise
        found.append(Identified(float(strength), int((scores.argmax(axis=1) == truth).sum()), draws, n))
    return found


def direction_sweep(
    gram: Floats, kappas: Sequence[float], dimension: int, rng: Rng, *, steps: int = 1, draws: int = 20_000
) -> list[Identified]:
    """Return the attack's success at each concentration, exactly simulated from the inner products alone.

    A draw is w u_i + sqrt(1 - w^2) v with v uniform across u_i. The scores <y, u_j> see only v's part in the span of
    the candidates; its coordinates there are normal numbers over the length of a normal vector of the full dimension.
    Over several steps with the same gradients the scores of independent draws add up.
    """
    n, square = _checked(gram, draws)
    whole("steps", steps)
    norms = np.sqrt(np.maximum(np.diag(square), 1e-300))
    cosines = square / norms[:, None] / norms[None, :]
    root = _root(cosines)  # rows: the candidates' directions in an orthonormal basis of their span
    rank = root.shape[1]
    if dimension <= rank:
        raise invalid("dimension", dimension, f"> {rank}", "It counts the trained parameters.")
    found = []
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
        found.append(Identified(float(strength), int(((total @ root.T).argmax(axis=1) == truth).sum()), draws, n))
    return found


def _checked(gram: Floats, draws: int) -> tuple[int, Floats]:
    square = np.asarray(gram, dtype=np.float64)
    if square.ndim != 2 or square.shape[0] != square.shape[1] or len(square) < 2:
        raise invalid("gram.shape", square.shape, "(n, n) with n >= 2", "Give the inner products of the candidates.")
    whole("draws", draws)
    return len(square), square


def _root(square: Floats) -> Floats:
    """Return R with R R^T = the matrix, its columns an orthonormal basis of the candidates' span."""
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
    """Return how often the right candidate is named from every sum of a training with Poisson batches.

    The attacker knows all other members of every batch and subtracts them; what it does not know is in which batches
    the target was. A step in which the noisy rest is y adds log(1 - q + q exp((<y, c_j> - |c_j|^2 / 2) / std^2)) to
    candidate j: the likelihood, so no attack on these sums does better. Gradients change while a model learns; here
    they are those of one set of weights, so the figure is an estimate for the training.

    Guarantee: none, it is an attack; the candidates are known to the attacker.
    """
    n, square = _checked(gram, draws)
    rate, count = probability("sampling_rate", sampling_rate), whole("steps", steps)
    norms = np.sqrt(np.maximum(np.diag(square), 0))
    factors = np.minimum(1, positive("clip_norm", clip_norm) / np.maximum(norms, 1e-300))
    clipped = square * factors[:, None] * factors[None, :]
    # The sum over the steps is kept in full precision; a step's own rounding is far below its noise.
    root, half = _root(clipped).astype(np.float32), (np.diag(clipped) / 2).astype(np.float32)
    own = clipped.astype(np.float32)
    together = max(1, _AT_ONCE // (draws * n))
    found = []
    for strength in noise_multipliers:
        std = positive("noise_multiplier", strength) * clip_norm
        # one stream for all strengths: with the same noise, scaled, success falls smoothly as the noise grows
        generator = rng.fork("training").numpy("training_sweep")
        truth = generator.integers(n, size=draws)
        scores = np.zeros((draws, n))
        done = 0
        while done < count:
            some = min(together, count - done)
            present = generator.random((some, draws)) < rate
            noise = generator.standard_normal((some, draws, root.shape[1]), dtype=np.float32) @ root.T
            noise *= np.float32(std)
            noise += present[:, :, None] * own[truth][None] - half
            noise /= np.float32(std**2)  # the log-likelihood ratio of each candidate's presence
            if rate < 1:
                noise = np.log1p(np.float32(rate) * np.expm1(np.minimum(noise, 80)))
            scores += noise.sum(axis=0, dtype=np.float64)
            done += some
        found.append(Identified(float(strength), int((scores.argmax(axis=1) == truth).sum()), draws, n))
    return found
