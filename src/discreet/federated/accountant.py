"""Flower's protocol for privacy accountants, implemented by the ledger.

Flower's strategies compose their Gaussian releases into an accountant. This one writes each of them into a ledger, on
disk before the strategy returns the noisy mean, and computes epsilon with the same accountant as everything else here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from discreet.accounting.events import ClippedSumDpEvent, DpEvent, event_from_json, event_to_json
from discreet.accounting.interpret import delta as delta_of
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.accounting.ledger import Ledger
from discreet.accounting.ledger_file import composed
from discreet.core.errors import LedgerError, UnsupportedError, invalid, non_negative, open_probability, whole
from discreet.core.guarantee import Adjacency
from discreet.data.samplers import FixedSize, Poisson

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: Adjacency.ADD_REMOVE,
    NeighboringRelation.REPLACE_ONE: Adjacency.REPLACE_ONE,
}
_STATE = ("config", "events")


class LedgerAccountant:
    """A `flwr.serverapp.PrivacyAccountant` that records every release in a ledger for the unit "client".

    Guarantee: `get_epsilon` is a proven upper bound for one client over all composed releases, if the strategy samples
        clients as the configuration says, clips every update, and adds the noise that each event names.

    >>> config = PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    >>> accountant = LedgerAccountant(config)
    >>> accountant.compose(GaussianPrivacyEvent(1.0, 10, 100), count=20)
    >>> accountant.num_releases, round(accountant.get_epsilon(1e-5), 2)
    (20, 3.59)
    """

    def __init__(self, config: PrivacyConfig, path: Path | None = None) -> None:
        """Open the ledger, at a path or in memory, under the configured adjacency."""
        self._config = config
        adjacency = _RELATIONS[config.neighboring_relation]
        self.ledger = Ledger.open(path, unit="client", adjacency=adjacency)

    @property
    def config(self) -> PrivacyConfig:
        """The privacy configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Number of composed releases."""
        return self.ledger.statement.spends

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Record one or more releases; they are on disk when this returns."""
        translated = self.event_of(event)
        for _ in range(whole("count", count)):
            self.ledger.spend(translated, f"release {self.num_releases}", secure=True)

    def get_epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon for all releases so far."""
        open_probability("delta", delta)
        return self.ledger.guarantee(delta).epsilon if self.num_releases else 0.0

    def get_delta(self, epsilon: float) -> float:
        """Return an upper bound on delta for all releases so far."""
        non_negative("epsilon", epsilon)
        if not self.num_releases:
            return 0.0
        return delta_of(self.ledger.event, epsilon=epsilon, adjacency=self.ledger.statement.adjacency)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return epsilon and delta for all releases so far."""
        delta = self._config.target_delta if delta is None else delta
        name = self.ledger.guarantee(delta).accountant if self.num_releases else "pld"
        return PrivacySpent(self.get_epsilon(delta), delta, self.num_releases, name)

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Return whether further releases would exceed a limit, by default that of the configuration."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise invalid("max_epsilon", None, "set here or in the configuration", "It is the limit to compare with.")
        whole("count", count)
        spent = [*self.ledger.statement.spent, (self.event_of(event), count)]
        cost = epsilon_of(composed(spent), delta=self._config.target_delta, adjacency=self.ledger.statement.adjacency)
        return not cost <= limit

    def state_dict(self) -> dict[str, object]:
        """Return the configuration and all releases as plain values."""
        spent = self.ledger.statement.spent
        return {"config": repr(self._config), "events": [[event_to_json(event), count] for event, count in spent]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the releases of a state; those that the ledger already has are not counted again.

        A ledger that holds more than the state keeps what it holds: it was written before the noise was used, and the
        state afterwards.
        """
        if set(state) != set(_STATE) or state["config"] != repr(self._config):
            raise LedgerError("Expected the state of an accountant with the same configuration. Restore another one.")
        held = {event_to_json(event): count for event, count in self.ledger.statement.spent}
        events: Any = state["events"]
        for text, count in events:
            for _ in range(whole("count", count) - held.get(text, 0)):
                self.ledger.spend(event_from_json(text), f"release {self.num_releases}", secure=True)

    def event_of(self, event: GaussianPrivacyEvent) -> DpEvent:
        """Return the event of a release: a noisy sum of clipped updates of sampled clients."""
        if event.population_size != self._config.population_size:
            rule = f"{self._config.population_size}, as configured"
            raise invalid("population_size", event.population_size, rule, "The population must not change.")
        if not math.isfinite(event.noise_multiplier):
            raise invalid("noise_multiplier", event.noise_multiplier, "finite")
        noisy = ClippedSumDpEvent(event.noise_multiplier)
        method = self._config.sampling_method
        if method is SamplingMethod.POISSON:
            return Poisson(event.sample_size / event.population_size).amplify(noisy, event.population_size)
        if method is SamplingMethod.WITHOUT_REPLACEMENT:
            return FixedSize(event.sample_size).amplify(noisy, event.population_size)
        if method is SamplingMethod.NO_AMPLIFICATION:
            return noisy
        raise UnsupportedError(f"Expected a sampling method of Flower 1.41, got {method!r}.")
