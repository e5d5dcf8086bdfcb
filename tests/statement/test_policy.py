"""A policy: what passes, what fails, and what continuous integration reads of it."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.statement.releases import run_of as run_of

from discreet.cli.main import main
from discreet.core.errors import SettingError
from discreet.core.guarantee import in_digits
from discreet.statement.facts import read_facts
from discreet.statement.markdown import markdown_of
from discreet.statement.policy import Policy, checks
from discreet.statement.statement import statement_of

# A policy, and the rules that a dp-sgd run of epsilon 6 for patients, with the results below, violates.
POLICIES: dict[str, tuple[str, set[str]]] = {
    "all met": (
        '[guarantee]\nepsilon = 8\ndelta = 0.01\nunit = "patient"\nadjacency = ["zero-out", "add/remove"]\n'
        "certified = true\ncaveats = []\ntotal_epsilon = 8\n[audit]\nconfidence = 0.9\n[attacks.loss]\nauc = 0.7\n",
        set(),
    ),
    "too large": ("[guarantee]\nepsilon = 3\ntotal_epsilon = 3\n", {"epsilon", "total-epsilon"}),
    "another unit": (
        '[guarantee]\nunit = "row"\nadjacency = "add/remove"\nmax_per_unit = 5\n',
        {"unit", "adjacency", "max-per-unit"},
    ),
    "a better audit": ("[audit]\nconfidence = 0.99\n[guarantee]\nepsilon = 8\n", {"audit-confidence"}),
    "an attack": (
        "[attacks.loss]\nauc = 0.6\n[attacks.dager]\nrouge_l = 0.1\n",
        {"attack loss, auc", "attack dager, rouge_l"},
    ),
}
AUDIT = {"run": "a", "lower_bound": 0.8, "upper_bound": 6.0, "delta": 1e-3, "confidence": 0.95, "refuted": False}
LOSS = {"attack": "loss threshold", "n": 40,
        "leakage": [{"metric": "auc", "value": 0.55, "low": 0.48, "high": 0.62, "n": 40, "chance": 0.5}]}  # fmt: skip


@pytest.fixture
def run(run_of: Callable[..., Path]) -> Path:
    """Return a protected run with the results of an audit and of an attack."""
    folder = run_of("dp-sgd")
    store(folder, "audit", AUDIT)
    store(folder, "loss", LOSS)
    return folder


def of_run(run: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as one of a run."""
    return {**result, "run_digest": json.loads((run / "metrics.json").read_text())["digests"]["values"]}


def store(run: Path, name: str, result: Mapping[str, Any]) -> None:
    (run / "attacks").mkdir(exist_ok=True)
    (run / "attacks" / f"{name}.json").write_text(json.dumps(of_run(run, result)))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", list(POLICIES))
def test_five_policies(name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, violated = POLICIES[name]
    command = ["check", str(run), "--policy", str(written(tmp_path, text)), "--sarif", str(tmp_path / "a.sarif")]
    status = main([*command, "--junit", str(tmp_path / "a.xml"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {one["rule"] for one in found["checks"] if not one["passed"]} == violated
    assert status == bool(violated) and found["passed"] is not bool(violated)
    check_sarif(json.loads((tmp_path / "a.sarif").read_text()), len(violated))
    suites = ElementTree.parse(tmp_path / "a.xml").getroot()
    cases = suites.findall("testsuite/testcase")
    assert len(cases) == len(found["checks"]) == int(suites.get("tests", ""))
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == violated and suites.get("failures") == str(len(violated))
    assert main(command) == status
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


# The objects of SARIF 2.1.0 that we write, with the names that its schema allows; in upper case those it requires.
SARIF = {
    "sarifLog": "$schema VERSION RUNS inlineExternalProperties properties",
    "run": "TOOL invocations conversion language versionControlProvenance originalUriBaseIds artifacts "
    "logicalLocations graphs results automationDetails runAggregates baselineGuid redactionTokens defaultEncoding "
    "defaultSourceLanguage newlineSequences columnKind externalPropertyFileReferences threadFlowLocations taxonomies "
    "addresses translations policies webRequests webResponses specialLocations properties",
    "tool": "DRIVER extensions properties",
    "toolComponent": "NAME guid organization product productSuite shortDescription fullDescription fullName version "
    "semanticVersion dottedQuadFileVersion releaseDateUtc downloadUri informationUri globalMessageStrings "
    "notifications rules taxa locations language contents isComprehensive properties",
    "reportingDescriptor": "ID deprecatedIds guid deprecatedGuids name deprecatedNames shortDescription "
    "fullDescription messageStrings defaultConfiguration helpUri help relationships properties",
    "invocation": "EXECUTIONSUCCESSFUL commandLine arguments exitCode properties",
    "result": "MESSAGE ruleId ruleIndex rule kind level analysisTarget locations guid correlationGuid occurrenceCount "
    "partialFingerprints fingerprints stacks codeFlows graphs graphTraversals relatedLocations suppressions "
    "baselineState rank attachments hostedViewerUri workItemUris provenance fixes taxa webRequest webResponse "
    "properties",
}


def conforms(value: Mapping[str, Any], kind: str) -> None:
    names = SARIF[kind].split()
    assert {name for name in names if name.isupper()} <= {key.upper() for key in value}
    assert {key.lower() for key in value} <= {name.lower() for name in names}


def check_sarif(log: Mapping[str, Any], violations: int) -> None:
    """Check the log against the schema of SARIF 2.1.0 as far as we use it."""
    conforms(log, "sarifLog")
    assert log["version"] == "2.1.0" and len(log["runs"]) == 1
    (one,) = log["runs"]
    conforms(one, "run")
    conforms(one["tool"], "tool")
    driver = one["tool"]["driver"]
    conforms(driver, "toolComponent")
    assert len({json.dumps(rule) for rule in driver["rules"]}) == len(driver["rules"])  # uniqueItems
    for rule in driver["rules"]:
        conforms(rule, "reportingDescriptor")
        assert rule["shortDescription"]["text"]
    for invocation in one["invocations"]:
        conforms(invocation, "invocation")
    assert len(one["results"]) == violations
    for result in one["results"]:
        conforms(result, "result")
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["kind"] == "fail" and result["level"] == "error" and result["message"]["text"]
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert not place["artifactLocation"]["uri"].startswith("/") and place["region"]["startLine"] >= 1


def test_intervals_are_compared_unless_the_policy_says_otherwise(run: Path, tmp_path: Path) -> None:
    facts = read_facts(run)
    for compare, passed in (("high", False), ("value", True)):
        policy = Policy.read(written(tmp_path, f'compare = "{compare}"\n[attacks.loss]\nauc = 0.6\n'))
        assert [one.passed for one in checks(policy, facts)] == [passed]


def test_a_refuted_claim_fails(run: Path, tmp_path: Path) -> None:
    store(run, "audit", {**AUDIT, "lower_bound": 9.0, "upper_bound": 90.0})
    outcome = checks(Policy.read(written(tmp_path, "[audit]\n")), read_facts(run))
    assert {one.rule: one.passed for one in outcome} == {"audit": True, "audit-bound": False}


def test_the_ceiling_of_an_audit_is_that_of_the_release(run: Path, tmp_path: Path) -> None:
    facts = read_facts(run)
    assert facts.guarantee is not None
    for upper in (0.1, 90.0, None):
        store(run, "audit", {**AUDIT, "upper_bound": upper})
        facts = read_facts(run)
        (bound,) = (one for one in checks(Policy.read(written(tmp_path, "[audit]\n")), facts) if "bound" in one.rule)
        assert bound.passed and bound.limit == f"<= {in_digits(facts.guarantee.epsilon)}".replace(
            "<=", "lower bound <="
        )
        (row,) = (one for one in statement_of(facts)["measured"] if one["what"] == "audit")
        assert row["upper_bound"] == facts.guarantee.epsilon


def test_results_of_anything_else_are_rejected(
    run: Path, run_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither of another run, nor without a run: of a mechanism, a protection, other text or another strength."""
    policy = str(written(tmp_path, "[audit]\n[attacks.loss]\nauc = 0.7\n"))
    other, given = run_of("dp-sgd", protect={"epsilon": 5.0}), tmp_path / "given.json"
    assert main(["check", str(run), "--policy", policy]) == 0
    for result, words in (
        (AUDIT, "without 'run_digest'"),
        (LOSS, "without 'run_digest'"),
        (of_run(other, AUDIT), "of another one"),
        (of_run(other, LOSS), "of another one"),
        ({"attack": "loss", "sweep": [LOSS]}, "and no sweep"),
    ):
        given.write_text(json.dumps(result))
        capsys.readouterr()
        assert main(["check", str(run), "--policy", policy, "--results", str(given)]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    shutil.copytree(run / "attacks", other / "attacks")
    assert main(["check", str(other), "--policy", policy]) == 2 and main(["statement", str(other)]) == 2
    assert "Expected a result of this release" in capsys.readouterr().err


def test_the_audit_of_a_mechanism_is_of_no_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--mechanism", "laplace", "--draws", "2000", "--canaries", "200", "--json"]) == 0
    (tmp_path / "aud.json").write_text(capsys.readouterr().out)
    command = ["check", str(run), "--policy", str(written(tmp_path, "[audit]\n")), "--results"]
    assert main([*command, str(tmp_path / "aud.json")]) == 2
    assert "Expected a result of this release" in " ".join(capsys.readouterr().err.split())


def test_what_the_commands_write_about_a_run_is_of_that_run(
    run_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And of no other: neither with another protection, nor on other text."""
    run, other = (run_of("dp-sgd", audit=100, protect={"epsilon": epsilon}) for epsilon in (2.0, 3.0))
    policy, result = str(written(tmp_path, "[audit]\n")), tmp_path / "result.json"
    rows = [f"{number} knees,clinic,{number}" for number in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label,patient_id", *rows]))
    attack = ["attack", str(run), "--attack", "one-of-n", "--candidates", "4", "--draws", "100"]
    for command, accepted in (
        (["audit", str(run)], True),
        (["attack", str(run), "--attack", "loss"], True),
        (attack, True),
        ([*attack, "--clip-norm", "0.1"], False),
        ([*attack, "--noise-multiplier", "9"], False),
        ([*attack, "--protect", "none"], False),
        ([*attack, "--data", str(tmp_path / "rows.csv")], False),
    ):
        capsys.readouterr()
        assert main([*command, "--device", "cpu", "--json"]) == 0
        result.write_text(capsys.readouterr().out)
        status = main(["check", str(run), "--policy", policy, "--results", str(result)])
        assert (status != 2) is accepted, command
        assert main(["check", str(other), "--policy", policy, "--results", str(result)]) == 2


def test_a_failed_check_of_the_implementation_fails_and_is_in_the_statement(run: Path, tmp_path: Path) -> None:
    check = {"aspect": "clip-in-a-part", "what": "each unit of a part is clipped", "passed": False}
    untested = [{"aspect": "units", "what": "all rows of a person are in one unit", "why": ""}]
    audit = {**AUDIT, "refuted": True, "checks": [check], "not_tested": untested}
    store(run, "audit", audit)
    facts = read_facts(run)
    outcome = checks(Policy.read(written(tmp_path, "[audit]\n")), facts)
    assert {one.rule: one.passed for one in outcome} == {"audit": True, "audit-bound": True, "audit-checks": False}
    text = " ".join(markdown_of(statement_of(facts)).split())
    for words in ("which is refuted", "failed: each unit of a part is clipped", "not tested: all rows of a person"):
        assert words in text


def test_a_run_without_protection_or_results_fails(
    run_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run_of("plain")
    policy = written(tmp_path, POLICIES["all met"][0])
    assert main(["check", str(plain), "--policy", str(policy), "--json"]) == 1
    found = {one["rule"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert not any(one["passed"] for one in found.values()) and found["epsilon"]["value"] == "none"
    result = tmp_path / "loss.json"
    result.write_text(json.dumps(of_run(plain, LOSS)))
    assert main(["check", str(plain), "--policy", str(policy), "--results", str(result), "--json"]) == 1
    found = {one["rule"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert found["attack loss, auc"]["passed"]
    hidden = run_of("texthide")  # protected, without a guarantee
    assert main(["check", str(hidden), "--policy", str(policy), "--json"]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[guarantee]\nepsilom = 3\n", "Did you mean 'epsilon'?"),
        ("[garantee]\nepsilon = 3\n", "Did you mean 'guarantee'?"),
        ("[attacks.los]\nauc = 0.6\n", "Did you mean 'loss'?"),
        ("[attacks.loss]\nacu = 0.6\n", "Did you mean 'auc'?"),
        ("[attacks.loss]\n", r"\[attacks.loss\]"),
        ("[attacks.loss]\nauc = 'low'\n", "auc"),
        ("[guarantee]\nepsilon = -1\n", "guarantee.epsilon"),
        ("[guarantee]\nadjacency = 'add'\n", "add/remove"),
        ("[guarantee]\ncaveats = ['seed']\n", "fixed-seed"),
        ("[audit]\nconfidence = 2\n", "audit.confidence"),
        ("compare = 'low'\n", "compare"),
        ("", "Expected rules"),
        ("=", "Expected TOML"),
    ],
)
def test_bad_policies_are_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=words):
        Policy.read(written(tmp_path, text))


def test_bad_input_has_status_two(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = str(written(tmp_path, "[guarantee]\nepsilon = 8\n"))
    assert main(["check", str(run), "--policy", str(tmp_path / "none.toml")]) == 2
    assert main(["check", str(tmp_path / "nowhere"), "--policy", policy]) == 2
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert main(["check", str(run), "--policy", policy, "--results", str(tmp_path / "other.json")]) == 2
    assert "Expected the result of an attack or an audit" in capsys.readouterr().err
    (run / "ledger.jsonl").unlink()
    assert main(["check", str(run), "--policy", policy]) == 2
    assert "Expected the ledger" in capsys.readouterr().err
