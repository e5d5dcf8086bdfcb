"""The published tables of the local layer with a BiLSTM, trained end to end with noise between encoder and head.

    python -m benchmarks.local_bilstm SST2 --device cuda --json $OUT/local_bilstm.jsonl

Tables 3 to 5 and Figure 6 of the paper (LDP-NLP) under its calibration and under ours: accuracy beside the epsilon that
is claimed and the epsilon that is proven for the noise. As in the paper the encoder is trained on the private text, so
no figure here is certified; the noise alone is. Each row is printed and saved as soon as it is there.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from discreet.accounting.interpret import epsilon as proven
from discreet.accounting.local_layer import LocalLayerCost
from discreet.core.randomness import Rng
from discreet.data.batches import tokenise
from discreet.data.samplers import FixedSize
from discreet.data.sources import load
from discreet.models.classifier import pool
from discreet.models.encoder import load_encoder
from discreet.protections.ldp_query import clip_states
from discreet.training.precision import find_device

CLIP = 0.5  # the paper's
TRAINING = (1.0, 2.3, 3.5, 12.0, 25.0)
INFERENCE = (0.8, 1.75, 2.25, 8.0)


def clipped(vectors: Tensor) -> Tensor:
    return clip_states(vectors.unsqueeze(1), CLIP).squeeze(1)


class Noisy(nn.Module):
    """The library's BiLSTM in its fused form and a head, with the noise at the sentence's vector or at its words'."""

    def __init__(self, words: Tensor, width: int, position: str) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words.clone(), freeze=False)
        self.reader = nn.LSTM(words.shape[1], width // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(width, 2)
        self.position = position

    def forward(self, ids: Tensor, mask: Tensor, lengths: Tensor, std: float, generator: torch.Generator) -> Tensor:
        x = self.words(ids)
        if self.position == "token" and std >= 0:
            x = clip_states(x * mask.unsqueeze(-1), CLIP)
            x = x + std * torch.randn(x.shape, device=x.device, generator=generator)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.reader(packed)[0], batch_first=True, total_length=x.shape[1])
        vectors = pool(states, mask, "mean")
        if self.position == "sentence" and std >= 0:
            vectors = clipped(vectors)
            vectors = vectors + std * torch.randn(vectors.shape, device=x.device, generator=generator)
        scores: Tensor = self.head(vectors)
        return scores


class Bench:
    """The corpus, the models trained so far, and one method for each table."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.device = find_device(asked.device)
        encoder = load_encoder(asked.model, rng=Rng(0))
        self.words = encoder.module.get_input_embeddings().weight.detach().float().clone()  # type: ignore[operator]
        corpus = load(asked.data)
        train = corpus.split("train")
        keep = Rng(0).fork("rows").permutation(len(train))[: asked.rows]
        self.train = tokenise(train.take(keep), encoder.tokenizer, asked.tokens, self.device)
        self.test = tokenise(corpus.split("validation"), encoder.tokenizer, asked.tokens, self.device)
        self.began = time.monotonic()

    def cost(self, batch: int, calibration: str) -> LocalLayerCost:
        steps = round(self.asked.epochs * len(self.train) / batch)
        return LocalLayerCost(CLIP, len(self.train), batch, steps, sampling="fixed", calibration=calibration)

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def model(self, std: float, position: str, width: int, batch: int) -> Noisy:
        """Return a model trained at this noise; a negative one is none."""
        torch.manual_seed(0)
        made = Noisy(self.words, width, position).to(self.device)
        adam = torch.optim.Adam(made.parameters(), lr=2e-3 * (batch / 256) ** 0.5)
        generator = torch.Generator(self.device).manual_seed(1)
        steps = round(self.asked.epochs * len(self.train) / batch)
        sampler, rng = FixedSize(batch), Rng(0).fork("draws")
        ids, mask = self.train.columns["input_ids"].long(), self.train.columns["attention_mask"].long()
        for step in range(steps):
            drawn = sampler.draw(step, len(self.train), rng)
            rows = torch.from_numpy(drawn).to(self.device)
            for group in adam.param_groups:
                group["lr"] = 2e-3 * (batch / 256) ** 0.5 * (1 - step / steps)
            adam.zero_grad(set_to_none=True)
            lengths = torch.from_numpy(self.train.lengths[drawn])
            scores = made(ids[rows], mask[rows], lengths, std, generator)
            nn.functional.cross_entropy(scores, self.train.targets[rows]).backward()
            adam.step()
        return made.eval()

    @torch.inference_mode()
    def accuracy(self, made: Noisy, std: float) -> float:
        generator = torch.Generator(self.device).manual_seed(2)
        ids, mask = self.test.columns["input_ids"].long(), self.test.columns["attention_mask"].long()
        draws = 5 if std >= 0 else 1
        lengths = torch.from_numpy(self.test.lengths)
        said = [made(ids, mask, lengths, std, generator).argmax(1) for _ in range(draws)]
        return float(torch.stack([(s == self.test.targets).float().mean() for s in said]).mean())

    def save(self, **row: Any) -> None:
        row["seconds"] = round(time.monotonic() - self.began, 1)
        line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
        print(line, flush=True)
        if self.asked.json:
            with self.asked.json.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def row(self, table: str, epsilon: float, calibration: str, **choice: Any) -> None:
        position, width = choice.get("position", "sentence"), choice.get("width", 128)
        batch = min(choice.get("batch", self.asked.batch), len(self.train))
        cost, delta = self.cost(batch, calibration), 1 / len(self.train)
        std = cost.noise_std(epsilon, delta)
        found = self.accuracy(self.model(std, position, width, batch), std)
        true = proven(cost.event(std), delta, "replace-one")
        self.save(
            table=table, position=position, width=width, batch=batch, calibration=calibration, claimed=epsilon,
            proven=true, std=std, accuracy=found,
        )  # fmt: skip

    def null(self) -> None:
        self.save(table="null", accuracy=self.accuracy(self.model(-1.0, "sentence", 128, self.asked.batch), -1.0))

    def table_4(self) -> None:
        for calibration in ("paper-vector", "sound"):
            for position in ("sentence", "token"):
                for epsilon in TRAINING:
                    self.row("4", epsilon, calibration, position=position)
        self.row("4", 12.0, "paper")

    def table_3(self) -> None:
        """Train at the matching epsilon of Table 4; ask without decoys, with nine a query, and retrained."""
        n = len(self.test)
        for calibration in ("paper-vector", "sound"):
            for training, inference in zip(TRAINING, INFERENCE, strict=False):
                batch, delta = min(self.asked.batch, len(self.train)), 1 / len(self.train)
                std = self.cost(batch, calibration).noise_std(training, delta)
                trained = self.model(std, "sentence", 128, batch)
                for decoys in (0, 9):
                    # one true query a step on average, and every query once
                    drawn, steps = (1 + decoys, n) if calibration != "sound" else (1, n * (1 + decoys))
                    made = LocalLayerCost(CLIP, n, drawn, steps, decoys * n, "fixed", calibration)
                    ask = made.noise_std(inference, 1 / n)
                    row = {"table": "3", "calibration": calibration, "training": training, "claimed": inference}
                    row |= {"proven": proven(made.event(ask), 1 / n, "replace-one"), "std": ask, "decoys": decoys}
                    self.save(**row, retrained=False, accuracy=self.accuracy(trained, ask))
                    again = self.model(ask, "sentence", 128, batch)
                    self.save(**row, retrained=True, accuracy=self.accuracy(again, ask))

    def table_5(self) -> None:
        for width in (256, 768):
            for epsilon in TRAINING[:3]:
                self.row("5", epsilon, "paper-vector", width=width)

    def figure_6(self) -> None:
        for batch in (32, 128, 256, 1024):
            for calibration in ("paper-vector", "sound"):
                self.row("figure 6", 12.0, calibration, batch=batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm", help="whose vocabulary and word vectors the BiLSTM starts from")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tables", nargs="+", default=["null", "table_4", "table_3", "table_5", "figure_6"])
    parser.add_argument("--limit", type=float, default=1e9, help="begin no table after so many seconds")
    parser.add_argument("--json", type=Path)
    bench = Bench(parser.parse_args())
    for name in bench.asked.tables:
        if time.monotonic() - bench.began < bench.asked.limit:
            table: Callable[[], None] = getattr(bench, name)
            table()


if __name__ == "__main__":
    main()
