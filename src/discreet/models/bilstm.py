"""A bidirectional LSTM encoder for small devices, unrolled so that per-example clipping sees every step.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks, which puts a BiLSTM of width 128 on the
user's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Encoded:
    """The output of an encoder, with the attribute names of transformers."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]


@dataclass(frozen=True)
class BiLSTMConfig:
    """The shape of the network."""

    vocab_size: int
    embedding_size: int = 384
    hidden_size: int = 128
    max_position_embeddings: int = 512


class Direction(nn.Module):
    """An LSTM over a padded batch in one direction; padded steps do not change the state."""

    def __init__(self, inputs: int, hidden: int, *, backward: bool) -> None:
        """Create the cell: one product for all inputs at once, and one per step for the state."""
        super().__init__()
        self.reverse = backward
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the state at every step, (batch, time, hidden)."""
        batch, time, _ = x.shape
        gates_in = self.from_input(x)
        state = gates_in.new_zeros(batch, self.from_state.in_features)
        cell = torch.zeros_like(state)
        outputs: list[Tensor] = []
        steps = range(time - 1, -1, -1) if self.reverse else range(time)
        for t in steps:
            enter, forget, update, leave = (gates_in[:, t] + self.from_state(state)).chunk(4, dim=-1)
            new_cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(update)
            new_state = torch.sigmoid(leave) * torch.tanh(new_cell)
            real = mask[:, t : t + 1].to(state.dtype)
            cell = real * new_cell + (1 - real) * cell
            state = real * new_state + (1 - real) * state
            outputs.append(state)
        if self.reverse:
            outputs.reverse()
        return torch.stack(outputs, dim=1)


class BiLSTM(nn.Module):
    """A bidirectional LSTM over word embeddings; the two states are concatenated, and zero at padding."""

    def __init__(self, config: BiLSTMConfig) -> None:
        """Create the network with random weights."""
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.embedding_size)
        half = config.hidden_size // 2
        self.forwards = Direction(config.embedding_size, half, backward=False)
        self.backwards = Direction(config.embedding_size, half, backward=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Encoded:
        """Return the hidden states, with the attribute name of transformers."""
        x = self.words(input_ids)
        both = torch.cat([self.forwards(x, attention_mask), self.backwards(x, attention_mask)], dim=-1)
        states = both * attention_mask.unsqueeze(-1).to(both.dtype)
        return Encoded(states, (x, states))
