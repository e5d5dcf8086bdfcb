"""Inputs of the search: lengths, labels and special tokens of the texts behind releases, and the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.attacks.encoder_layers import dissect
from discreet.core.errors import UnsupportedError
from discreet.core.types import GradientRelease
from discreet.models.base import TextModel

_CHUNK = 4096  # vectors compared with the whole vocabulary at once


def pick(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the chosen candidates of each problem: of (problems, candidates, …) by numbers (problems, chosen)."""
    index = chosen.view(*chosen.shape, *(1,) * (values.dim() - 2))
    return values.gather(1, index.expand(-1, -1, *values.shape[2:]))


@dataclass(frozen=True)
class Problems:
    """S releases of B texts each, padded to T tokens; special tokens are fixed, all others are free.

    `ids` holds the fixed tokens. `labels` is (problems, sentences), or None if they are learned.
    """

    mask: Tensor = field(repr=False)  # (problems, sentences, tokens), 1 for real tokens
    free: Tensor = field(repr=False)  # (problems, sentences, tokens), True where a token is searched for
    ids: Tensor = field(repr=False)
    labels: Tensor | None = field(repr=False)
    first: int  # position of the first free token

    @property
    def counts(self) -> Tensor:
        """The number of free tokens, (problems, sentences)."""
        return self.free.sum(-1)

    @classmethod
    def of(cls, releases: Sequence[GradientRelease], model: TextModel, attack: str) -> Problems:
        """Return the problems of releases of one batch size; raise if lengths are unknown."""
        sizes = {seen.batch_size for seen in releases}
        if len(sizes) != 1:
            raise UnsupportedError(f"Expected releases of one batch size, got {sorted(sizes)}. Attack them separately.")
        opening, closing = model.frame
        bare = [token for token in (opening, closing) if token is not None]
        lengths = torch.tensor([_lengths(seen, model, attack) for seen in releases])
        if int(lengths.min()) < len(bare) or int(lengths.max()) > model.max_length:
            raise UnsupportedError(
                f"Expected lengths in {len(bare)} … {model.max_length} tokens, got {int(lengths.min())} … "
                f"{int(lengths.max())}. They include the special tokens."
            )
        place = torch.arange(int(lengths.max()))
        mask = (place < lengths[..., None]).long()
        ids = torch.full_like(mask, int(model.tokenizer.pad_token_id or 0))
        free = mask.bool()
        if opening is not None:
            ids[..., 0] = opening
            free = free & (place >= 1)
        if closing is not None:
            ids.scatter_(-1, lengths[..., None] - 1, closing)
            free = free & (place < lengths[..., None] - 1)
        labels = [_labels(seen, model) for seen in releases]
        known = [row for row in labels if row is not None]
        kind = torch.int64 if model.task.has_classes else torch.float32
        return cls(
            mask.to(model.device),
            free.to(model.device),
            ids.to(model.device),
            torch.tensor(known, dtype=kind, device=model.device) if len(known) == len(labels) else None,
            int(opening is not None),
        )


def _lengths(seen: GradientRelease, model: TextModel, attack: str) -> tuple[int, ...]:
    if seen.lengths is not None:
        return seen.lengths
    name = _positions_name(seen, model)
    if name is None or seen.batch_size != 1 or seen.noise_std > 0 or seen.guarantee is not None:
        raise UnsupportedError(
            f"Expected the lengths of the texts in the release for {attack}, got none. For one text without noise they "
            "are read from the position embeddings; otherwise try several lengths."
        )
    rows = (seen.gradients[name].abs().sum(1) > 0).nonzero().flatten()
    return (int(rows.max() - rows.min()) + 1,) if len(rows) else (0,)


def _positions_name(seen: GradientRelease, model: TextModel) -> str | None:
    """Return the name of the position embeddings: the table that is neither for words nor for types."""
    embeddings = dissect(model).embeddings
    for name in seen.gradients:
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, torch.nn.Embedding) and name not in (embeddings.word_name, embeddings.type_name):
            return name
    return None


def _labels(seen: GradientRelease, model: TextModel) -> tuple[int, ...] | None:
    if model.task.is_language:  # it has none: what it should say is the text
        return (0,) * seen.batch_size
    if seen.labels is not None:
        return seen.labels
    bias = next((g for n, g in seen.gradients.items() if n.startswith("head") and n.endswith("bias")), None)
    classes = len(model.label_names)
    if model.task.has_classes and seen.batch_size == 1 and bias is not None and bias.shape == (classes,):
        return (int(bias.argmin()),)  # iDLG: in the bias's gradient, p - y, only the label's entry is negative
    return None


@dataclass(frozen=True)
class Vocabulary:
    """The rows of a word-embedding table that can occur in a text: neither special nor reserved tokens."""

    table: Tensor = field(repr=False)
    allowed: Tensor = field(repr=False)  # the ids of the rows
    unit: Tensor = field(repr=False)  # those rows, normalized

    @classmethod
    def of(cls, model: TextModel, table: Tensor) -> Vocabulary:
        """Return the vocabulary of a model's tokenizer."""
        special = set(model.tokenizer.all_special_ids)
        names = model.tokenizer.convert_ids_to_tokens(list(range(min(len(table), len(model.tokenizer)))))
        kept = [i for i, name in enumerate(names) if i not in special and not str(name).startswith("[unused")]
        if not kept:
            raise UnsupportedError(
                f"Expected ordinary tokens in the tokenizer, got {len(names)} special or reserved ones. Use the "
                "tokenizer of the attacked model."
            )
        allowed = torch.tensor(kept, device=table.device)
        return cls(table, allowed, F.normalize(table[allowed], dim=-1))

    @property
    def rows(self) -> Tensor:
        """The allowed rows."""
        return self.table[self.allowed]

    @property
    def mean_norm(self) -> float:
        """The mean norm of a row."""
        return float(self.rows.norm(dim=-1).mean())

    def nearest(self, x: Tensor, count: int = 1) -> Tensor:
        """Return the ids of the rows nearest to vectors by cosine, (…, count), or all rows if there are fewer."""
        count = min(count, len(self.allowed))
        flat = x.reshape(-1, x.shape[-1])
        ids = [self.allowed[(part @ self.unit.mT).topk(count).indices] for part in torch.split(flat, _CHUNK)]
        return torch.cat(ids).view(*x.shape[:-1], count)

    def cheapest(self, tokens: Tensor, slopes: Tensor, count: int) -> Tensor:
        """Return the ids that decrease a loss most, to first order: smallest slope · (row - current row)."""
        count = min(count, len(self.allowed))
        # The term of the current row is the same for all ids, so it does not change their order.
        flat = slopes.reshape(-1, slopes.shape[-1])
        rows = self.rows
        ids = [self.allowed[(part @ rows.mT).topk(count, largest=False).indices] for part in torch.split(flat, _CHUNK)]
        return torch.cat(ids).view(*tokens.shape, count)
