"""Audits: measured lower bounds of epsilon, beside the proven upper bounds."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.audit.aspects import Aspect as Aspect
    from discreet.audit.aspects import Untested as Untested
    from discreet.audit.checks import Check as Check
    from discreet.audit.many_runs import ManyRuns as ManyRuns
    from discreet.audit.many_runs import audit_many_runs as audit_many_runs
    from discreet.audit.mechanisms import mechanism_subject as mechanism_subject
    from discreet.audit.one_run import Guesses as Guesses
    from discreet.audit.protections import protection_subject as protection_subject
    from discreet.audit.run import RunAudit as RunAudit
    from discreet.audit.run import audit_run as audit_run
    from discreet.audit.sequential import Sequential as Sequential
    from discreet.audit.sequential import audit_sequentially as audit_sequentially
    from discreet.audit.subject import Audited as Audited
    from discreet.audit.subject import OneRun as OneRun
    from discreet.audit.subject import Subject as Subject
    from discreet.audit.subject import audit as audit
    from discreet.audit.subject import audit_one_run as audit_one_run
    from discreet.audit.trade_off import Family as Family
    from discreet.audit.trade_off import TradeOff as TradeOff

_NAMES = {
    "discreet.audit.aspects": ("Aspect", "Untested"),
    "discreet.audit.checks": ("Check",),
    "discreet.audit.many_runs": ("ManyRuns", "audit_many_runs"),
    "discreet.audit.mechanisms": ("mechanism_subject",),
    "discreet.audit.one_run": ("Guesses",),
    "discreet.audit.protections": ("protection_subject",),
    "discreet.audit.run": ("RunAudit", "audit_run"),
    "discreet.audit.sequential": ("Sequential", "audit_sequentially"),
    "discreet.audit.subject": ("Audited", "OneRun", "Subject", "audit", "audit_one_run"),
    "discreet.audit.trade_off": ("Family", "TradeOff"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
