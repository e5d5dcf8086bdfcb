"""`discreet data`: summarize a corpus. `discreet cache`: show or delete cached encoder outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Data, Json, Seed, SourceOptions, generated
from discreet.cli.output import as_json, console, headed, one_line, paragraph, working
from discreet.core.errors import DataError, one_of

if TYPE_CHECKING:
    from discreet.data.corpus import Corpus


_SHOWN_CLASSES = 12
_LONG = 100_000  # characters
_UNDIVIDED = "The table above shows all rows of the file, with none held out."
_LONGEST = 400  # characters of an example


@generated()
def data(
    data: Data,
    source: SourceOptions,
    examples: Annotated[int, typer.Option(min=0, help="Number of rows to print, unredacted.")] = 3,
    model: Annotated[str, typer.Option("--model", help="Encoder for which unknown characters are counted.")] = "minilm",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Print the sizes, classes, lengths and splits of DATA, and some examples.

    The examples are private text: use --examples 0 if others can see the
    screen.
    """
    with working("reading the text"):
        from discreet.data.corpus import doubts
        from discreet.data.sources import TextSource

        text_source = TextSource(data, **vars(source), seed=seed)
        try:
            corpus = text_source.load()
        except DataError as error:
            # data that cannot be split can still be shown; data that cannot be read raises the same error again
            corpus = replace(text_source, validation="0").load()
            corpus = corpus.renamed(corpus.name, "train rejects this: " + error.message, _UNDIVIDED)
        facts = summary(corpus, examples)
        facts["doubts"] = doubts(corpus, source.label, source.unit)
        if (warning := _unknown(corpus, model)) is not None:
            facts["doubts"].append(warning)
    if json:
        as_json(facts)
    else:
        _print(corpus, facts)


def summary(corpus: Corpus, examples: int) -> dict[str, Any]:
    """Return the statistics and examples of a corpus as JSON values."""
    import numpy as np

    words = np.array([_count(text) for text in corpus.texts])
    if corpus.second is not None:
        words = words + np.array([_count(text) for text in corpus.second])
    count = len(corpus)
    shown = [round(i * (count - 1) / max(examples - 1, 1)) for i in range(min(examples, count))]
    return {
        "name": corpus.name,
        "rows": count,
        "task": corpus.task,
        "pairs": corpus.is_pairs,
        "unit": corpus.unit_name,
        "units": corpus.unit_count,
        "classes": _by_class(corpus),
        "scores": _score_range(corpus),
        "splits": {name: _split_row(corpus, name) for name in corpus.split_names},
        "words": {
            "shortest": int(words.min()),
            "median": float(np.median(words)),
            "mean": round(float(words.mean()), 1),
            "longest": int(words.max()),
        },
        "repeated_texts": count - len(set(zip(corpus.texts, corpus.second or corpus.texts, strict=True))),
        "remarks": list(corpus.remarks),
        "examples": [_example(corpus, row) for row in shown],
    }


def _count(text: str) -> int:
    """Return the number of words; a very long text is counted in parts, to save memory."""
    starts = range(_LONG, len(text), _LONG)
    split_words = sum(not text[i].isspace() and not text[i - 1].isspace() for i in starts)
    return sum(len(text[i : i + _LONG].split()) for i in (0, *starts)) - split_words


def _unknown(corpus: Corpus, model: str) -> str | None:
    """Return a warning about characters the encoder does not know; ASCII is known, so no tokenizer is loaded."""
    if all(text.isascii() for text in (*corpus.texts, *(corpus.second or ()))):
        return None
    from discreet.models.encoder import tokenizer_of, unknown_share, unknown_words

    return unknown_words(unknown_share(tokenizer_of(model), corpus.texts + (corpus.second or ())), model)


def _by_class(corpus: Corpus) -> dict[str, int] | None:
    if corpus.labels is None:
        return None
    counts = Counter(corpus.labels)
    return {name: counts[label] for label, name in enumerate(corpus.label_names)}


def _score_range(corpus: Corpus) -> dict[str, float] | None:
    if corpus.scores is None:
        return None
    return {
        "lowest": min(corpus.scores),
        "mean": round(sum(corpus.scores) / len(corpus), 4),
        "highest": max(corpus.scores),
    }


def _split_row(corpus: Corpus, name: str) -> dict[str, Any]:
    part = corpus.split(name)
    return {"rows": len(part), "units": part.unit_count, "classes": _by_class(part)}


def _example(corpus: Corpus, row: int) -> dict[str, Any]:
    example: dict[str, Any] = {"row": row + 1, "split": corpus.splits[row], "text": corpus.texts[row]}
    if corpus.second is not None:
        example["text_pair"] = corpus.second[row]
    if corpus.labels is not None:
        example["label"] = corpus.label_names[corpus.labels[row]]
    if corpus.scores is not None:
        example["score"] = corpus.scores[row]
    if corpus.units is not None:
        example["unit"] = corpus.units[row]
    return example


def _print(corpus: Corpus, facts: dict[str, Any]) -> None:
    from rich.text import Text as Words

    screen = console()
    kind = {"classification": f"{corpus.classes} classes", "regression": "scores", "unlabelled": "no labels"}
    pairs = " of pairs" if corpus.is_pairs else ""
    units = "" if corpus.units is None else f", {facts['units']:,} {one_line(corpus.unit_name)} units"
    # Rich Text throughout: a name or a note may contain markup characters.
    screen.print(Words(f"{one_line(corpus.name)}: {facts['rows']:,} rows{pairs}, {kind[corpus.task]}{units}"))
    words = facts["words"]
    screen.print(
        Words(f"words per row: {words['shortest']} to {words['longest']}, median {words['median']:g}")
        + Words(f"; {facts['repeated_texts']:,} rows repeat another" if facts["repeated_texts"] else "")
    )
    if facts["scores"]:
        scores = facts["scores"]
        screen.print(Words(f"scores: {scores['lowest']:g} to {scores['highest']:g}, mean {scores['mean']:g}"))
    table = headed(["split", "rows", *([] if corpus.units is None else ["units"])], left=1)
    names = list(corpus.label_names[:_SHOWN_CLASSES])
    across = len(names) <= 4 and sum(len(name) + 3 for name in names) <= 50
    for name in names if across else ():
        table.add_column(Words(one_line(name)), justify="right", overflow="fold")
    for split, row in facts["splits"].items():
        cells: list[str | Words] = [Words(one_line(split)), f"{row['rows']:,}"]
        cells += [f"{row['units']:,}"] if corpus.units is not None else []
        cells += [f"{row['classes'][name]:,}" for name in names] if across else []
        table.add_row(*cells)
    screen.print(table)
    if facts["classes"] and not across:
        _print_classes(screen, facts["classes"])
    for remark in facts["remarks"]:
        screen.print(Words(f"note: {one_line(remark)}"))
    for doubt in facts["doubts"]:
        screen.print(Words(f"warning: {one_line(doubt)}"))
    for example in facts["examples"]:
        what = example.get("label", example.get("score", "no label"))
        screen.print(Words(f"\nrow {example['row']:,} ({example['split']}, {what})"), style="bold")
        screen.print(Words(one_line(example["text"][: 10 * _LONGEST], _LONGEST)))
        if "text_pair" in example:
            screen.print(Words(f"and: {one_line(example['text_pair'][: 10 * _LONGEST], _LONGEST)}"))


def _print_classes(console: Any, classes: dict[str, int]) -> None:
    from rich.table import Table
    from rich.text import Text as Words

    table = Table(box=None, pad_edge=False, show_header=False)
    most = sorted(classes.items(), key=lambda item: -item[1])[:_SHOWN_CLASSES]
    for name, count in most:
        table.add_row(Words(one_line(name), overflow="ellipsis"), f"{count:,}")
    console.print(table)
    if len(classes) > len(most):
        console.print(f"and {len(classes) - len(most):,} more classes")


def cache(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="show, or clear to delete all files.")] = "show",
    json: Json = False,
) -> None:
    """Show or delete the cached outputs of frozen encoders.

    Later training runs reuse them. They reveal the text. A protected training
    run caches none, except with --cache.
    """
    one_of("action", action, ("show", "clear"))
    from discreet.models.build import cached, clear_cache

    cache_files = clear_cache() if action == "clear" else cached()
    if json:
        as_json(
            {
                "folder": str(cache_files.folder),
                "files": cache_files.files,
                "bytes": cache_files.bytes,
                "cleared": action == "clear",
            }
        )
    elif action == "clear" and cache_files.files:
        paragraph(f"Deleted {cache_files.files:,} files, {cache_files.bytes / 1e6:.1f} MB, from {cache_files.folder}.")
    else:
        paragraph(cache_files.sentence())
