"""The two folders of a locally private run: the client's, to be given to users, and the server's."""

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
from discreet.models.bilstm import BiLSTM
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.classifier import head as head_of
from discreet.models.encoder import (
    BILSTM,
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
from discreet.training.local import UserSide, person_ledger
from discreet.training.local_server import ServerSide, linear

if TYPE_CHECKING:
    from discreet.protections.local.protection import LocalPrivacy
    from discreet.protections.local.release import LocalLayer

CLIENT, SERVER = "client", "server"
_SETTINGS, _PATH, _HEAD, _LEDGER = "settings.toml", "path.safetensors", "head.safetensors", "ledger.jsonl"
_FORMAT = 1


@dataclass(frozen=True)
class ClientSettings:
    """What a user's side is set to; `settings.toml` in its folder. All of it is public."""

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
    """What a server's side is set to."""

    width: int
    task: str
    label_names: tuple[str, ...]
    head: str = "linear"
    hidden: tuple[int, ...] = ()
    about: str = ""
    format: int = _FORMAT


def write_sides(folder: Path, model: Classifier, protect: LocalLayer, asked: LocalPrivacy) -> str:
    """Write client/ and server/ into a folder that nobody reads yet, and return a sentence that says so."""
    query = model.query
    assert isinstance(query, LocalQuery)
    path = query.path(model.head)
    reasons = [] if model.settings.frozen else [Caveat.TRAINED_ENCODER.sentence]
    if not protect.projection.public:
        reasons.append(Caveat.PRIVATE_PROJECTION.sentence)
    if model.settings.frozen and protect.claimed is not None:
        reasons.append(str(protect.claimed.reason))
    client = folder / CLIENT
    client.mkdir(parents=True, exist_ok=True)  # a run that was stopped while it was written resumes here
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
        epsilon=asked.per_query,
        delta=protect.delta,
        queries=asked.queries,
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
    made: nn.Module = model.head
    if path.axes is not None:  # folded: what the axes do on the way back is the server's part
        assert isinstance(made, nn.Linear)
        weight, bias = made.weight.detach().cpu(), made.bias.detach().cpu()
        up, origin = path.axes.up.cpu(), path.axes.origin.cpu()
        made = linear(weight @ up, weight @ origin + bias)
    settings = ServerSettings(
        width=path.layer.dimension,
        task=model.task,
        label_names=model.label_names,
        head=model.settings.head,
        hidden=model.settings.hidden if model.settings.head != "linear" else (),
        about=f"answers to vectors of {path.layer.dimension} numbers randomised by {path.layer.mechanism}",
    )
    save_tensors(made.state_dict(), folder / _HEAD)
    write_atomic(folder / _SETTINGS, dump(settings), private=False)


def _write_encoder(folder: Path, model: Classifier) -> None:
    """Write tokenizer and weights, unless they are the built-in ones, which every installation has."""
    if model.settings.encoder == MINILM and model.settings.frozen and model.fingerprint == MINILM_SHA256:
        return
    config = model.encoder.config
    values: Any = vars(config) if isinstance(model.encoder, BiLSTM) else config.to_dict()  # type: ignore[operator,union-attr]
    kind = BILSTM if isinstance(model.encoder, BiLSTM) else "transformers"
    model.tokenizer.save_pretrained(folder / "tokenizer")
    write_atomic(folder / "encoder.json", json.dumps({"kind": kind, "config": values}), private=False)
    save_tensors(model.encoder.state_dict(), folder / "encoder.safetensors")


def load_server(folder: Path) -> ServerSide:
    """Return the server's side from its folder."""
    settings = _read(ServerSettings, folder, "server")
    try:
        tensors, _ = load_tensors(folder / _HEAD)
        outputs = len(settings.label_names) if settings.task == "classification" else 1
        made = head_of(settings.head, settings.width, outputs, settings.hidden)
        made.load_state_dict(tensors)
    except (OSError, RuntimeError, KeyError, ValueError, *WRONG_KIND) as error:
        raise _damaged(folder, error) from None
    made.requires_grad_(False).eval()
    return ServerSide(made, settings.width, settings.label_names, settings.task, settings.about)


def load_user(folder: Path, device: torch.device | str = "cpu") -> UserSide:
    """Return the user's side from its folder, with its ledger opened; one process at a time may hold it."""
    settings = _read(ClientSettings, folder, "client")
    try:
        tensors, _ = load_tensors(folder / _PATH)
        model = _load_encoder(folder, settings).to(device)
        path = _path(settings, {name: value.to(device) for name, value in tensors.items()})
    except (OSError, RuntimeError, KeyError, ValueError, *WRONG_KIND) as error:
        raise _damaged(folder, error) from None
    if settings.position == "token":
        shape_model(model, path.bound, path.layer, Rng(0), path.projection, position="token")
    if not (folder / _LEDGER).exists():  # a new one would forget what was spent
        raise ModelError(
            f"Expected the ledger of all queries at {str(folder / _LEDGER)!r}. It is gone, and what was spent is not "
            "known; bring it back, or take the client's folder anew from whoever trained it."
        )
    ledger = person_ledger(folder / _LEDGER, path.layer, settings.queries, settings.epsilon, settings.delta)
    return UserSide(model.eval(), path, ledger, settings.delta, settings.public, settings.reason, pairs=settings.pairs)


def _path(settings: ClientSettings, tensors: dict[str, Tensor]) -> QueryPath:
    axes = None
    if "axes.matrix" in tensors:
        matrix = tensors["axes.matrix"]
        nowhere = (
            torch.zeros(matrix.shape[1], len(matrix)),
            torch.zeros(matrix.shape[1]),
        )  # the way back is the server's
        axes = QueryAxes(matrix, tensors["axes.offset"], *nowhere)
    return QueryPath(
        Projection(tensors["mean"], tensors["matrix"], settings.learned_from, settings.public),
        LDPLayer(settings.mechanism, settings.dimension, 1.0, settings.bound_norm),
        LDPLayer(settings.mechanism, settings.width, settings.strength, settings.clip_norm),
        axes,
    )


def _load_encoder(folder: Path, settings: ClientSettings) -> Classifier:
    chosen = ModelSettings(
        encoder=settings.encoder, pooling=settings.pooling, train="head", max_length=settings.max_length
    )
    if not (folder / "encoder.json").exists():
        return Classifier(load_encoder(settings.encoder, rng=Rng(0)), chosen, settings, Rng(0))
    about = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    weights, _ = load_tensors(folder / "encoder.safetensors")
    tokenizer = load_tokenizer(folder / "tokenizer")
    module: Any = fresh_module(about, weights)
    encoder = assemble(settings.encoder, module, tokenizer, "")
    encoder.module.load_state_dict(weights)
    return Classifier(encoder, chosen, settings, Rng(0))


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
    return ModelError(f"Expected a whole folder at {str(folder)!r}. {first_line(error)} Train it again.")
