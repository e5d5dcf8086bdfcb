"""DLG against TextHide: matches a gradient by a dummy input and a dummy mask on its representation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from discreet.attacks.matching.lbfgs import minimise
from discreet.core.checks import non_negative, positive, whole
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.classifier import Classifier

_NAME = "masked DLG"


@runtime_checkable
class Represents(Protocol):
    """A network in two parts: inputs to representations, on which the mask acts, and these to class scores."""

    def represent(self, inputs: Tensor, /) -> Tensor:
        """Return one representation for each input."""

    def decide(self, vectors: Tensor, /) -> Tensor:
        """Return class scores."""


@dataclass(frozen=True)
class Recovered:
    """What many attacks at once ended with, one to a row: inputs, masks, weights of the inputs, distance, restarts."""

    inputs: Tensor = field(repr=False)
    masks: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)
    distances: Tensor
    restarts: Tensor


@dataclass(frozen=True)
class MaskedDLG:
    """Gradient matching with the squared distance, by L-BFGS, where the client hides its representation by a mask.

    The attacker knows the network, the gradient and the label, and guesses the input and a real-valued mask, both from
    normal numbers. With `inputs` above 1 it guesses as many inputs and the weights of their mixture too. `learn_mask`
    off is DLG itself. A start that runs away to no number is drawn anew, at most `restarts` times, and counted.

    Paper: Huang et al. 2020, "TextHide", Algorithm 3, after Zhu et al. 2019, "Deep Leakage from Gradients".
    Differs: several dummy inputs, where the paper keeps one however many were mixed; all runs are made at once.
    """

    inputs: int = 1
    learn_mask: bool = True
    rate: float = 1.0
    history: int = 100
    steps: int = 300
    enough: float = 1e-10
    restarts: int = 3

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        for name in ("inputs", "history", "steps"):
            whole(name, getattr(self, name))
        whole("restarts", self.restarts, 0)
        positive("rate", self.rate)
        non_negative("enough", self.enough)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return in `details` the inputs, (inputs, *shape), the mask, the weights, the distance and the restarts.

        The model of `knows` has `represent` and `decide`; `knows.extra` has the `shape` of an input and, where labels
        were mixed, the `targets`, one weight to a class; otherwise the release has the one label.
        """
        model = _network(knows)
        if seen.batch_size != 1:
            raise UnsupportedError(
                f"Expected the gradient of one representation for {_NAME}, found a batch of {seen.batch_size}."
            )
        shape = tuple(knows.extra.get("shape", ()))
        if not shape:
            raise UnsupportedError(f"Expected Knowledge(extra={{'shape': …}}) for {_NAME}: the shape of an input.")
        _require_inputs_seen(model, seen, shape)
        gradients = {name: value.detach()[None] for name, value in seen.gradients.items()}
        found = self.recover(model, gradients, _targets(model, seen, knows, shape), shape, rng)
        details: dict[str, Any] = {
            "inputs": found.inputs[0],
            "mask": found.masks[0],
            "weights": found.weights[0],
            "distance": float(found.distances[0]),
            "restarts": int(found.restarts[0]),
        }
        return Guess(scores=(-details["distance"],), details=details)

    def recover(
        self, model: nn.Module, gradients: Mapping[str, Tensor], targets: Tensor, shape: Sequence[int], rng: Rng
    ) -> Recovered:
        """Return what many independent attacks on one network find, each on its row of gradients and targets."""
        problem = _Problem(model, dict(gradients), targets, tuple(shape), self)
        source = rng.torch("cpu", _NAME)
        count = len(targets)
        points = torch.zeros(count, problem.size, dtype=targets.dtype, device=targets.device)
        distances = torch.full_like(points[:, 0], math.inf)
        restarts = torch.zeros(count, dtype=torch.int64, device=targets.device)
        rows = torch.arange(count, device=targets.device)
        for attempt in range(self.restarts + 1):
            start = torch.randn(len(rows), problem.size, generator=source).to(points)
            end = minimise(
                problem.at(rows), start, rate=self.rate, history=self.history, steps=self.steps, enough=self.enough
            )
            better = end.values < distances[rows]
            points[rows[better]], distances[rows[better]] = end.points[better], end.values[better]
            rows = rows[end.broken]
            if not len(rows) or attempt == self.restarts:
                break
            restarts[rows] += 1
        inputs, masks, weights = problem.parts(points)
        return Recovered(inputs, masks, weights, distances, restarts)


class _Forward(nn.Module):
    """The client's network with a mask on a mixture of representations."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        assert isinstance(self.model, Represents)
        return self.model.decide(mask * (weights[None] @ self.model.represent(inputs)))


def hidden_gradients(
    model: nn.Module, inputs: Tensor, masks: Tensor, weights: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Return the gradient of each masked mixture: (runs, k, …) inputs, (runs, width) masks, (runs, k) weights.

    Guarantee: none, a gradient gives its input away.
    """
    forward, parameters = _Forward(model), _parameters(model)

    def one(x: Tensor, mask: Tensor, weight: Tensor, target: Tensor) -> dict[str, Tensor]:
        return grad(_loss, argnums=1)(forward, parameters, x, mask, weight, target)  # type: ignore[no-any-return]

    found = vmap(one)(inputs, masks, weights, targets)
    return {name.removeprefix("model."): value for name, value in found.items()}


def _loss(
    forward: nn.Module, parameters: dict[str, Tensor], inputs: Tensor, mask: Tensor, weights: Tensor, target: Tensor
) -> Tensor:
    scores = functional_call(forward, parameters, (inputs, mask, weights))
    return -(target * torch.log_softmax(scores, dim=-1)).sum()


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {f"model.{name}": value.detach() for name, value in model.named_parameters()}


class _Problem:
    """The distance between gradients as a function of one row of numbers: inputs, mask, weights of the inputs."""

    def __init__(
        self, model: nn.Module, gradients: dict[str, Tensor], targets: Tensor, shape: tuple[int, ...], asked: MaskedDLG
    ) -> None:
        self.forward, self.parameters = _Forward(model), _parameters(model)
        self.gradients = {f"model.{name}": value.to(targets) for name, value in gradients.items()}
        self.targets, self.shape, self.asked = targets, shape, asked
        self.width = _width(model, shape, targets)
        self.numbers = asked.inputs * math.prod(shape)
        self.size = self.numbers + self.width * asked.learn_mask + (asked.inputs if asked.inputs > 1 else 0)

    def parts(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs, masks and weights that rows of numbers stand for."""
        many = self.asked.inputs
        inputs = points[..., : self.numbers].reshape(*points.shape[:-1], many, *self.shape)
        rest = points[..., self.numbers :]
        mask = rest[..., : self.width] if self.asked.learn_mask else torch.ones_like(points[..., :1])
        weights = rest[..., rest.shape[-1] - many :] if many > 1 else torch.ones_like(points[..., :1])
        return inputs, mask, torch.softmax(weights, dim=-1)

    def at(self, rows: Tensor) -> Any:
        """Return values and gradients as a function of points, for some of the rows."""
        targets = self.targets[rows]
        wanted = {name: value[rows] for name, value in self.gradients.items()}
        each = vmap(grad_and_value(self._distance))

        def objective(points: Tensor) -> tuple[Tensor, Tensor]:
            slopes, values = each(points, targets, wanted)
            return values, slopes

        return objective

    def _distance(self, point: Tensor, target: Tensor, wanted: dict[str, Tensor]) -> Tensor:
        made = grad(_loss, argnums=1)(self.forward, self.parameters, *self.parts(point), target)
        return torch.stack([(made[name] - value).square().sum() for name, value in wanted.items()]).sum()


def _network(knows: Knowledge) -> nn.Module:
    model = knows.model
    parts = ("represent", "decide")
    if model is None or isinstance(model, Classifier) or not all(hasattr(model, part) for part in parts):
        raise UnsupportedError(
            f"Expected Knowledge(model=…) with represent and decide on tensors for {_NAME}, found "
            f"{type(model).__name__}. It guesses real-valued inputs; for text, DAGER reads tokens through the mask."
        )
    return model


def _targets(model: nn.Module, seen: GradientRelease, knows: Knowledge, shape: Sequence[int]) -> Tensor:
    """Return the label as weights of the classes, (1, classes)."""
    like = next(iter(seen.gradients.values())).detach()
    if "targets" in knows.extra:
        return torch.as_tensor(knows.extra["targets"], dtype=like.dtype, device=like.device).view(1, -1)
    if not seen.labels:
        raise UnsupportedError(f"Expected a label in the release, or Knowledge(extra={{'targets': …}}), for {_NAME}.")
    assert isinstance(model, Represents)
    with torch.no_grad():
        classes = model.decide(model.represent(torch.zeros(1, *shape).to(like))).shape[1]
    return nn.functional.one_hot(torch.tensor([seen.labels[0]], device=like.device), classes).to(like)


def _width(model: nn.Module, shape: Sequence[int], like: Tensor) -> int:
    assert isinstance(model, Represents)
    with torch.no_grad():
        return model.represent(torch.zeros(1, *shape).to(like)).shape[1]


def _require_inputs_seen(model: nn.Module, seen: GradientRelease, shape: Sequence[int]) -> None:
    """Refuse a release in which no gradient depends on the inputs but through the masked representation."""
    assert isinstance(model, Represents)
    parameters = dict(model.named_parameters())
    unknown = [name for name in seen.gradients if name not in parameters]
    if unknown or not seen.gradients:
        found = repr(unknown[0]) if unknown else "none"
        raise UnsupportedError(f"Expected gradients of the model's own parameters for {_NAME}, found {found}.")
    wanted = {name: parameters[name] for name in seen.gradients}
    out = model.represent(torch.zeros(1, *shape).to(next(iter(wanted.values())))).sum()
    before = list(wanted.values())
    used = torch.autograd.grad(out, before, allow_unused=True) if out.requires_grad else [None]
    if all(part is None for part in used):
        raise UnsupportedError(
            f"Expected gradients of the layers before the mask for {_NAME}, found those of the head alone. What a mask "
            "hides cannot be told from them: any input fits, with some mask."
        )
