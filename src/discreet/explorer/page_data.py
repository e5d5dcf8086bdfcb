"""Texts, model and protections of the page: the built-in notes, a finished run, or a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from discreet.core.errors import DataError, one_of
from discreet.core.types import MODEL
from discreet.data.corpus import Corpus
from discreet.data.sources import Columns
from discreet.experiment.attack.scene import Scene, SceneRequest, load_scene, protection_of_run
from discreet.explorer.typed import TypedScene
from discreet.models.build import encode
from discreet.protections.local.protection import synthetic_vectors
from discreet.releases.description import GRADIENT
from discreet.study.frontier import points_of
from discreet.study.store import read_trials
from discreet.study.sweep import STUDY, read_kept_study
from discreet.study.trial import scene_of
from discreet.training.plan import public_text

MADE_UP = 400  # generated sentences to learn a projection from: enough for its few dimensions, and fast to encode
_PUBLIC = 1000
_NOTES: dict[str, Any] = {"data": {"source": "notes", "rows": 600}, "model": {"train": "head"}, "release": {}}
_SETTINGS = "settings.toml"
# Noise calibrated for a whole training; the epsilon beside it is that of the training, not of one release.
_SOLVED = ("noise_multiplier", "kappa")
_GOALS = ("epsilon", "true_positive_rate", "false_positive_rate")
EXAMPLES = (
    "Anna Novak, record 4417023, came on Monday with chest pain.",
    "Mr Ribeiro asked for stronger tablets after his knee operation.",
    "The nurse called the mother of Leo at 555-0142 about his fever.",
)

Public = Callable[[], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Setting:
    """A protection of a run or a study: its label, name and settings."""

    label: str
    protection: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What an attack on the trained model of a setting of a study found, in words, with its ROC curve if it has one."""

    setting: str
    attack: str
    verdict: str
    roc: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class PageData:
    """Scenes of the page, one for each kind of release, and the protections of a study or run.

    `findings` are those of a study about its trained models: a typed sentence has no training data, so that the page
    shows such attacks and does not run them.

    `columns` are those of the private text, and are used for public text too. `kept` caches the scene of the last
    sentence, so that moving a slider does not compute everything again.
    """

    title: str
    scene: Callable[[str], Scene] = field(repr=False)
    settings: tuple[Setting, ...] = ()
    columns: Columns = field(default_factory=Columns)
    findings: tuple[Finding, ...] = ()
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names of a sentence; none for a corpus with scores."""
        return self.scene(GRADIENT).rows.label_names

    def typed(self, sentence: str, label: str | None, kind: str) -> TypedScene:
        """Return the scene of a sentence; only the last one of each kind is cached."""
        base = self.scene(kind)
        names = base.rows.label_names
        number = names.index(one_of("label", label, names)) if names and label is not None else 0
        before, scene = self.kept.get(("typed", kind), (None, None))
        if before != (sentence, number):
            scene = TypedScene.beside(base, sentence, number)
            self.kept["typed", kind] = ((sentence, number), scene)
        assert isinstance(scene, TypedScene)
        return scene

    def public(self, kind: str, source: str | None) -> Public:
        """Return a function that encodes public text for a projection: a source, or generated sentences."""

        def vectors() -> tuple[Tensor, Tensor | None]:
            key = ("public", kind, source)
            if key not in self.kept:
                model = self.scene(kind).model
                if source is None:
                    self.kept[key] = (synthetic_vectors(model, MADE_UP), None)
                else:
                    texts = public_text(source, self.columns)
                    few = texts.take(range(min(len(texts), _PUBLIC)))
                    labels = few.label_names == model.label_names and few.task == model.task
                    rows = encode(model, few if labels else Corpus("public", few.texts), None, "float32")
                    self.kept[key] = (rows.vectors.cpu(), rows.targets.cpu() if labels else None)
            encoded: tuple[Tensor, Tensor | None] = self.kept[key]
            return encoded

        return vectors


def load_page_data(folder: Path | None) -> PageData:
    """Load the data of a study or run folder, or of the built-in notes.

    Guarantee: none, this reads the texts of the run or study.
    """
    if folder is None:
        return PageData("the built-in clinic notes (fictional)", lambda kind: scene_of(_NOTES, 0, kind))
    if (folder / STUDY).exists():
        return _of_study(folder)
    if (folder / _SETTINGS).exists():
        return _of_run(folder)
    raise DataError(
        f"Expected the folder of a run or a study, got {str(folder)!r} without {_SETTINGS} or {STUDY}. Pass a "
        "folder written by a training run or a study, or none for the built-in notes."
    )


def _of_study(folder: Path) -> PageData:
    study: Mapping[str, Any] = read_kept_study(folder)
    scene_settings = {"data": study["data"], "model": study.get("model") or {}, "release": study.get("release") or {}}
    seed = int((study.get("seeds") or [0])[0])
    settings: dict[str, Setting] = {}
    findings: list[Finding] = []
    for one in points_of(read_trials(folder).values()):
        for attack, facts in (one.trials[0].details.get("attacks") or {}).items():
            if (facts.get("release") or {}).get("scope") == MODEL and facts.get("verdict"):
                curve = (facts.get("details") or {}).get("roc") or {}
                findings.append(Finding(one.label, str(attack), str(facts["verdict"]), curve))
        point = dict(one.protection)
        name, values = str(point.pop("name")), solved(point, one.trials[0].details.get("protection") or {})
        label = one.label
        if any(goal in point and goal not in values for goal in _GOALS):
            label += " (of the whole training)"
        settings.setdefault(label, Setting(label, name, values))
    title = str(study.get("title") or study["name"])
    columns = Columns(study["data"].get("text", "text"), label=study["data"].get("label", "label"))
    return PageData(
        f"the study “{title}”",
        lambda kind: scene_of(scene_settings, seed, kind),
        tuple(settings.values()),
        columns,
        tuple(findings),
    )


def _of_run(folder: Path) -> PageData:
    scene = load_scene(SceneRequest(run=folder, device="cpu"))
    scene.model.eval()
    own = protection_of_run(scene.run)
    settings = () if own is None else (Setting(f"as the run was trained: {own[0]}", own[0], own[1]),)
    data = None if scene.run is None else scene.run.settings.data
    columns = Columns() if data is None else Columns(data.text, label=data.label)
    return PageData(f"the run {folder.name}", lambda kind: scene, settings, columns)


def solved(point: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's setting for one release, with the noise that was calibrated for the whole training.

    >>> solved({"epsilon": 8.0}, {"name": "dp-sgd", "noise_multiplier": 0.7, "clip_norm": 0.1})
    {'noise_multiplier': 0.7}
    """
    noise = {name: facts[name] for name in _SOLVED if facts.get(name) is not None}
    dropped = {"delta", *(_GOALS if noise else _GOALS[1:])}
    return {**{name: value for name, value in point.items() if name not in dropped}, **noise}
