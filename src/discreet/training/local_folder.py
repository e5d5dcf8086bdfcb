"""The two folders of a locally private run: the client's, for the users, and the server's.

    runs/a/client   settings.toml  path.safetensors  ledger.jsonl  [tokenizer/  encoder.json  encoder.safetensors]
    runs/a/server   settings.toml  head.safetensors

A client with the built-in encoder stores only its name; any other encoder is stored in the folder. The client's folder
has no head, and the server's has neither encoder nor tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from discreet.core.errors import ModelError, first_line, setting
from discreet.core.files import load_tensors, save_tensors, write_atomic
from discreet.core.guarantee import Caveat
from discreet.core.randomness import Rng
from discreet.core.settings import dump, read
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.classifier import head as head_of
from discreet.models.encoder import (
    MINILM,
    MINILM_SHA256,
    WRONG_KIND,
    assemble,
    fresh_module,
    load_encoder,
    load_tokenizer,
)
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import Projection, QueryAxes
from discreet.protections.local.query import LocalQuery, QueryPath
from discreet.protections.local.release import shape_model
from discreet.training.local_client import UserSide, person_ledger
from discreet.training.local_server import ServerSide, linear_head
from discreet.training.run_folder import encoder_config

if TYPE_CHECKING:
    from discreet.protections.local.protection import LocalPrivacy
    from discreet.protections.local.release import LocalLayer

CLIENT, SERVER = "client", "server"
_SETTINGS, _PATH, _HEAD, _LEDGER = "settings.toml", "path.safetensors", "head.safetensors", "ledger.jsonl"
_FORMAT = 1


@dataclass(frozen=True)
class ClientSettings:
    """Settings of the user's side, `settings.toml` in its folder; all of them are public."""

    encoder: str
    pooling: str
    max_length: int
    position: str
    pairs: bool
    mechanism: str
    dimension: int
    width: int
    strength: float
    clip_norm: float
    bound_norm: float
    epsilon: float
    delta: float
    queries: int
    learned_from: str
    public: bool
    reason: str | None = None
    task: str = "classification"
    label_names: tuple[str, ...] = ()
    format: int = _FORMAT


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server's side, `settings.toml` in its folder."""

    width: int
    task: str
    label_names: tuple[str, ...]
    head: str = "linear"
    hidden: tuple[int, ...] = ()
    about: str = ""
    format: int = _FORMAT


def write_sides(folder: Path, model: Classifier, protect: LocalLayer, requested: LocalPrivacy) -> str:
    """Write client/ and server/ into the folder of an unfinished run, and return a sentence about them."""
    query = model.query
    assert isinstance(query, LocalQuery)
    path = query.path(model.head)
    reasons = [] if model.settings.frozen else [Caveat.TRAINED_ENCODER.sentence]
    if not protect.projection.public:
        reasons.append(Caveat.PRIVATE_PROJECTION.sentence)
    if model.settings.frozen and protect.claimed is not None:
        reasons.append(str(protect.claimed.reason))
    client = folder / CLIENT
    client.mkdir(parents=True, exist_ok=True)  # a run may be stopped here and resumed
    layer = path.layer
    settings = ClientSettings(
        encoder=model.settings.encoder,
        pooling=model.settings.pooling,
        max_length=model.max_length,
        position=protect.position,
        pairs=protect.pairs,
        mechanism=layer.mechanism,
        dimension=path.bound.dimension,
        width=layer.dimension,
        strength=layer.strength,
        clip_norm=layer.clip_norm,
        bound_norm=path.bound.clip_norm,
        epsilon=requested.per_query,
        delta=protect.delta,
        queries=requested.queries,
        learned_from=path.projection.source,
        public=not reasons,
        reason="; ".join(reasons) or None,
        task=model.task,
        label_names=model.label_names,
    )
    tensors = {"mean": path.projection.mean, "matrix": path.projection.matrix}
    if path.axes is not None:
        tensors |= {"axes.matrix": path.axes.matrix, "axes.offset": path.axes.offset}
    save_tensors(tensors, client / _PATH)
    _write_encoder(client, model)
    write_atomic(client / _SETTINGS, dump(settings), private=False)
    person_ledger(client / _LEDGER, layer, settings.queries, settings.epsilon, settings.delta).close()
    server = folder / SERVER
    server.mkdir(exist_ok=True)
    _write_server(server, model, path)
    return f"{CLIENT}/ is for the users (discreet query), {SERVER}/ for whoever answers them (discreet serve)."


def _write_server(folder: Path, model: Classifier, path: QueryPath) -> None:
    head: nn.Module = model.head
    if path.axes is not None:  # fold the map from the axes back to vectors into the head
        assert isinstance(head, nn.Linear)
        weight, bias = head.weight.detach().cpu(), head.bias.detach().cpu()
        up, origin = path.axes.up.cpu(), path.axes.origin.cpu()
        head = linear_head(weight @ up, weight @ origin + bias)
    settings = ServerSettings(
        width=path.layer.dimension,
        task=model.task,
        label_names=model.label_names,
        head=model.settings.head,
        hidden=model.settings.hidden if model.settings.head != "linear" else (),
        about=f"answers to vectors of {path.layer.dimension} numbers randomised by {path.layer.mechanism}",
    )
    save_tensors(head.state_dict(), folder / _HEAD)
    write_atomic(folder / _SETTINGS, dump(settings), private=False)


def _write_encoder(folder: Path, model: Classifier) -> None:
    """Write tokenizer and weights, unless they are the built-in ones, which every installation has."""
    if model.settings.encoder == MINILM and model.settings.frozen and model.fingerprint == MINILM_SHA256:
        return
    model.tokenizer.save_pretrained(folder / "tokenizer")
    write_atomic(folder / "encoder.json", encoder_config(model), private=False)
    save_tensors(model.encoder.state_dict(), folder / "encoder.safetensors")


def load_server(folder: Path) -> ServerSide:
    """Return the server's side from its folder."""
    settings = _read(ServerSettings, folder, "server")
    try:
        tensors, _ = load_tensors(folder / _HEAD)
        outputs = len(settings.label_names) if settings.task == "classification" else 1
        head = head_of(settings.head, settings.width, outputs, settings.hidden)
        head.load_state_dict(tensors)
    except (OSError, RuntimeError, KeyError, ValueError, *WRONG_KIND) as error:
        raise _damaged(folder, error) from None
    head.requires_grad_(False).eval()
    return ServerSide(head, settings.width, settings.label_names, settings.task, settings.about)


def load_user(folder: Path, device: torch.device | str = "cpu") -> UserSide:
    """Return the user's side from its folder, with its ledger open; only one process at a time can open it."""
    settings = _read(ClientSettings, folder, "client")
    try:
        tensors, _ = load_tensors(folder / _PATH)
        model = _load_encoder(folder, settings).to(device)
        path = _path(settings, {name: value.to(device) for name, value in tensors.items()})
    except (OSError, RuntimeError, KeyError, ValueError, *WRONG_KIND) as error:
        raise _damaged(folder, error) from None
    if settings.position == "token":
        shape_model(model, path.bound, path.layer, Rng(0), path.projection, position="token")
    if not (folder / _LEDGER).exists():  # a new one would forget earlier spends
        raise ModelError(
            f"Expected the ledger of all queries at {str(folder / _LEDGER)!r}. Without it the spent budget is unknown; "
            "restore it, or get a new client folder from whoever trained the model."
        )
    ledger = person_ledger(folder / _LEDGER, path.layer, settings.queries, settings.epsilon, settings.delta)
    return UserSide(model.eval(), path, ledger, settings.delta, settings.public, settings.reason, pairs=settings.pairs)


def _path(settings: ClientSettings, tensors: dict[str, Tensor]) -> QueryPath:
    axes = None
    if "axes.matrix" in tensors:
        matrix = tensors["axes.matrix"]
        outputs, inputs = matrix.shape
        # The map back to vectors is part of the server's head.
        axes = QueryAxes(matrix, tensors["axes.offset"], torch.zeros(inputs, outputs), torch.zeros(inputs))
    return QueryPath(
        Projection(tensors["mean"], tensors["matrix"], settings.learned_from, settings.public),
        LDPLayer(settings.mechanism, settings.dimension, 1.0, settings.bound_norm),
        LDPLayer(settings.mechanism, settings.width, settings.strength, settings.clip_norm),
        axes,
    )


def _load_encoder(folder: Path, settings: ClientSettings) -> Classifier:
    model_settings = ModelSettings(
        encoder=settings.encoder, pooling=settings.pooling, train="head", max_length=settings.max_length
    )
    if (folder / "encoder.json").exists():
        config = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
        weights, _ = load_tensors(folder / "encoder.safetensors")
        module: Any = fresh_module(config, weights)
        encoder = assemble(settings.encoder, module, load_tokenizer(folder / "tokenizer"), "")
        encoder.module.load_state_dict(weights)
    else:
        encoder = load_encoder(settings.encoder, rng=Rng(0))
    return Classifier(encoder, model_settings, settings, Rng(0))


def _read(kind: type[Any], folder: Path, side: str) -> Any:
    own = _HEAD if side == "server" else _PATH
    if not all((folder / name).is_file() for name in (_SETTINGS, own)):
        remedy = f"Train with {setting('protect', 'ldp')} and {setting('out', 'runs/a')}: that writes runs/a/{side}."
        for near in (folder / side, folder.parent / side):
            if (near / own).is_file():
                remedy = f"Did you mean {str(near)!r}?"
        raise ModelError(f"Expected the {side}'s folder of a locally private run at {str(folder)!r}. {remedy}")
    return read(kind, folder / _SETTINGS)


def _damaged(folder: Path, error: Exception) -> ModelError:
    return ModelError(f"Expected a complete folder at {str(folder)!r}. {first_line(error)} Train it again.")
