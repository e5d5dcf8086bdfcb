"""`discreet check`: compare a release with a policy, for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, console, headed, line, plain, working

if TYPE_CHECKING:
    from discreet.statement.policy import Check


def check(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, sanitized file or ledger.")],
    policy: Annotated[Path, typer.Option("--policy", help="Policy file (TOML).")],
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            help="Output of `discreet attack RUN --json` or `discreet audit RUN --json`; may be repeated. Files in "
            "RUN/attacks are read without it.",
        ),
    ] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", help="Write violations as SARIF 2.1.0.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write all rules as JUnit XML.")] = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="Ledger of the run, if stored elsewhere.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Delta, for a ledger without a budget.")] = None,
    json: Json = False,
) -> None:
    """Compare a release with a policy; the exit status is 0 if it passes and 1 if it does not.

    A policy limits epsilon, delta, unit, adjacency, caveats and the measured
    leakage of attacks, and may require an audit. Bad input has exit status 2.
    """
    with working("reading the run and its ledger"):
        from discreet.statement.facts import read_facts, read_result
        from discreet.statement.policy import Policy, checks

        rules = Policy.read(policy)
        facts = read_facts(run, ledger=ledger, delta=delta)
        outcome = checks(rules, facts, [read_result(path, facts.digest) for path in results or ()])
    failed = [one for one in outcome if not one.passed]
    _write(sarif, junit, outcome, policy, run)
    if json:
        as_json(
            {
                "run": str(run),
                "policy": str(policy),
                "passed": not failed,
                "checks": [{**vars(one), "sentence": one.sentence} for one in outcome],
            }
        )
    else:
        _show(outcome)
        line(f"{len(failed)} of {len(outcome)} rules violated." if failed else f"All {len(outcome)} rules met.")
    if failed:
        raise typer.Exit(1)


def _write(sarif: Path | None, junit: Path | None, outcome: list[Check], policy: Path, run: Path) -> None:
    from discreet.core.files import cannot_write, write_atomic
    from discreet.statement import check_formats

    texts = {} if sarif is None else {sarif: check_formats.sarif(outcome, policy, run)}
    texts |= {} if junit is None else {junit: check_formats.junit(outcome, run)}
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text, private=False)
        except OSError as error:
            raise cannot_write(path, error) from None


def _show(outcome: list[Check]) -> None:
    table = headed(["rule", "expected", "got", ""], left=4)
    for one in outcome:
        table.add_row(*(plain(text) for text in (one.rule, one.limit, one.value, "met" if one.passed else "VIOLATED")))
    screen = console()
    screen.print(table)
    for one in outcome:
        if not one.passed and one.reason:
            screen.print(plain(one.rule + ": " + one.reason))
