"""Sentence vectors from every layer of an encoder, and how much a linear head reads from each without noise."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch

from discreet.core.randomness import Rng
from discreet.data.batches import Vectors, tokenise
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.metrics.utility import utility
from discreet.models.classifier import Classifier, ModelSettings, pool
from discreet.training.encode import cache_folder
from discreet.training.evaluate import by_length
from discreet.training.local_head import fit_classes
from discreet.training.tensors import load_tensors, save_tensors

POOLINGS = ("mean", "cls")
_TOKENS = 4096


@torch.inference_mode()
def by_layer(model: Classifier, corpus: Corpus) -> dict[tuple[int, str], Vectors]:
    """Return the vectors of a corpus by layer (0: the embeddings) and pooling, from the cache if they are there."""
    import hashlib

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
    """Print what a linear head reads from each layer: a tenth of the training rows chooses, validation tells."""
    for source in asked.data:
        corpus = load(source, rows=asked.rows)
        model = Classifier.build(corpus, ModelSettings(encoder=asked.model, train="head"), rng=Rng(0))
        train, held_out = (by_layer(model, corpus.split(part)) for part in ("train", "validation"))
        for key, rows in train.items():
            inside = torch.from_numpy(Rng(0).fork("tenth").permutation(len(rows))) >= len(rows) // 10
            row: dict[str, Any] = {"data": corpus.name, "layer": key[0], "pooling": key[1]}
            most, tenth = (Vectors(rows.vectors[which], rows.targets[which]) for which in (inside, ~inside))
            for part, chosen, tested in (("tenth", most, tenth), ("validation", rows, held_out[key])):
                weights, bias = fit_classes(chosen.vectors, chosen.targets, len(model.label_names))
                said = (tested.vectors @ weights.T + bias).argmax(1).numpy()
                found = utility(model.task, said, tested.targets.numpy())
                row |= {f"{part}_{name}": round(found[name], 4) for name in ("accuracy", "matthews")}
            keep(row)
