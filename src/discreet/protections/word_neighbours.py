"""Exact draws over a whole vocabulary, in blocks: by weights that fall with distance, or the nearest to a noisy place.

A word that stands a thousand times in a file has its distances taken once; only its draws are a thousand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from discreet.core.randomness import Rng
from discreet.mechanisms.choices import draw_by_cost
from discreet.mechanisms.laplace import L2Laplace
from discreet.protections.word_nearest import NearestWord

Rows = npt.NDArray[np.int64]
Watch = Callable[[int], None]

_CHOICE_BLOCK = 128  # places whose distances to all words are held at once
_NOISE_BLOCK = 256


def choose(places: torch.Tensor, table: torch.Tensor, price: float, which: Rows, rng: Rng, watch: Watch) -> Rows:
    """Return a row of the table for each entry of `which`, drawn with weight exp(-price distance / 2).

    `which` are row numbers of `places`.

    Guarantee: metric privacy of `price` per Euclidean distance for every entry. Every word can be drawn, however small
        its weight: see `draw_by_cost`.
    """
    squares = (table * table).sum(1)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(len(places)), side="right")
    drawn = np.empty(len(which), dtype=np.int64)
    done = 0
    for start in range(0, len(places), _CHOICE_BLOCK):
        block = places[start : start + _CHOICE_BLOCK]
        # In place: over thirty thousand words the passes over memory cost as much as the product.
        square = torch.addmm(squares, block, table.T, alpha=-2.0).add_((block * block).sum(1)[:, None])
        square[square < 1e-12] = 0.0  # rounding leaves a word 1e-8 away from itself
        distances = square.sqrt_()
        distances -= distances.amin(1, keepdim=True)  # a common factor of the weights
        end = int(ends[start + len(block) - 1])
        mine = order[done:end]
        drawn[mine] = draw_by_cost(distances.mul_(price / 2), which[mine] - start, rng)
        done = end
        watch(done)
    return drawn


def nearest_to_noisy(
    places: torch.Tensor, table: torch.Tensor, price: float, which: Rows, rng: Rng, watch: Watch
) -> Rows:
    """Return, for each entry of `which`, the row nearest to its place plus noise of density e^(-price |z|).

    Guarantee: metric privacy of `price` per Euclidean distance for every entry; which row is nearest is
        post-processing.
    """
    nearest = NearestWord.of(table)
    drawn = np.empty(len(which), dtype=np.int64)
    for start in range(0, len(which), _NOISE_BLOCK):
        noisy = noisy_places(places[torch.from_numpy(which[start : start + _NOISE_BLOCK])], price, rng)
        drawn[start : start + _NOISE_BLOCK] = nearest(noisy)
        watch(min(start + _NOISE_BLOCK, len(which)))
    return drawn


def noisy_places(places: torch.Tensor, price: float, rng: Rng) -> torch.Tensor:
    """Return each place plus a vector of density proportional to exp(-price |z|): uniform direction, gamma length.

    Guarantee: metric privacy of `price` per Euclidean distance for every row.
    """
    found: torch.Tensor = L2Laplace(1 / price, int(places.shape[1]))(places, rng)
    return found
