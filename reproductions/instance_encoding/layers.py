"""Sentence vectors from every layer of an encoder: what a linear head reads from each, and an MLP from the best."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from discreet.core.files import load_tensors, save_tensors
from discreet.core.randomness import Rng
from discreet.data.batches import Vectors, tokenise
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.metrics.utility import utility
from discreet.models.build import cache_folder
from discreet.models.classifier import Classifier, ModelSettings, head
from discreet.models.closed_form import fit_classes
from discreet.models.encoder import pool
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.training.evaluation import by_length

POOLINGS = ("mean", "cls")
_TOKENS = 4096
_EPOCHS = 10


@torch.inference_mode()
def by_layer(model: Classifier, corpus: Corpus) -> dict[tuple[int, str], Vectors]:
    """Return the vectors of a corpus by layer (0: the embeddings) and pooling, from the cache if they are there."""
    tokens = tokenise(corpus, model.tokenizer, model.max_length, model.device)
    said = hashlib.sha256(repr((model.fingerprint, "layers")).encode())
    for column in tokens.columns.values():
        said.update(column.cpu().numpy().tobytes())
    path = cache_folder() / f"{said.hexdigest()[:40]}.safetensors"
    if path.exists():
        found = load_tensors(path)[0]
    else:
        model.eval()
        found = {}
        for rows in by_length(tokens.lengths, _TOKENS):
            inputs = tokens.batch(rows).inputs
            states = model.encoder(**inputs, output_hidden_states=True).hidden_states
            for layer, hidden in enumerate(states):
                for how in POOLINGS:
                    kept = found.setdefault(f"{layer} {how}", torch.empty(len(tokens), hidden.shape[-1]))
                    kept[torch.from_numpy(rows)] = pool(hidden, inputs["attention_mask"], how).float().cpu()
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(found, path)
    split = {(int(name.split()[0]), name.split()[1]): rows for name, rows in found.items()}
    return {key: Vectors(rows, tokens.targets, tokens.truncated) for key, rows in sorted(split.items())}


def scrambled(corpus: Corpus, seed: int = 0) -> Corpus:
    """Return public sentences with two of their words exchanged: sentences that are not acceptable, without a label."""
    rng, texts = Rng(seed), []
    for row, text in enumerate(corpus.texts):
        words = text.split()
        if len(words) > 2:
            i = int(rng.fork("place", row).numpy().integers(0, len(words) - 1))
            j = (i + 1 + int(rng.fork("other", row).numpy().integers(0, min(3, len(words) - 1 - i)))) % len(words)
            words[i], words[j] = words[j], words[i]
        texts.append(" ".join(words))
    return replace(corpus, texts=tuple(texts))


def layers(asked: argparse.Namespace, keep: Any) -> None:
    """Print what a linear head reads from each layer, and an MLP head from the best, without and with noise.

    A tenth of the training rows chooses the layer, validation tells.
    """
    for source in asked.data:
        corpus = load(source, rows=asked.rows)
        model = Classifier.build(corpus, ModelSettings(encoder=asked.model, train="head"), rng=Rng(0))
        train, held_out = (by_layer(model, corpus.split(part)) for part in ("train", "validation"))
        chosen: dict[tuple[int, str], float] = {}
        for key, rows in train.items():
            inside = torch.from_numpy(Rng(0).fork("tenth").permutation(len(rows))) >= len(rows) // 10
            row: dict[str, Any] = {"data": corpus.name, "layer": key[0], "pooling": key[1], "head": "linear"}
            most, tenth = (Vectors(rows.vectors[which], rows.targets[which]) for which in (inside, ~inside))
            for part, fitted, tested in (("tenth", most, tenth), ("validation", rows, held_out[key])):
                weights, bias = fit_classes(fitted.vectors, fitted.targets, len(model.label_names))
                said = (tested.vectors @ weights.T + bias).argmax(1).numpy()
                found = utility(model.task, said, tested.targets.numpy())
                row |= {f"{part}_{name}": round(found[name], 4) for name in ("accuracy", "matthews")}
            chosen[key] = row["tenth_matthews"]
            keep(row)
        best = max(chosen, key=lambda key: chosen[key])
        for epsilon, calibration in ((None, "none"), (20.0, "sound"), (20.0, "paper")):
            for seed in asked.seeds:
                found = mlp(model, train[best], held_out[best], epsilon, calibration, Rng(seed))
                row = {"data": corpus.name, "layer": best[0], "pooling": best[1], "head": "mlp", "seed": seed}
                row |= {"claimed": epsilon, "calibration": calibration}
                keep(row | {name: round(found[name], 4) for name in ("accuracy", "matthews")})


def mlp(
    model: Classifier, train: Vectors, held_out: Vectors, epsilon: float | None, calibration: str, rng: Rng
) -> dict[str, float]:
    """Return the utility of an MLP head that learned from stored encodings, or from clipped vectors without noise."""
    asked = InstanceEncoding(epsilon or 1.0, 1e-5, calibration="sound" if epsilon is None else calibration)
    asked = replace(asked, clip_norm=float(torch.linalg.vector_norm(train.vectors, dim=1).median()))
    vectors, targets = asked.seen(train.vectors).float(), train.targets
    if epsilon is not None:
        once = asked.once(np.arange(len(train)), model.width, len(model.label_names), rng.fork("secret"))
        vectors, targets = once(train.vectors, train.targets)
    centre, spread = vectors.mean(0), vectors.std()
    torch.manual_seed(rng.fork("head").seed())
    network = head("mlp", model.width, len(model.label_names), (384, 384))
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-4)
    weights = len(targets) / (len(model.label_names) * torch.bincount(targets).float())
    for epoch in range(_EPOCHS):
        for rows in torch.from_numpy(rng.fork("order", epoch).permutation(len(vectors))).split(64):
            said = network((vectors[rows] - centre) / spread)
            loss = torch.nn.functional.cross_entropy(said, targets[rows], weight=weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()
    with torch.inference_mode():
        said = network((asked.seen(held_out.vectors).float() - centre) / spread).argmax(1)
    return utility(model.task, said.numpy(), held_out.targets.numpy())
