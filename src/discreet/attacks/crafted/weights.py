"""Weights of a malicious server, crafted so that a client's gradient contains states of single tokens."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from discreet.attacks.encoder_layers import Anatomy, Block, Projection, blocks_of, dissect, inputs_of, weight_of
from discreet.core.errors import UnsupportedError, invalid
from discreet.core.randomness import Rng
from discreet.models.base import TextModel
from discreet.models.encoder import layers_of
from discreet.models.language_model import LanguageModel

_PROBES = (16, 24)  # random sentences, and their length, for placing the thresholds
_TAG = 4.0  # factor of a tag: the mean over a sentence of some dozen tokens is small
_LIFT = 0.2  # approximate output of the feed-forward layers in the last coordinate, in standard deviations of a state
_SCORE = 0.1  # weight of the last coordinate in a language head


@dataclass(frozen=True)
class Layout:
    """The coordinates of a state: the sentence's tag, the position, the word, and a free one for gradients.

    >>> layout = Layout.of(64)
    >>> layout.tags, layout.places, layout.words, layout.free
    (slice(0, 8, None), slice(8, 24, None), slice(24, 63, None), 63)
    """

    width: int
    tag: int
    place: int

    @classmethod
    def of(cls, width: int) -> Layout:
        """Return the layout for a width: an eighth for tags, a quarter for positions, at most 32 and 64."""
        if width < 32:
            raise invalid("width", width, "at least 32", "Tags, positions and words share a state's coordinates.")
        return cls(width, min(32, width // 8), min(64, width // 4))

    @property
    def tags(self) -> slice:
        """The coordinates of the tag of a sentence."""
        return slice(0, self.tag)

    @property
    def places(self) -> slice:
        """The coordinates of the position."""
        return slice(self.tag, self.tag + self.place)

    @property
    def words(self) -> slice:
        """The coordinates of the word."""
        return slice(self.tag + self.place, self.width - 1)

    @property
    def free(self) -> int:
        """The unused coordinate, which carries the gradient."""
        return self.width - 1


def craft(model: TextModel, sharpness: float, rng: Rng) -> TextModel:
    """Return a copy of a model with the weights of a malicious server.

    Words and positions become random codes in separate coordinates. The first attention layer averages a projection of
    all visible states and writes it into the tag coordinates: the same for all tokens of a sentence (in a causal model,
    a running mean). All other attention layers output zero, except the last, which averages the free coordinate, so
    that each state has a gradient under any pooling. Each first feed-forward layer projects its input onto one random
    direction and compares it with one threshold per row. Each second one adds only to the free coordinate, with
    alternating signs, so that the sum of a thousand rows stays small.
    """
    crafted = copy.deepcopy(model)
    anatomy, blocks = dissect(crafted), blocks_of(crafted)
    layout = Layout.of(crafted.width)
    source = rng.torch("cpu", "craft")
    with torch.no_grad():
        _tables(crafted, anatomy, layout, source)
        for module in crafted.encoder.modules():
            if isinstance(module, nn.LayerNorm):
                _norm(module)
        _reserve(crafted, anatomy, layout)
        for number, block in enumerate(blocks):
            _silence(block)
            if number == 0:
                _tag(block, layout, source)
            elif number == len(blocks) - 1:
                _spread(block, layout)
        ids = torch.randint(len(anatomy.embeddings.words), _PROBES, generator=source).to(crafted.device)
        for block in blocks:
            _measure(crafted, block, layout, sharpness, ids, source)
        if isinstance(crafted, LanguageModel):
            _read_by_sign(crafted, layout, source)
    _check_tags(crafted, layout, ids)
    return crafted


def sources(anatomy: Anatomy, block: Block, layout: Layout, tokens: Tensor, places: Tensor) -> Tensor:
    """Return the contribution of each token at its position to its sentence's tag, before averaging."""
    values = _rows(block.qkv[-1])[-layout.width :][: layout.tag]
    weight = _rows(block.output)[layout.tags, : layout.tag]
    return anatomy.embeddings.inputs(tokens, places) @ values.mT @ weight.mT


def residual(model: TextModel, anatomy: Anatomy, tokens: Tensor, places: Tensor) -> Tensor:
    """Return the states to which the first attention is added: normalized ones, or the plain sum in pre-norm models.

    In both cases the tag coordinates and the free one are zero.
    """
    embeddings = anatomy.embeddings
    inside = model.get_submodule(embeddings.norm_name) in set(layers_of(model.encoder)[0].modules())
    if not inside:
        return embeddings.inputs(tokens, places)
    bare: Tensor = embeddings.words[tokens] + embeddings.positions[places] + embeddings.constant
    return bare


def _rows(part: Projection) -> Tensor:
    return part.rows(weight_of(part.module))


def _set(part: Projection, rows: Tensor, bias: Tensor | None = None) -> None:
    """Set the weight of a linear layer, (outputs, inputs), and its bias (default: zero)."""
    weight, own = part.module.weight, part.module.bias
    if not isinstance(own, Tensor) or not isinstance(weight, Tensor):
        name = part.name.removesuffix(".weight")
        raise UnsupportedError(
            f"Expected a bias in {name!r}, got none. States are computed as a ratio to its gradient."
        )
    weight.copy_(part.rows(rows.to(weight)) if part.inputs_first else rows.to(weight))
    own.zero_() if bias is None else own.copy_(bias)


def _tables(model: TextModel, anatomy: Anatomy, layout: Layout, source: torch.Generator) -> None:
    named = dict(model.named_parameters())
    words = named[anatomy.embeddings.word_name]
    words.zero_()
    words[:, layout.words] = torch.randn(words[:, layout.words].shape, generator=source).to(words)
    for name, module in model.encoder.named_modules():
        if isinstance(module, nn.Embedding) and module.weight is not words:
            module.weight.zero_()
            if f"encoder.{name}.weight" != anatomy.embeddings.type_name:
                codes = torch.randn(module.weight[:, layout.places].shape, generator=source)
                module.weight[:, layout.places] = codes.to(words)


def _norm(module: nn.LayerNorm) -> None:
    module.weight.fill_(1.0)
    if module.bias is not None:
        module.bias.zero_()


def _reserve(model: TextModel, anatomy: Anatomy, layout: Layout) -> None:
    """Zero the tag coordinates and the free one after the first norm, which subtracts the mean from all."""
    norm = model.get_submodule(anatomy.embeddings.norm_name)
    assert isinstance(norm, nn.LayerNorm)
    norm.weight[layout.tags] = 0.0
    norm.weight[layout.free] = 0.0


def _silence(block: Block) -> None:
    """Make attention uniform over all tokens, with output zero."""
    for part in (*block.qkv, block.output):
        _set(part, torch.zeros_like(_rows(part)))


def _write(block: Block, values: Tensor, output: Tensor) -> None:
    """Set the values and the output of an attention layer whose queries and keys are zero; values are the last rows."""
    part = block.qkv[-1]
    rows = torch.zeros_like(_rows(part))
    rows[-len(values) :] = values
    _set(part, rows)
    _set(block.output, output)


def _tag(block: Block, layout: Layout, source: torch.Generator) -> None:
    like = _rows(block.output)
    values, output = torch.zeros_like(like), torch.zeros_like(like)
    width = layout.free - layout.tag
    projection = torch.randn((layout.tag, width), generator=source) / math.sqrt(width)
    values[: layout.tag, layout.tag : layout.free] = projection.to(like)
    output[layout.tags, : layout.tag] = _TAG * torch.eye(layout.tag).to(like)
    _write(block, values, output)


def _spread(block: Block, layout: Layout) -> None:
    like = _rows(block.output)
    values, output = torch.zeros_like(like), torch.zeros_like(like)
    values[0, layout.free] = output[layout.free, 0] = 1.0
    _write(block, values, output)


def _measure(
    model: TextModel, block: Block, layout: Layout, sharpness: float, ids: Tensor, source: torch.Generator
) -> None:
    """Set thresholds at the quantiles of a random projection of a block's feed-forward input."""
    like = _rows(block.inner)
    direction = torch.randn(layout.width, generator=source)
    direction[layout.free] = 0.0
    direction = (direction / direction.norm()).to(like)
    values = inputs_of(model, block.inner.module, ids) @ direction
    count = like.shape[0]
    levels = (torch.arange(count, device=like.device) + 0.5) / count
    thresholds = values.mean() + values.std() * math.sqrt(2) * torch.erfinv(2 * levels.double() - 1).to(like)
    _set(block.inner, sharpness * direction.expand(count, -1), -sharpness * thresholds)
    outer = torch.zeros_like(_rows(block.outer))
    signs = 1.0 - 2.0 * (torch.arange(count, device=like.device) % 2)
    outer[layout.free] = signs * _LIFT / (sharpness * float(values.std()))
    _set(block.outer, outer)


def _read_by_sign(model: LanguageModel, layout: Layout, source: torch.Generator) -> None:
    """Let a language head use only the free coordinate, with a negative weight for half of the tokens.

    All tokens of one sign are then equally likely in every state. Their common gradient can be subtracted, and the
    remaining gradient of a target token is its state.
    """
    weight, bias = model.head.weight, model.head.bias
    if model.tied or not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
        raise UnsupportedError(
            "Expected a language model with an output layer of its own and a bias in it for Decepticons, got one tied "
            "to the word embeddings, or without a bias. Use LanguageModel.open, or another attack."
        )
    weight.zero_()
    weight[:, layout.free] = _SCORE * (2.0 * torch.randint(2, (weight.shape[0],), generator=source) - 1.0).to(weight)
    bias.zero_()


def _check_tags(model: TextModel, layout: Layout, ids: Tensor) -> None:
    """Reject a model whose attention does not compute the crafted tags."""
    anatomy, block = dissect(model), blocks_of(model)[0]
    attended = inputs_of(model, block.output.module, ids[:1])[0, -1]
    places = torch.arange(ids.shape[1], device=ids.device)
    tags = (attended @ _rows(block.output).mT)[layout.tags]
    expected = sources(anatomy, block, layout, ids[0], places).mean(dim=0)
    if float((tags - expected).abs().max()) > 1e-3 * float(expected.abs().max()):
        raise UnsupportedError(
            f"Expected attention with queries, keys and values in this order, got another in "
            f"{type(model.encoder).__name__}. Its states cannot be averaged by weights alone."
        )
