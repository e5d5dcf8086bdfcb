"""Truth and guess side by side, a row for each example as soon as it is done; and what it all amounts to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import TYPE_CHECKING

from discreet.cli.output import console as screen
from discreet.cli.output import note, one_line, plain
from discreet.cli.progress import spinner
from discreet.core.guarantee import in_digits
from discreet.metrics.table import short_label_of
from discreet.releases.description import describe_knowledge, describe_release

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from discreet.core.types import Leakage
    from discreet.experiment import AttackResult, Example

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
    heading.add_row("", "truth", "what the attacker read", fill(short_label_of(metric), _SCORE + 2))
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
        note(f"{done}/{total}" + ("" if score is None else f"  {short_label_of(metric)} {score:.2f}"))

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
        table.add_row(short_label_of(leakage.metric), *_cells(leakage))
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
    heads = [name, "epsilon", short_label_of(main.metric), "95% interval"]
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
