"""Relative positions of T5 and DeBERTa-v2, which these models compute once for all rows of a batch.

Autograd then adds up the gradients of all rows. Here the positions are expanded over the batch before they are combined
with the rows' own values, so that each row has a gradient of its own. An expanded tensor takes no memory.

Differs: DeBERTa-v2 applies dropout to its relative embeddings once for all rows; here each row has its own mask.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping.forwards import Forward, Gradients, Recorder, VectorUse
from discreet.clipping.layers import Kind, Layer, is_deberta_encoder
from discreet.clipping.norms import accumulator
from discreet.core.errors import UnsupportedError

Replacement = tuple[nn.Module, str, Forward]


@dataclass(frozen=True)
class PositionBiasUse:
    """out[row, head] = weight[ids, head] for ids of shape (queries, keys), shared by all rows."""

    layer: Layer
    weight: str
    buckets: int

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of the table, from output gradients (rows, heads, queries, keys)."""
        assert inputs is not None
        one_hot = F.one_hot(inputs.flatten(), self.buckets).to(accumulator(grads.dtype))
        values = grads.flatten(2).to(one_hot.dtype) @ one_hot  # (rows, heads, buckets)
        gradients.add_vector(self.weight, values.transpose(1, 2).reshape(gradients.rows, -1))


def replacements(model: nn.Module, layers: tuple[Layer, ...], tape: Recorder) -> list[Replacement]:
    """Return the methods to replace while a tape records, as (module, name of the method, replacement)."""
    replaced = [_position_bias(layer, tape) for layer in layers if layer.kind is Kind.POSITION_BIAS]
    tables = {id(layer.parent): layer for layer in layers if layer.kind is Kind.POSITION_TABLE}
    for encoder in model.modules():
        if is_deberta_encoder(encoder):
            replaced.append(
                (encoder, "get_rel_embedding", _relative_embeddings(encoder, tables.get(id(encoder)), tape))
            )
            for name, module in encoder.named_modules():
                if hasattr(module, "disentangled_attention_bias"):
                    replaced.append((module, "disentangled_attention_bias", _disentangled_bias(name, module, tape)))
    return replaced


def _rows(tape: Recorder, name: str) -> int:
    if tape.batch_size is None:
        raise UnsupportedError(
            f"Expected the batch size to be known before layer {name!r} is called. Call the whole model, or call "
            "tape.expect(batch_size) first."
        )
    return tape.batch_size


def _position_bias(layer: Layer, tape: Recorder) -> Replacement:
    attention, table = layer.parent, layer.module
    assert attention is not None
    assert isinstance(table, nn.Embedding)
    use = PositionBiasUse(layer, layer.parameters["weight"], table.num_embeddings)
    compute: Any = attention.compute_bias

    def compute_bias(*args: Any, **kwargs: Any) -> Tensor:
        lookups: list[Tensor] = []
        handle = table.register_forward_pre_hook(lambda _, inputs: lookups.append(inputs[0]))
        try:
            bias: Tensor = compute(*args, **kwargs)
        finally:
            handle.remove()
        if len(lookups) != 1 or bias.shape != (1, table.embedding_dim, *lookups[0].shape):
            raise UnsupportedError(
                f"Expected layer {layer.name!r} to be looked up once, as (1, heads, queries, keys), got shape "
                f"{tuple(bias.shape)}. Freeze it with requires_grad_(False)."
            )
        return tape.record(use, lookups[0], bias.expand(_rows(tape, layer.name), *bias.shape[1:]))

    return attention, "compute_bias", compute_bias


def _relative_embeddings(encoder: nn.Module, layer: Layer | None, tape: Recorder) -> Forward:
    table: Any = encoder.rel_embeddings
    use = None if layer is None else VectorUse(layer, layer.parameters["weight"])

    def get_rel_embedding() -> Tensor:
        copies: Tensor = table.weight.detach()
        copies = copies.expand(_rows(tape, "rel_embeddings"), *copies.shape)
        if use is not None:
            copies = tape.record(use, None, copies)
        if "layer_norm" in encoder.norm_rel_ebd:  # type: ignore[operator]
            copies = encoder.LayerNorm(copies)  # type: ignore[operator]
        return copies

    return get_rel_embedding


def _disentangled_bias(name: str, module: Any, tape: Recorder) -> Forward:
    heads: int = module.num_attention_heads
    original = module.disentangled_attention_bias
    source = sys.modules[type(module).__module__]
    layer = Layer(name, module, Kind.POSITION_TABLE, {})

    def bias(query: Tensor, key: Tensor, relative: Tensor | None, embeddings: Tensor, scale_factor: int) -> Tensor:
        # Queries and keys are (rows * heads, time, width); the embeddings are (rows, positions, width).
        shape = {"bucket_size": module.position_buckets, "max_position": module.max_relative_positions}
        if relative is None:
            relative = source.build_relative_position(query, key, **shape)
        assert relative is not None
        span = module.pos_ebd_size
        distance = relative.to(query.device).view(1, *relative.shape[-2:])
        total = query.new_zeros(())

        def attended(projection: nn.Module, states: Tensor, places: Tensor) -> Tensor:
            """Return the scores of states with the embeddings of their relative positions."""
            vectors = module.transpose_for_scores(projection(embeddings[:, : 2 * span]), heads)
            scores = torch.bmm(states, vectors.mT) / math.sqrt(vectors.shape[-1] * scale_factor)
            places = places.long().clamp(0, 2 * span - 1)
            return scores.gather(-1, places.expand(states.shape[0], -1, -1))

        if "c2p" in module.pos_att_type:
            projection = module.key_proj if module.share_att_key else module.pos_key_proj
            total = total + attended(projection, query, distance + span)
        if "p2c" in module.pos_att_type:
            projection = module.query_proj if module.share_att_key else module.pos_query_proj
            between = distance
            if key.shape[-2] != query.shape[-2]:
                between = (
                    source.build_relative_position(key, key, **shape).to(query.device).view(1, *key.shape[1:2], -1)
                )
            total = total + attended(projection, key, span - between).mT
        if tape.is_first_call(layer):
            with torch.no_grad():
                first: Any = original(query[:heads], key[:heads], relative, embeddings[0], scale_factor)
            close = 1e-4 if total.dtype in (torch.float32, torch.float64) else 2e-2
            if isinstance(first, Tensor) and not torch.allclose(first, total[:heads], rtol=close, atol=close):
                raise UnsupportedError(
                    f"Expected layer {name!r} ({type(module).__name__}) to compute disentangled attention as "
                    "DeBERTa-v2 does, got another result. Freeze the encoder with requires_grad_(False)."
                )
        return total

    return bias
