"""`discreet sanitize`: rewrite the words of a file with word-level privacy, and print the guarantee."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, Threads, generated, use_threads
from discreet.cli.output import as_json, bar, line, note, printable
from discreet.core.errors import OutputError, SettingError, invalid, one_of, open_probability, positive
from discreet.core.guarantee import in_digits, words_for_size
from discreet.core.settings import option_field
from discreet.data.help import HELP

if TYPE_CHECKING:
    from discreet.core.randomness import Rng
    from discreet.data.tables import FileColumns
    from discreet.protections.words.swap import Changes, WordSwap

FORMATS = ("txt", "csv", "tsv", "jsonl")
_WORDS, _PRIVACY, _FILE = "Words", "Privacy", "File"


@dataclass(frozen=True)
class SanitizeOptions:
    """How words are replaced, the privacy unit, and the file format."""

    mechanism: str = option_field("santext", "santext, santext+ or noise.", _WORDS)
    text: list[str] | None = option_field(None, "Column to rewrite; may be repeated.", _FILE, "text")
    model: str = option_field(
        "minilm", "Encoder with the vocabulary: minilm, or the folder of a BERT-like encoder.", _WORDS
    )
    sensitive: Path | None = option_field(None, "santext+: file of sensitive words, one per line.", _WORDS)
    public: Path | None = option_field(
        None, "santext+: file of public texts, one per line; words rare in it are sensitive.", _WORDS
    )
    share: float = option_field(0.9, "santext+ with --public: share of the vocabulary that counts as rare.", _WORDS)
    sample_others: float = option_field(0.2, "santext+: probability that any other word is replaced too.", _WORDS)
    keep_marks: bool = option_field(False, "Keep punctuation (. , ; : ! ?) unchanged.", _WORDS)
    unknown: str = option_field(
        "pieces", "Words outside the vocabulary: pieces (replace their word pieces) or refuse (raise an error).", _WORDS
    )
    delta: float = option_field(1e-5, "Delta of the total epsilon and of the longest text's epsilon.", _PRIVACY)
    unit: str | None = option_field(
        None, "Column with the privacy unit, such as patient or author.", _PRIVACY, "each row"
    )
    ledger: Path | None = option_field(None, "Ledger to spend from.", _PRIVACY, "one per set of units")
    budget: float | None = option_field(
        None, "Largest total epsilon of a unit over all its training runs and files.", _PRIVACY
    )
    kind: str | None = option_field(None, "Format of stdin and stdout: txt, csv, tsv, jsonl.", _FILE)
    separator: str | None = option_field(None, HELP["separator"], _FILE)
    quoting: str | None = option_field(None, HELP["quoting"], _FILE)
    force: bool = option_field(False, "Replace the output file if it exists.", _FILE)
    seed: int | None = option_field(
        None, "Fixed seed, for experiments; the guarantee is then an estimate.", _PRIVACY, "secret"
    )


@generated()
def sanitize(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="CSV, TSV, JSONL, Parquet or text file; - reads stdin.")
    ],
    out: Annotated[str, typer.Option("--out", help="Output file; its extension sets the format; - is stdout.")],
    epsilon_per_word: Annotated[
        float, typer.Option(help="Epsilon for replacing one word by any other; smaller adds more noise.")
    ],
    options: SanitizeOptions,
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Rewrite every word of a text under metric privacy; other columns are copied unchanged.

    The cost is recorded and added to that of the training runs on the same
    units (see `discreet ledger`).
    """
    from json import dumps

    from discreet.core.files import with_digests, write_atomic
    from discreet.core.randomness import Rng
    from discreet.data.separated import Layout
    from discreet.data.sources import EACH_ROW, unit_word
    from discreet.data.tables import check_fits, format_of, read_columns, render, write_whole
    from discreet.runs.sanitized import counted_file, privacy_of
    from discreet.statement.facts import TEXT, sidecar_of

    positive(
        "epsilon-per-word", epsilon_per_word, "It is the epsilon of one word; 8 is very noisy, 40 keeps most words."
    )
    open_probability("delta", options.delta)
    if options.budget is not None:
        remedy = "It limits the total epsilon of a unit over all its releases."
        positive("budget", options.budget, remedy)
    if options.kind is not None:
        one_of("format", options.kind, FORMATS)
    _check_output(source, out, options.force)
    suffix = "." + (options.kind or (Path(source).suffix.lower().lstrip(".") if source != "-" else "txt"))
    file = read_columns(source, suffix, tuple(options.text or ("text",)), Layout(options.separator, options.quoting))
    ending = suffix if out == "-" else format_of(out, suffix)
    check_fits(file, ending)
    owners = _owners(file, options.unit)
    use_threads(threads)
    swap = _built(epsilon_per_word, options)
    rng = Rng.secure() if options.seed is None else Rng(options.seed)
    path = None if out == "-" else Path(out)
    word = EACH_ROW if options.unit is None else unit_word(options.unit)
    with counted_file(
        swap, file.texts, owners, word, delta=options.delta, secret=rng.is_secret, out=path, ledger=options.ledger,
        budget=options.budget, say=note,
    ) as count:  # fmt: skip
        with _progress() as watch:
            texts = [one for column in file.texts.values() for one in column]
            rewritten, changes = _swapped(swap, texts, rng, watch)
        rows = len(texts) // max(1, len(file.texts))
        columns = {name: rewritten[i * rows : (i + 1) * rows] for i, name in enumerate(file.texts)}
        data = render(file, columns, ending)
        sentence, people = count()
        if path is None:
            _write_out(data)
        else:
            write_whole(path, data, replace=options.force)
    copied = [name for name in file.names if name not in file.texts]
    if path is not None:
        privacy = privacy_of(swap, file.texts, owners, word, delta=options.delta, secret=rng.is_secret, copied=copied)
        recorded = with_digests(privacy, {TEXT: path} if path.is_file() else {})
        write_atomic(sidecar_of(path), dumps(recorded, indent=2) + "\n", private=False)
    _account(swap, changes, copied, options.delta, rng, out, json, len(file.texts), {**people, "sentence": sentence})


def _owners(file: FileColumns, unit: str | None) -> list[str] | None:
    """Return the unit of each row, or None if each row is a unit; warn of a column that seems to hold people."""
    from discreet.data.people_columns import column_of_people
    from discreet.data.sources import EACH_ROW, read_units

    if unit is None and file.table is not None:
        for warning in column_of_people(file.table, set(file.texts)):
            note(warning)
    if unit is None or unit == EACH_ROW:
        return None
    if file.table is None:
        raise invalid("unit", unit, "left out for plain text", "It has no columns; use a CSV or JSONL file.")
    return read_units(file.table, unit)


def _write_out(data: bytes) -> None:
    """Write the file to stdout; in a terminal, with control characters escaped."""
    if sys.stdout.isatty():
        data = printable(data.decode("utf-8", "backslashreplace"), keep="\n\t").encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _swapped(
    swap: WordSwap, texts: list[str], rng: Rng, watch: Callable[[int, int], None]
) -> tuple[tuple[str, ...], Changes]:
    """Rewrite the texts that are not blank; blank lines stay blank."""
    filled = [text for text in texts if text.strip()]
    rewritten, changes = swap.swap(filled, rng, watch)
    new = iter(rewritten)
    return tuple(next(new) if text.strip() else "" for text in texts), changes


def _built(epsilon: float, options: SanitizeOptions) -> WordSwap:
    from discreet.protections.words.swap import SANTEXT_PLUS, UNKNOWN_WORDS, WORD_MECHANISMS, WordSwap, read_words
    from discreet.protections.words.table import WordTable, listed_words, rare_words

    mechanism, sensitive, public = options.mechanism, options.sensitive, options.public
    one_of("mechanism", mechanism, WORD_MECHANISMS)
    one_of("unknown", options.unknown, UNKNOWN_WORDS)
    if mechanism != SANTEXT_PLUS and (sensitive is not None or public is not None):
        raise invalid(
            "mechanism", mechanism, "santext+ with --sensitive or --public", "Other mechanisms protect every word."
        )
    if mechanism == SANTEXT_PLUS and (sensitive is None) == (public is None):
        raise SettingError(
            "Expected exactly one of --sensitive FILE and --public FILE for santext+. Pass a list of sensitive words, "
            "or public text whose rare words are sensitive."
        )
    source = sensitive if sensitive is not None else public
    words = [] if source is None else read_words(source)
    table = WordTable.of_encoder(options.model)
    marked = None
    if sensitive is not None:
        marked = listed_words(table, words)
    elif public is not None:
        marked = rare_words(table, words, options.share)
    return WordSwap(table, epsilon, mechanism, marked, options.sample_others, options.keep_marks, options.unknown)


def _check_output(source: str, out: str, force: bool) -> None:
    if out == "-":
        return
    path = Path(out)
    if source != "-" and path.exists() and Path(source).exists() and path.samefile(source):
        raise OutputError(f"Expected --out to differ from the input {source!r}. Choose another file.")
    if path.is_dir():
        raise OutputError(f"Expected --out to be a file, got the folder {out!r}. Choose a file in it.")
    if path.exists() and not force:
        raise OutputError(
            f"Expected no file at {out!r}, but it exists. Choose another file, or replace it with --force."
        )
    if not path.resolve().parent.is_dir():
        raise OutputError(f"Expected the folder of {out!r} to exist. Create it first.")


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
    """Print how much changed and the guarantee; on stderr if stdout holds the text."""
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
        as_json(values, on_stderr=out == "-")
        return
    say = note if out == "-" else line
    say(changes.sentence())
    kind = "Certified" if word.certified else f"An estimate, because {word.reason}"
    price = in_digits(swap.epsilon_per_word, 6)
    say(
        f"{kind}: replacing one {word.unit} by any other has epsilon = {price} and delta = 0, or {price} r for one at "
        "a share r of the largest distance (metric privacy)."
    )
    if whole.exists:
        say(
            f"By composition a text costs {price} per word: {in_digits(whole.epsilon, 6)} for the longest."
            f"{words_for_size(whole.epsilon)}"
        )
        if best.epsilon < 0.99 * whole.epsilon:
            say(f"At delta = {delta:g} the longest has epsilon = {in_digits(best.epsilon)} by PLD accounting.")
        if columns > 1:
            say(f"A row has {columns} rewritten texts and costs their sum.")
    else:
        say(f"There is no guarantee for a whole text: {whole.reason}.")
    say("Not protected: " + "; ".join(swap.assumptions) + ".")
    say(f"Assumption: {swap.arithmetic}.")
    if copied:
        say("Copied unchanged: " + ", ".join(copied) + ".")
    if out != "-":
        line(f"Written to {out}.")
    note(total["sentence"])  # for the owner, not for release: it covers other releases of these units too


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show how many words are done; without a terminal, print a line for each tenth of them."""
    shown: set[int] = set()
    with bar("words") as update:

        def show(done: int, total: int) -> None:
            tenth = 10 * done // max(1, total)
            if update is not None:
                update(completed=done, total=total)
            elif tenth not in shown:
                shown.add(tenth)
                note(f"{done:,} of {total:,} words")

        yield show
