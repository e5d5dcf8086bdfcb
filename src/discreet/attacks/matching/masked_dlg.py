"""DLG against TextHide: matches a gradient by optimizing an input and a mask on its representation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.attacks.base import GradientAttack, TimeLimit, check_search
from discreet.attacks.encoder_layers import dissect, encoder_inputs, reject_pairs
from discreet.attacks.matching.lbfgs import Objective, minimise
from discreet.attacks.matching.problems import Problems, Vocabulary
from discreet.core.errors import UnsupportedError, non_negative, positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.base import TextModel, evaluating
from discreet.models.classifier import Classifier

_NAME = "masked DLG"
_FLOOR = 1e-30


@runtime_checkable
class Represents(Protocol):
    """A network in two parts: inputs to representations, which are masked, and representations to class scores."""

    def represent(self, inputs: Tensor, /) -> Tensor:
        """Return one representation per input."""

    def decide(self, vectors: Tensor, /) -> Tensor:
        """Return class scores."""


@dataclass(frozen=True)
class Recovered:
    """Results of a batch of attacks, one per row: inputs, masks, weights of the inputs, distances, restarts."""

    inputs: Tensor = field(repr=False)
    masks: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)
    distances: Tensor
    restarts: Tensor


@dataclass(frozen=True)
class MaskedDLG(GradientAttack):
    """Gradient matching with the squared distance, by L-BFGS, against a client that masks its representation.

    The attacker knows the network, the gradient and the label, and optimizes the input and a real-valued mask from
    normal random values. With `inputs` above 1 it optimizes that many inputs and the weights of their mixture. Without
    `learn_mask` it is DLG. A start that diverges to NaN is resampled at most `restarts` times, and counted. Against a
    text classifier the inputs are word vectors, decoded as the nearest words. `seconds` is an upper limit.

    Paper: Huang et al. 2020, "TextHide", Algorithm 3, after Zhu et al. 2019, "Deep Leakage from Gradients".
    Differs: several dummy inputs, where the paper uses one for any number of mixed inputs; all runs are batched; for
    text, special tokens keep their positions, vectors start with the norm of words, a step that increases the distance
    is undone and halved, and the distance is relative to the release, without the gradient of the word embeddings.
    """

    inputs: int = 1
    learn_mask: bool = True
    rate: float = 1.0
    history: int = 100
    steps: int = 300
    enough: float = 1e-10
    restarts: int = 3
    seconds: float | None = None

    name: ClassVar[str] = "masked-dlg"
    has_time_limit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_search(self, "inputs", "history", "steps")
        whole("restarts", self.restarts, 0)
        positive("rate", self.rate)
        non_negative("enough", self.enough)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the guess, with mask, weights, distance and number of restarts in `details`.

        For a text classifier in `knows.model` the guess has texts. Any other model must have `represent` and `decide`
        on tensors; `knows.extra` then has the `shape` of an input and, for mixed labels, the `targets`, one weight per
        class, and `details` has the inputs, (inputs, *shape). Without `targets`, the release must have the label.
        """
        if seen.batch_size != 1:
            raise UnsupportedError(
                f"Expected the gradient of one representation for {_NAME}, got a batch of {seen.batch_size}. Attack a "
                "batch of one."
            )
        if isinstance(knows.model, TextModel):
            return self._read_texts(knows.model, seen, rng)
        model = _network(knows)
        shape = tuple(knows.extra.get("shape", ()))
        if not shape:
            raise UnsupportedError(f"Expected Knowledge(extra={{'shape': …}}), the shape of an input, for {_NAME}.")
        _check_depends_on_inputs(model, seen, shape)
        gradients = {name: value.detach()[None] for name, value in seen.gradients.items()}
        result = self.recover(model, gradients, _targets(model, seen, knows, shape), shape, rng)
        details: dict[str, Any] = {
            "inputs": result.inputs[0],
            "mask": result.masks[0],
            "weights": result.weights[0],
            "distance": float(result.distances[0]),
            "restarts": int(result.restarts[0]),
        }
        return Guess(scores=(-details["distance"],), details=details)

    def _read_texts(self, model: TextModel, seen: GradientRelease, rng: Rng) -> Guess:
        """Return the texts whose vectors, under some mask, match the released gradient."""
        limit = TimeLimit(self.seconds)
        problem = _TextProblem(model, seen, self)
        points, distances, restarts = self._minimise(lambda rows: problem, problem.size, problem.like, rng, limit)
        inputs, mask, weights = problem.parts(points[0])
        tokens = Vocabulary.of(model, problem.words).nearest(inputs)[..., 0]
        rows = [row[problem.free].tolist() for row in tokens]
        details: dict[str, Any] = {
            "tokens": tuple(tuple(row) for row in rows),
            "mask": mask,
            "weights": weights,
            "distance": float(distances[0]),
            "restarts": int(restarts[0]),
            "stopped_by_time_limit": limit.reached,
        }
        texts = tuple(model.tokenizer.decode(row) for row in rows)
        return Guess(texts=texts, scores=(-details["distance"],) * len(texts), details=details)

    def recover(
        self, model: nn.Module, gradients: Mapping[str, Tensor], targets: Tensor, shape: Sequence[int], rng: Rng
    ) -> Recovered:
        """Return the results of independent attacks on one network, each on its row of gradients and targets."""
        problem = _Problem(model, dict(gradients), targets, tuple(shape), self)
        like = torch.empty(len(targets), dtype=targets.dtype, device=targets.device)
        points, distances, restarts = self._minimise(problem.at, problem.size, like, rng, TimeLimit(self.seconds))
        inputs, masks, weights = problem.parts(points)
        return Recovered(inputs, masks, weights, distances, restarts)

    def _minimise(
        self, at: Callable[[Tensor], Objective], size: int, like: Tensor, rng: Rng, limit: TimeLimit
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return one point of `size` values per element of `like`, the distances and the numbers of restarts.

        `at` returns the objective of some of the rows.
        """
        source = rng.torch("cpu", _NAME)
        points = torch.zeros(len(like), size, dtype=like.dtype, device=like.device)
        distances = torch.full_like(points[:, 0], math.inf)
        restarts = torch.zeros(len(like), dtype=torch.int64, device=like.device)
        rows = torch.arange(len(like), device=like.device)
        for attempt in range(self.restarts + 1):
            start = torch.randn(len(rows), size, generator=source).to(points)
            objective = at(rows)
            end = minimise(
                objective,
                start,
                rate=self.rate,
                history=self.history,
                steps=self.steps,
                enough=self.enough,
                backtrack=isinstance(objective, _TextProblem),
                after=lambda *_: not limit.over(),
            )
            better = end.values < distances[rows]
            points[rows[better]], distances[rows[better]] = end.points[better], end.values[better]
            rows = rows[end.broken]
            if not len(rows) or attempt == self.restarts or limit.reached:
                break
            restarts[rows] += 1
        return points, distances, restarts


class _Forward(nn.Module):
    """The client's network with a mask on a mixture of representations."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        assert isinstance(self.model, Represents)
        return self.model.decide(mask * (weights[None] @ self.model.represent(inputs)))


def _loss(
    forward: nn.Module, parameters: dict[str, Tensor], inputs: Tensor, mask: Tensor, weights: Tensor, target: Tensor
) -> Tensor:
    scores = functional_call(forward, parameters, (inputs, mask, weights))
    return -(target * torch.log_softmax(scores, dim=-1)).sum()


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {f"model.{name}": value.detach() for name, value in model.named_parameters()}


def _mask_and_weights(values: Tensor, width: int, settings: MaskedDLG) -> tuple[Tensor, Tensor]:
    """Return the mask and the weights of the inputs from the values after the inputs, (…, values)."""
    many, ones = settings.inputs, values.new_ones(*values.shape[:-1], 1)
    mask = values[..., :width] if settings.learn_mask else ones
    weights = values[..., values.shape[-1] - many :] if many > 1 else ones
    return mask, torch.softmax(weights, dim=-1)


class _Problem:
    """The distance between gradients as a function of one vector: inputs, mask, weights of the inputs."""

    def __init__(
        self,
        model: nn.Module,
        gradients: dict[str, Tensor],
        targets: Tensor,
        shape: tuple[int, ...],
        settings: MaskedDLG,
    ) -> None:
        self.forward, self.parameters = _Forward(model), _parameters(model)
        self.gradients = {f"model.{name}": value.to(targets) for name, value in gradients.items()}
        self.targets, self.shape, self.settings = targets, shape, settings
        self.width = _width(model, shape, targets)
        self.input_size = settings.inputs * math.prod(shape)
        self.size = self.input_size + self.width * settings.learn_mask + (settings.inputs if settings.inputs > 1 else 0)

    def parts(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs, masks and weights of points."""
        inputs = points[..., : self.input_size].reshape(*points.shape[:-1], self.settings.inputs, *self.shape)
        return inputs, *_mask_and_weights(points[..., self.input_size :], self.width, self.settings)

    def at(self, rows: Tensor) -> Any:
        """Return values and gradients as a function of points, for some of the rows."""
        targets = self.targets[rows]
        released = {name: value[rows] for name, value in self.gradients.items()}
        batched = vmap(grad_and_value(self._distance))

        def objective(points: Tensor) -> tuple[Tensor, Tensor]:
            slopes, values = batched(points, targets, released)
            return values, slopes

        return objective

    def _distance(self, point: Tensor, target: Tensor, released: dict[str, Tensor]) -> Tensor:
        gradients = grad(_loss, argnums=1)(self.forward, self.parameters, *self.parts(point), target)
        return torch.stack([(gradients[name] - value).square().sum() for name, value in released.items()]).sum()


class _TextProblem:
    """The distance between the gradients of a text classifier as a function of word vectors.

    One point holds the vectors of the free words, a mask on the representation, and weights of the texts.
    """

    def __init__(self, model: TextModel, seen: GradientRelease, settings: MaskedDLG) -> None:
        anatomy = dissect(model)
        reject_pairs(seen, anatomy, _NAME)
        parameters = dict(model.named_parameters())
        names = [name for name in seen.gradients if name != anatomy.embeddings.word_name]
        if any(name not in parameters for name in names) or not any(name.startswith("encoder.") for name in names):
            raise UnsupportedError(
                f"Expected gradients of the encoder's own parameters for {_NAME}, got none, or unknown parameters. The "
                "head alone does not determine the text: any text fits, with some mask."
            )
        problem = Problems.of([seen], model, _NAME)
        if not isinstance(model, Classifier) or not model.task.has_classes or problem.labels is None:
            raise UnsupportedError(f"Expected a classifier, and the label in the release, for {_NAME}.")
        self.model, self.settings = model, settings
        self.parameters = [parameters[name] for name in names]
        self.gradients = [seen.gradients[name].detach().to(model.device) for name in names]
        self.squares = torch.stack([value.square().sum() for value in self.gradients]).sum().clamp_min(_FLOOR)
        self.label = problem.labels[0]
        self.free, self.ids = problem.free[0, 0], problem.ids[0, 0]
        self.words = anatomy.embeddings.words.detach()
        self.scale = float(self.words.norm(dim=-1).mean()) / math.sqrt(self.words.shape[1])
        self.input_size = settings.inputs * int(self.free.sum()) * self.words.shape[1]
        self.size = (
            self.input_size + model.width * settings.learn_mask + (settings.inputs if settings.inputs > 1 else 0)
        )
        self.like = torch.empty(1, device=model.device)

    def parts(self, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the vectors, (texts, tokens, width), the mask and the weights of a point."""
        many, width = self.settings.inputs, self.words.shape[1]
        vectors = self.words[self.ids].expand(many, -1, -1).clone()
        vectors[:, self.free] = self.scale * point[: self.input_size].view(many, -1, width)
        return vectors, *_mask_and_weights(point[self.input_size :], self.model.width, self.settings)

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distance, relative to the norm of the release, and its gradient."""
        points = points.detach().requires_grad_()
        vectors, mask, weights = self.parts(points[0])
        inputs = encoder_inputs(self.model, vectors)
        # The fused attention kernels have no second derivative.
        with evaluating(self.model), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            scores = self.model.decide(mask * (weights[None] @ self.model.represent(inputs)))
            loss = nn.functional.cross_entropy(scores.float(), self.label)
            gradients = torch.autograd.grad(loss, self.parameters, create_graph=True, allow_unused=True)
            terms = [
                (released if gradient is None else gradient - released).square().sum()
                for gradient, released in zip(gradients, self.gradients, strict=True)
            ]
            distance = torch.stack(terms).sum() / self.squares
            slope = torch.autograd.grad(distance, points)[0]
        return distance.detach()[None], torch.nan_to_num(slope)


def _network(knows: Knowledge) -> nn.Module:
    model = knows.model
    if model is None or not isinstance(model, Represents):
        raise UnsupportedError(
            f"Expected Knowledge(model=…) to be a Classifier, or to have represent and decide on tensors, for {_NAME}, "
            f"got {type(model).__name__}. The server that sees the gradient also has the model; pass it."
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


def _check_depends_on_inputs(model: nn.Module, seen: GradientRelease, shape: Sequence[int]) -> None:
    """Reject a release whose gradients depend on the inputs only through the masked representation."""
    assert isinstance(model, Represents)
    parameters = dict(model.named_parameters())
    unknown = [name for name in seen.gradients if name not in parameters]
    if unknown or not seen.gradients:
        name = repr(unknown[0]) if unknown else "none"
        raise UnsupportedError(f"Expected gradients of the model's own parameters for {_NAME}, got {name}.")
    released = [parameters[name] for name in seen.gradients]
    out = model.represent(torch.zeros(1, *shape).to(released[0])).sum()
    gradients = torch.autograd.grad(out, released, allow_unused=True) if out.requires_grad else [None]
    if all(gradient is None for gradient in gradients):
        raise UnsupportedError(
            f"Expected gradients of the layers before the mask for {_NAME}, got those of the head only. They do not "
            "determine the input: any input fits, with some mask."
        )
