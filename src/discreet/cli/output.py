"""Terminal output: results as text or one JSON object on stdout, messages and progress on stderr.

Names, labels, server errors, file names and the guesses of attackers are untrusted. All printed text passes through
`printable`, so that it cannot move the cursor, set a title or a color, or reverse a line.
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
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from discreet.core.errors import Message, Spelling
from discreet.core.guarantee import in_digits

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

    from discreet.training.steps import Report


_LONGEST = 10_000  # characters of one message
_MOST_CLASSES = 20  # that are listed one by one
# Control and format characters (which reverse or hide text), surrogates, line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"  # Persian and emoji are written with them
_PLAIN = re.compile(r"[ -~\u00a1-\u00ac\u00ae-\u02ff]*")


def printable(text: str, longest: int | None = None, keep: str = "") -> str:
    """Return text with every control and format character escaped, truncated to `longest` characters.

    Characters in `keep` are not escaped, such as the line breaks of trusted text.

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


# Returns the running command, looked up only when needed: messages name each setting by the option of that command.
RUNNING: ContextVar[Callable[[], Any]] = ContextVar("running", default=lambda: None)


@runtime_checkable
class HasMoreOptions(Protocol):
    """A command with options that are loaded only when needed."""

    def more_options(self) -> Sequence[Any]:
        """Return the options that are not in the command's `params`."""


def options_of(command: Any) -> Spelling:
    """Return a function that spells settings as the options and arguments of a command, None for other settings.

    >>> from types import SimpleNamespace as Fake
    >>> size = Fake(name="batch_size", opts=["--batch-size"], secondary_opts=[], param_type_name="option")
    >>> pooler = Fake(name="pooler", opts=["--pooler"], secondary_opts=["--no-pooler"], param_type_name="option")
    >>> say = options_of(Fake(params=[size, pooler]))
    >>> say("batch_size", None), say("batch_size", 8), say("pooler", False), say("texts", None)
    ('--batch-size', '--batch-size 8', '--no-pooler', None)
    >>> say("batch_size", [8, 16])
    '--batch-size 8,16'
    """
    parameters = _by_name(() if command is None else command.params)
    more: object = command

    def spelling(name: str, value: Any) -> str | None:
        parameter = parameters.get(name := name.replace("-", "_"))
        if parameter is None and isinstance(more, HasMoreOptions):
            parameter = _by_name(more.more_options()).get(name)
        if parameter is None:
            return None
        if parameter.param_type_name == "argument":
            return str(parameter.metavar or parameter.name.upper())
        if value is False and parameter.secondary_opts:
            return str(parameter.secondary_opts[-1])
        option: str = max(parameter.opts, key=len)
        if value is None or isinstance(value, bool):
            return option
        return f"{option} {shlex.quote(','.join(map(str, value)) if isinstance(value, list) else str(value))}"

    return spelling


def _by_name(command_parameters: Iterable[Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for parameter in command_parameters:
        for name in (*(option.lstrip("-").replace("-", "_") for option in parameter.opts), parameter.name or ""):
            parameters.setdefault(name, parameter)
    return parameters


def as_options(text: str) -> str:
    """Return a message with its settings spelled as options of the running command."""
    if not isinstance(text, Message):
        return text
    return text.worded(options_of(RUNNING.get()()))


def _unsafe(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def line(*fields: object, sep: str = " ") -> None:
    """Print one line on stdout; line breaks in fields are escaped."""
    print(*(printable(str(field)) for field in fields), sep=sep)


def document(text: str) -> None:
    """Print a whole text on stdout with its own line breaks, and with every other control character escaped."""
    print(printable(text, keep="\n"), end="")


def as_json(values: Mapping[str, Any], *, on_stderr: bool = False) -> None:
    """Print one JSON object on stdout, with control characters as JSON escapes."""
    print(json_line(values), file=sys.stderr if on_stderr else sys.stdout)


def json_line(values: Mapping[str, Any]) -> str:
    """Return one JSON object on one line.

    >>> json_line({"a": "\\x1b\\x9b\\u202e", "b": "é"})
    '{"a": "\\\\u001b\\\\u009b\\\\u202e", "b": "é"}'
    """
    text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    if _PLAIN.fullmatch(text):
        return text
    # One-line JSON has such characters only inside strings, so each can be written as an escape.
    return "".join(json.dumps(c)[1:-1] if c not in _JOINERS and _unsafe(c) else c for c in text)


def paragraph(text: str, first: str = "") -> None:
    """Print text on stdout, wrapped to the terminal; later lines are indented by the width of `first`."""
    print(_wrapped(as_options(text), first))


def _wrapped(text: str, first: str = "") -> str:
    import shutil
    import textwrap

    width, margin = shutil.get_terminal_size().columns, " " * len(first)
    text = printable(text, keep="\n")
    # users copy paths and options from the output, so they are not broken
    return textwrap.TextWrapper(width, first, margin, break_long_words=False, break_on_hyphens=False).fill(text)


def note(text: str) -> None:
    """Print a message on stderr, wrapped in a terminal, otherwise as one line."""
    with suppress(OSError, ValueError):  # a closed stdout is reported by the next write to it
        sys.stdout.flush()
    text = printable(as_options(text), _LONGEST)
    print(_wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr)


def table(rows: Mapping[str, Any], title: str = "") -> None:
    """Print names and values as a small table on stdout."""
    from rich.table import Table

    if title:
        line(title)
    grid = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    for name, value in rows.items():
        grid.add_row(plain(name), f"{value:.4f}" if isinstance(value, float) else plain(str(value)))
    console().print(grid)


def print_quality(quality: Mapping[str, Any], remedy: str = "") -> None:
    """Print the confidence interval and baseline of a metric and, for a model that learned nothing, a remedy."""
    from discreet.metrics.utility import in_sentences

    paragraph(" ".join([*in_sentences(quality), *([remedy] if quality["learned_nothing"] and remedy else [])]))


def print_classes(classes: Sequence[Mapping[str, Any]]) -> None:
    """Print the share of correct rows of each class, for up to as many classes as fit a short list."""
    if 0 < len(classes) <= _MOST_CLASSES:
        table({f"{one['class']} ({one['rows']:,} rows)": one["value"] for one in classes}, title="Recall by class")


def headed(heads: Sequence[str], left: int = 0) -> Table:
    """Return a table with a line below its heads; the first `left` columns are aligned left, the others right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, head in enumerate(heads):
        made.add_column(head, justify="left" if place < left else "right")
    return made


def plain(text: str) -> Text:
    """Return console text that keeps its line breaks and is never parsed as markup."""
    from rich.text import Text

    return Text(printable(as_options(text), keep="\n"))


def console(*, on_stderr: bool = False) -> Console:
    """Return a console on stdout or stderr that escapes control characters in what it renders."""
    from rich.console import Console

    return guarded(Console(stderr=on_stderr, highlight=False))


def guarded(console: Console) -> Console:
    """Make a console escape control characters in everything it renders, and return it."""
    from rich.console import RenderHook

    class Guard(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [_Guarded(renderable) for renderable in renderables]

    console.push_render_hook(Guard())
    return console


def stderr() -> Console:
    """Return a console that writes to stderr."""
    return console(on_stderr=True)


class _Guarded:
    """A renderable whose text has its control characters escaped; those of the console itself are kept."""

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
    """Turn Ctrl-C or SIGTERM into a flag, so that work stops after the current step; a second one stops at once."""
    import signal

    interrupts: list[bool] = []

    def remember(number: int, frame: Any) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(True)
        note("Stopping after this step; press Ctrl-C again to stop at once.")

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, remember)
    except ValueError:  # outside the main thread, where signals cannot be handled
        yield interrupts
        return
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_SECONDS_TO_FIRST, _SECONDS_BETWEEN_LINES = 2, 10


@contextmanager
def working(words: str) -> Iterator[None]:
    """Show on stderr what is running and for how long; without a terminal, print a line every ten seconds."""
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
    """Print what is running and for how long, every ten seconds."""
    over = threading.Event()

    def report() -> None:
        waited = 0
        while not over.wait(_SECONDS_BETWEEN_LINES):
            waited += _SECONDS_BETWEEN_LINES
            note(f"{words}: {waited} s so far")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def spinner(console: Console) -> Progress:
    """Return a transient progress line with a description and the elapsed time."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    # Do not redirect stdout: results may go to a file.
    return Progress(*columns, console=console, transient=True, redirect_stdout=False)


@contextmanager
def bar(description: str, *facts: str) -> Iterator[Callable[..., None] | None]:
    """Show a bar on stderr, with further columns of facts, and yield what updates it; None without a terminal."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn()
    more = (*(TextColumn(f"{{task.fields[{name}]}}") for name in facts), TimeRemainingColumn())
    with Progress(*columns, *more, console=console, transient=True) as shown:
        empty: dict[str, Any] = dict.fromkeys(facts, "")
        yield partial(shown.update, shown.add_task(description, total=None, **empty))


@contextmanager
def training_bar() -> Iterator[Callable[[Report], None]]:
    """Show the progress of a training run on stderr."""
    with bar("training", "facts") as update:

        def show(report: Report) -> None:
            if update is not None:
                update(total=report.steps, completed=report.step, facts=facts(report), description=report.stage)

        yield lines() if update is None else show


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Show on stderr the stage and how much of it is done; without a terminal, print a line every ten seconds."""
    with bar("starting") as update:
        last = time.monotonic()

        def show(stage: str, done: int, total: int) -> None:
            nonlocal last
            if update is not None:
                update(description=stage, completed=done, total=total)
            elif time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                note(f"{stage}: {done:,}/{total:,}")

        yield show


def lines(clock: Callable[[], float] = time.monotonic) -> Callable[[Report], None]:
    """Return a function that prints reports on stderr: one 2 s after a stage begins, then every 10 s.

    The last report of a stage that printed nothing is not printed either: the stage was short.
    """
    starts: dict[str, float] = {}
    printed: dict[str, float] = {}

    def show(report: Report) -> None:
        if report.seconds_left is None:
            return  # lines at regular times would show how long the steps take
        now = clock()
        start = starts.setdefault(report.stage, now)
        due = printed[report.stage] + _SECONDS_BETWEEN_LINES if report.stage in printed else start + _SECONDS_TO_FIRST
        ends = report.step == report.steps and report.stage in printed
        if now < due and not ends:
            return
        printed[report.stage] = now
        # stderr may be a file here: the loss of a protected run is private and is not written to it.
        shown_facts = facts(report if report.epsilon is None else replace(report, loss=None))
        unit = {"encoding": "text", "rounds": "round"}.get(report.stage, "step")
        note(
            f"{report.stage}: {unit} {report.step:,}/{report.steps:,}  {shown_facts}  "
            f"about {report.seconds_left:.0f} s left"
        )

    return show


def facts(report: Report) -> str:
    """Return the loss and speed of a report and, for private training, the epsilon of the whole plan."""
    parts = []
    if report.loss is not None:
        parts.append(f"loss {report.loss:.3f}")
    if report.rows_per_second is not None:
        parts.append(f"{report.rows_per_second:,.0f} rows/s")
    if report.epsilon is not None:
        unbounded = report.epsilon == float("inf")
        parts.append("no guarantee" if unbounded else f"epsilon ≤ {in_digits(report.epsilon)}")
    return "  ".join(parts)
