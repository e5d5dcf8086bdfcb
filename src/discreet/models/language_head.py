"""A language model over an encoder: it predicts hidden or following tokens instead of a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.core.errors import ModelError, one_of, probability
from discreet.core.randomness import Rng
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.encoder import Encoder, load_encoder

OBJECTIVES = ("masked", "next")


@dataclass(frozen=True)
class _Tokens:
    task: str = "classification"
    label_names: tuple[str, ...] = ("token",)


class LanguageModel(Classifier):
    """An encoder and a map from each state to scores of all tokens, with one loss for each text.

    `masked` hides a random share of a text's tokens behind the mask token and asks for them; `next` asks at every
    position for the token that follows, and is meant for causal models. A text's loss is the mean over what it is asked
    for. The map begins as a copy of the word vectors and is not tied to them: a weight that two layers share cannot be
    clipped. Which tokens are hidden is drawn from `rng`, anew at every call.

    Differs: what is hidden is always replaced by the mask token, while BERT leaves or exchanges a fifth of it.
    """

    def __init__(
        self,
        encoder: Encoder,
        settings: ModelSettings | None = None,
        *,
        rng: Rng,
        objective: str = "masked",
        rate: float = 0.15,
    ) -> None:
        """Put the parts together."""
        super().__init__(encoder, settings or ModelSettings(), _Tokens(), rng)
        self.objective = one_of("objective", objective, OBJECTIVES)
        self.rate = probability("rate", rate)
        if objective == "masked" and self.tokenizer.mask_token_id is None:
            raise ModelError("Expected a tokenizer with a mask token for objective='masked'. Use objective='next'.")
        if not hasattr(self.encoder, "get_input_embeddings"):
            raise ModelError(f"Expected an encoder of transformers, found {type(self.encoder).__name__}.")
        words = self.encoder.get_input_embeddings().weight.detach()  # type: ignore[operator]
        self.head = nn.Linear(self.width, words.shape[0])
        self.head.weight.data.copy_(words)
        self.head.bias.data.zero_()
        self._hidden = rng.fork("hidden tokens")

    @classmethod
    def open(
        cls,
        encoder: str = "minilm",
        settings: ModelSettings | None = None,
        *,
        rng: Rng,
        objective: str = "masked",
        rate: float = 0.15,
    ) -> LanguageModel:
        """Return a language model over an encoder by name or folder."""
        return cls(load_encoder(encoder, rng=rng), settings, rng=rng, objective=objective, rate=rate)

    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss per text, the mean over the tokens asked for; labels are not used.

        Guarantee: none, a loss and its gradient depend on every token.
        """
        ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
        if self.objective == "next":
            asked = real[:, 1:]
            scores, wanted = self.head(self.states(inputs))[:, :-1], ids[:, 1:]
        else:
            asked = self._asked(ids, real)
            hidden = torch.where(asked, self.tokenizer.mask_token_id, ids)
            scores, wanted = self.head(self.states({**inputs, "input_ids": hidden})), ids
        each = F.cross_entropy(scores.float().flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)
        return (each * asked).sum(dim=1) / asked.sum(dim=1).clamp_min(1)

    def _asked(self, ids: Tensor, real: Tensor) -> Tensor:
        """Return which tokens are hidden: each ordinary one at the rate, and at least one in every text."""
        special = torch.tensor(self.tokenizer.all_special_ids, device=ids.device)
        drawn = torch.from_numpy(self._hidden.uniform(ids.numel())).view(ids.shape).to(ids.device)
        drawn = drawn.masked_fill(~real | torch.isin(ids, special), 2.0)  # never below a rate
        least = drawn.amin(dim=1, keepdim=True)
        return ((drawn < self.rate) | (drawn == least)) & (drawn < 1)
