"""`discreet statement`: write what a privacy officer signs about a release, from what the release recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, generated
from discreet.cli.output import as_json, document, line, paragraph, working
from discreet.core.errors import OutputError, invalid, one_of, open_probability
from discreet.core.settings import option_field

if TYPE_CHECKING:
    from discreet.statement.facts import Facts

FORMATS = ("json", "markdown", "opendp", "huggingface", "croissant")
_SUFFIXES = {"json": ".json", "markdown": ".md", "opendp": ".yaml", "huggingface": ".md", "croissant": ".json"}


@dataclass(frozen=True)
class StatementOptions:
    """The form of a statement, and what is measured for it."""

    out: Path | None = option_field(None, "File (.json, .md), or folder for both.", "Output", "print it")
    kind: str | None = option_field(
        None,
        "json, markdown, opendp (the registry of deployments), huggingface (front matter of a card) or croissant "
        "(sanitized text).",
        "Output",
        "markdown",
    )
    subgroup: str | None = option_field(
        None, "Column of the held-out rows, by whose values utility is measured.", "Utility"
    )
    measure: bool = option_field(False, "Measure utility again, with intervals and by class.", "Utility")
    data: str | None = option_field(None, "Other text to measure utility on.", "Utility", "the run's held-out rows")
    device: str = option_field("auto", "auto, cpu, cuda or cuda:N.", "Utility")
    ledger: Path | None = option_field(
        None, "Ledger of the run, if it is stored elsewhere.", "Ledger", "in the run folder"
    )
    delta: float | None = option_field(None, "Delta of the guarantee, for a ledger without a budget.", "Ledger")
    all_releases: bool = option_field(
        False,
        "Add the total over all releases of the same people recorded on this machine; not for publication.",
        "Ledger",
    )


@generated()
def statement(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, sanitized file or ledger.")],
    options: StatementOptions,
    json: Json = False,
) -> None:
    """Write the privacy statement of a release: guarantee, unit, method, utility, trust, and what is not protected.

    The sections follow NIST SP 800-226. The JSON has a schema, which the
    package contains. A release without protection has the guarantee "none".
    """
    kind = None if options.kind is None else one_of("format", options.kind, FORMATS)
    if options.delta is not None:
        open_probability("delta", options.delta)
    if json and kind not in (None, "json"):
        raise invalid("format", kind, "left out or json with --json", "Leave one of them out.")
    with working("reading the run and its ledger"):
        from discreet.statement.facts import read_facts
        from discreet.statement.statement import same_people, statement_of

        facts = read_facts(run, ledger=options.ledger, delta=options.delta)
        others = same_people(facts) if options.all_releases else None
    groups = _measured(facts, options)
    with working("composing the statement"):
        values = statement_of(facts, groups=groups, others=others)
    if options.out is not None:
        files = _write(values, facts, kind, options.out)
        if json:
            as_json({"files": [str(path) for path in files], "statement": values})
            return
        paragraph(f"Guarantee: {values['parameters']['guarantee']}. {values['parameters']['sentence']}")
        for path in files:
            line(f"Written to {path}.")
        return
    if json:
        as_json(values)
        return
    document(_text(values, facts, kind or "markdown"))


def _measured(facts: Facts, options: StatementOptions) -> dict[str, Any] | None:
    if not (options.measure or options.subgroup is not None or options.data is not None):
        return None
    from discreet.statement.facts import TRAINED

    if facts.kind not in TRAINED:
        setting = "subgroup" if options.subgroup is not None else "data" if options.data is not None else "measure"
        raise invalid(setting, getattr(options, setting), "left out for this release", "It is not a run with a model.")
    with working("measuring utility on held-out rows"):
        from discreet.experiment.groups import utility_of_groups

        return utility_of_groups(facts.path, options.subgroup, data=options.data, device=options.device)


def _text(values: dict[str, Any], facts: Facts, kind: str) -> str:
    """Return the statement in one format."""
    from json import dumps

    from discreet.statement import exports
    from discreet.statement.markdown import markdown_of

    if kind == "json":
        return dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    if kind == "markdown":
        return markdown_of(values)
    if kind == "opendp":
        return exports.opendp(values)
    return exports.huggingface(values, facts) if kind == "huggingface" else exports.croissant(values, facts)


def _write(values: dict[str, Any], facts: Facts, kind: str | None, out: Path) -> list[Path]:
    """Write the statement to a file, or into a folder: one file, or JSON and Markdown if no format is named."""
    from discreet.core.files import cannot_write, write_atomic

    suffix = out.suffix.lower()
    if out.is_dir() or not suffix:
        kinds = ("json", "markdown") if kind is None else (kind,)
        names = {"json": "statement", "markdown": "statement"}
        paths = {one: out / f"{names.get(one, one)}{_SUFFIXES[one]}" for one in kinds}
    elif kind is not None:
        paths = {kind: out}
    elif suffix in (".json", ".md"):
        paths = {"json" if suffix == ".json" else "markdown": out}
    else:
        raise OutputError(f"Expected --out {str(out)!r} to end in .json or .md, or to be a folder. Or name --format.")
    texts = {path: _text(values, facts, one) for one, path in paths.items()}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text, private=False)
    except OSError as error:
        raise cannot_write(out, error) from None
    return list(texts)
