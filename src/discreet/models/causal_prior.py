"""A causal language model as a prior over the tokens of another model, by re-tokenizing their text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.core.errors import ModelError, first_line
from discreet.models.encoder import quiet

_AT_ONCE = 64  # batch size of the language model


@dataclass(frozen=True)
class CausalPrior:
    """A causal language model, its tokenizer, and the tokenizer of the rows to score.

    The surprise of a row is the negative log-likelihood of its text divided by the tokens of the row, so that rows with
    the same number of tokens of the attacked model are compared by the likelihood of their full text.
    """

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    spoken: Any = field(repr=False)  # the tokenizer of the rows

    @classmethod
    def load(
        cls, where: Path | str, spoken: Any, *, gguf: str | None = None, device: torch.device | str = "cpu"
    ) -> CausalPrior:
        """Load a language model from a folder or a downloaded hub name; nothing is downloaded.

        `gguf` names a GGUF file in the folder (needs the package `gguf`); otherwise the weights are safetensors.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        files: dict[str, Any] = {"gguf_file": gguf} if gguf else {}
        safe: dict[str, Any] = files or {"use_safetensors": True}
        try:
            with quiet():
                tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=True, **files)
                model = AutoModelForCausalLM.from_pretrained(where, local_files_only=True, dtype=torch.float32, **safe)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(
                f"Expected a causal language model that transformers can open in {str(where)!r}. {first_line(error)}"
            ) from None
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "right"
        return cls(model.to(device).eval(), tokenizer, spoken)

    @torch.no_grad()
    def surprise(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the negative log-likelihood of each row's text over its number of tokens; of shape (rows,)."""
        rows = [row[real.bool()].tolist() for row, real in zip(tokens.cpu(), mask.cpu(), strict=True)]
        opening = self.tokenizer.bos_token or self.tokenizer.eos_token or ""
        texts = [opening + self.spoken.decode(row, skip_special_tokens=True) for row in rows]
        distinct = list(dict.fromkeys(texts))
        losses: dict[str, float] = {}
        for start in range(0, len(distinct), _AT_ONCE):
            batch = distinct[start : start + _AT_ONCE]
            losses |= zip(batch, self._log_losses(batch), strict=True)
        totals = torch.tensor([losses[text] for text in texts], device=tokens.device)
        return totals / mask.sum(-1).clamp_min(1)

    def _log_losses(self, texts: list[str]) -> list[float]:
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        batch = {name: batch[name].to(self.model.device) for name in ("input_ids", "attention_mask")}
        if batch["input_ids"].shape[1] < 2:
            return [0.0] * len(texts)
        scores = self.model(**batch).logits[:, :-1].float()
        per_token = F.cross_entropy(scores.mT, batch["input_ids"][:, 1:], reduction="none")
        losses: list[float] = (per_token * batch["attention_mask"][:, 1:]).sum(1).tolist()
        return losses
