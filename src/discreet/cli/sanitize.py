"""`discreet sanitize`: rewrite the words of a file so that it may leave, and say what that guarantees."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, Quoting, Separator
from discreet.cli.output import as_json, line, note, printable, stderr
from discreet.cli.threads import Threads, use_threads
from discreet.core.checks import one_of, open_probability, positive, refuse
from discreet.core.errors import OutputError, SettingError
from discreet.core.guarantee import in_digits, words_for_size

if TYPE_CHECKING:
    from discreet.core.randomness import Rng
    from discreet.data.columns import FileColumns
    from discreet.protections.words.swap import Changes, WordSwap

FORMATS = ("txt", "csv", "tsv", "jsonl")


def sanitize(
    source: Annotated[str, typer.Argument(metavar="FILE", help="CSV, TSV, JSONL, Parquet or text; - reads stdin.")],
    out: Annotated[str, typer.Option("--out", help="File to write, in the format its ending says; - is stdout.")],
    epsilon_per_word: Annotated[
        float, typer.Option(help="Cost of one word exchanged for any other; smaller is more noise.")
    ],
    mechanism: Annotated[str, typer.Option(help="santext, santext+ or noise.")] = "santext",
    text: Annotated[list[str] | None, typer.Option("--text", help="Column to rewrite (text); may be repeated.")] = None,
    model: Annotated[str, typer.Option(help="Whose words: minilm, or a folder of a BERT-like encoder.")] = "minilm",
    sensitive: Annotated[Path | None, typer.Option(help="santext+: a list of sensitive words, one a line.")] = None,
    public: Annotated[
        Path | None, typer.Option(help="santext+: public text, one a line; what is rare in it is sensitive.")
    ] = None,
    share: Annotated[float, typer.Option(help="santext+ with --public: share of the vocabulary that is rare.")] = 0.9,
    sample_others: Annotated[float, typer.Option(help="santext+: how often other words are drawn too.")] = 0.2,
    keep_marks: Annotated[bool, typer.Option("--keep-marks", help="Leave . , ; : ! ? where they stand.")] = False,
    unknown: Annotated[str, typer.Option(help="Words outside the vocabulary: pieces (replace them) or refuse.")] = (
        "pieces"
    ),
    delta: Annotated[float, typer.Option(help="For the second figure of a whole text, and for the total.")] = 1e-5,
    unit: Annotated[
        str | None, typer.Option("--unit", help="Column that says whose a row is; without it each row is its own.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Ledger to spend from, in place of the record of these people.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Most epsilon of these people, all trainings and files.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--format", help="Of stdin and stdout: txt, csv, tsv or jsonl.")] = None,
    separator: Separator = None,
    quoting: Quoting = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it is there.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeatable, for experiments; then nothing is certified.")] = None,
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Rewrite every word of a text under metric privacy; other columns are copied as they are.

    What it costs is added to the record of these people, with their trainings (`discreet ledger`).
    """
    from discreet.core.randomness import Rng
    from discreet.data.columns import check_fits, format_of, read_columns, render, write_whole
    from discreet.data.separated import Layout
    from discreet.data.sources import EACH_ROW, unit_word
    from discreet.training.sanitized import counted_file

    positive("epsilon-per-word", epsilon_per_word, "It is the cost of one word; 8 is very noisy, 40 keeps most words.")
    open_probability("delta", delta)
    if budget is not None:
        positive("budget", budget, "It is the most epsilon that these people may lose in all releases together.")
    if kind is not None:
        one_of("format", kind, FORMATS)
    _check_output(source, out, force)
    suffix = "." + (kind or (Path(source).suffix.lower().lstrip(".") if source != "-" else "txt"))
    found = read_columns(source, suffix, tuple(text or ("text",)), Layout(separator, quoting))
    ending = suffix if out == "-" else format_of(out, suffix)
    check_fits(found, ending)
    owners = _owners(found, unit)
    use_threads(threads)
    swap = _built(mechanism, epsilon_per_word, model, sensitive, public, share, sample_others, keep_marks, unknown)
    rng = Rng.secure() if seed is None else Rng(seed)  # nobody needs to repeat the draws
    path = None if out == "-" else Path(out)
    word = EACH_ROW if unit is None else unit_word(unit)
    with counted_file(
        swap, found.texts, owners, word, delta=delta, secret=rng.is_secret, out=path, ledger=ledger, budget=budget,
        say=note,
    ) as count:  # fmt: skip
        with _bar() as watch:
            texts = [one for column in found.texts.values() for one in column]
            rewritten, changes = _swapped(swap, texts, rng, watch)
        rows = len(texts) // max(1, len(found.texts))
        columns = {name: rewritten[i * rows : (i + 1) * rows] for i, name in enumerate(found.texts)}
        data = render(found, columns, ending)
        sentence, people = count()
        if path is None:
            _write_out(data)
        else:
            write_whole(path, data, replace=force)
    copied = [name for name in found.names if name not in found.texts]
    _account(swap, changes, copied, delta, rng, out, json, len(found.texts), {**people, "sentence": sentence})


def _owners(found: FileColumns, unit: str | None) -> list[str] | None:
    """Return whose each row is, or None where each row is its own."""
    from discreet.data.sources import EACH_ROW, read_units

    if unit is None or unit == EACH_ROW:
        return None
    if found.table is None:
        raise refuse(
            "unit", unit, "left out for lines of plain text", "They have no columns; give a CSV file, or JSON lines."
        )
    return read_units(found.table, unit)


def _write_out(data: bytes) -> None:
    """Write the file to stdout as it is, or made safe to look at where stdout is a terminal."""
    if sys.stdout.isatty():
        data = printable(data.decode("utf-8", "backslashreplace"), keep="\n\t").encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _swapped(
    swap: WordSwap, texts: list[str], rng: Rng, watch: Callable[[int, int], None]
) -> tuple[tuple[str, ...], Changes]:
    """Rewrite the texts that are not blank: a blank line of a plain text file stays one."""
    filled = [text for text in texts if text.strip()]
    rewritten, changes = swap.swap(filled, rng, watch)
    new = iter(rewritten)
    return tuple(next(new) if text.strip() else "" for text in texts), changes


def _built(
    mechanism: str,
    epsilon: float,
    model: str,
    sensitive: Path | None,
    public: Path | None,
    share: float,
    sample_others: float,
    keep_marks: bool,
    unknown: str,
) -> WordSwap:
    from discreet.protections.words.swap import SANTEXT_PLUS, UNKNOWN_WORDS, WORD_MECHANISMS, WordSwap, read_words
    from discreet.protections.words.table import WordTable, listed_words, rare_words

    one_of("mechanism", mechanism, WORD_MECHANISMS)
    one_of("unknown", unknown, UNKNOWN_WORDS)
    if mechanism != SANTEXT_PLUS and (sensitive is not None or public is not None):
        raise refuse("mechanism", mechanism, "santext+ with --sensitive or --public", "Any other protects every word.")
    if mechanism == SANTEXT_PLUS and (sensitive is None) == (public is None):
        raise SettingError(
            "Expected --sensitive FILE or --public FILE for santext+, one of the two. Give a list of sensitive words, "
            "or public text: what is rare in it is sensitive."
        )
    words = read_words(sensitive) if sensitive is not None else read_words(public) if public is not None else []
    table = WordTable.of_encoder(model)
    marked = None
    if sensitive is not None:
        marked = listed_words(table, words)
    elif public is not None:
        marked = rare_words(table, words, share)
    return WordSwap(table, epsilon, mechanism, marked, sample_others, keep_marks, unknown)


def _check_output(source: str, out: str, force: bool) -> None:
    if out == "-":
        return
    path = Path(out)
    if source != "-" and path.exists() and Path(source).exists() and path.samefile(source):
        raise OutputError(f"Expected an --out other than the input {source!r}. Name another file.")
    if path.is_dir():
        raise OutputError(f"Expected a file for --out, found the folder {out!r}. Name a file in it.")
    if path.exists() and not force:
        raise OutputError(f"Expected no file at {out!r}. It is there; name another, or replace it with --force.")
    if not path.resolve().parent.is_dir():
        raise OutputError(f"Expected the folder of {out!r}. There is none; make it first.")


def _account(
    swap: WordSwap,
    changes: Changes,
    copied: list[str],
    delta: float,
    rng: Rng,
    out: str,
    json: bool,
    columns: int,
    total: dict[str, Any],
) -> None:
    """Say how much changed and what is guaranteed; on stderr where stdout holds the text."""
    secret, longest = rng.is_secret, max(1, changes.longest)
    word = swap.word_guarantee(secret)
    whole = swap.text_guarantee(longest, secret=secret)
    best = swap.text_guarantee(longest, delta, secret)
    if json:
        values: dict[str, Any] = {
            "out": out,
            "texts": changes.texts,
            "words": changes.words,
            "changed": changes.changed,
            "unknown": changes.unknown,
            "copied_columns": copied,
            "per_word": word.as_dict(),
            "per_text": whole.as_dict(),
            "per_text_at_delta": best.as_dict(),
            "people": total,
        }
        if out == "-":
            as_json(values, on_stderr=True)
        else:
            as_json(values)
        return
    say = note if out == "-" else line
    say(changes.sentence())
    kind = "Certified" if word.certified else f"An estimate, as {word.reason}"
    price = in_digits(swap.epsilon_per_word, 6)
    say(
        f"{kind}: each {word.unit} has epsilon = {price} and delta = 0 when it is exchanged for any other, and {price} "
        "r for another at a share r of the largest distance (metric privacy)."
    )
    if whole.exists:
        say(
            f"By composition a text has {price} for each of its words: {in_digits(whole.epsilon, 6)} for the longest."
            f"{words_for_size(whole.epsilon)}"
        )
        if best.epsilon < 0.99 * whole.epsilon:
            say(f"At delta = {delta:g} the longest has epsilon = {in_digits(best.epsilon)}, by the pld accountant.")
        if columns > 1:
            say(f"A row has {columns} rewritten texts and costs the sum of them.")
    else:
        say(f"For a whole text nothing is guaranteed: {whole.reason}.")
    say("Not protected: " + "; ".join(swap.assumptions) + ".")
    say(f"It assumes: {swap.arithmetic}.")
    if copied:
        say("Copied as they are: " + ", ".join(copied) + ".")
    if out != "-":
        line(f"Written to {out}.")
    note(total["sentence"])  # for the owner, not for release: the file says nothing of what else these people were in


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    console = stderr()
    if not console.is_terminal:
        shown: set[int] = set()

        def told(done: int, total: int) -> None:
            tenth = 10 * done // max(1, total)
            if tenth not in shown:
                shown.add(tenth)
                note(f"{done:,} of {total:,} words")

        yield told
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("words", total=None)
        yield lambda done, total: bar.update(task, total=total, completed=done)
