"""Tables and protections of `discreet attack`.

Prints truth and guess side by side for each example, then a summary. Builds the protections to attack: one, or the same
one at several strengths. Rejects attacks that do not fit a release and suggests those that do.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from discreet.catalog import ATTACKS, attack_of, protection_class, settings_of_protection
from discreet.cli.output import console as screen
from discreet.cli.output import headed, note, one_line, plain, spinner
from discreet.core.errors import SettingError, Spelling, UnsupportedError, invalid, spelled
from discreet.core.guarantee import in_digits
from discreet.releases.description import describe_knowledge, describe_release

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from torch import Tensor

    from discreet.core.types import Leakage
    from discreet.experiment import AttackRequest, AttackResult, Example, Scene

_NUMBER, _SCORE, _GAPS = 3, 5, 6
_MATCH = "bold green"
_LINES = 3  # lines shown of a text without --whole-texts


def marked(text: str, other: str) -> Text:
    """Return a text with the words that are also in the other one highlighted, each as often as it occurs there."""
    from rich.text import Text

    left = Counter(_parts(one_line(other)))
    styled = Text(overflow="fold")
    for number, word in enumerate(one_line(text).split()):
        styled.append(" " if number else "")
        mine = Counter(_parts(word))
        match = mine <= left
        left -= mine if match else Counter()
        styled.append(word, style=_MATCH if match else "")
    return styled


def _parts(text: str) -> list[str]:
    """Return words and punctuation separately, in lower case: "Fall." matches "fall ."."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


@contextmanager
def reading(total: int, metric: str, hidden: bool, whole_texts: bool = False) -> Iterator[Callable[[Example], None]]:
    """Print each example when it is done, with a spinner meanwhile; if hidden, print a line on stderr for each."""
    if hidden:
        yield _counted(total, metric)
        return
    console = screen()
    width = max(12, (console.width - _NUMBER - _SCORE - _GAPS) // 2)
    heading = _grid(width)
    heading.add_row("", "truth", "guess", fill(_label(metric), _SCORE + 2))
    done = 0

    def progress() -> str:
        return f"reading {min(done + 1, total)} of {total}"

    live = spinner(console) if console.is_terminal else None
    task = live.add_task(progress()) if live is not None else None

    def show(example: Example) -> None:
        nonlocal done
        done += 1
        if done == 1:
            console.print(heading, style="bold")
        row = _grid(width)
        score = example.scores.get(metric)
        truth, guess = marked(example.truth, example.guess), marked(example.guess, example.truth)
        if not whole_texts:
            truth, guess = (truncated(text, width - 2, console) for text in (truth, guess))
        row.add_row(str(done), truth, guess if guess.plain else "nothing", "" if score is None else f"{score:.2f}")
        console.print(row)
        if live is not None and task is not None:
            live.update(task, description=progress())

    if live is None:
        yield show
        return
    with live:
        yield show


def truncated(text: Text, width: int, console: Console) -> Text:
    """Return the first lines of a text, with an ellipsis if more follow."""
    lines = text.wrap(console, width, overflow="fold")
    if len(lines) <= _LINES:
        return text
    for line in lines:
        line.rstrip()
    last = lines[_LINES - 1]
    if len(last) > width - 2:
        last = last[: max(last.plain.rfind(" "), 0) or width - 2]
    lines[_LINES - 1] = last.append(" …")
    return type(text)("\n").join(lines[:_LINES])


def _grid(width: int) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", width=_NUMBER)
    grid.add_column(width=width - 2, overflow="fold")
    grid.add_column(width=width - 2, overflow="fold")
    grid.add_column(justify="right", width=_SCORE + 2, no_wrap=True)
    return grid


def _counted(total: int, metric: str) -> Callable[[Example], None]:
    done = 0

    def show(example: Example) -> None:
        nonlocal done
        done += 1
        score = example.scores.get(metric)
        note(f"{done}/{total}" + ("" if score is None else f"  {_label(metric)} {score:.2f}"))

    return show


def summary(result: AttackResult, console: Console) -> None:
    """Print every metric with its interval and chance level, the release and its guarantee."""
    table = headed([f"{result.attack}, n = {result.n}", "mean", "95% interval", "chance"], left=1)
    for leakage in result.leakages:
        table.add_row(_label(leakage.metric), *cells_of(leakage))
    console.print(table)
    console.print(plain(f"Release: {describe_release(result.release, protection=True)}."))
    console.print(plain(describe_knowledge(result.release)))
    console.print(plain("Privacy of this release: " + describe_guarantee(result)))
    if result.verdict:
        console.print(plain(result.verdict))


def describe_stopped(count: int) -> str:
    """Return the sentence about searches that the time limit stopped.

    >>> describe_stopped(2).partition(". ")[0]
    'Stopped by the time limit: 2 searches'
    """
    searches = "1 search" if count == 1 else f"{count} searches"
    return (
        f"Stopped by the time limit: {searches}. Their figures depend on the speed of this machine; omit the limit for "
        "reproducible figures."
    )


def sweep(results: Sequence[AttackResult], strengths: Sequence[str], name: str, console: Console) -> None:
    """Print one row for each noise strength: epsilon, success with its interval, bound and chance."""
    from discreet.report.words import at_most

    bounded = any(result.bound is not None for result in results)
    main = results[0].leakages[0]
    heads = [name, "epsilon", _label(main.metric), "95% interval"]
    table = headed([*heads, *(["bound"] if bounded else []), "chance"])
    for strength, result in zip(strengths, results, strict=True):
        value, interval, chance = cells_of(result.leakages[0])
        bound = [] if not bounded else ["" if result.bound is None else at_most(result.bound, 4)]
        table.add_row(strength, epsilon_cell(result), value, interval, *bound, chance)
    console.print(table)
    facts = dict(results[0].release)
    facts["protection"] = {"name": (facts.get("protection") or {}).get("name", "none")}
    console.print(plain(f"Release: {describe_release(facts, protection=True)}."))
    console.print(plain(describe_knowledge(facts)))
    if bounded:
        seen = results[0].release
        what = f"all {seen['steps']} updates of the training" if seen.get("scope") == "training" else "this release"
        console.print(plain(f"No attack on {what} identifies the right candidate more often than the bound."))
    where = "In the last row: " if len(results) > 1 else ""
    console.print(plain(f"{where}{describe_guarantee(results[-1])}"))


def epsilon_cell(result: AttackResult) -> str:
    """Return the epsilon of a release, marked if it is an estimate."""
    guarantee = result.guarantee
    if guarantee is None or not guarantee.exists:
        return "none"
    return in_digits(guarantee.epsilon) + ("" if guarantee.certified else " (est.)")


def describe_guarantee(result: AttackResult) -> str:
    """Describe the guarantee of the attacked release, with its epsilon under the other adjacencies."""
    if result.guarantee is None:
        return "none; it was not protected."
    others = [
        f"{in_digits(value)} under {name}"
        for name, value in result.epsilon_by_adjacency.items()
        if value is not None and name != result.guarantee.adjacency.value
    ]
    kind = "Epsilon is" if result.guarantee.certified else "Estimates of epsilon are"
    more = f" {kind} {' and '.join(others)}." if others and result.guarantee.exists else ""
    return result.guarantee.sentence() + more


def cells_of(leakage: Leakage, digits: str = ".4f") -> tuple[str, str, str]:
    """Return a leakage, its interval and its chance level for a table; `digits` is the format of the chance level."""
    chance = "" if leakage.chance is None else f"{leakage.chance:{digits}}"
    return f"{leakage.value:.4f}", f"[{leakage.low:.4f}, {leakage.high:.4f}]", chance


NONE = "none"
CLIP_NORM = 1.0  # every gradient of a fresh model exceeds this norm, so all are clipped
# Noise multipliers that 1-of-n attacks if none is set.
_NOISES = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
# Settings of a protection that are options of `attack`; its `--public` is the attacker's text.
_OPTIONS = {"noise_multiplier", "kappa", "epsilon", "delta", "clip_norm"}


@dataclasses.dataclass(frozen=True)
class Protected:
    """A protection to attack, with the setting and value that identify it in a table."""

    protect: Any
    setting: str = "protection"
    value: str = NONE

    @property
    def words(self) -> str:
        """Return the setting and its value as text."""
        if self.setting != "protection":
            return f"{self.setting} {self.value}"
        return "no protection" if self.protect is None else self.value


def parse_strengths(**options: list[str] | None) -> tuple[str, list[float]] | None:
    """Return the one option that sets the strength of the protection, and its values."""
    named = {name: _numbers(name, values) for name, values in options.items() if values}
    if len(named) > 1:
        flags = ", ".join("--" + name.replace("_", "-") for name in named)
        raise SettingError(f"Expected only one of {flags}. Each sets the amount of noise; remove the others.")
    return next(iter(named.items()), None)


def _numbers(name: str, values: Sequence[str]) -> list[float]:
    parts = [part for text in values for part in text.split(",") if part.strip()]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not numbers:
        raise invalid(name, ",".join(values), "a number, or several with commas", "")
    return numbers


def protections_to_attack(
    request: AttackRequest,
    scene: Scene,
    protect: str | None,
    strengths: tuple[str, list[float]] | None,
    settings: dict[str, Any],
) -> list[Protected]:
    """Return the protections to attack: the one in the options, at every strength in the options."""
    from discreet.experiment.attack.scene import protection_of_run
    from discreet.releases.protected import protection_of

    name, base = protect, dict(settings)
    if name is None and strengths is not None and strengths[0] != "epsilon":
        name = {"noise_multiplier": "dp-sgd", "kappa": "dir-dp-sgd"}[strengths[0]]
    if name is None and strengths is None:
        own = protection_of_run(scene.run)
        if own is not None:
            name, base = own[0], {**own[1], **settings}
            note(f"The release is protected by {name}, like the run's training; --protect none removes the protection.")
        elif request.attack.identifies:
            name, strengths = "dp-sgd", ("noise_multiplier", list(_NOISES))
    if name is None or name == NONE:
        for option in [*settings, *([strengths[0]] if strengths else [])]:
            raise invalid(
                option, settings.get(option, strengths and strengths[1][0]), "used with --protect", "Name one."
            )
        return [Protected(None)]
    _reject_misfit(request, scene, name)
    if name == "dp-sgd":
        base.setdefault("clip_norm", CLIP_NORM)
    values: list[float | None] = list(strengths[1]) if strengths else [None]
    protections = []
    for value in values:
        chosen = base if strengths is None else {**base, strengths[0]: value}
        public = _public_vectors(scene, chosen.get("public"))
        with spelled(set_by("--protect-set", set(settings_of_protection(name)) - _OPTIONS)):
            built = protection_of(
                name, scene.model, chosen, delta=request.delta, batch_size=request.batch_size, public=public
            )
        _reject_misfit(request, scene, name, built)
        label = ("protection", name) if strengths is None else (strengths[0].replace("_", " "), f"{value:g}")
        protections.append(Protected(built, *label))
    return protections


def note_different_noise(built: Any) -> None:
    """Print a note if the noise of a run's protection is recomputed for the rows of the attacked release."""
    if built is not None and built.computes_noise_from_rows:
        note(
            f"The noise of {built.name} is computed for the texts of this release. The run's own noise was computed "
            "for all rows of a unit and differs."
        )


def attack_for_run(run: Path, protect: str | None) -> str:
    """Return the name of an attack that fits the release of a run, before its model is loaded."""
    from discreet.runs.folder import read_settings

    path = run / "settings.toml"
    if not path.exists():
        return "dager"  # load_run raises the error
    settings = read_settings(path)
    own = None if settings.protect is None else settings.protect.found_by
    names = _fitting(settings.model.train, own if protect is None else protect)
    if not names:
        raise UnsupportedError(
            f"Expected a run that some attack fits, got one that trains {settings.model.train} on text rewritten by "
            f"{own or protect}. Train all layers, or attack an unprotected release with --protect none."
        )
    return names[0]


def _fitting(train: str, protect: str | None) -> list[str]:
    """Return the attacks that fit a release, best first, by the trained part and the place of the protection."""
    from discreet.releases.description import GRADIENT, REPRESENTATION

    place = GRADIENT if protect in (None, NONE) else protection_class(str(protect)).place
    if place == REPRESENTATION:
        return _names(REPRESENTATION, first="rss")
    if train == "all":
        return _names(GRADIENT, identifies=None if place == GRADIENT else False, first="dager")
    # without gradients of the lower layers, candidates can be identified, but no text can be recovered
    return _names(GRADIENT, identifies=True) if place == GRADIENT else []


def _names(kind: str, *, identifies: bool | None = None, first: str = "") -> list[str]:
    """Return the attacks on a kind of release; `identifies` selects those that do or do not identify a candidate."""
    attacks = {name: attack_of(name) for name, entry in ATTACKS.items() if not entry.about_people}
    names = [name for name, attack in attacks.items() if attack.sees.kind == kind]
    if identifies is not None:
        names = [name for name in names if attacks[name].identifies == identifies]
    return sorted(names, key=lambda name: name != first)


class _SuggestionError(UnsupportedError):
    """An attack does not fit; the message names those that do."""


@contextmanager
def suggesting_attacks(scene: Scene, name: str, protections: Sequence[Protected]) -> Iterator[None]:
    """Add the attacks that fit a release to the error of an attack that rejects it."""
    try:
        yield
    except _SuggestionError:
        raise
    except UnsupportedError as error:
        built = protections[0].protect
        others = [
            n for n in _fitting(scene.model.settings.train, None if built is None else built.found_by) if n != name
        ]
        if not others:
            raise
        again = f"discreet attack {'RUN' if scene.run is not None else '…'} --attack {others[0]}"
        raise _SuggestionError(error.message + f" These fit: {', '.join(others)}; for example `{again}`.") from None


def _reject_misfit(request: AttackRequest, scene: Scene, name: str, built: Any = None) -> None:
    """Reject an attack that does not fit a protection's release, and name those that fit.

    Without `built`, the protection is not resolved yet and the check is weaker.
    """
    from discreet.releases.description import GRADIENT, REPRESENTATION
    from discreet.releases.protected import misfit

    asked, identifies = protection_class(name), request.attack.identifies
    place = asked.place
    found = misfit(request.attack.sees.kind, asked if built is None else built, identifies=identifies)
    if found is None:
        return
    wanted = REPRESENTATION if place == REPRESENTATION else GRADIENT
    named = _names(wanted, identifies=None if place == GRADIENT else False)
    # these need no further options
    example = next(one for one in ("rss", *_names(GRADIENT, identifies=True), "dager") if one in named)
    again = f"discreet attack {'RUN' if scene.run is not None else f'--protect {name} …'} --attack {example}"
    also = f" These fit: {', '.join(named)}; for example `{again}`."
    raise _SuggestionError(found.error(request.label, also).message)


def set_by(option: str, names: Collection[str]) -> Spelling:
    """Return a function that spells settings without an option of their own as NAME=VALUE of another option.

    >>> set_by("--set", {"steps"})("steps", 200), set_by("--set", {"steps"})("steps", None)
    ('--set steps=200', '--set steps=…')
    """

    def spelling(name: str, value: Any) -> str | None:
        if name not in names:
            return None
        return f"{option} {name}={'…' if value is None else str(value).lower() if isinstance(value, bool) else value}"

    return spelling


def _public_vectors(scene: Scene, source: str | None) -> Callable[[], tuple[Tensor, Tensor | None]] | None:
    """Return a function that encodes the public text a protection learns its projection from, or None."""
    if source is None:
        return None
    from discreet.data.sources import Columns
    from discreet.training.plan import public_text, public_vectors

    data = None if scene.run is None else scene.run.settings.data
    columns = Columns() if data is None else dataclasses.replace(data.columns, text_pair=None, unit=None)
    return lambda: public_vectors(scene.model, public_text(source, columns), "float32")


def _label(metric: str) -> str:
    from discreet.metrics.table import short_label_of  # numpy is loaded when an attack runs, not for --help

    return short_label_of(metric)


def print_details(details: Mapping[str, Any], console: Console) -> None:
    """Print what an attack found, in tables that fit 80 columns."""
    if "exposure" in details:
        console.print(exposure_table(details["exposure"]))
    if "trials" in details:
        console.print(share_table(details))
        console.print(item_table(details["items"]))
    for row in details.get("classes", ()):
        if isinstance(row, Mapping):
            console.print(plain(f"{row['class']} ({row['probability']:.4f}): {row['text']}"))


def exposure_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the mean exposure in bits by the number of copies of a canary."""
    from discreet.report.words import at_most

    bounded = any(row["bound"] is not None for row in rows)
    table = headed(["copies", "canaries", "mean bits", "95% interval", "chance", *(["at most"] if bounded else [])])
    for row in rows:
        cells = [str(row["copies"]), str(row["canaries"]), f"{row['mean']:.2f}"]
        cells += [f"[{row['low']:.2f}, {row['high']:.2f}]", f"{row['chance']:.2f}"]
        table.add_row(*cells, *([at_most(row["bound"], 3)] if bounded else []))
    return table


def share_table(details: Mapping[str, Any]) -> Table:
    """Return the share of texts whose continuation appears within n samples with probability p, by n and p."""
    training, unseen = details["training"], details["unseen"]
    table = headed(["samples n", *(f"p={p}" for p in training), *(f"unseen {p}" for p in unseen or ())])
    for place, trials in enumerate(details["trials"]):
        shares = [row[place] for part in (training, unseen or {}) for row in part.values()]
        table.add_row(f"{trials:,}", *(f"{share:.3f}" for share in shares))
    return table


def item_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return by category what sampled texts hold, and where else it stands."""
    table = headed(["sampled", "different", "in training text", "there only", "elsewhere"], left=1)
    for row in rows:
        elsewhere = row["in_unseen_text_only"] + row["in_neither"]
        counts = (row["sampled"], row["in_training_text"], row["in_training_text_only"], elsewhere)
        table.add_row(str(row["category"]), *(f"{count:,}" for count in counts))
    return table
