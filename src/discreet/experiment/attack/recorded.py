"""Attack the recorded messages of a federated run: as the server, as one client, or as someone on the wire.

The messages are those that were sent, with the noise, masks and batches of the run. Only the scoring reads the clients'
own notes of which rows were in a batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from discreet.attacks.identification import OneOfN, contribution
from discreet.clipping.tape import Flat
from discreet.core.errors import DataError, UnsupportedError, invalid, setting, whole
from discreet.core.guarantee import delta_for
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.experiment.attack.identification import DEFAULT_CANDIDATES, METRIC
from discreet.experiment.attack.reconstruction import Attacked, Releases, read_each
from discreet.experiment.attack.request import AttackRequest, Callbacks, Example, Findings, Source
from discreet.experiment.attack.scoring import metrics_for
from discreet.federated.aggregation import UPDATE
from discreet.federated.client import BATCHES
from discreet.federated.record import read_rounds
from discreet.federated.run import SERVER, SETTINGS, client_folder
from discreet.federated.server import Schedule
from discreet.federated.settings import GRADIENTS, Federation
from discreet.metrics.intervals import rate_of
from discreet.metrics.table import METRICS
from discreet.models.base import TextModel
from discreet.protections.base import Conditions, of_one_origin
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.description import attacker_inputs, release_facts
from discreet.runs.checkpoint import trained

if TYPE_CHECKING:
    from discreet.models.settings import TrainSettings

SERVER_VIEW, WIRE_VIEW, CLIENT_VIEW = "server", "wire", "client-"
_NO_CLIP = 1e30
_ORIGIN = "the model of each round"


@dataclass(frozen=True)
class Observed:
    """One recorded gradient: the round, the clients whose rows are in it, and the weights that it was computed at."""

    round: int
    clients: tuple[int, ...]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    rounding: float = 0.0  # standard deviation of its error, if it follows from rounded weights or a rounded sum


def has_record(folder: Path) -> bool:
    """Return whether a run folder is that of a federated run whose messages were recorded."""
    return (folder / SETTINGS).exists() and (folder / SERVER / "record").exists()


class Recorded(Source):
    """The recorded messages of a federated run, and what is needed to attack and score them."""

    def __init__(self, folder: Path, view: str = SERVER_VIEW) -> None:
        """Read the settings, the schedule and the messages, as one view sees them."""
        self.folder, self.view = folder, view
        self.settings = Federation.read(folder / SETTINGS)
        if self.settings.exchange != GRADIENTS:
            raise UnsupportedError(
                f"Expected a run that exchanged gradients, got {self.settings.exchange}. Attacks on gradients read one "
                "step; train with gradients, or attack the finished model."
            )
        self.rounds = read_rounds(folder / SERVER)
        self.schedule = Schedule.read(folder / SERVER)
        self.splits = {client: self.settings.corpus_of(client).split("train") for client in self.schedule.sizes}
        self.model = self.settings.build()

    def attacked(self, request: AttackRequest, callbacks: Callbacks) -> Findings:
        """Run an attack on as many gradients of the view as the requested examples need, and score it.

        Guarantee: none for the result, which holds private texts.
        """
        attack = request.attack.within(request.seconds)
        if attack.sees is not GradientRelease:
            raise UnsupportedError(f"Expected an attack on gradients, got {attack.label}. Clients send gradients.")
        if isinstance(attack, OneOfN):
            return _identify(request, self)
        releases = MessageReleases(request, self, callbacks.should_stop)
        return read_each(request, attack, releases, metrics_for(attack, request.metrics), callbacks)

    def observed(self) -> list[Observed]:
        """Return the gradients that the view holds; empty if it holds none that can be read."""
        view = self.view
        if view == SERVER_VIEW:
            if self.settings.aggregation.visible == "sum":
                return [
                    Observed(one.number, one.counted, one.total, one.weights, self._error(one.counted))
                    for one in self.rounds
                    if one.total
                ]
            return self._each_update()
        if view == WIRE_VIEW:
            encrypted = json.loads((self.folder / "metrics.json").read_text(encoding="utf-8")).get("tls", False)
            return [] if encrypted or self.settings.aggregation.visible == "sum" else self._each_update()
        number = view.removeprefix(CLIENT_VIEW)
        if not view.startswith(CLIENT_VIEW) or not number.isdecimal() or int(number) not in self.schedule.sizes:
            known = f"server, wire or client-N with N from 0 to {len(self.schedule.sizes) - 1}"
            raise invalid("view", view, known, "It is who sees the messages.")
        return self._of_client(int(number))

    def _each_update(self) -> list[Observed]:
        return [
            Observed(one.number, (client,), gradients, one.weights)
            for one in self.rounds
            for (stage, client), gradients in sorted(one.answers.items())
            if stage == UPDATE
        ]

    def _of_client(self, client: int) -> list[Observed]:
        """Return the mean gradient of the others, which a client computes from the weights of successive rounds.

        The weights move by rate times velocity, which is the gradient plus momentum times the last velocity, so the
        gradient follows from three successive weights. The steps of AdamW do not determine it.
        """
        train = self._train()
        if train.optimizer != "sgd":
            raise UnsupportedError(
                f"Expected {setting('optimizer', 'sgd')} for a client's view, got {train.optimizer}. A client sees "
                "only weights, and from those of AdamW the gradient of the others does not follow."
            )
        seen: list[Observed] = []
        velocity: dict[str, Tensor] = {}
        for now, after in zip(self.rounds, self.rounds[1:], strict=False):
            if after.number != now.number + 1 or not now.weights or not after.weights:
                continue
            assert train.learning_rate is not None
            rate = train.rate_at(now.number - 1, self.schedule.rounds, train.learning_rate)
            mean = {}
            for name, before in now.weights.items():
                moved = (before.double() - after.weights[name].double()) / rate
                decay = (train.weight_decay or 0.0) * before.double() if before.ndim >= 2 else 0.0
                mean[name] = moved - train.momentum * velocity.get(name, torch.zeros_like(moved)) - decay
                velocity[name] = moved
            sizes = {one: self.schedule.sizes[one] for one in now.counted}
            total, own = sum(sizes.values()), now.answers.get((UPDATE, client), {})
            others = tuple(one for one in sizes if one != client)
            if not others:
                continue
            weight = sizes.get(client, 0)
            rest = {
                name: (value * total - weight * own.get(name, torch.zeros(())).double()) / (total - weight)
                for name, value in mean.items()
            }
            size = torch.cat([value.reshape(-1) for value in now.weights.values()]).square().mean().sqrt().item()
            rounding = math.hypot(size * 2**-23 / rate, self._error(now.counted)) * total / (total - weight)
            gradients = {name: value.float() for name, value in rest.items()}
            seen.append(Observed(now.number, others, gradients, now.weights, rounding))
        return seen

    def _error(self, clients: Sequence[int]) -> float:
        """Return the standard deviation of the error that the aggregation leaves in the mean of a round."""
        schedule, parameters = self.schedule, sum(p.numel() for p in trained(self.model).values())
        aggregation = self.settings.aggregation.resolve(len(schedule.sizes), schedule.rounds, parameters)
        return aggregation.error_std(len(clients))

    def _train(self) -> TrainSettings:
        return self.settings.completed_train(sum(self.schedule.sizes.values()), self.model.width)

    def truth(self, one: Observed) -> Corpus:
        """Return the rows that are in a recorded gradient, for scoring."""
        rows = [self.splits[client].take(self._batch(client, one.round)) for client in one.clients]
        return _together("recorded", rows)

    def _batch(self, client: int, number: int) -> list[int]:
        path = client_folder(self.folder, client) / BATCHES
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found = [entry["rows"] for entry in entries if entry["round"] == number]
        if not found:
            raise DataError(f"Expected the rows of round {number} in {str(path)!r}. Record the run again.")
        rows: list[int] = found[-1]
        return rows

    def release(self, one: Observed) -> tuple[GradientRelease, TextModel]:
        """Return a recorded gradient as a release, and the public model with the weights of its round."""
        for name, parameter in trained(self.model).items():
            parameter.data.copy_(one.weights[name])
        size = sum(self.schedule.batches[client] for client in one.clients)
        seen = GradientRelease(one.gradients, batch_size=size, divisor=float(size), noise_std=self.noise(one))
        return seen, self.model

    def releases(self) -> Iterator[Attacked]:
        """Yield the gradients of the view that hold rows, at the weights of their rounds."""
        for number, one in enumerate(self.observed()):
            truth = self.truth(one)
            if len(truth):
                seen, model = self.release(one)
                yield Attacked(number, seen, Knowledge(model, defence=self.settings.protect), model, truth)

    def facts(self, one: Attacked) -> dict[str, Any]:
        """Return the size of a gradient, the protection, and what the view knows."""
        assert isinstance(one.seen, GradientRelease)
        protect, size = self.settings.protect, one.seen.batch_size
        facts = release_facts(one.seen, one.model, _ORIGIN, protect, batch_size=size, steps=1)
        return {**facts, "view": self.view, "given": attacker_inputs(one.seen, one.knows, (), "", False)}

    def noise(self, one: Observed) -> float:
        """Return the public standard deviation of the noise in a recorded gradient."""
        if self.settings.protect is None or not self.settings.protect.samples_units:
            return one.rounding
        variance, total = 0.0, sum(self.schedule.sizes[client] for client in one.clients)
        for client in one.clients:
            std = self.protection(client).noise_scale / self.schedule.batches[client]
            variance += (self.schedule.sizes[client] / total * std) ** 2
        return math.sqrt(variance + one.rounding**2)

    def protection(self, client: int) -> Any:
        """Return the resolved protection of a client, from its public size."""
        protect, schedule = self.settings.protect, self.schedule
        assert protect is not None
        units = schedule.sizes[client]
        size = min(schedule.batches[client], units)
        delta = protect.delta or delta_for(units)
        epochs = schedule.steps / -(-units // size)
        conditions = Conditions(self.model, units, units, size, schedule.steps, epochs, delta)
        return of_one_origin(protect, protect.resolve(conditions))


@dataclass
class MessageReleases(Releases):
    """The recorded gradients of a view, with the rows that are in each."""

    request: AttackRequest
    recorded: Recorded
    should_stop: Callable[[], bool]

    def each(self) -> Iterator[Attacked]:
        """Yield every gradient that holds rows, at the weights of its round."""
        for number, one in enumerate(self.recorded.releases()):
            if number and self.should_stop():
                self.finished = False
                return
            yield one

    def is_enough(self, examples: int) -> bool:
        """Return whether the requested number of examples is scored: a run has more messages than anyone asks for."""
        return examples >= self.request.examples

    def facts(self, first: Attacked) -> dict[str, Any]:
        """Return the size of the gradient, the protection, and what the view knows."""
        return self.recorded.facts(first)

    def unread(self, metrics: Sequence[str]) -> tuple[list[Example], dict[str, Any]]:
        """Return that every text stays unread, if the view holds nothing that can be read."""
        facts: dict[str, Any] = {"kind": "gradient", "view": self.recorded.view, "model": _ORIGIN, "batch_size": 0}
        facts |= {"steps": 1, "parameters": "no readable gradient", "numbers": 0, "known": [], "protection": None}
        facts["given"] = ["encrypted or masked bytes"]
        pairs = [METRICS[metric] for metric in metrics if METRICS[metric].pair]
        texts = [text for split in self.recorded.splits.values() for text in split.texts]
        return [
            Example(text, "", {metric.name: metric.score("", text) for metric in pairs})
            for text in texts[: self.request.examples]
        ], facts


def _together(name: str, parts: Sequence[Corpus]) -> Corpus:
    """Return the texts and labels of several corpora, one after the other."""
    texts = tuple(text for part in parts for text in part.texts)
    labels = tuple(label for part in parts for label in part.labels or ()) or None
    return Corpus(name, texts, labels=labels, label_names=parts[0].label_names)


def _identify(request: AttackRequest, recorded: Recorded) -> Findings:
    """Return how often the right one of n candidates is identified in recorded gradients.

    The attacker knows all other rows of a gradient and subtracts them. With TextHide a row does not add its own
    gradient, so the subtraction leaves more than the candidate.
    """
    count = DEFAULT_CANDIDATES if request.candidates is None else whole("candidates", request.candidates, 2)
    rng, hits, trials, facts = Rng(request.seed), 0, 0, dict[str, Any]()
    protect = recorded.settings.protect
    clip = protect.clip_norm if isinstance(protect, DPSGD) else _NO_CLIP
    attack = replace(OneOfN(), clip_norm=clip)
    everyone = [(client, row) for client, split in recorded.splits.items() for row in range(len(split))]
    for one in islice(recorded.releases(), request.examples):
        seen, model, truth = one.seen, one.model, one.truth
        assert isinstance(seen, GradientRelease)
        source = rng.fork("candidates", one.number).numpy("one-of-n")
        target = int(source.integers(len(truth)))
        rest = [row for row in range(len(truth)) if row != target]
        left = {name: value.double() * seen.divisor for name, value in seen.gradients.items()}
        for row in rest:
            known = contribution(model, truth.take([row]), Flat(clip))
            left = {name: left[name] - known[name].double() for name in left}
        texts = set(truth.texts)
        order = source.permutation(len(everyone)).tolist()
        others = [everyone[i] for i in order if recorded.splits[everyone[i][0]].texts[everyone[i][1]] not in texts]
        rows = [recorded.splits[client].take([row]) for client, row in others[: count - 1]]
        place = int(source.integers(len(rows) + 1))
        rows.insert(place, truth.take([target]))
        candidates = _together("candidates", rows)
        alone = GradientRelease({name: value.float() for name, value in left.items()}, batch_size=1)
        knows = Knowledge(model, defence=protect, extra={"candidates": candidates})
        guess = attack.run(alone, knows, rng.fork("attack", one.number))
        hits, trials = hits + (guess.indices[0] == place), trials + 1
        facts = facts or recorded.facts(one)
    if not trials:  # nothing to read: a guess among the candidates
        raise UnsupportedError(
            f"Expected a gradient that view {recorded.view!r} can read, got none: they are encrypted or masked. "
            "1-of-n can then only guess, which is right once in the number of candidates; choose another view."
        )
    facts["given"] = [*facts["given"], f"{count:,} candidate texts with their labels, the private one among them",
                      "all other rows of the gradient"]  # fmt: skip
    return Findings(leakages=(rate_of(METRIC, hits, trials, 1 / count),), release=facts)
