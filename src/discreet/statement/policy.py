"""A policy for releases, and the checks of a release against it: a gate for continuous integration.

    compare = "high"            # attacks: the upper end of the 95% interval (default), or "value"

    [guarantee]
    epsilon = 8                 # at most
    delta = 1e-5                # at most
    unit = "patient"
    adjacency = ["zero-out", "add/remove"]
    certified = true
    caveats = []                # those that are allowed
    max_per_unit = 20           # a cap on rows per unit of at most this
    total_epsilon = 10          # everything in the ledger together

    [audit]
    required = true
    confidence = 0.95           # at least

    [attacks.loss]              # an attack by its name, and the ceiling of each metric
    auc = 0.6

Whatever the policy leaves out is not checked; unknown keys are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from discreet.catalog import ATTACKS
from discreet.core.errors import (
    Message,
    SettingError,
    non_negative,
    one_of,
    open_probability,
    positive,
    probability,
    setting,
    whole,
)
from discreet.core.guarantee import Adjacency, Caveat, in_digits
from discreet.core.settings import parse, read_values
from discreet.metrics.table import METRICS
from discreet.statement.facts import TRAINED, Facts

_ADJACENCIES = tuple(one.value for one in Adjacency)


@dataclass(frozen=True)
class GuaranteeRules:
    """What the guarantee of a release must be; None is not checked."""

    epsilon: float | None = None
    delta: float | None = None
    unit: str | tuple[str, ...] | None = None
    adjacency: str | tuple[str, ...] | None = None
    certified: bool | None = None
    caveats: tuple[str, ...] | None = None
    max_per_unit: int | None = None
    total_epsilon: float | None = None

    def __post_init__(self) -> None:
        """Reject limits outside their range, and unknown names."""
        for name in ("epsilon", "total_epsilon"):
            if (value := getattr(self, name)) is not None:
                positive(f"guarantee.{name}", value, "It is the largest one that is accepted.")
        if self.delta is not None:
            probability("guarantee.delta", self.delta, "It is the largest one that is accepted.")
        if self.max_per_unit is not None:
            whole("guarantee.max_per_unit", self.max_per_unit, 1, "It is the largest cap that is accepted.")
        for value in _listed(self.adjacency):
            one_of("guarantee.adjacency", value, _ADJACENCIES)
        for value in self.caveats or ():
            one_of("guarantee.caveats", value, tuple(Caveat))


@dataclass(frozen=True)
class AuditRules:
    """Whether an audit must be there, and with which confidence."""

    required: bool = True
    confidence: float | None = None

    def __post_init__(self) -> None:
        """Reject a confidence outside its range."""
        if self.confidence is not None:
            open_probability("audit.confidence", self.confidence)


@dataclass(frozen=True)
class Policy:
    """The rules of a policy file."""

    guarantee: GuaranteeRules = field(default_factory=GuaranteeRules)
    audit: AuditRules | None = None
    attacks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    compare: Literal["high", "value"] = "high"

    def __post_init__(self) -> None:
        """Reject unknown attacks and metrics by name, and ceilings that are no numbers."""
        for name, ceilings in self.attacks.items():
            ATTACKS.check("attacks", name)
            if not isinstance(ceilings, Mapping) or not ceilings:
                raise SettingError(f"Expected a table of ceilings in [attacks.{name}], such as auc = 0.6.")
            for metric, ceiling in ceilings.items():
                METRICS.check(f"attacks.{name}", metric)
                non_negative(f"attacks.{name}.{metric}", ceiling, "It is the largest value that is accepted.")

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Return a policy from a TOML file; unknown keys are rejected by name."""
        values = read_values(path, "policy")
        policy = parse(cls, values, path.name)
        if policy == cls():
            raise SettingError(f"Expected rules in {str(path)!r}, got none. Add a limit, such as guarantee.epsilon.")
        return policy


@dataclass(frozen=True)
class Check:
    """One rule, whether a release meets it, and why.

    >>> Check("epsilon", True, "8", "3.2", "").passed
    True
    """

    rule: str
    passed: bool
    limit: str
    value: str
    reason: str

    @property
    def sentence(self) -> str:
        """The result as one sentence."""
        verdict = "meets" if self.passed else "violates"
        return f"{self.rule} {verdict} the policy: expected {self.limit}, got {self.value}. {self.reason}".rstrip()


def checks(policy: Policy, facts: Facts, results: Sequence[Mapping[str, Any]] = ()) -> list[Check]:
    """Return the outcome of every rule; `results` are results of attacks and audits besides the stored ones.

    Args:
        policy: The rules.
        facts: The facts of the release, as `read_facts` returns them.
        results: Results of attacks and audits besides the stored ones.
    """
    known = (*facts.results, *results)
    return [
        *_guarantee(policy.guarantee, facts),
        *([] if policy.audit is None else _audit(policy.audit, facts, known)),
        *_attacks(policy, known),
    ]


def _guarantee(rules: GuaranteeRules, facts: Facts) -> Iterator[Check]:
    stated = facts.guarantee
    exists = stated is not None and stated.exists
    reason = "" if exists else "There is no guarantee" + (f": {stated.reason}." if stated and stated.reason else ".")
    epsilon = stated.epsilon if stated is not None else math.inf
    if rules.epsilon is not None:
        yield Check("epsilon", epsilon <= rules.epsilon, f"<= {rules.epsilon:g}", _bound(epsilon), reason)
    if rules.delta is not None:
        delta = stated.delta if exists and stated is not None else None
        met = delta is not None and delta <= rules.delta
        yield Check("delta", met, f"<= {rules.delta:g}", "none" if delta is None else in_digits(delta), reason)
    if rules.unit is not None:
        allowed = _listed(rules.unit)
        unit = stated.unit if stated is not None else "none"
        yield Check("unit", exists and unit in allowed, " or ".join(allowed), unit, reason)
    if rules.adjacency is not None:
        allowed = _listed(rules.adjacency)
        adjacency = stated.adjacency.value if stated is not None else "none"
        yield Check("adjacency", exists and adjacency in allowed, " or ".join(allowed), adjacency, reason)
    if rules.certified is not None:
        certified = exists and stated is not None and stated.certified
        why = "" if certified or stated is None or not stated.reason else f"Not certified because {stated.reason}."
        yield Check(
            "certified", certified or not rules.certified, "certified" if rules.certified else "anything",
            "certified" if certified else "an estimate" if exists else "none", why or reason,
        )  # fmt: skip
    if rules.caveats is not None:
        present = sorted(stated.caveats) if stated is not None else []
        extra = [one for one in present if one not in rules.caveats]
        limit = "no caveats" if not rules.caveats else "only " + ", ".join(rules.caveats)
        why = " ".join(f"{Caveat(one).sentence}." for one in extra)
        yield Check("caveats", exists and not extra, limit, ", ".join(present) or "none", why or reason)
    if rules.max_per_unit is not None:
        cap = 1 if facts.unit == "row" and facts.kind in TRAINED else facts.max_per_unit
        met = cap is not None and cap <= rules.max_per_unit
        value = "no cap" if cap is None else str(cap)
        why = "" if met else "Train with a cap on the rows of each unit, chosen before looking at the data."
        yield Check("max-per-unit", met, f"<= {rules.max_per_unit} rows", value, why)
    if rules.total_epsilon is not None:
        total = math.inf
        if stated is not None and facts.ledgers:
            total = max(ledger.guarantee(stated.delta).epsilon for ledger in facts.ledgers)
        yield Check("total-epsilon", total <= rules.total_epsilon, f"<= {rules.total_epsilon:g}", _bound(total), reason)


def _audit(rules: AuditRules, facts: Facts, results: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    audits = [one for one in results if "lower_bound" in one]
    if rules.required or audits:
        missing = Message(f"Store the JSON output of `discreet audit` with the run, or name it ({setting('results')}).")
        why = "" if audits else missing
        yield Check("audit", bool(audits) or not rules.required, "an audit", f"{len(audits)} stored", why)
    for audit in audits:
        lower = float(audit["lower_bound"])
        limit = facts.guarantee.epsilon if facts.guarantee is not None else math.inf
        why = "" if lower <= limit else "The measured lower bound refutes the claimed epsilon."
        yield Check("audit-bound", lower <= limit, f"lower bound <= {_bound(limit)}", f"{lower:.4g}", why)
        failed = [str(one.get("what")) for one in audit.get("checks", ()) if not one.get("passed")]
        if "checks" in audit:
            why = f"The implementation is not the mechanism of the figure: {'; '.join(failed)}." if failed else ""
            yield Check("audit-checks", not failed, "no failed check", f"{len(failed)} failed", why)
        if rules.confidence is not None:
            confidence = float(audit.get("confidence") or 0.0)
            yield Check(
                "audit-confidence", confidence >= rules.confidence, f">= {rules.confidence:g}", f"{confidence:g}", ""
            )


def _attacks(policy: Policy, results: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    for name, ceilings in policy.attacks.items():
        entry = ATTACKS.known(name)
        names = {name.casefold(), *(() if entry is None else (entry.label.casefold(),))}
        own = [one for one in results if str(one.get("attack", "")).casefold() in names]
        for metric, ceiling in ceilings.items():
            rule, limit = f"attack {name}, {metric}", f"<= {ceiling:g}"
            leakages = [leak for one in own for leak in one["leakage"] if leak["metric"] == metric]
            if not leakages:
                why = Message(
                    f"Store the JSON output of `discreet attack` with the run, or name it ({setting('results')})."
                )
                yield Check(rule, False, limit, "no result", why)
            for leak in leakages:
                value, high = (_figure(leak.get(key)) for key in ("value", "high"))
                measured = high if policy.compare == "high" and not math.isnan(high) else value
                shown = f"{value:.4g}" + ("" if math.isnan(high) else f" [{_figure(leak.get('low')):.4g}, {high:.4g}]")
                end = "The upper end of the interval is compared." if value <= ceiling < measured else ""
                yield Check(rule, measured <= ceiling, limit, shown, end)


def _figure(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _bound(epsilon: float) -> str:
    return "none" if math.isinf(epsilon) else in_digits(epsilon)


def _listed(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else value
