"""Truth and guess side by side, a row for each example as soon as it is done; and what it all amounts to.

The protections that an attack is set against: one, or the same one at several strengths.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from discreet.catalog import ATTACKS, attack_of, protection_class, settings_of_protection
from discreet.cli.output import console as screen
from discreet.cli.output import note, one_line, plain, spinner
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
_FOUND = "bold green"
_LINES = 3  # of a text, unless it is wanted whole


def marked(text: str, other: str) -> Text:
    """Return a text with the words that stand in the other one too made visible, each as often as it stands there."""
    from rich.text import Text

    left = Counter(_parts(one_line(other)))
    drawn = Text(overflow="fold")
    for number, word in enumerate(one_line(text).split()):
        drawn.append(" " if number else "")
        mine = Counter(_parts(word))
        found = mine <= left
        left -= mine if found else Counter()
        drawn.append(word, style=_FOUND if found else "")
    return drawn


def _parts(text: str) -> list[str]:
    """Return words and marks apart, in lower case, as a tokenizer sets them: "Fall." is as good as "fall ."."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


@contextmanager
def reading(total: int, metric: str, hidden: bool, whole_texts: bool = False) -> Iterator[Callable[[Example], None]]:
    """Draw each example when it is done, and meanwhile say which is being read; hidden, a line on stderr for each."""
    if hidden:
        yield _counted(total, metric)
        return
    console = screen()
    width = max(12, (console.width - _NUMBER - _SCORE - _GAPS) // 2)
    heading = _grid(width)
    heading.add_row("", "truth", "what the attacker read", fill(_label(metric), _SCORE + 2))
    done = 0

    def say() -> str:
        return f"reading {min(done + 1, total)} of {total}"

    live = spinner(console) if console.is_terminal else None
    task = live.add_task(say()) if live is not None else None

    def show(example: Example) -> None:
        nonlocal done
        done += 1
        if done == 1:
            console.print(heading, style="bold")
        row = _grid(width)
        score = example.scores.get(metric)
        truth, guess = marked(example.truth, example.guess), marked(example.guess, example.truth)
        if not whole_texts:
            truth, guess = (cut(text, width - 2, console) for text in (truth, guess))
        row.add_row(str(done), truth, guess if guess.plain else "nothing", "" if score is None else f"{score:.2f}")
        console.print(row)
        if live is not None and task is not None:
            live.update(task, description=say())

    if live is None:
        yield show
        return
    with live:
        yield show


def cut(text: Text, width: int, console: Console) -> Text:
    """Return the lines of a text that are shown, the last with a mark where more follow."""
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
    """Print every metric with its interval and chance level, the release, and what is guaranteed for it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"{result.attack}, n = {result.n}")
    for name in ("mean", "95% interval", "chance"):
        table.add_column(name, justify="right")
    for leakage in result.leakages:
        table.add_row(_label(leakage.metric), *_cells(leakage))
    console.print(table)
    console.print(plain(f"Release: {describe_release(result.release, protection=True)}."))
    console.print(plain(describe_knowledge(result.release)))
    console.print(plain("Privacy of this release: " + guarantee_words(result)))


def stopped_words(count: int) -> str:
    """Return the sentence for searches that a time limit ended.

    >>> stopped_words(2).partition(". ")[0]
    'Stopped by the time limit: 2 searches'
    """
    searches = "1 search" if count == 1 else f"{count} searches"
    return (
        f"Stopped by the time limit: {searches}. Their figures depend on how fast this machine is; leave the limit out "
        "for figures that can be repeated."
    )


def sweep(results: Sequence[AttackResult], strengths: Sequence[str], name: str, console: Console) -> None:
    """Print one row for each strength of the noise: epsilon, success with its interval, the bound and chance."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from discreet.report.words import at_most

    bounded = any(result.bound is not None for result in results)
    main = results[0].leakages[0]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    heads = [name, "epsilon", _label(main.metric), "95% interval"]
    for head in heads + (["bound"] if bounded else []) + ["chance"]:
        table.add_column(head, justify="right")
    for strength, result in zip(strengths, results, strict=True):
        value, interval, chance = _cells(result.leakages[0])
        bound = [] if not bounded else ["" if result.bound is None else at_most(result.bound, 4)]
        table.add_row(strength, epsilon_words(result), value, interval, *bound, chance)
    console.print(table)
    facts = dict(results[0].release)
    facts["protection"] = {"name": (facts.get("protection") or {}).get("name", "none")}
    console.print(plain(f"Release: {describe_release(facts, protection=True)}."))
    console.print(plain(describe_knowledge(facts)))
    if bounded:
        seen = results[0].release
        what = f"all {seen['steps']} updates of the training" if seen.get("scope") == "training" else "this release"
        console.print(plain(f"No attack on {what} names the right candidate more often than the bound."))
    where = "In the last row: " if len(results) > 1 else ""
    console.print(plain(f"{where}{guarantee_words(results[-1])}"))


def epsilon_words(result: AttackResult) -> str:
    """Return the epsilon of one release, marked where it is an estimate."""
    promise = result.guarantee
    if promise is None or not promise.exists:
        return "none"
    return in_digits(promise.epsilon) + ("" if promise.certified else " (est.)")


def guarantee_words(result: AttackResult) -> str:
    """Return what is guaranteed for the release that was attacked, in a sentence, and under the other adjacencies."""
    if result.guarantee is None:
        return "none, it was not protected."
    others = [
        f"{in_digits(value)} under {name}"
        for name, value in result.epsilon_by_adjacency.items()
        if value is not None and name != result.guarantee.adjacency.value
    ]
    kind = "Epsilon is" if result.guarantee.certified else "Estimates of epsilon are"
    more = f" {kind} {' and '.join(others)}." if others and result.guarantee.exists else ""
    return result.guarantee.sentence() + more


def _cells(leakage: Leakage) -> tuple[str, str, str]:
    chance = "" if leakage.chance is None else f"{leakage.chance:.4f}"
    return f"{leakage.value:.4f}", f"[{leakage.low:.4f}, {leakage.high:.4f}]", chance


NONE = "none"
CLIP_NORM = 1.0  # every gradient of a fresh model is longer than this, so noise is measured against all of it
# Where no noise is given, 1-of-n shows the whole curve.
_NOISES = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
# Settings of a protection for which an attack has an option; `--public` is text that the attacker has.
_OPTIONS = {"noise_multiplier", "kappa", "epsilon", "delta", "clip_norm"}


@dataclasses.dataclass(frozen=True)
class Protected:
    """A protection to attack, and what sets it apart in a table: a setting and its value."""

    protect: Any
    setting: str = "protection"
    value: str = NONE

    @property
    def words(self) -> str:
        """What sets it apart, in words."""
        if self.setting != "protection":
            return f"{self.setting} {self.value}"
        return "no protection" if self.protect is None else self.value


def strengths_given(**given: list[str] | None) -> tuple[str, list[float]] | None:
    """Return the one option that says how strong the protection is, and its values."""
    named = {name: _numbers(name, values) for name, values in given.items() if values}
    if len(named) > 1:
        options = ", ".join("--" + name.replace("_", "-") for name in named)
        raise SettingError(f"Expected one of {options}. Each says how much noise there is; leave the others out.")
    return next(iter(named.items()), None)


def _numbers(name: str, values: Sequence[str]) -> list[float]:
    found = []
    for value in (part for text in values for part in text.split(",") if part.strip()):
        try:
            found.append(float(value))
        except ValueError:
            raise invalid(name, value, "a number, or several with commas", "") from None
    if not found:
        raise invalid(name, ",".join(values), "a number, or several with commas", "")
    return found


def protections_asked(
    request: AttackRequest,
    scene: Scene,
    protect: str | None,
    strengths: tuple[str, list[float]] | None,
    given: dict[str, Any],
) -> list[Protected]:
    """Return the protections to attack: the one in the options, at every strength in the options."""
    from discreet.releases.protected import protection_of, protection_of_run

    name, base = protect, dict(given)
    if name is None and strengths is not None and strengths[0] != "epsilon":
        name = {"noise_multiplier": "dp-sgd", "kappa": "dir-dp-sgd"}[strengths[0]]
    if name is None and strengths is None:
        own = protection_of_run(scene.run)
        if own is not None:
            name, base = own[0], {**own[1], **given}
            note(f"The release is protected as the run's training was, by {name}; --protect none attacks a plain one.")
        elif request.attack.identifies:
            name, strengths = "dp-sgd", ("noise_multiplier", list(_NOISES))
    if name is None or name == NONE:
        for option in [*given, *([strengths[0]] if strengths else [])]:
            raise invalid(option, given.get(option, strengths and strengths[1][0]), "used with --protect", "Name one.")
        return [Protected(None)]
    _reject_misfit(request, scene, name)
    if name == "dp-sgd":
        base.setdefault("clip_norm", CLIP_NORM)
    values: list[float | None] = list(strengths[1]) if strengths else [None]
    found = []
    for value in values:
        asked = base if strengths is None else {**base, strengths[0]: value}
        public = _public_vectors(scene, asked.get("public"))
        with spelled(set_by("--protect-set", set(settings_of_protection(name)) - _OPTIONS)):
            built = protection_of(
                name, scene.model, asked, delta=request.delta, batch_size=request.batch_size, public=public
            )
        _reject_misfit(request, scene, name, built)
        apart = ("protection", name) if strengths is None else (strengths[0].replace("_", " "), f"{value:g}")
        found.append(Protected(built, *apart))
    return found


def say_other_noise(built: Any) -> None:
    """Say where the noise of a run's protection is solved anew, for the rows of the one release that is attacked."""
    from discreet.protections.instance_encoding import InstanceEncoding

    if isinstance(built, InstanceEncoding):
        note(
            f"The noise of {built.name} is solved for the texts of this one release. The run's own noise was solved "
            "for all rows of a unit and differs."
        )


def attack_for_run(run: Path, protect: str | None) -> str:
    """Return the name of an attack that fits what a run releases, before its model is loaded."""
    from discreet.training.run_folder import read_settings

    path = run / "settings.toml"
    if not path.exists():
        return "dager"  # load_run says what is wrong
    settings = read_settings(path)
    own = None if settings.protect is None else settings.protect.name
    fitting = _fitting(settings.model.train, own if protect is None else protect)
    if not fitting:
        raise UnsupportedError(
            f"Expected a run that some attack fits, found one that trains {settings.model.train} on text rewritten by "
            f"{own or protect}. Train all layers, or attack a plain release with --protect none."
        )
    return fitting[0]


def _fitting(train: str, protect: str | None) -> list[str]:
    """Return the attacks that fit what leaves, the best first: by what is trained, and by the place of a protection."""
    from discreet.releases.description import GRADIENT, REPRESENTATION

    place = GRADIENT if protect in (None, NONE) else protection_class(str(protect)).place
    if place == REPRESENTATION:
        return _names(REPRESENTATION, first="rss")
    if train == "all":
        return _names(GRADIENT, identifies=None if place == GRADIENT else False, first="dager")
    # without the gradients of the layers near the text, candidates can be told apart, and no text can be read
    return _names(GRADIENT, identifies=True) if place == GRADIENT else []


def _names(kind: str, *, identifies: bool | None = None, first: str = "") -> list[str]:
    """Return the attacks on a kind of release, and only those that identify a candidate or only those that do not."""
    attacks = {name: attack_of(name) for name in ATTACKS}
    fitting = [name for name, attack in attacks.items() if attack.sees.kind == kind]
    if identifies is not None:
        fitting = [name for name in fitting if attacks[name].identifies == identifies]
    return sorted(fitting, key=lambda name: name != first)


class _NamesOthersError(UnsupportedError):
    """An attack does not fit, and the message names those that do."""


@contextmanager
def naming_others(scene: Scene, name: str, protections: Sequence[Protected]) -> Iterator[None]:
    """Let an attack that rejects a release name those that fit it."""
    try:
        yield
    except _NamesOthersError:
        raise
    except UnsupportedError as error:
        built = protections[0].protect
        others = [n for n in _fitting(scene.model.settings.train, None if built is None else built.name) if n != name]
        if not others:
            raise
        again = f"discreet attack {'RUN' if scene.run is not None else '…'} --attack {others[0]}"
        raise _NamesOthersError(error.message + f" These fit: {', '.join(others)}; for example `{again}`.") from None


def _reject_misfit(request: AttackRequest, scene: Scene, name: str, built: Any = None) -> None:
    """Reject an attack on what a protection does not let go, and name those that fit; what is `built` says it all."""
    from discreet.experiment.identification import NOISY
    from discreet.releases.description import GRADIENT, READS, REPRESENTATION, misfit_error
    from discreet.releases.protected import fits

    place, identifies = protection_class(name).place, request.attack.identifies
    kind = request.attack.sees.kind
    if identifies:
        suits = place == GRADIENT
    elif built is None:  # whether gradients leave beside vectors is known when it is built
        suits = place == kind or kind == GRADIENT
    else:
        suits = fits(kind, built)
    if suits:
        return
    wanted = REPRESENTATION if place == REPRESENTATION else GRADIENT
    named = _names(wanted, identifies=None if place == GRADIENT else False)
    # each of these needs nothing more
    example = next(one for one in ("rss", *_names(GRADIENT, identifies=True), "dager") if one in named)
    again = f"discreet attack {'RUN' if scene.run is not None else f'--protect {name} …'} --attack {example}"
    error = misfit_error(request.label, NOISY if identifies else READS[kind], name, place)
    raise _NamesOthersError(error.message + f" These fit: {', '.join(named)}; for example `{again}`.")


def set_by(option: str, names: Collection[str]) -> Spelling:
    """Return how settings that have no option of their own are spelled: as NAME=VALUE of another option.

    >>> set_by("--set", {"steps"})("steps", 200), set_by("--set", {"steps"})("steps", None)
    ('--set steps=200', '--set steps=…')
    """

    def spelling(name: str, value: Any) -> str | None:
        if name not in names:
            return None
        return f"{option} {name}={'…' if value is None else str(value).lower() if isinstance(value, bool) else value}"

    return spelling


def _public_vectors(scene: Scene, source: str | None) -> Callable[[], tuple[Tensor, Tensor | None]] | None:
    """Return how to come by vectors of the public text that a protection learns a projection from, if it names one."""
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
