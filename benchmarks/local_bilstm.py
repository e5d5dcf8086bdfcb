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
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discreet.accounting.interpret import epsilon as proven
from discreet.accounting.local_layer import LocalLayerCost
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, tokenise
from discreet.data.samplers import FixedSize
from discreet.data.sources import load
from discreet.models.encoder import load_encoder
from discreet.protections.ldp_query import clip_states
from discreet.training.precision import find_device

CLIP = 0.5  # the paper's
PART = 64  # sentences of alike length that are padded together
DROPOUT = 0.2
WORD_SPREAD = 0.3
TRAINING = (1.0, 2.3, 3.5, 12.0, 25.0)
INFERENCE = (0.8, 1.75, 2.25, 8.0)


def principal(words: Tensor, dimension: int) -> Tensor:
    """Return the word vectors on their strongest axes, about as long as fresh ones would be."""
    centred = words - words.mean(0)
    _, _, axes = torch.pca_lowrank(centred, min(dimension, words.shape[1]), center=False)
    found = centred @ axes
    return found * (WORD_SPREAD / float(found.std()))


def clipped(vectors: Tensor) -> Tensor:
    return clip_states(vectors.unsqueeze(1), CLIP).squeeze(1)


class Noisy(nn.Module):
    """A fused BiLSTM and a head, with the noise at the sentence's vector or at its words'.

    At position "token" the words of a sentence are bounded together, at "word" each alone; the paper does not say which
    it means. The two directions are two networks, the second one reading each sentence from its end, so that padding
    always comes last and changes no state; the mean over a sentence does not ask for the order.
    """

    def __init__(self, words: Tensor, width: int, position: str) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words.clone(), freeze=False, sparse=True)
        self.forwards = nn.LSTM(words.shape[1], width // 2, batch_first=True)
        self.backwards = nn.LSTM(words.shape[1], width // 2, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(width, 2)
        self.position = position

    def forward(self, parts: list[tuple[Tensor, Tensor, Tensor]], std: float, generator: torch.Generator) -> Tensor:
        """Return the scores of sentences in parts of alike length: ids, the same turned round, and lengths."""
        vectors = torch.cat([self.vectors(*part, std, generator) for part in parts])
        if self.position == "sentence" and std >= 0:
            vectors = clipped(vectors)
            vectors = vectors + std * torch.randn(vectors.shape, device=vectors.device, generator=generator)
        scores: Tensor = self.head(vectors)
        return scores

    def vectors(self, ids: Tensor, turned: Tensor, lengths: Tensor, std: float, generator: torch.Generator) -> Tensor:
        """Return the mean state of each sentence."""
        places = torch.arange(ids.shape[1], device=ids.device)
        mask = (places < lengths[:, None]).unsqueeze(-1)
        x, y = self.words(ids), self.words(turned)
        if self.position != "sentence" and std >= 0:
            x = clip_states(x * mask, CLIP) if self.position == "token" else clipped(x.flatten(0, 1)).view_as(x)
            x = x + std * torch.randn(x.shape, device=x.device, generator=generator)
            back = (lengths[:, None] - 1 - places).clamp_min(0)
            y = x.gather(1, back.unsqueeze(-1).expand_as(x))  # the same noisy words, read from the end
        kept = self.dropout(x.new_ones(len(x), 1, x.shape[2]))  # the same for all words of a sentence
        x, y = x * kept, y * kept
        states = torch.cat([self.forwards(x)[0], self.backwards(y)[0]], dim=2)
        return (states * mask).sum(1) / lengths[:, None]


class Rows:
    """Tokenised sentences, both ways round, in a vocabulary of the words that occur."""

    def __init__(self, tokens: Tokens, known: Tensor) -> None:
        ids = tokens.columns["input_ids"].long()
        self.lengths = torch.from_numpy(tokens.lengths).to(ids.device)
        back = (self.lengths[:, None] - 1 - torch.arange(ids.shape[1], device=ids.device)).clamp_min(0)
        self.ids = torch.searchsorted(known, ids)
        self.turned = self.ids.gather(1, back)
        self.targets = tokens.targets

    def __len__(self) -> int:
        return len(self.ids)

    def parts(self, rows: Tensor) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]:
        """Return rows in parts of alike length, each as wide as its longest, and their labels in the same order."""
        rows = rows[self.lengths[rows].argsort()]
        found = []
        for some in rows.split(PART):
            lengths = self.lengths[some]
            width = int(lengths[-1])
            found.append((self.ids[some, :width], self.turned[some, :width], lengths))
        return found, self.targets[rows]


class Bench:
    """The corpus, the models trained so far, and one method for each table."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.device = find_device(asked.device)
        encoder = load_encoder(asked.model, rng=Rng(0))
        words = encoder.module.get_input_embeddings().weight.detach().float()  # type: ignore[operator]
        corpus = load(asked.data)
        train = corpus.split("train")
        keep = Rng(0).fork("rows").permutation(len(train))[: asked.rows]
        found = [
            tokenise(part, encoder.tokenizer, asked.tokens, self.device)
            for part in (train.take(keep), corpus.split("validation"))
        ]
        known = torch.cat([part.columns["input_ids"].flatten().long() for part in found]).unique()
        self.train, self.test = (Rows(part, known) for part in found)
        self.words = principal(words[known.cpu()], asked.embedding).to(self.device)
        self.began = time.monotonic()

    def steps(self, batch: int) -> int:
        return round(self.asked.epochs * len(self.train) / batch)

    def cost(self, batch: int, calibration: str) -> LocalLayerCost:
        steps = self.steps(batch)
        return LocalLayerCost(CLIP, len(self.train), batch, steps, sampling="fixed", calibration=calibration)

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def model(self, std: float, position: str, width: int, batch: int) -> Noisy:
        """Return a model trained at this noise; a negative one is none."""
        torch.manual_seed(0)
        made = Noisy(self.words, width, position).to(self.device)
        rate = self.asked.rate * (batch / 256) ** 0.5
        dense = [p for p in made.parameters() if p is not made.words.weight]
        optimizers = (torch.optim.Adam(dense, lr=rate), torch.optim.SparseAdam([made.words.weight], lr=rate))
        generator = torch.Generator(self.device).manual_seed(1)
        steps = self.steps(batch)
        sampler, rng = FixedSize(batch), Rng(0).fork("draws")
        for step in range(steps):
            drawn = torch.from_numpy(sampler.draw(step, len(self.train), rng)).to(self.device)
            parts, targets = self.train.parts(drawn)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
                optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(made(parts, std, generator), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
        return made.eval()

    @torch.inference_mode()
    def accuracy(self, made: Noisy, std: float) -> float:
        generator = torch.Generator(self.device).manual_seed(2)
        parts, targets = self.test.parts(torch.arange(len(self.test), device=self.device))
        draws = 5 if std >= 0 else 1
        said = [made(parts, std, generator).argmax(1) for _ in range(draws)]
        return float(torch.stack([(s == targets).float().mean() for s in said]).mean())

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
        if position == "word":  # each word is bounded alone: a sentence of as many words moves further
            cost = replace(cost, clip_norm=CLIP * self.asked.tokens**0.5)
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

    def table_4_words(self) -> None:
        """Train with the noise on each word, as in the left half of the paper's table 4."""
        for epsilon in TRAINING:
            self.row("4", epsilon, "paper-vector", position="word")

    def table_3(self) -> None:
        """Train at the matching epsilon of Table 4; ask without decoys, with nine a query, and these retrained."""
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
                    if decoys:
                        again = self.model(ask, "sentence", 128, batch)
                        self.save(**row, retrained=True, accuracy=self.accuracy(again, ask))

    def table_5(self) -> None:
        for width in (128, 256, 768):
            for epsilon in TRAINING[:3]:
                self.row("5", epsilon, "paper-vector", width=width)

    def figure_6(self) -> None:
        for batch in (64, 128, 256, 512, 1024):
            for calibration in ("paper-vector", "sound"):
                self.row("figure 6", 12.0, calibration, batch=batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm", help="whose vocabulary and word vectors the BiLSTM starts from")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--embedding", type=int, default=128, help="principal dimensions of the word vectors")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--tables", nargs="+", default=["null", "table_4", "table_4_words", "table_3", "table_5", "figure_6"]
    )
    parser.add_argument("--limit", type=float, default=1e9, help="begin no table after so many seconds")
    parser.add_argument("--json", type=Path)
    bench = Bench(parser.parse_args())
    for name in bench.asked.tables:
        if time.monotonic() - bench.began < bench.asked.limit:
            table: Callable[[], None] = getattr(bench, name)
            table()


if __name__ == "__main__":
    main()
