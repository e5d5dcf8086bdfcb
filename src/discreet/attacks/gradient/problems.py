"""What is known of the texts behind a set of releases before the search begins: lengths, labels, special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from discreet.attacks.gradient.layers import Anatomy, dissect
from discreet.core.errors import UnsupportedError
from discreet.core.types import GradientRelease
from discreet.models.classifier import Classifier


@dataclass(frozen=True)
class Problems:
    """S releases of B texts each, all padded to T tokens; the special tokens are fixed, the others to be found.

    `ids` holds the fixed tokens. `labels` is (problems, sentences), or None where they are to be learned.
    """

    mask: Tensor = field(repr=False)  # (problems, sentences, tokens), 1 for real tokens
    free: Tensor = field(repr=False)  # (problems, sentences, tokens), true where a token is to be found
    ids: Tensor = field(repr=False)
    labels: Tensor | None = field(repr=False)
    first: int  # the place of the first free token

    @property
    def counts(self) -> Tensor:
        """The number of free tokens, (problems, sentences)."""
        return self.free.sum(-1)

    @classmethod
    def of(cls, seens: Sequence[GradientRelease], model: Classifier, attack: str) -> Problems:
        """Return what releases of one batch size tell, or refuse them."""
        sizes = {seen.batch_size for seen in seens}
        if len(sizes) != 1:
            raise UnsupportedError(f"Expected releases of one batch size, found {sorted(sizes)}. Attack them in turn.")
        bare = [int(i) for i in model.tokenizer("")["input_ids"]]
        opening, closing = (bare[:1], bare[1:]) if len(bare) == 2 else ([], [])
        lengths = torch.tensor([_lengths(seen, model, attack) for seen in seens])
        if int(lengths.min()) < len(bare) or int(lengths.max()) > model.max_length:
            raise UnsupportedError(
                f"Expected lengths in {len(bare)} … {model.max_length} tokens, found {int(lengths.min())} … "
                f"{int(lengths.max())}. They count the special tokens too."
            )
        place = torch.arange(int(lengths.max()))
        mask = (place < lengths[..., None]).long()
        ids = torch.full_like(mask, int(model.tokenizer.pad_token_id or 0))
        free = mask.bool()
        if opening:
            ids[..., 0] = opening[0]
            ids.scatter_(-1, lengths[..., None] - 1, closing[0])
            free = free & (place >= 1) & (place < lengths[..., None] - 1)
        labels = [_labels(seen, model) for seen in seens]
        known = [row for row in labels if row is not None]
        kind = torch.int64 if model.task == "classification" else torch.float32
        return cls(
            mask.to(model.device),
            free.to(model.device),
            ids.to(model.device),
            torch.tensor(known, dtype=kind, device=model.device) if len(known) == len(labels) else None,
            len(opening),
        )


def refuse_pairs(seen: GradientRelease, anatomy: Anatomy, attack: str) -> None:
    """Refuse the gradient of pairs of texts, where no noise hides that it is one."""
    types = seen.gradients.get(anatomy.embeddings.type_name or "")
    if types is not None and seen.noise_std == 0 and seen.guarantee is None and bool((types[1:] != 0).any()):
        raise UnsupportedError(
            f"Expected gradients of single texts for {attack}, found pairs: a second type of token has a gradient."
        )


def _lengths(seen: GradientRelease, model: Classifier, attack: str) -> tuple[int, ...]:
    if seen.lengths is not None:
        return seen.lengths
    name = _positions_name(seen, model)
    if name is None or seen.batch_size != 1 or seen.noise_std > 0 or seen.guarantee is not None:
        raise UnsupportedError(
            f"Expected the lengths of the texts in the release for {attack}, found none. Without noise and for one "
            "text they are read off the position embeddings; else try several."
        )
    rows = (seen.gradients[name].abs().sum(1) > 0).nonzero().flatten()
    return (int(rows.max() - rows.min()) + 1,) if len(rows) else (0,)


def _positions_name(seen: GradientRelease, model: Classifier) -> str | None:
    """Return the name of the table of positions: the one table that is neither of words nor of types."""
    known = dissect(model).embeddings
    for name in seen.gradients:
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, torch.nn.Embedding) and name not in (known.word_name, known.type_name):
            return name
    return None


def _labels(seen: GradientRelease, model: Classifier) -> tuple[int, ...] | None:
    if seen.labels is not None:
        return seen.labels
    bias = next((g for n, g in seen.gradients.items() if n.startswith("head") and n.endswith("bias")), None)
    classes = len(model.label_names)
    if model.task == "classification" and seen.batch_size == 1 and bias is not None and bias.shape == (classes,):
        return (int(bias.argmin()),)  # iDLG: of the bias's gradient, p - y, only the label's entry is negative
    return None
