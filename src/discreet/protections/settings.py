"""A protection as it is asked for, before the corpus and the number of steps are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from discreet.core.checks import non_negative, one_of, open_probability, positive, refuse
from discreet.core.errors import SettingError
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import CLIPPINGS, DPSGD
from discreet.protections.gradient import GradientProtection

PARTITIONS = ("whole", "layers")


@dataclass(frozen=True)
class ProtectSettings:
    """Which protection, and how much of it: by a budget, by an attack bound, or by its noise.

    `delta` of None is a tenth of one over the number of units. With an epsilon beside a noise, the epsilon is a limit
    at which training stops.
    """

    name: str = "dp-sgd"
    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    true_positive_rate: float | None = None
    false_positive_rate: float = 0.01
    clip_norm: float = 0.1
    clipping: str = "flat"
    kappa: float | None = None
    partition: str = "whole"

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and the ones that contradict each other."""
        one_of("protect", self.name, BUILDERS)
        if self.epsilon is not None:
            positive("epsilon", self.epsilon, "It is the budget of the whole training; smaller is more private.")
        if self.delta is not None:
            open_probability("delta", self.delta, "It should be far below one over the number of units.")
        if self.noise_multiplier is not None:
            non_negative("noise_multiplier", self.noise_multiplier, "It is the noise over the clip norm.")
        if self.true_positive_rate is not None:
            open_probability("true_positive_rate", self.true_positive_rate)
            open_probability("false_positive_rate", self.false_positive_rate)
        positive("clip_norm", self.clip_norm, "It bounds what one unit adds to the sum.")
        one_of("clipping", self.clipping, CLIPPINGS)
        one_of("partition", self.partition, PARTITIONS)
        self._refuse_mixed()

    def _refuse_mixed(self) -> None:
        if self.name == "dp-sgd":
            given = [self.epsilon, self.noise_multiplier, self.true_positive_rate]
            if all(value is None for value in given):
                raise SettingError(
                    "Expected --epsilon, --noise-multiplier or --true-positive-rate for dp-sgd. "
                    "One of them says how much noise; --epsilon 3 is a common start."
                )
            if self.kappa is not None:
                raise refuse("kappa", self.kappa, "left out for dp-sgd", "It belongs to dir-dp-sgd.")
        if self.name == "dir-dp-sgd":
            if self.kappa is None:
                raise SettingError("Expected --kappa for dir-dp-sgd. It is the concentration; 0 is all noise.")
            non_negative("kappa", self.kappa, "An infinite kappa releases the direction itself.")
            for name in ("noise_multiplier", "true_positive_rate"):
                if getattr(self, name) is not None:
                    raise refuse(name, getattr(self, name), "left out for dir-dp-sgd", "Its noise is --kappa.")

    def build(self, model: nn.Module, *, sampling_rate: float, steps: int, delta: float) -> GradientProtection:
        """Return the protection itself, now that it is known what is trained and for how long."""
        return BUILDERS[self.name](self, model, sampling_rate, steps, delta)


def _dp_sgd(asked: ProtectSettings, model: nn.Module, rate: float, steps: int, delta: float) -> DPSGD:
    if asked.noise_multiplier is not None:
        return DPSGD(asked.noise_multiplier, asked.clip_norm, asked.clipping)
    found: list[DPSGD] = []
    shared = {"sampling_rate": rate, "steps": steps, "clip_norm": asked.clip_norm, "clipping": asked.clipping}
    if asked.epsilon is not None:
        found.append(DPSGD.for_budget(asked.epsilon, delta, **shared))  # type: ignore[arg-type]
    if asked.true_positive_rate is not None:
        limits = asked.true_positive_rate, asked.false_positive_rate
        found.append(DPSGD.for_risk(*limits, **shared))  # type: ignore[arg-type]
    return max(found, key=lambda protection: protection.noise_multiplier)


def _dir_dp_sgd(asked: ProtectSettings, model: nn.Module, rate: float, steps: int, delta: float) -> DirDPSGD:
    partition = None
    if asked.partition == "layers":
        layers: dict[str, list[str]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                layers.setdefault(name.rpartition(".")[0], []).append(name)
        partition = list(layers.values())
    return DirDPSGD.for_model(model, asked.kappa or 0.0, partition)


Builder = Callable[[ProtectSettings, nn.Module, float, int, float], GradientProtection]
BUILDERS: dict[str, Builder] = {DPSGD.name: _dp_sgd, DirDPSGD.name: _dir_dp_sgd}
