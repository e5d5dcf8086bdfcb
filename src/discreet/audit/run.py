"""The audit of a finished training run: the certified upper bound beside lower bounds measured on its canaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.accounting.events import decompose
from discreet.accounting.ledger import Ledger
from discreet.audit import canaries
from discreet.audit.aspects import Aspect, Untested, untested
from discreet.audit.checks import LEVEL, Check, checks_of
from discreet.audit.one_run import CONFIDENCE, guess, planned_guesses
from discreet.audit.subject import OneRun, figures
from discreet.audit.sums import sums_epsilon
from discreet.audit.trade_off import epsilon_delta, family_of, gaussian, trade_off_of
from discreet.core.errors import open_probability
from discreet.core.files import RUN_DIGEST
from discreet.core.guarantee import Guarantee
from discreet.runs.checkpoint import LEDGER
from discreet.runs.folder import load_run

_DELTA = 1e-5  # of a run without protection
_TYPICAL_MU = 2.0  # the curve for which the guesses of such a run are planned


@dataclass(frozen=True)
class RunAudit:
    """The result of an audit of a run.

    `lower_bound` is that of the f-DP one-run audit, in the family of the run's own mechanism with any noise; `one_run`
    has the others. `sums` is an estimate, and only for gradient canaries. `checks` compare what the steps did with what
    the certificate assumes, and `not_tested` is what neither they nor the lower bound tests. `digest` is that of
    the run.
    """

    kind: str
    lower_bound: float
    upper_bound: float
    delta: float
    confidence: float
    one_run: OneRun
    family: str
    sums: float | None
    guarantee: Guarantee | None
    checks: tuple[Check, ...]
    not_tested: tuple[Untested, ...]
    digest: str | None

    @property
    def refuted(self) -> bool:
        """Whether the measured lower bound exceeds the certified upper bound, or a check of a claim failed."""
        return self.lower_bound > self.upper_bound or (math.isfinite(self.upper_bound) and bool(self.failed))

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.failed)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; an infinite upper bound is None."""
        return {
            RUN_DIGEST: self.digest,
            "lower_bound": self.lower_bound,
            "upper_bound": self.upper_bound if math.isfinite(self.upper_bound) else None,
            "delta": self.delta,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "method": "f-DP, one run",
            "family": self.family,
            "canaries": self.kind,
            "one_run": self.one_run.as_dict(),
            "sums_estimate": self.sums,
            "certified": self.guarantee is not None and self.guarantee.certified,
            "checks": [check.as_dict() for check in self.checks],
            "checks_level": LEVEL,
            "tested": [Aspect.LOWER_BOUND.value, *(check.aspect.value for check in self.checks)],
            "not_tested": [one.as_dict() for one in self.not_tested],
        }


def audit_run(folder: Path | str, *, confidence: float = CONFIDENCE, device: torch.device | str = "cpu") -> RunAudit:
    """Audit a finished run that was trained with canaries.

    The number of guesses is a function of the certificate and of the number of canaries alone, so it was fixed before
    any score was seen.

    Args:
        folder: The folder of the run.
        confidence: The probability that the bound holds.
        device: Where to put the model.

    Guarantee: that of the run; an audit is post-processing.
    """
    open_probability("confidence", confidence)
    folder = Path(folder)
    run = load_run(folder, device)
    planted = run.metrics.get("audit")
    record = canaries.read(folder, planted)
    assert planted is not None
    scores, included = canaries.scores_of(record, run.model)
    stated = run.guarantee
    if stated is None or not stated.exists:
        delta, upper, declared, family = _DELTA, math.inf, gaussian().trade_off(_TYPICAL_MU), epsilon_delta(_DELTA)
        is_gaussian = False
    else:
        delta, upper = stated.delta, stated.epsilon
        event = Ledger.read(folder / LEDGER).event
        declared, family = trade_off_of(event, stated.adjacency), family_of(event, stated.adjacency)
        is_gaussian = not decompose(event, stated.adjacency).uses
    side = planned_guesses(len(scores), declared, confidence)
    outcome = guess(scores, included, side, side)
    white_box = record["kind"] == canaries.GRADIENT
    single = figures(outcome, family, declared, delta, confidence, independent=white_box and is_gaussian)
    sums = sums_epsilon(np.asarray(record["sums"]), included, delta, confidence) if white_box else None
    checks, skipped = checks_of(*canaries.read_steps(folder, planted), run.settings.protect, stated)
    path = [Untested(Aspect.PATH_FROM_TEXT, "gradient canaries have no text")] if white_box else []
    missing = (*skipped, *path, *untested(()))
    return RunAudit(
        record["kind"], single.fdp, upper, delta, confidence, single, family.name, sums, stated, checks, missing,
        run.digest,
    )  # fmt: skip
