"""1-of-n identification from a whole training: the evidence of all its noisy sums, simulated from inner products.

Paper: Hayes, Mahloujifar and Balle 2023, Bounding training data reconstruction in DP-SGD.
Differs: the candidates' gradients are taken at one set of weights and used for every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from discreet.attacks.gradient.one_of_n import Floats, Identified, _checked, _root
from discreet.core.checks import positive, probability, whole
from discreet.core.randomness import Rng

_AT_ONCE = 1 << 20


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
