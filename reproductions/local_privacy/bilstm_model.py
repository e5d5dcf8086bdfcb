"""A BiLSTM with the local layer's noise inside, trained end to end: what `bilstm` measures."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from discreet.core.device import find_device
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, tokenise
from discreet.data.samplers import FixedSize
from discreet.data.sources import load
from discreet.models.encoder import load_encoder
from discreet.protections.local.query import clip_states

CLIP = 0.5  # the paper's
PART = 64  # sentences of alike length that are padded together
WORD_SPREAD = 0.3
DRAWS = 5


@dataclass(frozen=True)
class Choice:
    """How one model is trained; a negative noise is none."""

    std: float = -1.0
    position: str = "sentence"
    width: int = 128
    batch: int = 256
    rate: float = 3e-3
    dropout: float = 0.2
    seed: int = 0


def principal(words: Tensor, dimension: int) -> Tensor:
    """Return the word vectors on their strongest axes, about as long as fresh ones would be."""
    torch.manual_seed(0)  # the axes are found by a random start
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

    def __init__(self, words: Tensor, choice: Choice) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words.clone(), freeze=False, sparse=True)
        self.forwards = nn.LSTM(words.shape[1], choice.width // 2, batch_first=True)
        self.backwards = nn.LSTM(words.shape[1], choice.width // 2, batch_first=True)
        self.dropout = nn.Dropout(choice.dropout)
        self.head = nn.Linear(choice.width, 2)
        self.position = choice.position

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


class Trainer:
    """The corpus, and models trained on it; with `held_out` they are asked about a tenth of the train rows."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.epochs = asked.epochs
        self.device = find_device(asked.device)
        encoder = load_encoder(asked.model, rng=Rng(0))
        words = encoder.module.get_input_embeddings().weight.detach().float()  # type: ignore[operator]
        corpus = load(asked.data)
        train, test = corpus.split("train"), corpus.split("validation")
        order = Rng(0).fork("rows").permutation(len(train))[: asked.rows]
        if asked.held_out:
            part = len(order) // 10
            order, test = order[part:], train.take(order[:part])
        found = [tokenise(part, encoder.tokenizer, asked.tokens, self.device) for part in (train.take(order), test)]
        known = torch.cat([part.columns["input_ids"].flatten().long() for part in found]).unique()
        self.train, self.test = (Rows(part, known) for part in found)
        self.words = principal(words[known.cpu()], asked.embedding).to(self.device)

    def model(self, choice: Choice) -> Noisy:
        """Return a model trained as chosen."""
        torch.manual_seed(choice.seed)
        made = Noisy(self.words, choice).to(self.device)
        rate = choice.rate * (choice.batch / 256) ** 0.5
        dense = [p for p in made.parameters() if p is not made.words.weight]
        optimizers = (torch.optim.Adam(dense, lr=rate), torch.optim.SparseAdam([made.words.weight], lr=rate))
        generator = torch.Generator(self.device).manual_seed(choice.seed + 1000)
        steps = round(self.epochs * len(self.train) / choice.batch)
        sampler, rng = FixedSize(choice.batch), Rng(choice.seed).fork("draws")
        for step in range(steps):
            drawn = torch.from_numpy(sampler.draw(step, len(self.train), rng)).to(self.device)
            parts, targets = self.train.parts(drawn)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
                optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(made(parts, choice.std, generator), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
        return made.eval()

    @torch.inference_mode()
    def accuracy(self, made: Noisy, std: float, seed: int = 0) -> float:
        """Return the accuracy over five draws of the queries' noise."""
        generator = torch.Generator(self.device).manual_seed(seed + 2000)
        parts, targets = self.test.parts(torch.arange(len(self.test), device=self.device))
        said = [made(parts, std, generator).argmax(1) for _ in range(DRAWS if std >= 0 else 1)]
        return float(torch.stack([(s == targets).float().mean() for s in said]).mean())

    @torch.inference_mode()
    def along(self, made: Noisy) -> float:
        """Return the root mean square share of the clip that lies on the one axis the head looks at."""
        parts, _ = self.test.parts(torch.arange(len(self.test), device=self.device))
        none = torch.Generator(self.device)
        vectors = clipped(torch.cat([made.vectors(*part, -1.0, none) for part in parts]))
        axis = made.head.weight[1] - made.head.weight[0]
        return float(((vectors @ axis) / axis.norm()).square().mean().sqrt()) / CLIP
