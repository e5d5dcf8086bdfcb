"""Attacks that rebuild vectors or words: by a trained network, from many encodings together, or word by word."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.attacks.representation.blind import BlindReconstruction
from discreet.attacks.representation.index import unit
from discreet.attacks.representation.instance import InstanceReconstruction
from discreet.attacks.representation.inversion import EmbeddingInversion
from discreet.attacks.representation.reprecon import RepRecon
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, Leakage, RepresentationRelease
from discreet.metrics.retrieval import retrieval
from discreet.metrics.table import text_leakage
from discreet.protections.base import clip
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.texthide import TextHide
from reproductions.texthide.hidden_vectors import SCHEMES, distinct, encoded, hide, shown
from reproductions.texthide.vector_metrics import matched_cosines, recovered

THRESHOLDS = (0.8, 0.9, 0.95, 0.99)


def reprecon(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print what a trained network rebuilds, by signed and by absolute values, on validation sentences."""
    rng = Rng(asked.seed)
    train, plain = encoded(asked.data, "train", asked.pooling)
    test, vectors = encoded(asked.data, "validation", asked.pooling)
    rows = torch.from_numpy(np.sort(rng.fork("rows").permutation(len(train))[: asked.pairs]))
    plain, queries = plain[rows], min(500, len(test))
    knows_texts, labels = list(test.texts), test.labels
    embeddings = unit(vectors.numpy())
    where = {text: row for row, text in reversed(list(enumerate(knows_texts)))}
    for name in ("plain", "TextHide (256, 4)") if asked.brief else list(SCHEMES)[:4]:
        protect = SCHEMES[name]
        # one pool of masks for both: the attacker's pairs come from the defence that it attacks
        both = torch.cat([plain, vectors])
        made = hide(both, protect, len(both), rng.fork(name))
        learnt = made.own < len(plain)
        heaviest = made.weights.argmax(axis=1)
        tested = np.flatnonzero(~learnt & (heaviest >= len(plain)))[:queries]
        for absolute in (False, True):
            attack = RepRecon(absolute=absolute, epochs=asked.epochs)
            pairs = (made.seen.vectors[torch.from_numpy(learnt)], both[torch.from_numpy(made.own[learnt])])
            knows = Knowledge(candidates=knows_texts, extra={"vectors": vectors, "pairs": pairs})
            began = time.monotonic()
            guess = attack.run(RepresentationRelease(made.seen.vectors[torch.from_numpy(tested)]), knows, rng)
            row = {"data": test.name, "scheme": name, "absolute": absolute, "pairs": len(plain), "seed": asked.seed,
                   "queries": len(tested), "seconds": time.monotonic() - began}  # fmt: skip
            for whose, truth in (("own", made.own[tested]), ("dominant", heaviest[tested])):
                true = truth - len(plain)
                leaks = retrieval(
                    guess.texts, [knows_texts[i] for i in true], knows_texts, rng=rng.fork(name, whose),
                    embed=lambda asked_for: embeddings[[where[text] for text in asked_for]],
                    guessed_labels=None if labels is None else [labels[i] for i in guess.indices],
                    true_labels=None if labels is None else [labels[i] for i in true], index_labels=labels,
                )  # fmt: skip
                row[whose] = {leak.metric: shown(leak) for leak in leaks}
            save(row)
            own = "  ".join(f"{m} {cell['value']:.3f} ({cell['chance']:.3f})" for m, cell in row["own"].items())
            heavy = row["dominant"]["identity"]["value"]
            print(f"{name:<36}{'absolute' if absolute else 'signed':<10}own (chance): {own}  dominant {heavy:.3f}  "
                  f"{row['seconds']:.0f} s", flush=True)  # fmt: skip


def measured(guess: Guess, truth: Tensor, candidates: int) -> tuple[Leakage, dict[str, float]]:
    rebuilt = guess.details["vectors"]
    cosines = matched_cosines(rebuilt, truth)
    chance = len(truth) / candidates
    return recovered(rebuilt, truth, chance=chance), {f"{t:g}": float((cosines >= t).mean()) for t in THRESHOLDS}


def instance(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print how many of 100 private vectors are rebuilt from 5,000 encodings."""
    corpus, vectors = encoded(asked.data, "train", asked.pooling)
    for seed in range(asked.seed, asked.seed + asked.seeds):
        rng = Rng(seed)
        rows = torch.from_numpy(distinct(corpus, rng.fork("rows"))[: asked.candidates or 900])
        held = vectors[rows[rng.fork("shuffle").permutation(len(rows))]]
        inside = torch.from_numpy(rng.fork("inside").permutation(len(held))[: asked.private])
        truth = held[inside]
        for name, protect in (
            ("TextHide (16, 4)", TextHide(masks=16, mix=4)),
            ("TextHide, fresh masks, k = 4", TextHide(mix=4, fresh_masks=True)),
        ):
            made = hide(truth, protect, asked.encodings, rng.fork(name), batch=asked.private)
            attack = InstanceReconstruction(count=asked.private)
            guess = attack.run(made.seen, Knowledge(extra={"vectors": held}), rng.fork("attack"))
            report(name, None, None, seed, *measured(guess, truth, len(held)), save, corpus.name)
            if protect.masks:
                others = torch.from_numpy(np.setdiff1d(np.arange(len(vectors)), rows.numpy())[:3000])
                public = Knowledge(extra={"public": vectors[others]})
                guess = BlindReconstruction(count=asked.private, masks=protect.masks).run(made.seen, public, rng)
                leak, curve = measured(guess, truth, len(held))
                report(f"{name}, blind", None, None, seed, replace(leak, chance=0.0), curve, save, corpus.name)
        norm = float(torch.linalg.vector_norm(held, dim=1).median())
        clipped = clip(held, norm)
        knows = Knowledge(extra={"vectors": clipped})
        for calibration in ("paper", "sound"):
            for epsilon in asked.epsilons:
                protect = InstanceEncoding(
                    epsilon, 1e-5, norm, mix=4, calibration=calibration, rounds=asked.encodings // asked.private
                )
                once = protect.once(np.arange(len(truth)), truth.shape[1], 2, rng.fork(calibration, f"{epsilon!r}"))
                encodings, _ = once(truth, torch.zeros(len(truth)).long())
                attack = InstanceReconstruction(count=asked.private, masked=False)
                guess = attack.run(RepresentationRelease(encodings), knows, rng.fork("attack"))
                found = measured(guess, clipped[inside], len(held))
                report(f"DP-IE, {calibration}", epsilon, once.scale / norm, seed, *found, save, corpus.name)
                if calibration == "paper":  # as its algorithm is printed: one noise vector for all outputs
                    mixed = torch.zeros(len(once.partners), truth.shape[1], dtype=torch.float64)
                    for j in range(4):
                        weight = torch.from_numpy(once.weights[:, j : j + 1])
                        mixed += weight * clipped[inside][torch.from_numpy(once.partners[:, j])]
                    noise = torch.from_numpy(rng.fork("one", f"{epsilon!r}").numpy().standard_normal(truth.shape[1]))
                    attack = InstanceReconstruction(count=asked.private, masked=False, common_noise=True)
                    guess = attack.run(RepresentationRelease(mixed + once.scale * noise), knows, rng.fork("attack"))
                    found = measured(guess, clipped[inside], len(held))
                    report("DP-IE, paper, one noise", epsilon, once.scale / norm, seed, *found, save, corpus.name)


def inversion(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print how many words a network reads from vectors under DP instance encoding without mixing, sent once."""
    rng = Rng(asked.seed)
    train, own = encoded(asked.data, "train", asked.pooling)
    test, vectors = encoded(asked.data, "validation", asked.pooling)
    rows = np.sort(rng.fork("rows").permutation(len(train))[: asked.pairs])
    known = set(test.texts)
    rows = np.array([row for row in rows.tolist() if train.texts[row] not in known])
    own, vectors = own[torch.from_numpy(rows)], vectors[:300]
    norm = float(torch.linalg.vector_norm(own, dim=1).median())
    for epsilon in [*asked.epsilons, None]:
        protect = None if epsilon is None else InstanceEncoding(epsilon, 1e-5, norm)
        hidden = []
        for part, plain in (("own", own), ("attacked", vectors)):
            if protect is None:
                hidden.append(plain)
                continue
            once = protect.once(np.arange(len(plain)), plain.shape[1], 2, rng.fork(part, f"{epsilon!r}"))
            hidden.append(once(plain, torch.zeros(len(plain)).long())[0].float())
        knows = Knowledge(auxiliary=[train.texts[row] for row in rows], extra={"auxiliary": hidden[0]})
        attack = EmbeddingInversion(hidden=512, epochs=asked.epochs)
        guess = attack.run(RepresentationRelease(hidden[1]), knows, rng.fork("attack"))
        truths = test.texts[: len(vectors)]
        leaks = [
            text_leakage(metric, guess.texts, truths, rng=rng.fork("measure")) for metric in ("rouge_1", "jaccard")
        ]
        save({"data": test.name, "what": "inversion", "epsilon": epsilon, **{k.metric: shown(k) for k in leaks}})
        print(f"epsilon {'none' if epsilon is None else epsilon}: {leaks[0]}; {leaks[1]}", flush=True)


def report(
    scheme: str, epsilon: float | None, scale: float | None, seed: int, leak: Leakage, curve: dict[str, float],
    save: Callable[[dict[str, Any]], None], data: str,
) -> None:  # fmt: skip
    save({"data": data, "scheme": scheme, "epsilon": epsilon, "noise_over_norm": scale, "seed": seed,
          "recovered": shown(leak), "curve": curve})  # fmt: skip
    strength = "" if epsilon is None else f"epsilon {epsilon:g}, noise {scale:.3g} C"
    print(f"{Path(data).name} seed {seed} {scheme:<30}{strength:<28}{leak}  over thresholds {curve}", flush=True)
