"""Results as words or as one JSON object, and progress on stderr: the one place where text reaches a terminal.

Names, labels, errors of servers, file names and texts that attackers read come from outside. Everything that is printed
passes through `printable` here, so that none of it can move the cursor, set a title, colour, or turn a line around.

What shows that something is going on: a live line for training, and a spinner for whatever else takes a while.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from discreet.core.errors import Message, Spelling
from discreet.core.guarantee import in_digits

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
    from rich.progress import Progress
    from rich.text import Text

    from discreet.training.steps import Report


_LONGEST = 10_000  # characters of one remark
# Controls, formats (which turn lines around or hide), halves of characters, and separators of lines and paragraphs.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"  # Persian and emoji are written with them
_PLAIN = re.compile(r"[ -~\u00a1-\u00ac\u00ae-\u02ff]*")


def printable(text: str, longest: int | None = None, keep: str = "") -> str:
    """Return text in which every control and format character is escaped, cut to the longest length.

    `keep` names characters that are left as they are, such as the line breaks of one's own text.

    >>> printable("a\\x1b]0;b\\x07c\\u202ed\\r\\n")
    'a\\\\x1b]0;b\\\\x07c\\\\u202ed\\\\r\\\\n'
    >>> printable("abcdef", 4)
    'abc…'
    """
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    if _PLAIN.fullmatch(text):
        return text
    return "".join(c if c in keep or c in _JOINERS or not _unsafe(c) else _escaped(c) for c in text)


def one_line(text: str, longest: int | None = None) -> str:
    """Return text on one line with single spaces, safe to print.

    >>> one_line("a\\n\\n  b\\x07")
    'a b\\\\x07'
    """
    return printable(" ".join(as_options(text).split()), longest)


# Returns the command that is running, by whose options settings are spelled; it is found only if it is asked for.
RUNNING: ContextVar[Callable[[], Any]] = ContextVar("running", default=lambda: None)


@runtime_checkable
class HasMoreOptions(Protocol):
    """A command with options that are loaded where they are needed."""

    def more_options(self) -> Sequence[Any]:
        """Return the options that are not among the parameters of the command."""


def options_of(command: Any) -> Spelling:
    """Return how a command spells settings: as its options and arguments; other settings keep Python's spelling.

    >>> from types import SimpleNamespace as Fake
    >>> size = Fake(name="batch_size", opts=["--batch-size"], secondary_opts=[], param_type_name="option")
    >>> pooler = Fake(name="pooler", opts=["--pooler"], secondary_opts=["--no-pooler"], param_type_name="option")
    >>> say = options_of(Fake(params=[size, pooler]))
    >>> say("batch_size", None), say("batch_size", 8), say("pooler", False), say("texts", None)
    ('--batch-size', '--batch-size 8', '--no-pooler', None)
    """
    known = _by_name(() if command is None else command.params)
    more: object = command

    def spelling(name: str, value: Any) -> str | None:
        parameter = known.get(name := name.replace("-", "_"))
        if parameter is None and isinstance(more, HasMoreOptions):
            parameter = _by_name(more.more_options()).get(name)
        if parameter is None:
            return None
        if parameter.param_type_name == "argument":
            return str(parameter.metavar or parameter.name.upper())
        if value is False and parameter.secondary_opts:
            return str(parameter.secondary_opts[-1])
        option: str = max(parameter.opts, key=len)
        return option if value is None or isinstance(value, bool) else f"{option} {shlex.quote(str(value))}"

    return spelling


def _by_name(parameters: Iterable[Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for parameter in parameters:
        for name in (*(option.lstrip("-").replace("-", "_") for option in parameter.opts), parameter.name or ""):
            known.setdefault(name, parameter)
    return known


def as_options(text: str) -> str:
    """Return a message with its settings spelled as the options of the command that is running."""
    if not isinstance(text, Message):
        return text
    return text.worded(options_of(RUNNING.get()()))


def _unsafe(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def line(*fields: object, sep: str = " ") -> None:
    """Print one line on stdout; a field cannot end it."""
    print(*(printable(str(field)) for field in fields), sep=sep)


def as_json(values: Mapping[str, Any], *, on_stderr: bool = False) -> None:
    """Print one JSON object on stdout; what a terminal would obey is written as escapes, which read back the same."""
    print(json_line(values), file=sys.stderr if on_stderr else sys.stdout)


def json_line(values: Mapping[str, Any]) -> str:
    """Return one JSON object on one line.

    >>> json_line({"a": "\\x1b\\x9b\\u202e", "b": "é"})
    '{"a": "\\\\u001b\\\\u009b\\\\u202e", "b": "é"}'
    """
    text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    if _PLAIN.fullmatch(text):
        return text
    # Outside of strings JSON of one line has no such character, so each may be written as an escape.
    return "".join(json.dumps(c)[1:-1] if c not in _JOINERS and _unsafe(c) else c for c in text)


def paragraph(text: str, first: str = "") -> None:
    """Print text on stdout, broken between words to fit the terminal; what stands first leaves a margin below it."""
    print(_wrapped(as_options(text), first))


def _wrapped(text: str, first: str = "") -> str:
    import shutil
    import textwrap

    width, margin = shutil.get_terminal_size().columns, " " * len(first)
    text = printable(text, keep="\n")
    # paths and options are copied from what is printed, so they stay whole
    return textwrap.TextWrapper(width, first, margin, break_long_words=False, break_on_hyphens=False).fill(text)


def note(text: str) -> None:
    """Print a remark on stderr; in a terminal it is broken between words, in a file it is one line."""
    with suppress(OSError, ValueError):  # a stdout that is gone is found when something is written to it
        sys.stdout.flush()
    text = printable(as_options(text), _LONGEST)
    print(_wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr)


def table(rows: Mapping[str, Any], title: str = "") -> None:
    """Print names and values as a small table on stdout."""
    from rich.table import Table

    if title:
        line(title)
    drawn = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    for name, value in rows.items():
        drawn.add_row(plain(name), f"{value:.4f}" if isinstance(value, float) else plain(str(value)))
    console().print(drawn)


def say_quality(quality: Mapping[str, Any], remedy: str = "") -> None:
    """Print the interval and the baseline of a utility and, for a model that learned nothing, what may help."""
    from discreet.metrics.utility import in_sentences

    paragraph(" ".join([*in_sentences(quality), *([remedy] if quality["learned_nothing"] and remedy else [])]))


def plain(text: str) -> Text:
    """Return text for a console that is drawn as it is and never read as markup; its line breaks stay."""
    from rich.text import Text

    return Text(printable(as_options(text), keep="\n"))


def console(*, on_stderr: bool = False) -> Console:
    """Return a console on stdout, or stderr, that draws no control character but its own."""
    from rich.console import Console

    return guarded(Console(stderr=on_stderr, highlight=False))


def guarded(console: Console) -> Console:
    """Return a console that escapes what is not printable in everything that it is given to draw."""
    from rich.console import RenderHook

    class Guard(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [_Guarded(each) for each in renderables]

    console.push_render_hook(Guard())
    return console


def stderr() -> Console:
    """Return a console that writes to stderr."""
    return console(on_stderr=True)


class _Guarded:
    """Something to draw, in whose text controls are escaped; the console's own are kept."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.inner, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)


@contextmanager
def stop_on_interrupt() -> Iterator[list[bool]]:
    """Turn Ctrl-C into a flag, so that work can stop at a good moment; a second one stops at once."""
    import signal

    asked: list[bool] = []

    def remember(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        note("Stopping after this step; press Ctrl-C again to stop at once.")

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, remember)
    except ValueError:  # not in the main thread, where signals cannot be caught
        yield asked
        return
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


_SECONDS_TO_FIRST, _SECONDS_BETWEEN_LINES = 2, 10


@contextmanager
def working(words: str) -> Iterator[None]:
    """Say on stderr what is being done and for how long; off a terminal, a line every ten seconds."""
    console = stderr()
    if not console.is_terminal:
        with _every_ten_seconds(words):
            yield
        return
    with spinner(console) as bar:
        bar.add_task(words)
        yield


@contextmanager
def _every_ten_seconds(words: str) -> Iterator[None]:
    """Print what is being done and for how long, if it takes long."""
    over = threading.Event()

    def tell() -> None:
        waited = 0
        while not over.wait(_SECONDS_BETWEEN_LINES):
            waited += _SECONDS_BETWEEN_LINES
            note(f"{words}: {waited} s so far")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def spinner(console: Console) -> Progress:
    """Return a line with a description and the seconds so far, which is gone when it is done."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    # Results on stdout must stay there: they may go to a file.
    return Progress(*columns, console=console, transient=True, redirect_stdout=False)


@contextmanager
def training_bar(hidden: bool = False) -> Iterator[Callable[[Report], None]]:
    """Show a training on stderr while it runs."""
    console = stderr()
    if hidden or not console.is_terminal:
        yield (lambda report: None) if hidden else lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.fields[stage]}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, facts="", stage="training")

        def show(report: Report) -> None:
            bar.update(task, total=report.steps, completed=report.step, facts=facts(report), stage=report.stage)

        yield show


def lines(clock: Callable[[], float] = time.monotonic) -> Callable[[Report], None]:
    """Return what prints reports on stderr: one soon after a stage began, to say how long it takes, then every 10 s.

    The last report of a stage that was never announced is not printed: it was over at once.
    """
    began: dict[str, float] = {}
    printed: dict[str, float] = {}

    def show(report: Report) -> None:
        now = clock()
        start = began.setdefault(report.stage, now)
        due = printed[report.stage] + _SECONDS_BETWEEN_LINES if report.stage in printed else start + _SECONDS_TO_FIRST
        ends = report.step == report.steps and report.stage in printed
        if now < due and not ends:
            return
        printed[report.stage] = now
        # What is not a terminal may be a file: the loss of a protected run is private and stays out of it.
        shown_facts = facts(report if report.epsilon is None else replace(report, loss=None))
        unit = "text" if report.stage == "encoding" else "step"
        note(
            f"{report.stage}: {unit} {report.step:,}/{report.steps:,}  {shown_facts}  "
            f"about {report.seconds_left:.0f} s left"
        )

    return show


def facts(report: Report) -> str:
    """Return loss and speed, where steps are taken, and, for private training, the budget spent so far."""
    told = []
    if report.loss is not None:
        told.append(f"loss {report.loss:.3f}")
    if report.rows_per_second is not None:
        told.append(f"{report.rows_per_second:,.0f} rows/s")
    if report.epsilon is not None:
        unbounded = report.epsilon == float("inf")
        told.append("no guarantee" if unbounded else f"epsilon ≤ {in_digits(report.epsilon)}")
    return "  ".join(told)
