"""`discreet audit`: measure a lower bound on epsilon, and print it beside the claimed upper bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, generated, of_training, parse_settings
from discreet.cli.output import as_json, paragraph, table, working
from discreet.core.errors import SettingError, invalid, one_of, open_probability, positive, spelled, whole
from discreet.core.guarantee import in_digits
from discreet.core.settings import option_field

if TYPE_CHECKING:
    from discreet.audit.aspects import Aspect, Untested
    from discreet.audit.checks import Check
    from discreet.audit.run import RunAudit
    from discreet.audit.sequential import Sequential
    from discreet.audit.subject import Audited, OneRun, Subject

_MOST_CANARIES = 10_000_000
_MOST_DRAWS = 100_000_000


@dataclass(frozen=True)
class AuditOptions:
    """What is audited without a run, and how."""

    mechanism: str | None = option_field(
        None,
        "Audit a mechanism: gaussian, laplace, laplace-l2, vmf, privunit, randomized-response, discrete-gaussian, "
        "discrete-laplace, word-choice or word-noise.",
        "Without a run",
    )
    protect: str | None = option_field(
        None,
        "Audit one release of a protection: dp-sgd, dir-dp-sgd, dp-ie, ldp, santext, santext+ or word-noise.",
        "Without a run",
    )
    epsilon: float | None = option_field(
        None, "Claimed epsilon of one release; determines the noise.", "Without a run", "1"
    )
    delta: float = option_field(1e-5, "Delta of the claim.", "Without a run")
    dimension: int = option_field(8, "Dimension of vectors, for a mechanism.", "Without a run")
    draws: int = option_field(200_000, "Releases drawn of each neighbour.", "Without a run")
    canaries: int = option_field(10_000, "Canaries of the one-run audit.", "Without a run")
    sequential: bool = option_field(
        False, "Draw until the claim is refuted, at most --draws times; may be stopped.", "Without a run"
    )
    confidence: float = option_field(0.95, "Confidence of the lower bound.", "Options")
    seed: int = option_field(0, "Random seed of the draws.", "Options")
    device: str = option_field("auto", "auto, cpu, cuda or cuda:N; for a run.", "Options")


@generated()
def audit(
    options: AuditOptions,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of a run trained with --audit.", show_default=False)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the protection; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure a lower bound on epsilon, and print it beside the claimed bound.

    RUN is a run that was trained with --audit N. Without a run, audit a
    --mechanism, or one release of a --protect.

    An audit never replaces a proof: it can refute a claimed epsilon, and never
    confirm one. The exit status is 1 if the claim is refuted.
    """
    given = [name for name in ("mechanism", "protect") if getattr(options, name) is not None]
    if (run is not None) + len(given) != 1:
        raise SettingError("Expected one of RUN, --mechanism and --protect. For example: discreet audit runs/a.")
    open_probability("confidence", options.confidence)
    refuted = _audit_run(run, options, json) if run is not None else _audit_release(options, setting or [], json)
    if refuted:
        raise typer.Exit(1)


def _audit_run(run: Path, options: AuditOptions, json: bool) -> bool:
    if options.epsilon is not None:
        raise invalid("epsilon", options.epsilon, "left out for a run", "The certificate of the run is audited.")
    with working("auditing the run"), spelled(of_training("audit")):
        from discreet.audit.run import audit_run
        from discreet.core.device import find_device

        result = audit_run(run, confidence=options.confidence, device=find_device(options.device))
    if json:
        as_json({"run": str(run), **result.as_dict(), "sentence": _verdict(result)})
    else:
        _print_run(result)
    return result.refuted


def _audit_release(options: AuditOptions, settings: list[str], json: bool) -> bool:
    with working("starting"):
        from discreet.audit.subject import audit as audit_subject
        from discreet.core.randomness import Rng

        subject = _subject(options, parse_settings(settings, "--set"))
    if not 2 <= options.canaries <= _MOST_CANARIES:
        raise invalid("canaries", options.canaries, f"in [2, {_MOST_CANARIES:,}]", "10,000 is a common number.")
    if options.draws > _MOST_DRAWS:
        raise invalid("draws", options.draws, f"<= {_MOST_DRAWS:,}", "200,000 takes a second or two.")
    if options.sequential:
        return _audit_sequentially(subject, options, json)
    from discreet.audit.one_run import check_enough

    check_canaries_for(options.canaries, subject.upper_bound(options.delta), check_enough)
    with working(f"drawing {2 * options.draws:,} releases"):
        result = audit_subject(
            subject,
            delta=options.delta,
            rng=Rng(options.seed).fork("audit"),
            draws=options.draws,
            canaries=options.canaries,
            confidence=options.confidence,
        )
    if json:
        as_json({**result.as_dict(), "sentence": _verdict(result)})
    else:
        _print_release(result)
    return result.refuted


def check_canaries_for(canaries: int, epsilon: float, check: Any) -> None:
    """Reject too few canaries for a claim, under the name of this command's option."""
    try:
        check(canaries, epsilon)
    except SettingError as error:
        raise invalid("canaries", canaries, str(error.rule), str(error.remedy)) from None


def _subject(options: AuditOptions, settings: Mapping[str, Any]) -> Subject:
    open_probability("delta", options.delta)
    if options.mechanism is not None:
        if settings:
            raise SettingError("Expected --set with --protect only. A mechanism has --epsilon and --dimension.")
        from discreet.audit.mechanisms import mechanism_subject

        epsilon = 1.0 if options.epsilon is None else positive("epsilon", options.epsilon)
        whole("dimension", options.dimension, 2)
        return mechanism_subject(options.mechanism, epsilon, options.delta, options.dimension)
    from discreet.audit.protections import PROTECTIONS, protection_subject
    from discreet.catalog import protection_class, settings_of_protection

    assert options.protect is not None
    protection_class(options.protect)
    one_of("protect", options.protect, PROTECTIONS)
    budget = "epsilon_per_word" if "epsilon_per_word" in settings_of_protection(options.protect) else "epsilon"
    values = dict(settings)
    if options.epsilon is not None or not values:
        values[budget] = 1.0 if options.epsilon is None else positive("epsilon", options.epsilon)
    return protection_subject(options.protect, values, delta=options.delta)


def _audit_sequentially(subject: Subject, options: AuditOptions, json: bool) -> bool:
    from discreet.audit.aspects import Aspect
    from discreet.audit.sequential import audit_sequentially
    from discreet.core.randomness import Rng

    claim = subject.upper_bound(options.delta)
    so_far: list[Sequential] = []
    with working(f"testing epsilon {in_digits(claim)}"):
        try:
            result = audit_sequentially(
                subject.draw,
                epsilon=claim,
                delta=options.delta,
                rng=Rng(options.seed).fork("audit"),
                confidence=options.confidence,
                most=options.draws,
                watch=so_far.append,
            )
        except KeyboardInterrupt:
            if not so_far:
                raise
            result = so_far[-1]
    values = {
        "name": subject.name,
        "lower_bound": result.epsilon,
        "upper_bound": claim,
        "delta": options.delta,
        "confidence": options.confidence,
        "refuted": result.refuted,
        "method": "sequential",
        "draws": result.draws,
        "tested": [Aspect.LOWER_BOUND.value, *(one.value for one in subject.tested)],
        "not_tested": [one.as_dict() for one in subject.not_tested],
    }
    if json:
        as_json(values)
    else:
        table(
            {
                "claimed upper bound": f"epsilon {in_digits(claim)}",
                "measured lower bound": f"epsilon {_down(result.epsilon)}",
                "stopped after": f"{result.draws:,} draws of each neighbour",
            },
            title=f"Audit of {subject.name}, delta = {in_digits(options.delta)}",
        )
        _print_tested((Aspect.LOWER_BOUND, *subject.tested))
        _print_verdict(_found(result.refuted, options.confidence), subject.not_tested)
    return result.refuted


def _print_run(result: RunAudit) -> None:
    upper = f"epsilon {in_digits(result.upper_bound)}" if math.isfinite(result.upper_bound) else "none, not protected"
    kind = "certified" if result.guarantee is not None and result.guarantee.certified else "claimed"
    rows = {
        f"{kind} upper bound": upper,
        "measured lower bound": f"epsilon {_down(result.lower_bound)} (f-DP, one run)",
        **_one_run_rows(result.one_run),
    }
    if result.sums is not None:
        rows["canary sums"] = f"epsilon {_down(result.sums)} (an estimate, not a bound)"
    table(rows, title=f"Audit of the run, delta = {in_digits(result.delta)}")
    if math.isfinite(result.upper_bound):
        paragraph(_basis(result))
    paragraph(f"The measured lower bound holds within this family: {result.family}.")
    _print_checks(result.checks)
    if math.isfinite(result.upper_bound):
        found = _run_found(result)
    else:
        found = f"Nothing is claimed, so nothing is refuted. The bound holds with {result.confidence:.0%} confidence."
    _print_verdict(found, result.not_tested)


def _print_checks(checks: Sequence[Check]) -> None:
    from discreet.audit.checks import LEVEL

    if checks:
        rows = {one.aspect.label: f"{'FAILED' if one.failed else 'passed'}: {one.found}" for one in checks}
        table(rows, title="Checks of the implementation")
        paragraph(f"A correct run fails any of these checks with probability at most {LEVEL:g}.")


def _run_found(result: RunAudit) -> str:
    from discreet.audit.checks import failure

    found = _found(result.lower_bound > result.upper_bound, result.confidence)
    if not result.failed:
        return found
    return f"REFUTED. {failure(result.failed)}" + (f" {found}" if result.lower_bound > result.upper_bound else "")


def _print_release(result: Audited) -> None:
    rows = {
        "claimed upper bound": f"epsilon {in_digits(result.upper_bound)}",
        "measured lower bound": f"epsilon {_down(result.lower_bound)} (many runs)",
        "one run, f-DP": f"epsilon {_down(result.one_run.fdp)}",
        **_one_run_rows(result.one_run),
    }
    table(rows, title=f"Audit of {result.name}, delta = {in_digits(result.delta)}")
    paragraph(_basis(result))
    _print_tested(result.tested)
    _print_verdict(_found(result.refuted, result.confidence), result.not_tested)


def _one_run_rows(single: OneRun) -> dict[str, str]:
    rows = {"one run, Steinke 2023": f"epsilon {_down(single.steinke)}"}
    if single.order is not None:
        rows["one run, order statistics"] = f"epsilon {_down(single.order)} (independent canaries)"
    counts = single.outcome
    rows["guesses"] = f"{counts.right:,} of {counts.guesses:,} right, {counts.canaries:,} canaries"
    return rows


def _basis(result: Audited | RunAudit) -> str:
    from discreet.audit.run import RunAudit
    from discreet.audit.subject import basis

    return basis("f-DP" if isinstance(result, RunAudit) else "many-runs", result.confidence)


def _found(refuted: bool, confidence: float) -> str:
    if refuted:
        return f"REFUTED with {confidence:.0%} confidence: the measured lower bound exceeds the claim."
    return f"Not refuted, with {confidence:.0%} confidence in the lower bound."


def _print_tested(tested: Sequence[Aspect]) -> None:
    paragraph("Tested:")
    for one in tested:
        paragraph(f"{one.sentence}.", "- ")


def _print_verdict(found: str, not_tested: Sequence[Untested]) -> None:
    """Print the result of an audit, never without what it did not test."""
    from discreet.audit.subject import NOT_A_PROOF

    paragraph("Not tested:")
    for one in not_tested:
        paragraph(f"{one.sentence()}.", "- ")
    paragraph(found)
    paragraph(NOT_A_PROOF)


def _verdict(result: Audited | RunAudit) -> str:
    from discreet.audit.checks import failure
    from discreet.audit.run import RunAudit
    from discreet.audit.subject import NOT_A_PROOF

    claimed = math.isfinite(result.upper_bound)
    found = (
        "The claim is refuted" if result.refuted else "The claim is not refuted" if claimed else "Nothing is claimed"
    )
    reason = f" {failure(result.failed)}" if isinstance(result, RunAudit) and result.failed else ""
    missing = "; ".join(one.sentence() for one in result.not_tested)
    sure = f"{found}, with {result.confidence:.0%} confidence.{reason}{f' {_basis(result)}' if claimed else ''}"
    return f"{sure} Not tested: {missing}. {NOT_A_PROOF}"


def _down(bound: float) -> str:
    """Return a lower bound in few digits, rounded down."""
    if bound <= 0:
        return "0"
    scale = 10.0 ** (3 - math.floor(math.log10(bound)))
    return f"{math.floor(bound * scale * (1 + 1e-12)) / scale:.4g}"
