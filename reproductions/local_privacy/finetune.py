"""Stage 1 of the local layer: an encoder fine-tuned on public reviews, and SST-2 encoded by it once.

    python -m reproductions.local_privacy.finetune SST2 --reviews .gpu/reviews.jsonl.gz --model minilm --device \
        cuda --out $OUT

The reviews (one JSON object a line: text, label, part) must hold nothing of SST-2; `layer --prepare`
writes such a file. What is saved are vectors in float16, `stage1.safetensors`, for `layer --stage1`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

from discreet.core.device import find_device
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.training.evaluation import evaluate, represent
from discreet.training.loop import train
from discreet.training.plan import TrainingPlan


def read_reviews(path: Path, part: str | None = None, rows: int | None = None) -> Corpus:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    if part is not None:
        found = [row for row in found if row["part"] == part]
    found = found[:rows]
    return Corpus(
        "reviews",
        tuple(row["text"] for row in found),
        labels=tuple(int(row["label"]) for row in found),
        label_names=("0", "1"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--rows", type=int, help="keep this many reviews and sentences")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    from discreet.core.files import save_tensors
    from discreet.data.batches import tokenise

    device = find_device(asked.device)
    asked.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    public = read_reviews(asked.reviews, rows=asked.rows)
    model = Classifier.build(public, ModelSettings(encoder=asked.model, max_length=128), rng=Rng(0).fork("model")).to(
        device
    )
    settings = TrainSettings(epochs=asked.epochs, batch_size=64, learning_rate=5e-5)
    train(model, public, TrainingPlan.make(model, public, training=settings))
    print(f"fine-tuned on {len(public)} public rows in {time.monotonic() - began:.0f} s", flush=True)
    corpus = load(asked.data)
    rotten = read_reviews(asked.reviews, "rt", asked.rows)
    tensors = {}
    for name, rows in (
        ("train", corpus.split("train").take(range(min(len(corpus.split("train")), asked.rows or 10**9)))),
        ("validation", corpus.split("validation")),
        ("reviews", rotten),
    ):
        tokens = tokenise(rows, model.tokenizer, model.max_length, model.device)
        tensors[name] = represent(model, tokens).half()
        tensors[f"{name}.labels"] = tokens.targets.to("cpu")
        save_tensors(tensors, asked.out / "stage1.safetensors")
    tokens = tokenise(corpus.split("validation"), model.tokenizer, model.max_length, model.device)
    print(f"the public head itself, on SST-2 validation: {evaluate(model, tokens)['accuracy']:.4f}")
    print(f"written to {asked.out / 'stage1.safetensors'} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
