"""The two sides of a locally private classifier: the user's, which protects, and the server's, which never sees text.

    runs/a/client   settings.toml  path.safetensors  ledger.jsonl  [tokenizer/  encoder.json  encoder.safetensors]
    runs/a/server   settings.toml  head.safetensors

A client whose encoder is the built-in one names it and checks its fingerprint; any other encoder lies in the folder.

What crosses is a `RepresentationRelease`: one randomised vector for each text. The client's folder holds no head, the
server's neither encoder nor tokenizer.

Queries among decoys: what is sent step by step, and the one answer that is made of many.

Queries that are ready to be sent and not yet counted, and encoding that takes the same work for any text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from discreet.accounting.events import DpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee as promise
from discreet.accounting.ledger import Budget, Ledger, Terms
from discreet.accounting.local_layer import Sending
from discreet.core.errors import DataError, invalid, whole
from discreet.core.guarantee import FLOATING_POINT, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import RepresentationRelease
from discreet.data.batches import Tokens, tokenise
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.local.decoys import Decoys
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.query import QueryPath, TokenQuery
from discreet.training.evaluate import represent
from discreet.training.local_server import ServerSide

if TYPE_CHECKING:
    from discreet.data.batches import Tokens
    from discreet.models.classifier import Classifier


__all__ = ["ServerSide", "UserSide", "person_ledger", "queries_of"]

UNIT = "sentence"
PERSON = "person"
_DRAWS = 3  # how often a query among decoys is drawn, on average
PUBLIC = "the encoder and the projection are public: no private text went into them"
SECRET_SEED = "the noise of every query comes from a secret seed, drawn by the operating system"
_ONE_EACH = "each sentence is sent once: one that is sent again costs again"
_LENGTH = "the number of tokens of a text is public"
_TEXTS = "whoever owns several sentences owns the sum of their costs"


@dataclass
class UserSide:
    """What stands on the user's machine: encoder, projection, noise and ledger.

    The ledger is opened for the person who asks: all queries together, each counted before it is handed over, until
    the budget allows no more.

    Guarantee: for each sentence that is sent once, `guarantee`, under replace-one; for all of a person's queries, the
        ledger's. Certified if encoder and projection are public and the noise comes from a secret source.
    """

    model: Classifier = field(repr=False)
    path: QueryPath
    ledger: Ledger
    delta: float
    public: bool = True
    reason: str | None = None
    pairs: bool = False
    rng: Rng = field(default_factory=Rng.secure, repr=False)  # nobody needs to repeat a query

    def __post_init__(self) -> None:
        """Refuse a guarantee without its reason."""
        if not self.public and not self.reason:
            raise invalid("reason", self.reason, "given when public is False", "Say what is not public.")
        self._session, self._count, self._drawn = os.urandom(8).hex(), 0, 0
        if isinstance(self.model.query, TokenQuery) and self.rng.is_secure:
            self.model.query.source = self.rng  # its noise is drawn inside the model

    @property
    def layer(self) -> LDPLayer:
        """The noise of one query."""
        return self.path.layer

    @property
    def width(self) -> int:
        """How many numbers leave for each text."""
        return self.layer.dimension

    @property
    def guarantee(self) -> Guarantee:
        """What one sentence is guaranteed when it is sent once."""
        return self._promise(self.layer.event)

    def tokens(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Tokens:
        """Return texts as the encoder reads them; none, an empty one, or one of another kind is refused."""
        if (second is not None) != self.pairs:
            wanted = "pairs of texts" if self.pairs else "single texts"
            raise DataError(f"Expected {wanted}, as in training. Give the second texts, or leave them out.")
        rows = queries_of(texts, second)
        return tokenise(rows, self.model.tokenizer, self.model.max_length, self.model.device)

    def prepare(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Sealed[RepresentationRelease]:
        """Return the randomised vectors of texts, not yet counted: `open` counts them in the ledger and returns them.

        All work that depends on the texts is done here, so that a server that is contacted afterwards cannot time it.
        A few texts at once are encoded at a fixed width, whatever their lengths.

        Guarantee: `guarantee` for each text. Refused texts spend nothing.
        """
        tokens = same_work(self.tokens(texts, second), self.model)
        if isinstance(self.model.query, TokenQuery):  # its noise is drawn between states and pooling
            self.model.query.source = self.rng.fork(self._session, self._next())  # the source that is stated
            released = represent(self.model, tokens)
        else:
            coordinates = self.path.coordinates(represent(self.model, tokens))
            self.layer.bounded(coordinates)  # refuses what noise cannot hide
            released = self.layer(coordinates, self.rng.fork(self._session, self._next()))
        event: DpEvent = self.layer.event
        cost = event if len(tokens) == 1 else SelfComposedDpEvent(event, len(tokens))
        return Sealed(RepresentationRelease(released, guarantee=self.guarantee), lambda: self._spend(cost))

    def protect(self, texts: Sequence[str], second: Sequence[str] | None = None) -> RepresentationRelease:
        """Return the randomised vectors of texts, counted in the ledger before they are handed over.

        Guarantee: `guarantee` for each text. Refused texts and an exhausted ledger spend nothing.
        """
        return self.prepare(texts, second).open()

    def protect_among(
        self,
        texts: Sequence[str],
        decoys: Decoys,
        second: Sequence[str] | None = None,
        *,
        count: int = 9,
        epsilon: float | None = None,
        steps: int | None = None,
    ) -> Mixed:
        """Return what `prepare_among` does, counted in the ledger."""
        return self.prepare_among(texts, decoys, second, count=count, epsilon=epsilon, steps=steps).open()

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
        """Return each text hidden among `count` decoys and sent in several draws, within epsilon: up-sampling.

        At each of `steps` steps one sentence of each text's own pool, itself and its decoys, is drawn and sent. Without
        `steps` a text is drawn three times on average, and never at all once in twenty; without `epsilon` it has that
        of a query.

        Guarantee: epsilon for each text over all steps, by the curve of sampling without replacement under replace-one,
            if the server does not learn which steps were true; it may know the decoys. Texts have pools and noise of
            their own, so a person's ledger counts that cost once for each text.
        Paper: LDP-NLP, Algorithm 3. Differs: one is drawn at a time, not by coins, for which decoys change nothing; and
            each text has decoys of its own, so that several texts of one person add up instead of hiding each other.
        """
        if isinstance(self.model.query, TokenQuery):
            raise DataError("Expected sentence vectors for up-sampling, found token states. Use protect.")
        pool = 1 + whole("count", count, remedy="It is how many decoys each text has.")
        sending = Sending(1, 1, _DRAWS * pool if steps is None else whole("steps", steps), count, "fixed")
        true = self.tokens(texts, second)  # refused texts cost nothing
        layer = LDPLayer.for_budget(
            self.layer.mechanism,
            dimension=self.layer.dimension,
            epsilon=self.guarantee.epsilon if epsilon is None else epsilon,
            delta=self.delta,
            clip_norm=self.layer.clip_norm,
            sending=sending,
        )
        n, source = len(true), self.rng.fork(self._session, "mix", self._next())
        made = (decoys.draw(n * count, source.fork("decoys", i)) for i in range(2 if self.pairs else 1))
        own = represent(self.model, same_work(true, self.model))
        vectors = torch.cat([own, represent(self.model, self.tokens(*made))])
        coordinates = self.path.coordinates(vectors)
        layer.bounded(coordinates)
        each = sending.event(layer.event)
        cost: DpEvent = each if n == 1 else SelfComposedDpEvent(each, n)
        mixed = Mixed.draw(coordinates, layer, sending, self._promise(each), source)
        return Sealed(mixed, lambda: self._spend(cost))

    def spent(self) -> Guarantee:
        """Return what all that was ever sent from here guarantees the person."""
        found = self.ledger.guarantee(self.delta, assumptions=self._assumptions)
        return self._stated(found)

    def close(self) -> None:
        """Let go of the ledger; what was spent stays spent."""
        self.ledger.close()

    def __enter__(self) -> UserSide:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the ledger."""
        self.close()

    @classmethod
    def load(cls, folder: Path | str, device: torch.device | str = "cpu") -> UserSide:
        """Return the user's side of a finished run, with its ledger opened."""
        from discreet.training.local_folder import load_user

        return load_user(Path(folder), device)

    def _next(self) -> int:
        """Return a number that names one draw of noise and no other."""
        self._drawn += 1
        return self._drawn

    def _spend(self, event: DpEvent) -> None:
        self._count += 1
        terms = Terms(self._assumptions, self._caveats)
        self.ledger.spend(event, id=f"query {self._session} {self._count}", secure=True, terms=terms)

    def _promise(self, event: DpEvent) -> Guarantee:
        found = promise(
            event,
            delta=self.delta,
            adjacency=self.layer.adjacency,
            unit="pair" if self.pairs else UNIT,
            assumptions=(*self._assumptions, _ONE_EACH, _TEXTS),
        )
        return self._stated(found)

    @property
    def _assumptions(self) -> tuple[str, ...]:
        length = (_LENGTH,) if isinstance(self.model.query, TokenQuery) else ()  # which the noise of a mean tells
        secret = (SECRET_SEED,) if self.rng.is_secret else ()
        return secret + ((PUBLIC,) if self.public else ()) + length + (FLOATING_POINT,)

    @property
    def _caveats(self) -> frozenset[Caveat]:
        private = frozenset() if self.public else frozenset({Caveat.PRIVATE_CLIENT})
        return private if self.rng.is_secret else private | {Caveat.FIXED_SEED}

    def _stated(self, found: Guarantee) -> Guarantee:
        stated = found.with_caveats(self._caveats)
        return stated if self.public or not self.rng.is_secret else replace(stated, reason=self.reason)


def queries_of(texts: Sequence[str], second: Sequence[str] | None = None) -> Corpus:
    """Return texts as a corpus, refused where there are none or where one is empty."""
    if isinstance(texts, str) or isinstance(second, str):
        raise DataError("Expected a list of texts, found a single text. Put it into a list.")
    if not len(texts):
        raise DataError("Expected at least one text, found none.")
    return Corpus("queries", tuple(texts), second=None if second is None else tuple(second))


def person_ledger(path: Path | None, layer: LDPLayer, queries: int, epsilon: float, delta: float) -> Ledger:
    """Return the ledger of one person's queries: its budget is that many of them, their costs simply added up."""
    budget = Budget(whole("queries", queries) * epsilon, delta)
    return Ledger.open(path, unit=PERSON, adjacency=layer.adjacency.value, budget=budget)


@dataclass(frozen=True)
class Mixed:
    """Queries among decoys, step by step: what is sent, and which rows of it are true (the user's secret).

    Row i of every step is for query i; `true[t][i]` says whether step t sent the query itself there, or a decoy.
    """

    steps: tuple[RepresentationRelease, ...]
    true: tuple[npt.NDArray[np.bool_], ...] = field(repr=False)
    guarantee: Guarantee

    @classmethod
    def draw(cls, coordinates: Tensor, layer: LDPLayer, sending: Sending, guarantee: Guarantee, source: Rng) -> Mixed:
        """Return what every step sends: of each query's own pool, itself and its decoys, one row with fresh noise.

        `coordinates` are the queries and then, query by query in turn, their first decoys, their second ones, and so
        on; `guarantee` is what each query has over all steps, counted before this is called.

        Guarantee: the one given, if the server does not learn which steps were true.
        """
        count = sending.decoys
        n = len(coordinates) // (1 + count)
        rows = np.arange(n * (1 + count)).reshape(1 + count, n)  # column i is query i, then its decoys
        releases, places = [], []
        for step in range(sending.steps):
            one = np.minimum((source.fork("draw", step).uniform(n) * (1 + count)).astype(np.int64), count)
            sent = layer(coordinates[torch.from_numpy(rows[one, np.arange(n)])], source.fork("noise", step))
            releases.append(RepresentationRelease(sent, guarantee=None))
            places.append(one == 0)
        return cls(tuple(releases), tuple(places), guarantee)

    def collect(self, answers: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Return one answer for each query, the mean of all that came back for it; NaN where it was never drawn."""
        said, true = np.stack(answers).astype(np.float64), np.stack(self.true)[:, :, None]
        count = true.sum(0)
        total = np.where(true, said, 0.0).sum(0)
        return np.asarray(total / np.where(count > 0, count, np.nan), dtype=np.float32)


_Release = TypeVar("_Release")
_FEW = 16  # texts; each takes a fifth of a second at 512 tokens on one core
_GRID = 32  # tokens


@dataclass(eq=False)
class Sealed(Generic[_Release]):
    """A release that was made and has not left: `open` counts it in the ledger, once, and returns it.

    Guarantee: that of the release; until it is opened nothing was spent, and nothing may be sent.
    """

    _release: _Release = field(repr=False)
    _spend: Callable[[], None] = field(repr=False)
    _opened: bool = field(default=False, init=False)

    def open(self) -> _Release:
        """Return the release, counted at the first call; if the budget does not allow it, it stays sealed."""
        if not self._opened:
            self._spend()
            self._opened = True
        return self._release


def same_work(tokens: Tokens, model: Classifier) -> Tokens:
    """Return tokens padded so that encoding them takes work that does not depend on the texts.

    Up to 16 texts are padded to the model's maximum length. More would take too long; each batch of them is padded to
    a multiple of 32 tokens.
    """
    if len(tokens) > _FEW:
        return replace(tokens, pad_to=max(_GRID, tokens.pad_to))
    missing = model.max_length - tokens.columns["input_ids"].shape[1]
    fill = {"input_ids": int(model.tokenizer.pad_token_id)}
    columns = {name: pad(column, (0, missing), value=fill.get(name, 0)) for name, column in tokens.columns.items()}
    return replace(tokens, columns=columns, lengths=np.full(len(tokens), model.max_length), pad_to=model.max_length)
