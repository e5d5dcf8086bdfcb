"""Reference models that the attacker has already: finished runs, and which of the examples they were trained on.

A run folder holds no text. It names its source, its seed and how its rows were split, so its training rows are read
again from there. An example counts as one that a run was trained on if its text, without case and spacing, or its unit
is among them.

The examples of a run that are members of the target as often as not, such as a random half of the same text, are known
to the attacker: online attacks use them. A run that was trained on the target's own members more than on non-members is
rejected, as its training rows say who is a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import hypergeom

from discreet.attacks.membership.signals import Bools, Ints, Outputs
from discreet.core.errors import DataError, ModelError, invalid, setting
from discreet.data.batches import Vectors, tokens_for
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import Progress
from discreet.experiment.attack.scene import corpus_of_run, text_keys
from discreet.experiment.attack.signals import check_same_tokens, outputs_of, stacked
from discreet.models.base import TextModel
from discreet.models.build import matched
from discreet.models.classifier import Classifier
from discreet.runs.folder import Run, is_run, load_run

STAGE = "asking reference models"
# Of a run whose training rows do not depend on who is a member, one in ten thousand is rejected.
_LEVEL = 1e-4
_REMEDY = "Train reference models on other text, or on random halves of all of it."


def runs_in(paths: Sequence[Path], target: Path | None = None) -> tuple[Path, ...]:
    """Return the run folders that are named, or are in a named folder; the target's own is left out of the latter."""
    runs: list[Path] = []
    for path in paths:
        if is_run(path):
            runs.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if is_run(one)) if path.is_dir() else []
        runs += [one for one in inside if target is None or one.resolve() != target.resolve()]
        if not inside:
            raise ModelError(f"Expected a run folder, or a folder with runs, at {str(path)!r}. Check the path.")
    if len({one.resolve() for one in runs}) < len(runs):
        raise invalid("references_from", len(runs), "different folders", "A model that counts twice adds nothing.")
    if len(runs) < 2:
        remedy = "The spread of their outputs is needed; train more of them."
        raise invalid("references_from", len(runs), "at least 2 runs", remedy)
    return tuple(runs)


@dataclass(frozen=True)
class GivenReferences:
    """Finished runs, (models,), and whether each was trained on each row of the target's corpus, (models, rows)."""

    names: tuple[str, ...]
    models: tuple[TextModel, ...] = field(repr=False)
    trained: Bools = field(repr=False)

    @classmethod
    def load(cls, folders: Sequence[Path], corpus: Corpus, model: TextModel, progress: Progress) -> GivenReferences:
        """Load runs that have the task and, for language models, the tokens of the target.

        Guarantee: none; it reads the training text of the runs, to find out what they were trained on.
        """
        models, trained = [], []
        for number, folder in enumerate(folders):
            progress("loading reference models", number, len(folders))
            run = load_run(folder, model.device)
            if run.model.task != model.task:
                raise DataError(
                    f"Expected a reference model for {model.task}, as the target, got {str(folder)!r} for "
                    f"{run.model.task}. {_REMEDY}"
                )
            if model.task.is_language:
                check_same_tokens(model, run.model)
            if set(run.model.label_names) != set(model.label_names):
                raise DataError(
                    f"Expected a reference model with the labels of the target ({', '.join(model.label_names)}), got "
                    f"{str(folder)!r} with {', '.join(run.model.label_names)}. {_REMEDY}"
                )
            models.append(run.model)
            trained.append(trained_on(run, folder, corpus))
        return cls(tuple(map(str, folders)), tuple(models), np.stack(trained))

    def check(self, members: Ints, others: Ints) -> None:
        """Reject runs that were trained on members of the target more often than on non-members."""
        for name, row in zip(self.names, self.trained, strict=True):
            inside, outside = int(row[members].sum()), int(row[others].sum())
            chance = hypergeom.sf(inside - 1, len(members) + len(others), inside + outside, len(members))
            if chance < _LEVEL:
                raise DataError(
                    f"Expected reference models that were not trained on the target's own members, but {name!r} was "
                    f"trained on {inside:,} of {len(members):,} members and on {outside:,} of {len(others):,} "
                    f"non-members. {_REMEDY}"
                )

    def usable(self, rows: Ints) -> Bools:
        """Return which of the rows at least two of the models were not trained on."""
        return np.asarray((~self.trained[:, rows]).sum(axis=0) >= 2)

    def outputs(
        self, target: TextModel, corpus: Corpus, rows: Ints, vectors: Vectors | None, progress: Progress
    ) -> Outputs:
        """Return the outputs of all models on rows; `vectors` are those of the target's frozen encoder.

        Guarantee: none for the rows; this is post-processing of the models.
        """
        collected = []
        for number, model in enumerate(self.models):
            progress(STAGE, number, len(self.models))
            labelled = matched(corpus, model)
            if vectors is None or not _same_vectors(model, target):
                collected.append(outputs_of(model, tokens_for(model, labelled.take(rows))))
                continue
            own = vectors.take(rows)
            if labelled.labels is not None:
                labels = torch.tensor(np.asarray(labelled.labels)[rows], device=own.targets.device)
                own = replace(own, targets=labels)
            collected.append(outputs_of(model, own))
        progress(STAGE, len(self.models), len(self.models))
        return stacked(collected)


def trained_on(run: Run, folder: Path, corpus: Corpus) -> Bools:
    """Return which rows of a corpus a run was trained on, by their text or their unit."""
    own = corpus_of_run(run)
    rows = own.split("train") if own.splits else own
    recorded, planted = run.metrics.get("rows"), run.settings.canaries is not None or (folder / "audit.json").exists()
    if recorded is not None and recorded != len(rows) and not planted:
        raise DataError(
            f"Expected the text that {str(folder)!r} was trained on, {recorded:,} rows, but its source "
            f"{run.settings.data.source!r} now gives {len(rows):,}. Restore the text, or leave this run out."
        )
    texts = set(text_keys(rows))
    found = np.array([key in texts for key in text_keys(corpus)], dtype=bool)
    if rows.units is not None and corpus.units is not None and rows.unit_name == corpus.unit_name:
        units = set(rows.units)
        found |= np.array([unit in units for unit in corpus.units], dtype=bool)
    return found


def _same_vectors(model: TextModel, target: TextModel) -> bool:
    """Return whether two models have the same frozen encoder, so that its vectors serve both."""
    if not isinstance(model, Classifier) or not isinstance(target, Classifier):
        return False
    one, other = (
        replace(settings, head="linear", hidden=(), pooler=None, dropout=None)
        for settings in (model.settings, target.settings)
    )
    return one == other and same_encoder(model, target)


def same_encoder(model: TextModel, other: TextModel) -> bool:
    """Return whether the encoders of two models have the same weights."""
    own, its = model.encoder.state_dict(), other.encoder.state_dict()
    return own.keys() == its.keys() and all(torch.equal(value, its[name]) for name, value in own.items())


def too_few(members: int, others: int) -> DataError:
    """Return the error of runs that leave too few examples which at least two of them were not trained on."""
    return DataError(
        f"Expected examples that at least two reference models were not trained on, got {members:,} members and "
        f"{others:,} non-members. {_REMEDY} More of them ({setting('references_from')}) help too."
    )
