"""DLG against TextHide: matches a gradient by a dummy input and a dummy mask on its representation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.attacks.base import Attack, TimeLimit
from discreet.attacks.encoder_layers import dissect, reject_pairs
from discreet.attacks.matching.lbfgs import Objective, minimise
from discreet.attacks.matching.problems import Problems, Vocabulary
from discreet.core.errors import UnsupportedError, non_negative, positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, Release
from discreet.models.classifier import Classifier
from discreet.models.language_model import LanguageModel

_NAME = "masked DLG"
_FLOOR = 1e-30


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
class MaskedDLG(Attack):
    """Gradient matching with the squared distance, by L-BFGS, where the client hides its representation by a mask.

    The attacker knows the network, the gradient and the label, and guesses the input and a real-valued mask, both from
    normal numbers. With `inputs` above 1 it guesses as many inputs and the weights of their mixture too. `learn_mask`
    off is DLG itself. A start that diverges to NaN is sampled again, at most `restarts` times, and counted. Against a
    text classifier the inputs are vectors in the place of words, read as the nearest words. `seconds` is an upper
    limit.

    Paper: Huang et al. 2020, "TextHide", Algorithm 3, after Zhu et al. 2019, "Deep Leakage from Gradients".
    Differs: several dummy inputs, where the paper keeps one however many were mixed; all runs are made at once; for
    text, special tokens keep their places, vectors start with the length of words, a step that raises the distance is
    undone and halved, and the distance is relative to the release, without the gradient of the word embeddings.
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
    sees: ClassVar[type[Release]] = GradientRelease
    has_time_limit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("inputs", "history", "steps"):
            whole(name, getattr(self, name))
        whole("restarts", self.restarts, 0)
        positive("rate", self.rate)
        non_negative("enough", self.enough)
        if self.seconds is not None:
            positive("seconds", self.seconds, "It is the time for the whole search.")

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return in `details` the inputs, (inputs, *shape), the mask, the weights, the distance and the restarts.

        The model of `knows` is a text classifier, and the guess has texts; or it has `represent` and `decide` on
        tensors, and `knows.extra` has the `shape` of an input and, where labels were mixed, the `targets`, one weight
        to a class; otherwise the release has the one label.
        """
        if seen.batch_size != 1:
            raise UnsupportedError(
                f"Expected the gradient of one representation for {_NAME}, found a batch of {seen.batch_size}."
            )
        if isinstance(knows.model, Classifier):
            return self._read_texts(knows.model, seen, rng)
        model = _network(knows)
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

    def _read_texts(self, model: Classifier, seen: GradientRelease, rng: Rng) -> Guess:
        """Return the texts whose vectors, under some mask, give the released gradient."""
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
        """Return what many independent attacks on one network find, each on its row of gradients and targets."""
        problem = _Problem(model, dict(gradients), targets, tuple(shape), self)
        like = torch.empty(len(targets), dtype=targets.dtype, device=targets.device)
        points, distances, restarts = self._minimise(problem.at, problem.size, like, rng, TimeLimit(self.seconds))
        inputs, masks, weights = problem.parts(points)
        return Recovered(inputs, masks, weights, distances, restarts)

    def _minimise(
        self, at: Callable[[Tensor], Objective], size: int, like: Tensor, rng: Rng, limit: TimeLimit
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return points of `size` numbers, one for each number in `like`, their distances, and how often it restarted.

        `at` gives the objective of some of the rows.
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


class _TextProblem:
    """The distance between the gradients of a text classifier as a function of vectors in the place of words.

    One row of numbers holds the vectors of the words to be found, a mask on the representation, and weights of texts.
    """

    def __init__(self, model: Classifier, seen: GradientRelease, asked: MaskedDLG) -> None:
        anatomy = dissect(model)
        reject_pairs(seen, anatomy, _NAME)
        parameters = dict(model.named_parameters())
        names = [name for name in seen.gradients if name != anatomy.embeddings.word_name]
        if any(name not in parameters for name in names) or not any(name.startswith("encoder.") for name in names):
            raise UnsupportedError(
                f"Expected gradients of the encoder's own parameters for {_NAME}, found none of them, or others. What "
                "a mask hides cannot be told from the head alone: any text fits, with some mask."
            )
        known = Problems.of([seen], model, _NAME)
        if model.task != "classification" or isinstance(model, LanguageModel) or known.labels is None:
            raise UnsupportedError(f"Expected a classifier, and the label in the release, for {_NAME}.")
        self.model, self.asked = model, asked
        self.parameters = [parameters[name] for name in names]
        self.gradients = [seen.gradients[name].detach().to(model.device) for name in names]
        self.squares = torch.stack([value.square().sum() for value in self.gradients]).sum().clamp_min(_FLOOR)
        self.label = known.labels[0]
        self.free, self.ids = known.free[0, 0], known.ids[0, 0]
        self.words = anatomy.embeddings.words.detach()
        self.scale = float(self.words.norm(dim=-1).mean()) / math.sqrt(self.words.shape[1])
        self.numbers = asked.inputs * int(self.free.sum()) * self.words.shape[1]
        self.size = self.numbers + model.width * asked.learn_mask + (asked.inputs if asked.inputs > 1 else 0)
        self.like = torch.empty(1, device=model.device)

    def parts(self, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the vectors, (texts, tokens, width), the mask and the weights that a row of numbers stands for."""
        many, width = self.asked.inputs, self.words.shape[1]
        vectors = self.words[self.ids].expand(many, -1, -1).clone()
        vectors[:, self.free] = self.scale * point[: self.numbers].view(many, -1, width)
        rest = point[self.numbers :]
        mask = rest[: self.model.width] if self.asked.learn_mask else torch.ones_like(point[:1])
        weights = rest[rest.shape[0] - many :] if many > 1 else torch.ones_like(point[:1])
        return vectors, mask, torch.softmax(weights, dim=-1)

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distance, relative to the length of the release, and its gradient."""
        points = points.detach().requires_grad_()
        vectors, mask, weights = self.parts(points[0])
        inputs = {"inputs_embeds": vectors, "attention_mask": torch.ones(vectors.shape[:2]).to(vectors)}
        if "token_type_ids" in self.model.tokenizer.model_input_names:
            inputs["token_type_ids"] = torch.zeros_like(inputs["attention_mask"], dtype=torch.int64)
        was_training = self.model.training
        self.model.eval()
        # The fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            scores = self.model.decide(mask * (weights[None] @ self.model.represent(inputs)))
            loss = nn.functional.cross_entropy(scores.float(), self.label)
            made = torch.autograd.grad(loss, self.parameters, create_graph=True, allow_unused=True)
            terms = [
                (value if mine is None else mine - value).square().sum()
                for mine, value in zip(made, self.gradients, strict=True)
            ]
            distance = torch.stack(terms).sum() / self.squares
            slope = torch.autograd.grad(distance, points)[0]
        self.model.train(was_training)
        return distance.detach()[None], torch.nan_to_num(slope)


def _network(knows: Knowledge) -> nn.Module:
    model = knows.model
    parts = ("represent", "decide")
    if model is None or not all(hasattr(model, part) for part in parts):
        raise UnsupportedError(
            f"Expected Knowledge(model=…) to be a Classifier, or to have represent and decide on tensors for {_NAME}, "
            f"found {type(model).__name__}. The server that sees the gradient also has the model; pass it."
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
    """Reject a release in which no gradient depends on the inputs but through the masked representation."""
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
