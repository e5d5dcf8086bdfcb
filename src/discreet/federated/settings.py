"""Settings of a federated training run: public, and equal at the server and at every client."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.catalog import aggregation_from_table, protection_from_table
from discreet.core.errors import DataError, invalid, one_of, positive, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.settings import as_dict, as_toml, parse, read_values
from discreet.core.task import HasClasses, Task
from discreet.data.corpus import Corpus, clients_by_unit, dirichlet_clients, equal_clients
from discreet.data.sources import TextSource
from discreet.federated.aggregation import Aggregation, Mean
from discreet.models.base import TextModel
from discreet.models.build import build_model, matched
from discreet.models.classifier import Labelled, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection, defaults_of

if TYPE_CHECKING:
    from collections.abc import Sequence

GRADIENTS, WEIGHTS = EXCHANGES = ("gradients", "weights")
EQUAL, DIRICHLET, UNIT, FILES = PARTITIONS = ("equal", "dirichlet", "unit", "files")


@dataclass(frozen=True)
class Federation(HasClasses):
    """Settings of a federated training run.

    Clients send one gradient per round (`exchange="gradients"`, federated SGD) or the change of their weights after
    `local_steps` steps of their own (`"weights"`, FedAvg). `training.batch_size` is the size of all clients' batches
    together, and `training.epochs` counts passes over all clients' rows, so that the same settings describe a central
    training run. Each client resolves `protect` for its own units and keeps its own ledger. `partition` says how the
    rows of `data` are divided among the clients on one machine; with "files", `files` names one source per client.
    `task` and `classes` are those of the model, and every client's data must have them.

    A round ends when all clients answered, or `wait_seconds` (or three times what they needed, if that is longer)
    after half of them did.
    """

    data: TextSource
    model: ModelSettings
    training: TrainSettings
    clients: int
    protect: Protection | None = None
    aggregation: Aggregation = field(default_factory=Mean)
    exchange: str = GRADIENTS
    local_steps: int = 1
    partition: str = EQUAL
    concentration: float = 0.5
    files: tuple[str, ...] = ()
    seed: int = 0
    noise_seed: int | None = None
    task: Task = Task.CLASSIFICATION
    classes: tuple[str, ...] = ()
    wait_seconds: float = 30.0
    record: bool = False
    download: bool = False

    def __post_init__(self) -> None:
        """Reject settings outside their range, and protections that cannot be applied at a client."""
        object.__setattr__(self, "task", Task(self.task))
        whole("clients", self.clients)
        one_of("exchange", self.exchange, EXCHANGES)
        one_of("partition", self.partition, PARTITIONS)
        whole("local_steps", self.local_steps)
        positive("wait_seconds", self.wait_seconds, "It is how long a round waits for slow clients, in seconds.")
        positive("concentration", self.concentration, "Small is uneven, large is even; 0.5 is common.")
        if self.exchange == GRADIENTS and self.local_steps != 1:
            remedy = f"A gradient is that of one step; use {setting('exchange', WEIGHTS)} for several."
            raise invalid("local_steps", self.local_steps, f"1 with {setting('exchange', GRADIENTS)}", remedy)
        if (self.partition == FILES) != bool(self.files) or (self.files and len(self.files) != self.clients):
            remedy = f"There are {self.clients} clients."
            raise invalid("files", list(self.files), "one per client with partition files, and else left out", remedy)
        for name, value, unused in (
            ("patience", self.training.patience, None),
            ("averaging", self.training.averaging, 0.0),
            ("accumulate", self.training.accumulate, 1),
            ("head_share", self.training.head_share or None, None),
            ("public", None if self.protect is None or self.protect.needs_public else self.protect.public, None),
        ):
            if value != unused:
                raise invalid(name, value, "left out in a federated run", "Clients take single steps.")
        if self.protect is not None:
            self.protect.check_at_client()
        if self.record:
            object.__setattr__(self, "aggregation", self.aggregation.recorded())

    @property
    def names_read(self) -> bool:
        """Whether the names of the classes are read from the labels of the clients, and may depend on one of them."""
        return self.task.has_classes and self.data.classes is None and not self.data.built_in

    def completed_train(self, units: int, width: int) -> TrainSettings:
        """Return the training settings with the defaults for so many units of all clients, and for a model's width."""
        return self.training.completed(defaults_of(self.protect, self.model.train, units, width))

    def build(self) -> TextModel:
        """Return the model with its initial weights, the same on every side."""
        return build_model(self, self.model, rng=Rng(self.seed).fork("model"), download=self.download)

    def source_of(self, client: int) -> TextSource:
        """Return where a client reads its text on one machine."""
        return dataclasses.replace(self.data, source=self.files[client]) if self.files else self.data

    def corpus_of(self, client: int) -> Corpus:
        """Return the text of one client on one machine: its training rows, and all held-out rows.

        Guarantee: none, this reads private data.
        """
        corpus = with_label_names(self.source_of(client).load(Adjacency.ZERO_OUT), self)
        return corpus if self.files else divided(corpus, self)[client]

    def text(self) -> str:
        """Return the settings as TOML."""
        values = as_dict(dataclasses.replace(self, protect=None, aggregation=Mean()))
        values["aggregation"] = self.aggregation.as_table()
        return as_toml(values | ({} if self.protect is None else {"protect": self.protect.as_table()}))

    @classmethod
    def read(cls, path: Path) -> Federation:
        """Return the settings from a TOML file; unknown keys are rejected."""
        return cls.from_values(read_values(path, "federation"), path.name)

    @classmethod
    def from_values(cls, values: dict[str, Any], where: str = "settings") -> Federation:
        """Return the settings from plain values."""
        values = dict(values)
        protect, table = values.pop("protect", None), values.pop("aggregation", None)
        parts: dict[str, Any] = {"protect": None if protect is None else protection_from_table(protect)}
        if table is not None:
            parts["aggregation"] = aggregation_from_table(table)
        return dataclasses.replace(parse(cls, values, where), **parts)


def with_label_names(corpus: Corpus, target: Labelled) -> Corpus:
    """Return a corpus whose classes are numbered as in the federation; reject other classes."""
    if target.task.is_language:
        return corpus.unlabelled()
    if corpus.task != target.task:
        raise DataError(f"Expected data for {target.task} at every client, got {corpus.task}. Name the label column.")
    return matched(corpus, target)  # type: ignore[arg-type]


def divided(corpus: Corpus, settings: Federation) -> tuple[Corpus, ...]:
    """Return the corpus of each client: its part of the training rows, and all held-out rows.

    Args:
        corpus: The text.
        settings: The settings of the federation, which say how it is divided.
    """
    train = np.flatnonzero([name == "train" for name in corpus.splits])
    rest = np.flatnonzero([name != "train" for name in corpus.splits])
    split, clients, seed = corpus.take(train), settings.clients, settings.seed
    if settings.partition == DIRICHLET and corpus.units is not None:
        remedy = (
            f"Rows of one {corpus.unit_name} would be at several clients, and its epsilons would add up; use {UNIT!r}."
        )
        raise invalid("partition", DIRICHLET, f"{UNIT!r} if a column names units", remedy)
    if settings.partition == DIRICHLET:
        parts = dirichlet_clients(split, clients, settings.concentration, seed=seed)
    elif settings.partition == UNIT or corpus.units is not None:
        parts = clients_by_unit(split, clients, seed=seed)
    else:
        parts = equal_clients(split, clients, seed=seed)
    return tuple(
        corpus.take(np.sort(np.concatenate([train[part], rest]))).renamed(f"{corpus.name} (client {client})")
        for client, part in enumerate(parts)
    )


def shared_label_names(corpora: Sequence[Corpus]) -> tuple[str, ...]:
    """Return the class names of all corpora, in the order of their names."""
    return tuple(sorted({name for corpus in corpora for name in corpus.label_names}))
