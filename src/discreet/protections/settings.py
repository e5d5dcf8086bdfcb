"""Protections as they are asked for, before the corpus and the number of steps are known: a small dataclass for each.

The catalog has their names, and where the dataclass of each is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from discreet.catalog import PROTECTIONS, protection_settings
from discreet.core.checks import non_negative, one_of, open_probability, positive, refuse
from discreet.core.errors import SettingError
from discreet.core.settings import as_dict, parse
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import CLIPPINGS, DPSGD
from discreet.protections.representation import Place

if TYPE_CHECKING:
    from discreet.models.classifier import Classifier

PARTITIONS = ("whole", "layers")


@dataclass(frozen=True)
class Conditions:
    """What is known when a protection is built: the model, how much text there is, and how long it is trained.

    `public` gives the vectors of a public corpus by the model's frozen encoder, and its labels if it has any.
    """

    model: Classifier
    units: int
    rows: int
    batch_size: int
    steps: int
    epochs: float
    delta: float
    public: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    pairs: bool = False

    @property
    def sampling_rate(self) -> float:
        """The share of the units in a batch."""
        return self.batch_size / self.units


class ProtectSettings(Protocol):
    """What the settings of every protection have."""

    name: ClassVar[str]
    place: ClassVar[Place]
    usual_train: ClassVar[str]  # what is trained where nothing is said: head, or all
    usual_head: ClassVar[str]

    @property
    def epsilon(self) -> float | None:
        """The budget of the whole training, if there is one; the ledger then refuses to exceed it."""
        ...

    @property
    def delta(self) -> float | None:
        """The delta of the guarantee; None is a tenth of one over the number of units."""
        ...

    def build(self, given: Conditions) -> Any:
        """Return the protection itself, now that it is known what is trained and for how long."""
        ...


@dataclass(frozen=True)
class DPSGDSettings:
    """DP-SGD by a budget, by an attack bound, or by its noise.

    With an epsilon beside a noise, the epsilon is a limit at which training stops.
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    true_positive_rate: float | None = None
    false_positive_rate: float = 0.01
    clip_norm: float = 0.1
    clipping: str = "flat"
    name: ClassVar[str] = "dp-sgd"
    place: ClassVar[Place] = "gradient"
    usual_train: ClassVar[str] = "all"
    usual_head: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and none."""
        check_budget(self.epsilon, self.delta)
        if self.noise_multiplier is not None:
            non_negative("noise_multiplier", self.noise_multiplier, "It is the noise over the clip norm.")
        if self.true_positive_rate is not None:
            open_probability("true_positive_rate", self.true_positive_rate)
            open_probability("false_positive_rate", self.false_positive_rate)
        positive("clip_norm", self.clip_norm, "It bounds what one unit adds to the sum.")
        one_of("clipping", self.clipping, CLIPPINGS)
        if all(value is None for value in (self.epsilon, self.noise_multiplier, self.true_positive_rate)):
            raise SettingError(
                "Expected --epsilon, --noise-multiplier or --true-positive-rate for dp-sgd. "
                "One of them says how much noise; --epsilon 3 is a common start."
            )

    def build(self, given: Conditions) -> DPSGD:
        """Return the protection with the noise that was asked for, or the largest that a target needs."""
        if self.noise_multiplier is not None:
            return DPSGD(self.noise_multiplier, self.clip_norm, self.clipping)
        found: list[DPSGD] = []
        shared: dict[str, Any] = {
            "sampling_rate": given.sampling_rate,
            "steps": given.steps,
            "clip_norm": self.clip_norm,
            "clipping": self.clipping,
        }
        if self.epsilon is not None:
            found.append(DPSGD.for_budget(self.epsilon, given.delta, **shared))
        if self.true_positive_rate is not None:
            found.append(DPSGD.for_risk(self.true_positive_rate, self.false_positive_rate, **shared))
        return max(found, key=lambda protection: protection.noise_multiplier)


@dataclass(frozen=True)
class DirDPSGDSettings:
    """Directional DP-SGD by its concentration; an epsilon is a limit at which training stops."""

    kappa: float | None = None
    partition: str = "whole"
    epsilon: float | None = None
    delta: float | None = None
    name: ClassVar[str] = "dir-dp-sgd"
    place: ClassVar[Place] = "gradient"
    usual_train: ClassVar[str] = "all"
    usual_head: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and no concentration."""
        check_budget(self.epsilon, self.delta)
        one_of("partition", self.partition, PARTITIONS)
        if self.kappa is None:
            raise SettingError("Expected --kappa for dir-dp-sgd. It is the concentration; 0 is all noise.")
        non_negative("kappa", self.kappa, "An infinite kappa releases the direction itself.")

    def build(self, given: Conditions) -> DirDPSGD:
        """Return the protection of the model's trainable parameters."""
        partition = None
        if self.partition == "layers":
            layers: dict[str, list[str]] = {}
            for name, parameter in given.model.named_parameters():
                if parameter.requires_grad:
                    layers.setdefault(name.rpartition(".")[0], []).append(name)
            partition = list(layers.values())
        return DirDPSGD.for_model(given.model, self.kappa or 0.0, partition)


def check_budget(epsilon: float | None, delta: float | None) -> None:
    """Refuse what is no epsilon and no delta."""
    if epsilon is not None:
        positive("epsilon", epsilon, "It is the budget of the whole training; smaller is more private.")
    if delta is not None:
        open_probability("delta", delta, "It should be far below one over the number of units.")


def protect_settings(name: str, values: Mapping[str, Any]) -> ProtectSettings:
    """Return the settings of a protection by name; a value of another protection is refused by that one's name.

    >>> protect_settings("dp-sgd", {"epsilon": 3.0, "kappa": 20.0})
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected kappa=20.0 left out for dp-sgd. It belongs to dir-dp-sgd.
    """
    kind = protection_settings(name)
    own = {field.name for field in dataclasses.fields(kind)}
    for key, value in values.items():
        if key not in own:
            others = [
                other
                for other in PROTECTIONS
                if key in {f.name for f in dataclasses.fields(protection_settings(other))}
            ]
            remedy = f"It belongs to {', '.join(others)}." if others else "No protection has it."
            raise refuse(key, value, f"left out for {name}", remedy)
    found: ProtectSettings = parse(kind, dict(values), "protect")
    return found


def as_table(settings: ProtectSettings) -> dict[str, Any]:
    """Return settings as plain values with the protection's name first, for a settings file."""
    return {"name": settings.name, **as_dict(settings)}


def from_table(values: Mapping[str, Any]) -> ProtectSettings:
    """Return settings from plain values with the protection's name among them."""
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise SettingError(f"Expected [protect] with a name in {', '.join(PROTECTIONS)}. Add it.")
    return protect_settings(values["name"], {key: value for key, value in values.items() if key != "name"})
