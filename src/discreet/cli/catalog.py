"""Names become objects here, once: every attack by its name, and protections as one release needs them.

Another attack joins by one line in `ATTACKS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from discreet.core.checks import one_of
from discreet.core.errors import SettingError
from discreet.core.settings import parse

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.experiment import Scene
    from discreet.models.classifier import Classifier

# The name of an attack -> the module it is in and the name of its class.
ATTACKS: dict[str, tuple[str, str]] = {
    "lamp": ("discreet.attacks.matching.lamp_tag_dlg", "Lamp"),
    "word-draws": ("discreet.attacks.matching.word_draws", "WordDraws"),
    "tag": ("discreet.attacks.matching.lamp_tag_dlg", "Tag"),
    "dlg": ("discreet.attacks.matching.lamp_tag_dlg", "Dlg"),
    "dager": ("discreet.attacks.span.dager", "Dager"),
    "subspace": ("discreet.attacks.span.subspace", "SubspaceOptimiser"),
    "positions": ("discreet.attacks.rows", "PositionRows"),
    "embedding-rows": ("discreet.attacks.rows", "EmbeddingRows"),
    "decepticons": ("discreet.attacks.crafted.decepticons", "Decepticons"),
    "one-of-n": ("discreet.attacks.identification", "OneOfN"),
    "rss": ("discreet.attacks.representation.similarity", "Similarity"),
    "reprecon": ("discreet.attacks.representation.reprecon", "RepRecon"),
    "instance": ("discreet.attacks.representation.instance", "InstanceReconstruction"),
    "blind": ("discreet.attacks.representation.blind", "BlindReconstruction"),
    "inversion": ("discreet.attacks.representation.inversion", "EmbeddingInversion"),
}
ONE_OF_N = "one-of-n"
NONE = "none"
# Where nothing is said of the noise, one-of-n shows the whole curve.
USUAL_NOISES = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
CLIP_NORM = 1.0  # longer than this is every gradient of a fresh model, so noise is measured against all of it


def attack_class(name: str) -> type[Any]:
    """Return the class of an attack by its name.

    >>> attack_class("dagger")
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected attack='dagger' in ... Did you mean 'dager'?
    """
    module, found = ATTACKS[one_of("attack", name, ATTACKS)]
    kind: type[Any] = getattr(importlib.import_module(module), found)
    return kind


def attack_of(name: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return an attack by its name, with some of its settings changed; unknown settings are refused by name."""
    return parse(attack_class(name), dict(values or {}), name)


def settings_given(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Return settings written as NAME=VALUE, the values as TOML has them, or as plain words.

    >>> settings_given(["steps=200", "rate=0.05", "score=absolute"], "--set")
    {'steps': 200, 'rate': 0.05, 'score': 'absolute'}
    """
    import tomllib

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise SettingError(f"Expected {option} {pair!r} as NAME=VALUE. For example {option} steps=200.")
        try:
            found[name.strip().replace("-", "_")] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip().replace("-", "_")] = value
    return found


def protection_of(
    name: str,
    model: Classifier,
    values: Mapping[str, Any],
    *,
    delta: float,
    batch_size: int = 1,
    public: Callable[[], tuple[Tensor, Tensor | None]] | None = None,
) -> Any:
    """Return a protection as one release of a batch uses it: nothing is gained by sampling, nothing is done twice.

    An epsilon is that of the one release; the noise, or the concentration, is solved for it. `public` gives vectors of
    public text to learn a projection from, and their labels.
    """
    from discreet.protections.dir_dp_sgd import DirDPSGD
    from discreet.protections.settings import Conditions, protect_settings

    asked = dict(values)
    if name == DirDPSGD.name and "kappa" not in asked and "epsilon" in asked:
        asked["kappa"] = kappa_for(model, asked.pop("epsilon"), delta)
    settings = protect_settings(name, asked)
    once = Conditions(model, batch_size, batch_size, batch_size, steps=1, epochs=1.0, delta=delta, public=public)
    return settings.build(once)


def kappa_for(model: Classifier, epsilon: float, delta: float) -> float:
    """Return the largest concentration with which one direction of the whole gradient costs at most epsilon."""
    import math

    from discreet.accounting.calibrate import largest_rate
    from discreet.protections.dir_dp_sgd import DirDPSGD

    whole = DirDPSGD.for_model(model, 1.0)
    return largest_rate(
        lambda kappa: DirDPSGD(kappa, whole.blocks).event,
        epsilon=epsilon,
        delta=delta,
        adjacency=whole.adjacency,
        low=1e-6,
        high=1e12,
        guess=math.sqrt(whole.dimension),
    )


def protection_of_run(scene: Scene) -> tuple[str, dict[str, Any]] | None:
    """Return the protection that a run was trained with, as its folder has it, with the noise that was solved for."""
    import dataclasses

    from discreet.core.settings import as_dict

    if scene.run is None or scene.run.settings.protect is None:
        return None
    settings = scene.run.settings.protect
    # What is done to vectors is asked for whole; of what is done to a gradient, training has solved a part.
    own = {field.name for field in dataclasses.fields(settings)} if settings.place == "gradient" else set()
    solved = {k: v for k, v in (scene.run.metrics.get("protection") or {}).items() if k in own and v is not None}
    asked = {k: v for k, v in as_dict(settings).items() if k not in {"name", "delta", "true_positive_rate"}}
    if "noise_multiplier" in solved or "kappa" in solved:
        asked.pop("epsilon", None)  # that was the budget of the whole training
    return settings.name, {**asked, **solved}
