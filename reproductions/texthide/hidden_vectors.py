"""What TextHide lets out of a corpus, with the truth behind it: what the attacks on representations are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.core.randomness import Rng
from discreet.core.types import Leakage, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.build import cache_folder, encode
from discreet.models.classifier import Classifier
from discreet.protections.texthide import TextHide

SCHEMES = {
    "plain": TextHide(masks=0, mix=1),
    "mix-only (0, 4)": TextHide(masks=0, mix=4),
    "TextHide (256, 4)": TextHide(masks=256, mix=4),
    "TextHide, fresh masks, k = 4": TextHide(mix=4, fresh_masks=True),
    "TextHide (256, 1), as at inference": TextHide(masks=256, mix=1),
}
BATCH = 32


@dataclass(frozen=True)
class Hidden:
    """A release with the truth behind it: each output's own row, and the weight of every private row in it."""

    seen: RepresentationRelease
    own: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]


def hide(vectors: Tensor, protect: TextHide, outputs: int, rng: Rng, batch: int = BATCH) -> Hidden:
    """Return what TextHide lets out of some vectors, in batches drawn anew every epoch."""
    live = protect.live(len(vectors), vectors.shape[1], 2, rng.fork("secret"), torch.device("cpu"))
    seen, own, weights = [], [], []
    step = epoch = 0
    while sum(map(len, own)) < outputs:
        order = rng.fork("order", epoch).permutation(len(vectors))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            if len(rows) < protect.mix:
                continue
            drawn = live.draw(rows, (len(rows), vectors.shape[1]), step, epoch)
            seen.append(live.hide(vectors[torch.from_numpy(rows)], torch.zeros(len(rows)).long(), drawn)[0])
            table = np.zeros((len(rows), len(vectors)))
            table[:, rows] = drawn["mix"].numpy()
            own.append(rows)
            weights.append(table)
            step += 1
        epoch += 1
    kept = slice(outputs)
    return Hidden(
        RepresentationRelease(torch.cat(seen)[kept]), np.concatenate(own)[kept], np.concatenate(weights)[kept]
    )


def encoded(path: str, split: str, pooling: str) -> tuple[Corpus, Tensor]:
    corpus = load(path).split(split)
    model = Classifier.build(corpus, rng=Rng(0), train="head", pooling=pooling)
    return corpus, encode(model, corpus, cache_folder()).vectors


def distinct(corpus: Corpus, rng: Rng) -> np.ndarray[Any, Any]:
    """Return one row of each different text, in random order."""
    first: dict[str, int] = {}
    for row, text in enumerate(corpus.texts):
        first.setdefault(text, row)
    rows = np.array(list(first.values()))
    return rows[rng.permutation(len(rows))]


def shown(leak: Leakage) -> dict[str, Any]:
    return {"value": leak.value, "low": leak.low, "high": leak.high, "n": leak.n, "chance": leak.chance}
