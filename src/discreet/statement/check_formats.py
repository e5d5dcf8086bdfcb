"""The outcome of a policy check as SARIF 2.1.0 and as JUnit XML, for systems of continuous integration.

Paper: OASIS 2020, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

from discreet import __version__
from discreet.statement.policy import Check

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_NOT_XML = re.compile("[^\\t\\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ABOUT = {
    "epsilon": "The epsilon of the release is within the limit.",
    "delta": "The delta of the release is within the limit.",
    "unit": "The guarantee is for an accepted privacy unit.",
    "adjacency": "The guarantee is under an accepted adjacency.",
    "certified": "The guarantee is a proven bound.",
    "caveats": "The guarantee has no caveats but the accepted ones.",
    "max-per-unit": "The rows of one unit are capped.",
    "total-epsilon": "Everything in the ledger together is within the limit.",
    "audit": "An audit is stored with the release.",
    "audit-bound": "The lower bound of the audit does not exceed the claimed epsilon.",
    "audit-checks": "No check of the implementation failed in the audit.",
    "audit-confidence": "The audit has the required confidence.",
    "attack": "The leakage that an attack measured is under its ceiling.",
}


def sarif(checks: Sequence[Check], policy: Path, run: Path) -> str:
    """Return the violated rules as a SARIF log, located in the policy file; a release that passes has no results."""
    rules = list(dict.fromkeys(_id(check) for check in checks))
    where = {"artifactLocation": {"uri": _uri(policy)}, "region": {"startLine": 1}}
    results = [
        {
            "ruleId": _id(check),
            "ruleIndex": rules.index(_id(check)),
            "kind": "fail",
            "level": "error",
            "message": {"text": f"{run.name}: {check.sentence}"},
            "locations": [{"physicalLocation": where}],
            "partialFingerprints": {"rule/v1": hashlib.sha256(f"{run.name}\0{check.rule}".encode()).hexdigest()},
        }
        for check in checks
        if not check.passed
    ]
    about = [{"id": rule, "shortDescription": {"text": _ABOUT[rule]}} for rule in rules]
    tool = {"driver": {"name": "discreet", "version": __version__, "rules": about}}
    checked = {"tool": tool, "invocations": [{"executionSuccessful": True}], "results": results}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [checked]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def junit(checks: Sequence[Check], run: Path) -> str:
    """Return every rule as a test case of JUnit XML."""
    failed = sum(not check.passed for check in checks)
    counts = {"tests": str(len(checks)), "failures": str(failed), "errors": "0", "skipped": "0"}
    suites = ElementTree.Element("testsuites", {"name": "discreet check", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": _plain(run.name), "time": "0", **counts})
    for check in checks:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"discreet.{_plain(run.name)}", "name": _plain(check.rule), "time": "0"}
        )
        if not check.passed:
            failure = ElementTree.SubElement(case, "failure", {"message": _plain(check.sentence), "type": _id(check)})
            failure.text = _plain(check.sentence)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _id(check: Check) -> str:
    return check.rule.split()[0].rstrip(",")


def _uri(path: Path) -> str:
    """Return a path as a relative URI, as code scanning asks for; outside the working folder, the name alone."""
    resolved, here = path.resolve(), Path.cwd().resolve()
    relative = resolved.relative_to(here) if resolved.is_relative_to(here) else Path(resolved.name)
    return quote(relative.as_posix())


def _plain(text: str) -> str:
    """Return text without characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)
