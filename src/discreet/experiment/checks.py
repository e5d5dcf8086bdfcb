"""What is checked before a training run, and what its owner is warned of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from discreet.core.errors import DataError, Message, invalid, setting
from discreet.core.guarantee import Caveat, delta_for
from discreet.data.corpus import PRIVATE_DETAIL
from discreet.data.partition import check_held_out
from discreet.data.sources import files_of
from discreet.runs.folder import RunChoices
from discreet.training.plan import TrainingPlan

if TYPE_CHECKING:
    from discreet.data.corpus import Corpus

_MANY_STEPS = 1_000_000
_LONGEST_NAMES = 1_000  # characters of all class names together, up to which they are printed as a setting


def check_public(request: RunChoices) -> None:
    """Reject the private text itself as the public text that a model is trained on without noise."""
    protect = request.protect
    if protect is not None and protect.starts_from_public:
        check_other_text(protect.public, request.data.source, "public")


def check_other_text(public: str | None, source: str, name: str) -> None:
    """Reject the private text itself as the public text of a setting, which reads it without noise."""
    if public is None:
        return
    same = any(one.samefile(other) for one in files_of(public) for other in files_of(source))
    if public == source or same:
        remedy = "The private text would be used without noise; name other text, or leave it out."
        raise invalid(name, public, "other text than the private one", remedy)


def warn_of_size(request: RunChoices, plan: TrainingPlan, corpus: Corpus, say: Callable[[str], None]) -> None:
    """Warn if the request exceeds the available rows, or will take very long."""
    available = len(corpus) if request.data.built_in else plan.rows  # for built-in text, rows includes held-out rows
    capped = request.data.max_per_unit is not None
    if request.data.rows is not None and request.data.rows > available and not capped:
        rows = setting("rows", request.data.rows)
        say(Message(f"Only {plan.rows:,} training rows are available; {rows} uses all of them."))
    if request.population is not None:
        units = corpus.split("train").unit_count
        if units > request.population or 2 * units < request.population:
            times = units / request.population
            warning = (
                f"{PRIVATE_DETAIL}: the training rows hold {units:,} {corpus.unit_name}s, and the population is "
                f"{request.population:,}. The guarantee holds; batches are {times:.2g} times as large as requested."
            )
            by_default = request.protect is not None and request.protect.delta is None
            if by_default and delta_for(request.population) > delta_for(units):
                warning += (
                    f" Warning: delta follows from the population and is too large for so many {corpus.unit_name}s; "
                    f"set a population of at least their number, or a smaller {setting('delta')}."
                )
            say(Message(warning))
    if plan.steps > _MANY_STEPS:
        say(
            Message(
                f"Warning: {plan.steps:,} steps will run; Ctrl-C stops after a step, and {setting('resume', True)} "
                "resumes."
            )
        )


def warn_of_classes(plan: TrainingPlan, corpus: Corpus, say: Callable[[str], None]) -> None:
    """Tell the owner how to name the classes, if they were read from private labels."""
    if Caveat.PRIVATE_CLASSES not in plan.caveats:
        return
    names = ",".join(corpus.label_names)
    example = setting("classes", names) if len(names) <= _LONGEST_NAMES else setting("classes")
    say(
        Message(
            f"{PRIVATE_DETAIL}: the names of the classes were read from the labels, and that a name exists may depend "
            f"on one {corpus.unit_name}, so the guarantee will be an estimate. If these names were known without the "
            f"data, set them: {example}."
        )
    )


def check_private_labels(request: RunChoices, corpus: Corpus) -> None:
    """Reject class names that are read from the data of a protected run and belong to a single unit.

    A single decimal point decides whether labels are classes or scores, so scores must be requested.

    Guarantee: none; see `check_shared_classes`.
    """
    if request.data.built_in:
        return
    if corpus.task.has_scores and request.data.task is None:
        raise DataError(
            f"Expected {setting('task', 'regression')} for a protected run with scores. One decimal point decides "
            "whether labels are classes or scores, and it may be one person's; set the task."
        )
    if request.data.label_names is None:
        check_shared_classes(corpus)


def check_validation(corpus: Corpus) -> None:
    """Reject validation rows of units that are trained on; utility figures are computed on them without noise."""
    if {"train", "validation"} <= set(corpus.split_names):
        check_held_out(corpus.split("train"), corpus.split("validation"))


def check_shared_classes(corpus: Corpus) -> None:
    """Reject a corpus whose class names come from its labels, if one of them belongs to a single unit.

    The names are written into the run folder, where such a name would reveal that unit to everybody.

    Guarantee: none: that a run was accepted still tells whoever knows all other units that the last one of a class has
        it. A plan therefore makes every figure an estimate if class names were read from the labels.
    """
    if corpus.labels is None:
        return
    holders: dict[int, set[int]] = {}
    held_out: set[int] = set()
    for label, split, unit in zip(corpus.labels, corpus.splits, corpus.unit_index.tolist(), strict=True):
        if split == "train":
            holders.setdefault(label, set()).add(unit)
        else:
            held_out.add(label)
    count = len(corpus.label_names)
    single = [label for label in range(count) if len(holders.get(label, ())) < 2 and label not in held_out]
    if single:
        raise DataError(
            f"Expected at least 2 {corpus.unit_name}s in every class, got fewer in {len(single)} of {count} classes. "
            f"Class names are public, and such a name would reveal a single {corpus.unit_name}; set the names "
            f"({setting('classes')}), or merge the class with another."
        )
