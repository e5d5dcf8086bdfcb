"""The user's side of a locally private classifier: protect queries, alone or among decoys, and count them in a ledger.

The user's side sends a `RepresentationRelease`, one randomized vector for each text; the server's side (`server.py`)
never sees text. All work that depends on a text is done before its query is counted and sent, and encoding takes the
same work for any text, so that the server cannot measure it. `folder.py` describes the folders of both sides.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from discreet.accounting.events import DpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee_of
from discreet.accounting.ledger import Budget, Ledger, Terms
from discreet.accounting.local_layer import Sending
from discreet.core.errors import DataError, ModelError, UnsupportedError, invalid, whole
from discreet.core.files import load_tensors
from discreet.core.guarantee import FLOATING_POINT, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import RepresentationRelease
from discreet.data.batches import Tokens, tokenise
from discreet.data.corpus import Corpus
from discreet.local.folder import LEDGER, PATH, ClientSettings, damaged, read_side
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.encoder import WRONG_KIND, assemble, fresh_module, load_encoder, load_tokenizer
from discreet.protections.local.decoys import Decoys
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import Projection, QueryAxes
from discreet.protections.local.query import QueryPath, TokenQuery
from discreet.protections.local.release import shape_model
from discreet.training.evaluation import represent

UNIT = "sentence"
PERSON = "person"
_Release = TypeVar("_Release")
_DRAWS = 3  # mean number of times that a query among decoys is sent
PUBLIC = "the encoder and the projection are public: no private text went into them"
SECRET_SEED = "the noise of every query comes from a secret seed, drawn by the operating system"
_ONE_EACH = "each sentence is sent once: one that is sent again costs again"
_LENGTH = "the number of tokens of a text is public"
_TEXTS = "whoever owns several sentences owns the sum of their costs"


@dataclass
class UserSide:
    """The user's side: encoder, projection, noise and ledger.

    The ledger counts all queries of one person, each before it is released, until its budget is spent.

    Guarantee: for each sentence that is sent once, `guarantee`, under replace-one; for all queries of a person, that
        of the ledger. Certified if encoder and projection are public and the noise comes from a secret source.
    """

    model: Classifier = field(repr=False)
    path: QueryPath
    ledger: Ledger
    delta: float
    public: bool = True
    reason: str | None = None
    pairs: bool = False
    rng: Rng = field(default_factory=Rng.secure, repr=False)  # queries are never repeated

    def __post_init__(self) -> None:
        """Reject a private encoder or projection without a reason for the guarantee."""
        if not self.public and not self.reason:
            raise invalid("reason", self.reason, "set when public is False", "Name the part that is not public.")
        self._session, self._count, self._releases = os.urandom(8).hex(), 0, 0
        if isinstance(self.model.query, TokenQuery) and self.rng.is_secure:
            self.model.query.source = self.rng  # its noise is sampled inside the model

    @property
    def layer(self) -> LDPLayer:
        """The layer that randomizes one query."""
        return self.path.layer

    @property
    def width(self) -> int:
        """Number of released coordinates for each text."""
        return self.layer.dimension

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of one sentence that is sent once."""
        return self._guarantee_of(self.layer.event)

    def tokens(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Tokens:
        """Return tokenized texts; reject an empty list, an empty text, and pairs where training had none."""
        if (second is not None) != self.pairs:
            expected = "pairs of texts" if self.pairs else "single texts"
            raise DataError(f"Expected {expected}, as in training. Pass the second texts, or leave them out.")
        rows = queries_of(texts, second)
        return tokenise(rows, self.model.tokenizer, self.model.max_length, self.model.device)

    def prepare(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Sealed[RepresentationRelease]:
        """Return the randomized vectors of texts, not yet counted: `open` counts them in the ledger and returns them.

        All work that depends on the texts is done here, so that a server that is contacted afterwards cannot measure
        its time. A few texts together are encoded at a fixed width, whatever their lengths.

        Guarantee: `guarantee` for each text. Rejected texts spend nothing.
        """
        tokens = same_work(self.tokens(texts, second), self.model)
        if isinstance(self.model.query, TokenQuery):  # its noise is added between states and pooling
            self.model.query.source = self.rng.fork(self._session, self._next())  # the source of the stated guarantee
            released = represent(self.model, tokens)
        else:
            coordinates = self.path.coordinates(represent(self.model, tokens))
            self.layer.bounded(coordinates)  # rejects NaN and infinity before anything is counted
            released = self.layer(coordinates, self.rng.fork(self._session, self._next()))
        release = RepresentationRelease(released, guarantee=self.guarantee)
        return self._sealed(release, self.layer.event, len(tokens))

    def coordinates(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Tensor:
        """Return the bounded vectors of texts without noise, for encryption; they must not leave the user otherwise.

        Guarantee: none, the vectors reveal the texts. Nothing is counted in the ledger.
        """
        if isinstance(self.model.query, TokenQuery):
            raise UnsupportedError("Expected noise on the vector of a text, got noise on each token. Train without it.")
        tokens = same_work(self.tokens(texts, second), self.model)
        return self.layer.bounded(self.path.coordinates(represent(self.model, tokens)))

    def protect(self, texts: Sequence[str], second: Sequence[str] | None = None) -> RepresentationRelease:
        """Return the randomized vectors of texts, counted in the ledger before they are returned.

        Guarantee: `guarantee` for each text. Rejected texts and an exhausted ledger spend nothing.
        """
        return self.prepare(texts, second).open()

    def protect_among(
        self, texts: Sequence[str], decoys: Decoys, second: Sequence[str] | None = None, **options: Any
    ) -> Mixed:
        """Return the release of `prepare_among`, which takes the same options, counted in the ledger."""
        return self.prepare_among(texts, decoys, second, **options).open()

    def prepare_among(
        self,
        texts: Sequence[str],
        decoys: Decoys,
        second: Sequence[str] | None = None,
        *,
        count: int = 9,
        epsilon: float | None = None,
        steps: int | None = None,
    ) -> Sealed[Mixed]:
        """Return each text hidden among `count` decoys and sent in several steps, within epsilon: up-sampling.

        Each of `steps` steps samples and sends one sentence of each text's own pool, the text and its decoys. With the
        default `steps` a text is sent three times on average, and with probability 1/20 not at all; the default
        `epsilon` is that of a query.

        Guarantee: epsilon for each text over all steps, by the curve of sampling without replacement under replace-one,
            if the server does not learn which steps were true; it may know the decoys. Each text has its own pool and
            noise, so a person's ledger counts that cost once for each text.
        Paper: LDP-NLP, Algorithm 3. Differs: one sentence is sampled at a time instead of independent coins, with which
            decoys would change nothing; and each text has its own decoys, so that the costs of several texts of one
            person add up.
        """
        if isinstance(self.model.query, TokenQuery):
            raise DataError("Expected sentence vectors for up-sampling, got token states. Use protect.")
        pool = 1 + whole("count", count, remedy="It is the number of decoys of each text.")
        sending = Sending(1, 1, _DRAWS * pool if steps is None else whole("steps", steps), count, "fixed")
        tokens = self.tokens(texts, second)  # rejected texts cost nothing
        layer = LDPLayer.for_budget(
            self.layer.mechanism,
            dimension=self.layer.dimension,
            epsilon=self.guarantee.epsilon if epsilon is None else epsilon,
            delta=self.delta,
            clip_norm=self.layer.clip_norm,
            sending=sending,
        )
        n, source = len(tokens), self.rng.fork(self._session, "mix", self._next())
        sampled = (decoys.draw(n * count, source.fork("decoys", i)) for i in range(2 if self.pairs else 1))
        own = represent(self.model, same_work(tokens, self.model))
        vectors = torch.cat([own, represent(self.model, self.tokens(*sampled))])
        coordinates = self.path.coordinates(vectors)
        layer.bounded(coordinates)
        event = sending.event(layer.event)
        mixed = Mixed.draw(coordinates, layer, sending, self._guarantee_of(event), source)
        return self._sealed(mixed, event, n)

    def spent(self) -> Guarantee:
        """Return the guarantee of all queries of the person so far."""
        return self._stated(self.ledger.guarantee(self.delta, assumptions=self._assumptions))

    def close(self) -> None:
        """Close the ledger; its spends stay recorded."""
        self.ledger.close()

    def __enter__(self) -> UserSide:
        """Return the user's side."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the ledger."""
        self.close()

    @classmethod
    def load(cls, folder: Path | str, device: torch.device | str = "cpu") -> UserSide:
        """Return the user's side of a finished run, with its ledger open; only one process at a time can open it."""
        folder = Path(folder)
        settings = read_side(ClientSettings, folder, "client")
        try:
            tensors, _ = load_tensors(folder / PATH)
            model = _load_encoder(folder, settings).to(device)
            path = _path(settings, {name: value.to(device) for name, value in tensors.items()})
        except (OSError, RuntimeError, KeyError, ValueError, *WRONG_KIND) as error:
            raise damaged(folder, error) from None
        if settings.position == "token":
            shape_model(model, path.bound, path.layer, Rng(0), path.projection, position="token")
        if not (folder / LEDGER).exists():  # a new one would forget earlier spends
            raise ModelError(
                f"Expected the ledger of all queries at {str(folder / LEDGER)!r}. Without it the spent budget is "
                "unknown; restore it, or get a new client folder from whoever trained the model."
            )
        ledger = person_ledger(folder / LEDGER, path.layer, settings.queries, settings.epsilon, settings.delta)
        return cls(model.eval(), path, ledger, settings.delta, settings.public, settings.reason, pairs=settings.pairs)

    def _next(self) -> int:
        """Return a number that identifies one use of the noise source."""
        self._releases += 1
        return self._releases

    def _sealed(self, release: _Release, event: DpEvent, count: int) -> Sealed[_Release]:
        """Return a release of `count` texts that spends `event` for each of them when it is opened."""
        cost = event if count == 1 else SelfComposedDpEvent(event, count)

        def spend() -> None:
            self._count += 1
            terms = Terms(self._assumptions, self._caveats)
            self.ledger.spend(cost, id=f"query {self._session} {self._count}", secure=True, terms=terms)

        return Sealed(release, spend)

    def _guarantee_of(self, event: DpEvent) -> Guarantee:
        guarantee = guarantee_of(
            event,
            delta=self.delta,
            adjacency=self.layer.adjacency,
            unit="pair" if self.pairs else UNIT,
            assumptions=(*self._assumptions, _ONE_EACH, _TEXTS),
        )
        return self._stated(guarantee)

    @property
    def _assumptions(self) -> tuple[str, ...]:
        length = (_LENGTH,) if isinstance(self.model.query, TokenQuery) else ()  # the noise of a mean reveals it
        secret = (SECRET_SEED,) if self.rng.is_secret else ()
        return secret + ((PUBLIC,) if self.public else ()) + length + (FLOATING_POINT,)

    @property
    def _caveats(self) -> frozenset[Caveat]:
        private = frozenset() if self.public else frozenset({Caveat.PRIVATE_CLIENT})
        return private if self.rng.is_secret else private | {Caveat.FIXED_SEED}

    def _stated(self, guarantee: Guarantee) -> Guarantee:
        stated = guarantee.with_caveats(self._caveats)
        return stated if self.public or not self.rng.is_secret else replace(stated, reason=self.reason)


def queries_of(texts: Sequence[str], second: Sequence[str] | None = None) -> Corpus:
    """Return texts as a corpus; reject an empty list, and a single text that is not in a list."""
    if isinstance(texts, str) or isinstance(second, str):
        raise DataError("Expected a list of texts, got a single text. Put it into a list.")
    if not len(texts):
        raise DataError("Expected at least one text, got none.")
    return Corpus("queries", tuple(texts), second=None if second is None else tuple(second))


def person_ledger(path: Path | None, layer: LDPLayer, queries: int, epsilon: float, delta: float) -> Ledger:
    """Open the ledger of one person's queries; its budget is the sum of their costs."""
    budget = Budget(whole("queries", queries) * epsilon, delta)
    return Ledger.open(path, unit=PERSON, adjacency=layer.adjacency.value, budget=budget)


@dataclass(frozen=True)
class Mixed:
    """Queries among decoys, step by step: the releases, and which of their rows are true (the user's secret).

    Row i of every step belongs to query i; `true[t][i]` says whether step t sent the query itself or a decoy.
    """

    steps: tuple[RepresentationRelease, ...]
    true: tuple[npt.NDArray[np.bool_], ...] = field(repr=False)
    guarantee: Guarantee

    @classmethod
    def draw(cls, coordinates: Tensor, layer: LDPLayer, sending: Sending, guarantee: Guarantee, source: Rng) -> Mixed:
        """Sample what every step sends: one row of each query's own pool, itself or a decoy, with fresh noise.

        `coordinates` are those of the queries, then of the first decoy of each query, then of the second, and so on;
        `guarantee` is that of each query over all steps.

        Guarantee: `guarantee`, if the server does not learn which steps were true.
        """
        count = sending.decoys
        n = len(coordinates) // (1 + count)
        rows = np.arange(n * (1 + count)).reshape(1 + count, n)  # column i is query i, then its decoys
        releases, places = [], []
        for step in range(sending.steps):
            chosen = np.minimum((source.fork("draw", step).uniform(n) * (1 + count)).astype(np.int64), count)
            sent = layer(coordinates[torch.from_numpy(rows[chosen, np.arange(n)])], source.fork("noise", step))
            releases.append(RepresentationRelease(sent, guarantee=None))
            places.append(chosen == 0)
        return cls(tuple(releases), tuple(places), guarantee)

    def collect(self, answers: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Return one answer for each query, the mean of its answers; NaN if it was never sent."""
        values, true = np.stack(answers).astype(np.float64), np.stack(self.true)[:, :, None]
        count = true.sum(0)
        total = np.where(true, values, 0.0).sum(0)
        return np.asarray(total / np.where(count > 0, count, np.nan), dtype=np.float32)


_FEW = 16  # texts; each takes a fifth of a second at 512 tokens on one core
_GRID = 32  # tokens


@dataclass(eq=False)
class Sealed(Generic[_Release]):
    """A release that is ready but not yet counted: `open` counts it in the ledger, once, and returns it.

    Guarantee: that of the release; until it is opened nothing is spent, and nothing may be sent.
    """

    _release: _Release = field(repr=False)
    _spend: Callable[[], None] = field(repr=False)
    _opened: bool = field(default=False, init=False)

    def open(self) -> _Release:
        """Return the release, counted at the first call; if the budget is exceeded, it stays sealed."""
        if not self._opened:
            self._spend()
            self._opened = True
        return self._release


def same_work(tokens: Tokens, model: Classifier) -> Tokens:
    """Return tokens padded so that the work of encoding them does not depend on the texts.

    Up to 16 texts are padded to the model's maximum length. More would take too long; each batch of them is padded to
    a multiple of 32 tokens.
    """
    if len(tokens) > _FEW:
        return replace(tokens, pad_to=max(_GRID, tokens.pad_to))
    missing = model.max_length - tokens.columns["input_ids"].shape[1]
    fill = {"input_ids": int(model.tokenizer.pad_token_id)}
    columns = {name: pad(column, (0, missing), value=fill.get(name, 0)) for name, column in tokens.columns.items()}
    return replace(tokens, columns=columns, lengths=np.full(len(tokens), model.max_length), pad_to=model.max_length)


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
