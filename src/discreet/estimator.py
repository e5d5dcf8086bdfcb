"""A private text classifier with scikit-learn's conventions: fit, predict, predict_proba, score, save, load."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from discreet.core.errors import DataError, invalid, positive, setting
from discreet.core.files import write_atomic
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import weights_digest
from discreet.data.corpus import Corpus
from discreet.data.sources import EACH_ROW, IN_PYTHON, TextSource, unit_ids
from discreet.experiment.run import RunOptions, RunRequest, choose_model, train_once
from discreet.models.classifier import classifier_of
from discreet.models.settings import LAYERS, TrainSettings
from discreet.runs.checkpoint import LEDGER
from discreet.runs.folder import finish, load_run, prepared, workspace_of
from discreet.training.evaluation import predict

if TYPE_CHECKING:
    from discreet.protections.base import Protection

_CLASSES = "classes"


class SpendsAgain(UserWarning):
    """The same people were in an earlier protected training run, so their privacy loss adds up."""


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Fine-tune an encoder to classify texts, optionally under a protection.

    The methods, and how settings are read and changed, are those of scikit-learn's classifiers.

    Args:
        encoder: The model that reads the text: minilm, bilstm, a folder, or a name on the hub.
        protect: A protection with a budget, such as `DPSGD(epsilon=3)`; without it there is no guarantee.
        train: Which layers are trained: head, pooler+head, top-N (the last N blocks), lora, lora-N (adapters of rank
            N) or all. By default all; with most protections, head.
        training: The `TrainSettings`, such as epochs and learning rate; the defaults of what is left open depend on
            the trained layers, the protection and the amount of text.
        classes: The classes, in their order; by default those of the labels, of which each must occur for two units.
        unit: The word for a unit in the guarantee, such as patient. It needs `groups` in `fit`.
        ledger: A ledger file that several training runs share; by default, the runs on the same units are added up in
            a record on this machine.
        budget: The largest total epsilon of a unit over all its runs; a `fit` that would exceed it is rejected.
        noise_seed: Makes batches and noise repeatable, and the guarantee an estimate.
        seed: Seed of the first weights and of everything else that is not noise.

    Guarantee: that of the protection for each group (or each row), in `guarantee_`; predictions are post-processing.

    >>> clf = TextClassifier("minilm", train="head", training=TrainSettings(epochs=5))
    >>> clf.get_params()["train"], clf.get_params()["training"].epochs
    ('head', 5)

    With a guarantee for each patient:

        clf = TextClassifier("minilm", protect=DPSGD(epsilon=3), unit="patient")
        clf.fit(texts, labels, groups=patients)
        print(clf.guarantee_)
        clf.predict(["Knee swollen after a fall."])
    """

    def __init__(
        self,
        encoder: str = "minilm",
        *,
        protect: Protection | None = None,
        train: str | None = None,
        training: TrainSettings | None = None,
        classes: Sequence[Any] | None = None,
        unit: str = "person",
        ledger: str | Path | None = None,
        budget: float | None = None,
        noise_seed: int | None = None,
        seed: int = 0,
    ) -> None:
        """Store the settings; nothing is loaded before `fit`."""
        self.encoder = encoder
        self.protect = protect
        self.train = train
        self.training = training
        self.classes = classes
        self.unit = unit
        self.ledger = ledger
        self.budget = budget
        self.noise_seed = noise_seed
        self.seed = seed

    def fit(self, texts: Sequence[str], labels: Sequence[Any], groups: Sequence[Any] | None = None) -> TextClassifier:
        """Train on texts and their labels.

        Args:
            texts: The texts; one string for each row.
            labels: The class of each text.
            groups: The id of the unit of each text, such as the patient; without it each text is a unit.

        Guarantee: that of the protection, in `guarantee_`. Every call spends again.
        """
        self._check_settings()
        corpus, names = self._corpus(texts, labels, groups)
        chosen = {"encoder": self.encoder, **({} if self.train is None else {"train": self.train})}
        source = TextSource(IN_PYTHON, classes=None if self.classes is None else corpus.label_names)
        request = RunRequest(
            source,
            choose_model(chosen, self.protect, source, corpus),
            self.training or TrainSettings(),
            self.protect,
            self.seed,
            noise_seed=self.noise_seed,
        )
        options = RunOptions(
            cache=False,
            ledger=None if self.ledger is None else Path(self.ledger),
            budget=self.budget,
            evaluated=False,
            kept_at=IN_PYTHON,
            say_again=_warn,
        )
        run = train_once(request, corpus=corpus, options=options)
        self.model_, self.plan_, self.guarantee_ = classifier_of(run.model, "TextClassifier"), run.plan, run.guarantee
        self.classes_, self._weights, self._ledger = names, weights_digest(run.model), run.ledger
        self._metrics, self._settings = run.recorded(), run.settings
        return self

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the probability of each class for each text, in the order of `classes_`.

        Args:
            texts: The texts to classify; they need not be private.
        """
        check_is_fitted(self, "model_")
        return predict(self.model_, Corpus("texts", _texts(texts))).values

    def predict(self, texts: Sequence[str]) -> npt.NDArray[Any]:
        """Return the most likely class of each text.

        Args:
            texts: The texts to classify.
        """
        chosen = self.predict_proba(texts).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def save(self, folder: str | Path) -> None:
        """Write a run folder that `load` and the `discreet` commands can read.

        Args:
            folder: A new folder.

        Guarantee: that of the training; an estimate if the weights are no longer those of `fit`. The folder holds no
            text.
        """
        check_is_fitted(self, "model_")
        guarantee, stated = self.guarantee_, self._metrics
        if guarantee is not None and weights_digest(self.model_) != self._weights:
            guarantee = guarantee.with_caveats({Caveat.UNPROTECTED_STATE})
            stated = {**stated, "guarantee": {**guarantee.as_dict(), "sentence": guarantee.sentence()}}
        out = Path(folder)
        workspace = workspace_of(out, resume=False)
        with prepared(workspace):
            metrics = {**stated, _CLASSES: self.classes_.tolist()}
            if self._ledger is not None:
                write_atomic(workspace / LEDGER, self._ledger)
            finish(workspace, out, self.model_, self._settings, metrics, guarantee)

    @classmethod
    def load(cls, folder: str | Path) -> TextClassifier:
        """Load a fitted classifier from a run folder.

        Args:
            folder: A folder that `save` or `discreet train` wrote.
        """
        run = load_run(Path(folder))
        if not run.model.task.has_classes:
            raise DataError(f"Expected a run of a classifier at {str(folder)!r}, got one for {run.model.task}.")
        settings, stated = run.settings, run.metrics.get("guarantee")
        classifier = cls(
            settings.model.encoder,
            protect=settings.protect,
            train=settings.model.train,
            training=settings.training,
            unit=cls().unit if stated is None or stated["unit"] == EACH_ROW else stated["unit"],
            seed=settings.seed,
        )
        classifier.model_ = classifier_of(run.model, "TextClassifier")
        classifier._settings, classifier._metrics = run.settings, run.metrics
        classifier._weights = weights_digest(classifier.model_)
        ledger = Path(folder) / LEDGER
        classifier._ledger = ledger.read_bytes() if ledger.exists() else None
        classifier.classes_ = np.asarray(run.metrics.get(_CLASSES) or run.model.label_names)
        classifier.guarantee_ = None if stated is None else Guarantee.from_dict(stated)
        return classifier

    def _check_settings(self) -> None:
        """Reject settings of a wrong kind before the text is read; `train` and `training` are easily confused."""
        train: Any = self.train
        training: Any = self.training
        if isinstance(train, TrainSettings):
            remedy = f"Pass the settings of the training as {setting('training')}."
            raise invalid("train", "TrainSettings", LAYERS.rule, remedy)
        if training is not None and not isinstance(training, TrainSettings):
            remedy = f"The layers that are trained are {setting('train', 'head')}, for example."
            raise invalid("training", training, "TrainSettings(…) or None", remedy)
        if self.budget is not None:
            positive("budget", self.budget, "It limits the total epsilon of a unit over all its training runs.")

    def _corpus(
        self, texts: Sequence[str], labels: Sequence[Any], groups: Sequence[Any] | None
    ) -> tuple[Corpus, npt.NDArray[Any]]:
        """Return texts, labels and groups as a corpus, and the classes in their order."""
        if groups is None and self.protect is not None and self.unit not in (EACH_ROW, TextClassifier().unit):
            raise DataError(
                f"Expected groups, which hold the {self.unit} of each text, because {setting('unit', self.unit)} was "
                f"set; got none. Pass groups to protect each {self.unit} (to cross_val_score: params={{'groups': …}}), "
                "or leave the unit out to protect each row."
            )
        values = np.asarray(labels)
        names = np.unique(values) if self.classes is None else np.asarray(self.classes)
        place = {value: number for number, value in enumerate(names.tolist())}
        unknown = [row for row, value in enumerate(values.tolist(), start=1) if value not in place]
        if unknown:
            raise DataError(f"Expected the label of row {unknown[0]} to be one of classes. Add it there.")
        corpus = Corpus(
            IN_PYTHON,
            _texts(texts),
            labels=tuple(place[value] for value in values.tolist()),
            label_names=tuple(map(str, names.tolist())),
            units=None if groups is None else tuple(unit_ids(_values(groups), IN_PYTHON, "groups")),
            unit_name=EACH_ROW if groups is None else self.unit,
            names_read=self.classes is None,
        )
        return corpus, names


def _texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Return texts as a tuple; one string would be as many texts as it has letters."""
    if isinstance(texts, str):
        raise DataError("Expected a list of texts, got one string. Put it into a list.")
    return tuple(texts)


def _values(groups: Any) -> list[Any]:
    """Return values as Python objects, each of its own type: an array of mixed types would convert some."""
    values = groups.tolist() if isinstance(groups, np.ndarray) else list(groups)
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _warn(text: str) -> None:
    # The frames above this one: shared_record, shared_accounting, contextlib, train_once, fit, and the caller of fit.
    warnings.warn(f"{text} Every fit on them spends again.", SpendsAgain, stacklevel=7)
