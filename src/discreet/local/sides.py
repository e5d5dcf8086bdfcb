"""Write the two sides of a locally private run: the client's folder and the server's."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from discreet.core.files import save_tensors, write_atomic
from discreet.core.guarantee import Caveat
from discreet.core.settings import dump
from discreet.local.client import person_ledger
from discreet.local.folder import CLIENT, HEAD, LEDGER, PATH, SERVER, SETTINGS, ClientSettings, ServerSettings
from discreet.local.server import linear_head
from discreet.models.classifier import Classifier
from discreet.models.encoder import MINILM, MINILM_SHA256, save_tokenizer
from discreet.protections.base import Protection, trust_in
from discreet.protections.local.protection import LocalPrivacy
from discreet.protections.local.query import LocalQuery, QueryPath
from discreet.protections.local.release import LocalLayer
from discreet.runs.folder import encoder_config


def write_sides(folder: Path, model: Classifier, protect: Protection, requested: Protection) -> str:
    """Write client/ and server/ into the folder of an unfinished run, and return a sentence about them."""
    query = model.query
    assert isinstance(query, LocalQuery) and isinstance(protect, LocalLayer) and isinstance(requested, LocalPrivacy)
    path = query.path(model.head)
    reasons = [] if model.settings.frozen else [Caveat.TRAINED_ENCODER.sentence]
    if not protect.projection.public:
        reasons.append(Caveat.PRIVATE_PROJECTION.sentence)
    reasons += [caveat.sentence for caveat in trust_in(protect) | trust_in(requested)]
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
        classes=model.label_names,
    )
    tensors = {"mean": path.projection.mean, "matrix": path.projection.matrix}
    if path.axes is not None:
        tensors |= {"axes.matrix": path.axes.matrix, "axes.offset": path.axes.offset}
    save_tensors(tensors, client / PATH)
    _write_encoder(client, model)
    write_atomic(client / SETTINGS, dump(settings), private=False)
    person_ledger(client / LEDGER, layer, settings.queries, settings.epsilon, settings.delta).close()
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
        classes=model.label_names,
        head=model.settings.head,
        hidden=model.settings.hidden if model.settings.head != "linear" else (),
        about=f"answers to vectors of {path.layer.dimension} numbers randomised by {path.layer.mechanism}",
    )
    save_tensors(head.state_dict(), folder / HEAD)
    write_atomic(folder / SETTINGS, dump(settings), private=False)


def _write_encoder(folder: Path, model: Classifier) -> None:
    """Write tokenizer and weights, unless they are the built-in ones, which every installation has."""
    if model.settings.encoder == MINILM and model.settings.frozen and model.fingerprint == MINILM_SHA256:
        return
    save_tokenizer(model.tokenizer, folder / "tokenizer")
    write_atomic(folder / "encoder.json", encoder_config(model), private=False)
    save_tensors(model.encoder.state_dict(), folder / "encoder.safetensors")
