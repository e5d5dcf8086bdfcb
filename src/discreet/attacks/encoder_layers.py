"""Locates the layers of a transformer that gradient attacks use: its embeddings and the projections of its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.errors import UnsupportedError
from discreet.core.types import GradientRelease, Knowledge
from discreet.models.base import TextModel, evaluating
from discreet.models.encoder import layers_of

_PROBE = 3  # tokens in the probe that identifies the layers
_SAME = 1e-4  # relative tolerance of two float32 computations of one state


@dataclass(frozen=True)
class Projection:
    """A linear layer, whose weight gradient lies in the span of its inputs; `name` is that of its weight."""

    name: str
    module: nn.Module = field(repr=False)
    inputs_first: bool  # transformers' Conv1D stores its weight as (inputs, outputs), nn.Linear transposed

    def rows(self, gradient: Tensor) -> Tensor:
        """Return a gradient of the weight as (outputs, inputs)."""
        return gradient.mT if self.inputs_first else gradient


@dataclass(frozen=True)
class Embeddings:
    """The tables that form the first block's input, norm(word + position + constant), and their names.

    A model with rotary positions (RoPE) has no table of positions: `positions` is then zero, and `position_name` empty.
    """

    word_name: str
    words: Tensor = field(repr=False)
    positions: Tensor = field(repr=False)  # row p belongs to the p-th token, regardless of the model's position ids
    constant: Tensor = field(repr=False)  # the type of a single text, or zero
    norm: nn.LayerNorm | nn.RMSNorm = field(repr=False)
    type_name: str | None = None
    norm_name: str = ""
    position_name: str = ""
    first_position: int = 0  # the row of the model's table that is row 0 of `positions`

    @property
    def has_positions(self) -> bool:
        """Whether the same token has another input at another position."""
        return bool(self.position_name)

    def inputs(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the inputs of the first block's projections for tokens at positions."""
        states: Tensor = self.norm(self.words[tokens] + self.positions[positions] + self.constant)
        return states


@dataclass(frozen=True)
class Anatomy:
    """The embeddings of a model and the projections of the inputs of its first and second block.

    `middle` projects the first block's states after attention, before its feed-forward layers; it is empty if there are
    none. `causal` means that a state depends only on the tokens up to its own.
    """

    embeddings: Embeddings
    first: tuple[Projection, ...]
    middle: tuple[Projection, ...]
    second: tuple[Projection, ...]
    causal: bool


@dataclass(frozen=True)
class _Call:
    name: str
    module: nn.Module
    input: Tensor
    output: Tensor


@dataclass(frozen=True)
class Block:
    """The linear layers of one block in the order in which they are called.

    `qkv` are the queries, keys and values, as three layers or as one. `output` is the output projection of attention.
    `inner` and `outer` are the two feed-forward layers.
    """

    qkv: tuple[Projection, ...]
    output: Projection
    inner: Projection
    outer: Projection


class _Reached(Exception):  # noqa: N818 - not an error: it ends a forward pass once the input is recorded
    pass


def model_of(knows: Knowledge, attack: str) -> TextModel:
    """Return the public model from an attacker's knowledge; raise if there is none."""
    if not isinstance(knows.model, TextModel):
        raise UnsupportedError(
            f"Expected a Classifier or LanguageModel in Knowledge(model=…) for {attack}, got "
            f"{type(knows.model).__name__}. The server that sees the gradient also has the model; pass it."
        )
    return knows.model


def dissect(model: TextModel) -> Anatomy:
    """Return the layers of a BERT-like or GPT-2-like model, located by sending a few tokens through it.

    The result is verified: the embeddings and their LayerNorm must reproduce the input of the first block. Any other
    model is rejected.
    """
    blocks = layers_of(model.encoder)
    if len(blocks) < 2:
        raise _unlike(model, "at least two blocks", f"{len(blocks)}")
    ids = _probe_ids(model)
    with evaluating(model):
        calls = _calls(model, ids)
        groups = _projections(model, blocks[0], calls)
        first = groups[0]
        middle = groups[2] if len(groups) > 2 else ()  # the second group is attention's output projection
        second = _projections(model, blocks[1], calls)[0]
        inputs = next(call.input for call in calls if call.module is first[0].module)
        embeddings = _embeddings(model, ids, calls, inputs)
        changed = ids.clone()
        changed[0, -1] = ids[0, 0]
        states = inputs_of(model, second[0].module, torch.cat([ids, changed]))
    causal = bool((states[0, 0] - states[1, 0]).abs().max() <= _SAME * states.abs().max())
    return Anatomy(embeddings, first, middle, second, causal)


def blocks_of(model: TextModel) -> tuple[Block, ...]:
    """Return the linear layers of every block of a BERT-like or GPT-2-like model; reject any other model."""
    ids = _probe_ids(model)
    with evaluating(model):
        calls = _calls(model, ids)
    blocks: list[Block] = []
    for block in layers_of(model.encoder):
        inside = set(block.modules())
        linear = [_projection(call) for call in calls if call.module in inside and _is_linear(call.module)]
        if len(linear) not in {4, 6}:
            raise _unlike(model, "four or six linear layers in each block", f"{len(linear)}")
        blocks.append(Block(tuple(linear[:-3]), *linear[-3:]))
    if len(blocks) < 2:
        raise _unlike(model, "at least two blocks", f"{len(blocks)}")
    return tuple(blocks)


def inputs_of(model: TextModel, module: nn.Module, sentences: Tensor) -> Tensor:
    """Return the inputs of a module, (sentences, tokens, width), for token ids, or for word vectors with gradients.

    All sentences have the same length. The forward pass ends at the module.
    """
    captured: list[Tensor] = []

    def capture(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        captured.append(inputs[0])
        raise _Reached

    handle = module.register_forward_pre_hook(capture)
    try:
        with evaluating(model), torch.set_grad_enabled(sentences.requires_grad):
            model.encoder(**encoder_inputs(model, sentences))
    except _Reached:
        pass
    finally:
        handle.remove()
    return captured[0].reshape(*sentences.shape[:2], -1)


def encoder_inputs(model: TextModel, sentences: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Return the inputs of an encoder for token ids or word vectors, as single texts; all are read without a mask."""
    if mask is None:
        mask = torch.ones(sentences.shape[:2], dtype=torch.int64, device=sentences.device)
    inputs = {"inputs_embeds" if sentences.is_floating_point() else "input_ids": sentences, "attention_mask": mask}
    if "token_type_ids" in model.tokenizer.model_input_names:
        inputs["token_type_ids"] = torch.zeros_like(mask)
    return inputs


def _probe_ids(model: TextModel) -> Tensor:
    special = set(model.tokenizer.all_special_ids)
    ordinary = [i for i in range(min(len(model.tokenizer), 20 * _PROBE)) if i not in special]
    return torch.tensor([ordinary[-_PROBE:][::-1]], device=model.device)  # decreasing, to differ from positions


def _calls(model: TextModel, ids: Tensor) -> list[_Call]:
    """Return the calls of the embeddings, norms and linear layers of an encoder, in order."""
    calls: list[_Call] = []
    handles = []

    def recorder(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            calls.append(_Call(name, module, inputs[0].detach(), output.detach()))

        return record

    for name, module in model.encoder.named_modules():
        if isinstance(module, nn.Embedding) or _is_norm(module) or _is_linear(module):
            handles.append(module.register_forward_hook(recorder(f"encoder.{name}")))
    try:
        with torch.no_grad():
            model.encoder(**encoder_inputs(model, ids))
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module is a LayerNorm, or an RMSNorm by its name and its one weight."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return True
    return type(module).__name__.endswith("RMSNorm") and [n for n, _ in module.named_parameters()] == ["weight"]


def _is_linear(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(module, nn.Linear) or (type(module).__name__ == "Conv1D" and weight is not None)


def _projections(model: TextModel, block: nn.Module, calls: list[_Call]) -> list[tuple[Projection, ...]]:
    """Return the linear layers of a block in order, grouped by their input."""
    inside = set(block.modules()) - _second_factors(block)
    linear = [call for call in calls if call.module in inside and _is_linear(call.module)]
    if not linear:
        raise _unlike(model, "linear projections in each block", "none")
    groups: list[list[_Call]] = []
    for call in linear:
        for group in groups:
            if torch.equal(group[0].input, call.input):
                group.append(call)
                break
        else:
            groups.append([call])
    return [tuple(_projection(call) for call in group) for group in groups]


def _second_factors(block: nn.Module) -> set[nn.Module]:
    """Return the second factors of low-rank adapters (LoRA), whose inputs are the outputs of the first factors."""
    return {part for module in block.modules() for part in getattr(module, "lora_B", nn.ModuleDict()).modules()}


def _projection(call: _Call) -> Projection:
    return Projection(f"{call.name}.weight", call.module, not isinstance(call.module, nn.Linear))


def _embeddings(model: TextModel, ids: Tensor, calls: list[_Call], inputs: Tensor) -> Embeddings:
    tables = [call for call in calls if isinstance(call.module, nn.Embedding)]
    words = [call for call in tables if call.input.shape[-1] == _PROBE and torch.equal(call.input.view(1, -1), ids)]
    others = [call for call in tables if call not in words]
    places = [call for call in others if call.input.numel() == _PROBE and bool((call.input.diff() == 1).all())]
    types = [call for call in others if call not in places]
    norms = [call for call in calls if _is_norm(call.module)]
    if len(words) != 1 or len(places) > 1 or len(types) > 1:
        counts = f"{len(words)}, {len(places)} and {len(types)}"
        raise _unlike(model, "one embedding for words, at most one for positions and at most one for types", counts)
    constant = types[0].output.reshape(-1, model.width)[0] if types else torch.zeros_like(inputs.reshape(-1)[:1])
    offset = int(places[0].input.min()) if places else 0
    table = weight_of(places[0].module)[offset:] if places else inputs.new_zeros(model.max_length, model.width)
    for call in norms:
        parts = Embeddings(
            f"{words[0].name}.weight",
            weight_of(words[0].module),
            table,
            constant,
            _norm(call.module),
            f"{types[0].name}.weight" if types else None,
            call.name,
            f"{places[0].name}.weight" if places else "",
            offset,
        )
        computed = parts.inputs(ids.view(-1), torch.arange(_PROBE, device=ids.device))
        if float((computed - inputs.view(computed.shape)).abs().max()) <= _SAME * float(inputs.abs().max()):
            return parts
    raise _unlike(model, "norm(word + position + type) as the first block's input", "another input")


def weight_of(module: nn.Module) -> Tensor:
    """Return the weight of a layer without its gradient."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _norm(module: nn.Module) -> nn.LayerNorm | nn.RMSNorm:
    """Return a copy of a LayerNorm or RMSNorm without gradients."""
    if not isinstance(module, nn.LayerNorm):
        scale = weight_of(module)
        epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)  # as transformers names it
        plain = nn.RMSNorm(tuple(scale.shape), eps=epsilon, device=scale.device, dtype=scale.dtype)
        plain.weight.data.copy_(scale)
        return plain.requires_grad_(False)
    weight, bias = module.weight, module.bias
    copy = nn.LayerNorm(module.normalized_shape, eps=module.eps, device=weight.device, dtype=weight.dtype)
    copy.weight.data.copy_(weight.detach())
    copy.bias.data.copy_(bias.detach()) if bias is not None else copy.bias.data.zero_()
    return copy.requires_grad_(False)


def _unlike(model: TextModel, expected: str, actual: str) -> UnsupportedError:
    return UnsupportedError(
        f"Expected a BERT-, GPT-2- or Llama-like model with {expected}, got {actual} in "
        f"{type(model.encoder).__name__}. "
        "Only learned absolute positions with LayerNorm, and rotary ones with RMSNorm, are supported."
    )


def reject_pairs(seen: GradientRelease, anatomy: Anatomy, attack: str) -> None:
    """Reject the gradient of pairs of texts, if no noise hides it."""
    types = seen.gradients.get(anatomy.embeddings.type_name or "")
    if types is not None and seen.noise_std == 0 and seen.guarantee is None and bool((types[1:] != 0).any()):
        raise UnsupportedError(
            f"Expected gradients of single texts for {attack}, got pairs: a second token type has a gradient."
        )
