"""What stands behind the page: the built-in notes and model, a finished run, or a study with its protections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from discreet.core.errors import DataError, one_of
from discreet.data.corpus import Corpus
from discreet.data.sources import Columns
from discreet.experiment.scene import Scene, SceneRequest, load_scene
from discreet.explorer.typed import TypedScene
from discreet.protections.local.protection import made_up_vectors
from discreet.releases.description import GRADIENT
from discreet.releases.protected import protection_of_run
from discreet.study.frontier import points_of
from discreet.study.store import read_trials
from discreet.study.sweep import STUDY, read_kept_study
from discreet.study.trial import scene_of
from discreet.training.encode import encode
from discreet.training.plan import public_text

MADE_UP = 400  # made-up sentences that a projection is learned from: enough for its few dimensions, and soon encoded
_PUBLIC = 1000
_NOTES: dict[str, Any] = {"data": {"source": "notes", "rows": 600}, "model": {"train": "head"}, "release": {}}
_SETTINGS = "settings.toml"
# Noise that was solved for a whole training; the epsilon beside it was the training's, and is not this release's.
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
    """A protection as a run or a study had it: its label, its name, and the values of its settings."""

    label: str
    protection: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """The scenes behind the page, one for each kind of release, and the protections that a study or run had.

    `columns` are those of the private text, and so of public text beside it. `kept` holds the scene of the last
    sentence, so that moving a dial does not work everything out again.
    """

    title: str
    scene: Callable[[str], Scene] = field(repr=False)
    settings: tuple[Setting, ...] = ()
    columns: Columns = field(default_factory=Columns)
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that a sentence may have; none where there are scores."""
        return self.scene(GRADIENT).rows.label_names

    def typed(self, sentence: str, label: str | None, kind: str) -> TypedScene:
        """Return the scene of a sentence; only the last one of each kind is kept."""
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
        """Return how to come by vectors of public text for a projection: of a source, or of made-up sentences."""

        def vectors() -> tuple[Tensor, Tensor | None]:
            key = ("public", kind, source)
            if key not in self.kept:
                model = self.scene(kind).model
                if source is None:
                    self.kept[key] = (made_up_vectors(model, MADE_UP), None)
                else:
                    texts = public_text(source, self.columns)
                    few = texts.take(range(min(len(texts), _PUBLIC)))
                    labels = few.label_names == model.label_names and few.task == model.task
                    rows = encode(model, few if labels else Corpus("public", few.texts), None, "float32")
                    self.kept[key] = (rows.vectors.cpu(), rows.targets.cpu() if labels else None)
            found: tuple[Tensor, Tensor | None] = self.kept[key]
            return found

        return vectors


def stage_of(folder: Path | None) -> Stage:
    """Return the stage of a folder: a study's, a run's, or, without one, that of the built-in notes.

    Guarantee: none, this reads the texts of the run or study.
    """
    if folder is None:
        return Stage("the built-in clinic notes (fictional)", lambda kind: scene_of(_NOTES, 0, kind))
    if (folder / STUDY).exists():
        return _of_study(folder)
    if (folder / _SETTINGS).exists():
        return _of_run(folder)
    raise DataError(
        f"Expected a run or a study at {str(folder)!r}. There is no {_SETTINGS} and no {STUDY} in it; name the "
        "folder that a training or a study has written, or leave it out for the built-in notes."
    )


def _of_study(folder: Path) -> Stage:
    study: Mapping[str, Any] = read_kept_study(folder)
    asked = {"data": study["data"], "model": study.get("model") or {}, "release": study.get("release") or {}}
    seed = int((study.get("seeds") or [0])[0])
    found: dict[str, Setting] = {}
    for one in points_of(read_trials(folder).values()):
        point = dict(one.protection)
        name, values = str(point.pop("name")), solved(point, one.trials[0].details.get("protection") or {})
        label = one.label
        if any(goal in point and goal not in values for goal in _GOALS):
            label += " (of the whole training)"
        found.setdefault(label, Setting(label, name, values))
    title = str(study.get("title") or study["name"])
    columns = Columns(study["data"].get("text", "text"), label=study["data"].get("label", "label"))
    return Stage(f"the study “{title}”", lambda kind: scene_of(asked, seed, kind), tuple(found.values()), columns)


def _of_run(folder: Path) -> Stage:
    scene = load_scene(SceneRequest(run=folder, device="cpu"))
    scene.model.eval()
    own = protection_of_run(scene.run)
    settings = () if own is None else (Setting(f"as the run was trained: {own[0]}", own[0], own[1]),)
    data = None if scene.run is None else scene.run.settings.data
    columns = Columns() if data is None else Columns(data.text, label=data.label)
    return Stage(f"the run {folder.name}", lambda kind: scene, settings, columns)


def solved(point: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's setting as one release has it: with the noise that was solved for the whole training.

    >>> solved({"epsilon": 8.0}, {"name": "dp-sgd", "noise_multiplier": 0.7, "clip_norm": 0.1})
    {'noise_multiplier': 0.7}
    """
    noise = {name: facts[name] for name in _SOLVED if facts.get(name) is not None}
    gone = {"delta", *(_GOALS if noise else _GOALS[1:])}
    return {**{name: value for name, value in point.items() if name not in gone}, **noise}
