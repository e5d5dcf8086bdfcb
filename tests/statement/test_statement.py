"""Statements: valid by the schema for every kind of release, with every element that NIST SP 800-226 asks for."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.doors.edits import restated, without_lines
from tests.report.structure import faults
from tests.statement.releases import SETTINGS, rows_with_people
from tests.statement.releases import run_of as run_of

from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.ledger import Ledger
from discreet.catalog import PROTECTIONS
from discreet.cli.main import main
from discreet.core.errors import LedgerError, ModelError
from discreet.core.guarantee import Guarantee
from discreet.data.samplers import Poisson
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.folder import guarantee_with_digests
from discreet.statement.facts import read_facts
from discreet.statement.markdown import markdown_of
from discreet.statement.methods import METHODS, method_of
from discreet.statement.statement import schema, statement_of

# What NIST SP 800-226 asks for, and where a statement says it.
CHECKLIST: dict[str, Callable[[dict[str, Any]], object]] = {
    "privacy parameters": lambda s: s["parameters"]["definition"],
    "original parameters": lambda s: "settings" in s["parameters"]["original"],
    "unit of privacy": lambda s: s["unit"]["name"],
    "neighbouring data sets": lambda s: s["unit"]["neighbours"],
    "bound on contributions": lambda s: s["contribution"]["bound"],
    "algorithm": lambda s: s["algorithm"]["description"],
    "sensitivity": lambda s: s["algorithm"]["sensitivity"],
    "choices": lambda s: s["algorithm"]["chosen_without_data"] and s["algorithm"]["not_recorded"],
    "utility and bias": lambda s: s["utility"]["note"],
    "trust model": lambda s: s["trust"]["model"] and s["trust"]["sees"],
    "side channels": lambda s: (
        {one["channel"] for one in s["side_channels"]} == {"floating point", "timing", "randomness"}
    ),
    "what is not protected": lambda s: s["not_protected"],
    "all releases": lambda s: s["releases"]["outside"],
    "data security and collection": lambda s: len(s["to_complete"]) >= 3,
}


def checked_statement(path: Path, **more: Any) -> dict[str, Any]:
    values = statement_of(read_facts(path, **more))
    assert faults(values, schema()) == []
    json.dumps(values, allow_nan=False)
    return values


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_protection_has_a_valid_and_whole_statement(name: str, run_of: Callable[..., Path]) -> None:
    found = checked_statement(run_of(name))
    missing = [element for element, holds in CHECKLIST.items() if not holds(found)]
    assert not missing
    kind = {"plain": "none", "texthide": "none"}.get(name, "certified")
    assert found["parameters"]["guarantee"] == kind
    assert found["trust"]["model"] == ("local" if name in ("ldp", "santext") else "central")
    text = markdown_of(found)
    assert "not recorded" not in found["algorithm"]["description"] + found["algorithm"]["sensitivity"]
    assert text.count("\n## ") == 11 and f"**Guarantee: {kind}.**" in text
    if kind == "certified":
        rates = found["parameters"]["trade_off"]
        assert all(one["false_positive_rate"] <= one["largest_true_positive_rate"] for one in rates)
        assert found["parameters"]["original"]["events"] and found["unit"]["name"] == "patient"
        epsilon, delta = found["parameters"]["epsilon"], found["parameters"]["delta"]
        for one in rates:  # the curve is never above what epsilon and delta alone allow
            most = math.exp(epsilon) * one["false_positive_rate"] + delta
            assert one["largest_true_positive_rate"] <= min(1.0, most) * (1 + 1e-9) + 1e-12


SAMPLED = [
    ({"sampler": "random-allocation"}, "exactly one of them"),
    ({"sampler": "truncated-poisson"}, "remain, chosen at random"),
    ({"correlation": "lambda-cgd", "decay": 0.7}, "less 0.7 times the noise that was drawn for the step before"),
    ({"correlation": "banded"}, "divided once, at random, into 4 groups"),
]


@pytest.mark.parametrize(("settings", "words"), SAMPLED)
def test_a_statement_says_how_batches_and_noise_of_dp_sgd_are_drawn(
    run_of: Callable[..., Path], settings: dict[str, Any], words: str
) -> None:
    path = run_of("dp-sgd")
    metrics = json.loads((path / "metrics.json").read_text())
    protect = DPSGD(noise_multiplier=metrics["protection"]["noise_multiplier"], **settings)
    sampler = protect.sampler_for(2, 8)  # a rate of 1/4
    restated(path, metrics | {"protection": protect.facts(), "sampler": sampler.facts})
    algorithm = checked_statement(path)["algorithm"]
    assert words in algorithm["description"] and "not recorded" not in algorithm["description"]
    independent = "In every step each patient is drawn with probability 0.25. "
    assert (independent in algorithm["description"]) is isinstance(sampler, Poisson)
    assert ("later sums" in algorithm["sensitivity"]) is (protect.correlated is not None)


def test_a_statement_says_from_what_training_started(run_of: Callable[..., Path]) -> None:
    path = run_of("dp-sgd")
    assert "trained only the head" not in checked_statement(path)["algorithm"]["description"]
    metrics = json.loads((path / "metrics.json").read_text())
    metrics["protection"]["public"] = "reviews.csv"
    restated(path, metrics)
    facts = read_facts(path)
    settings = {**facts.settings, "task": "regression"}
    settings |= {
        "model": {**settings["model"], "pairs": "separate"},
        "training": {**settings["training"], "head_share": 0.2},
    }
    algorithm = statement_of(replace(facts, settings=settings))["algorithm"]
    assert "trained on public text, without noise. The first 20% of the steps" in algorithm["description"]
    assert any("around those of held-out rows" in text for text in algorithm["chosen_with_data"])


@pytest.mark.parametrize("name", ["random-allocation", "truncated-poisson"])
def test_an_own_loop_with_another_sampler_is_dp_sgd(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "out" / "checkpoint-1"
    folder.mkdir(parents=True)
    protect = DPSGD(noise_multiplier=2.0, sampler=name)
    sampler = protect.sampler_for(10, 40)
    with Ledger.open(folder / "ledger.jsonl", unit="patient", adjacency="zero-out") as ledger:
        for step in range(8):
            ledger.spend(*protect.step_cost(sampler, step, 40))
        stated = guarantee_with_digests(ledger.guarantee(1e-5), folder, ledger.statement)
    (folder / "guarantee.json").write_text(json.dumps(stated))
    algorithm = checked_statement(folder, delta=1e-5)["algorithm"]
    words = ["At most 8 steps", "In every 4 steps"]
    if name == "truncated-poisson":
        words = ["8 steps", "of more than 32 of them"]
    assert algorithm["name"] == "dp-sgd" and all(one in algorithm["description"] for one in words)


def test_the_statement_of_an_unprotected_run_says_none(run_of: Callable[..., Path]) -> None:
    found = checked_statement(run_of("plain"))
    assert found["parameters"]["guarantee"] == found["parameters"]["definition"] == "none"
    assert found["parameters"]["epsilon"] is None and found["releases"]["ledger"] is None
    assert found["algorithm"]["name"] is None


def test_a_statement_says_whether_the_names_of_the_classes_were_given(run_of: Callable[..., Path]) -> None:
    def of(name: str, **more: Any) -> tuple[list[str], list[str]]:
        told = checked_statement(run_of(name, **more))["algorithm"]
        lists = (told["chosen_without_data"], told["chosen_with_data"])
        return tuple([one for one in chosen if "names of the classes" in one] for chosen in lists)  # type: ignore[return-value]

    assert of("dp-sgd") == (["the names of the classes, which were given or are those of a built-in corpus"], [])
    without, (read,) = of("dp-sgd", classes=None)
    assert not without and "read from private labels" in read and "unless" not in read
    without, (unknown,) = of("plain")
    assert not without and "unless they were given" in unknown


def test_a_cap_and_a_fixed_seed_are_stated(run_of: Callable[..., Path]) -> None:
    found = checked_statement(run_of("dp-sgd", max_per_unit=2, noise_seed=1))
    assert found["contribution"]["max_rows_per_unit"] == 2 and found["contribution"]["cap_chosen_without_data"] is True
    assert found["parameters"]["guarantee"] == "estimate" and found["parameters"]["caveats"] == ["fixed-seed"]
    (randomness,) = [one for one in found["side_channels"] if one["channel"] == "randomness"]
    assert randomness["status"] == "not addressed"


def test_utility_by_class_is_stored_and_by_subgroup_measured(
    run_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("dp-sgd")
    stored = checked_statement(run)["utility"]
    assert {row["class"] for row in stored["by_class"]} == {"clinic", "ward"} and not stored["by_subgroup"]
    assert main(["statement", str(run), "--subgroup", "sex", "--device", "cpu", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert faults(measured, schema()) == []
    utility = measured["utility"]
    assert {row["group"] for row in utility["by_subgroup"]} <= {"f", "m"} and utility["by_subgroup"]
    assert sum(row["rows"] for row in utility["by_subgroup"]) <= utility["rows"]
    assert all(row["interval"] is not None for row in utility["metrics"])
    for row in (*utility["by_class"], *utility["by_subgroup"]):
        assert row["interval"][0] <= row["value"] <= row["interval"][1]
    assert main(["statement", str(run), "--subgroup", "sax", "--device", "cpu"]) == 2
    assert "Did you mean 'sex'?" in capsys.readouterr().err


def test_a_ledger_alone_needs_a_delta(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    from discreet.accounting.events import GaussianDpEvent

    with Ledger.open(path, unit="note", adjacency="add/remove") as ledger:
        ledger.spend(GaussianDpEvent(2.0), "one")
    with pytest.raises(ValueError, match="Expected delta to be set for a ledger without a budget"):
        read_facts(path)
    found = checked_statement(tmp_path, delta=1e-5)
    assert found["unit"]["name"] == "note" and found["parameters"]["original"]["events"][0]["count"] == 1


def test_a_folder_of_the_trainer(run_of: Callable[..., Path], tmp_path: Path) -> None:
    run = run_of("dp-sgd")
    folder = tmp_path / "out" / "checkpoint-1"
    folder.mkdir(parents=True)
    stated = Guarantee.from_dict(json.loads((run / "metrics.json").read_text())["guarantee"])
    values = guarantee_with_digests(stated, folder, Ledger.read(run / "ledger.jsonl"))
    (folder / "guarantee.json").write_text(json.dumps(values))
    shutil.copy(run / "ledger.jsonl", folder.parent)
    found = checked_statement(folder)
    assert found["release"]["kind"] == "trainer" and found["algorithm"]["name"] == "dp-sgd"


def test_a_language_model_has_a_valid_and_whole_statement(
    toy_csv: Path, tiny_causal: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "1", "--batch-size", "16", "--unit", "row", "--device", "cpu"]
    command = ["train", str(toy_csv), "--task", "lm", "--model", str(tiny_causal("llama")), *options]
    assert main([*command, "--protect", "dp-sgd", "--epsilon", "8", "--out", str(tmp_path / "lm")]) == 0
    found = checked_statement(tmp_path / "lm")
    assert [element for element, holds in CHECKLIST.items() if not holds(found)] == []
    assert found["parameters"]["guarantee"] == "certified" and found["trust"]["model"] == "central"
    assert "language model" in found["release"]["what"] and found["release"]["classes"] == []
    assert "perplexity" in {one["metric"] for one in found["utility"]["metrics"]}
    assert "perplexity" in markdown_of(found) and "not recorded" not in found["algorithm"]["description"]
    capsys.readouterr()


def test_a_federated_run_is_read_with_the_ledger_of_the_largest_epsilon(
    run_of: Callable[..., Path], tmp_path: Path
) -> None:
    run = run_of("dp-sgd")
    metrics = json.loads((run / "metrics.json").read_text())
    stated = metrics["guarantee"]
    for client in (0, 1):
        (run / f"client-{client}").mkdir()
    shutil.copy(run / "ledger.jsonl", run / "client-0")
    shutil.move(run / "ledger.jsonl", run / "client-1")
    without_lines(run / "client-0" / "ledger.jsonl", -1, 1)  # a step less
    less = Ledger.read(run / "client-0" / "ledger.jsonl").guarantee(stated["delta"])
    small = {**stated, "epsilon": less.epsilon}
    clients = {"0": {"client": 0, "units": 9, "guarantee": small}, "1": {"client": 1, "units": 11, "guarantee": stated}}
    metrics |= {"clients": clients, "client_guarantee": None}
    for key in ("protection", "sampler", "units"):
        metrics.pop(key)
    settings = 'clients = 2\n[aggregation]\nname = "{}"\n[protect]\nname = "dp-sgd"\nclip_norm = 0.1\n'
    for aggregation, model in (("mean", "federated"), ("secure-sum", "encrypted")):
        (run / "federation.toml").write_text(settings.format(aggregation))
        restated(run, metrics)
        found = checked_statement(run)
        follows = any("server follows the protocol" in one for one in found["trust"]["trusted"])
        assert follows == (aggregation == "secure-sum")
        assert found["trust"]["model"] == model and found["release"]["kind"] == "federated run"
        assert found["unit"]["count"] == 20 and len(found["releases"]["clients"]) == 2
        spends = [client["spends"] for client in found["releases"]["clients"]]  # of every client, not of one
        assert spends[0] == spends[1] - 1 and all(client["events"] for client in found["releases"]["clients"])
        assert markdown_of(found).count("- client ") == 2 * len(found["parameters"]["original"]["events"])
        assert "not recorded" not in found["algorithm"]["description"]  # the ledger knows rate and noise
    (run / "client-1" / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="client-1"):
        read_facts(run)


def test_the_noise_of_a_secure_sum_is_described_as_that_of_the_clients(run_of: Callable[..., Path]) -> None:
    run = run_of("plain")
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "server").mkdir()
    with Ledger.open(run / "server" / "ledger.jsonl", unit="client", adjacency="zero-out") as ledger:
        ledger.spend(GaussianDpEvent(2.0), "round 1")
        metrics |= {"clients": {}, "client_guarantee": ledger.guarantee(1e-3).as_dict()}
    for name, words in (("secure-sum", "Every client clips"), ("central-dp", "The server clips")):
        (run / "federation.toml").write_text(f'clients = 3\n[aggregation]\nname = "{name}"\nclip_norm = 0.5\n')
        restated(run, metrics)
        found = checked_statement(run)
        assert found["algorithm"]["name"] == name and words in found["algorithm"]["description"]
        assert found["parameters"]["original"]["settings"]["clip_norm"] == 0.5
        server = next(one["what"] for one in found["trust"]["sees"] if one["who"] == "the server")
        assert ("own noise" in server) == (name == "secure-sum") and found["unit"]["count"] == 3
    metrics |= {"clients": {"0": {"client": 0, "units": 9, "unit": "patient"}}, "client_guarantee": None}
    (run / "federation.toml").write_text('clients = 1\n[aggregation]\nname = "mean"\n')
    restated(run, metrics)
    found = checked_statement(run)
    assert (found["unit"]["name"], found["unit"]["count"]) == ("patient", 9)
    assert any("the server" in who for who in found["trust"]["trusted"])  # it sees updates that nothing protects


def test_bad_input_is_named(run_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("dp-sgd")
    elsewhere = tmp_path / "shared.jsonl"
    shutil.move(run / "ledger.jsonl", elsewhere)
    assert main(["statement", str(run)]) == 2
    assert "--ledger" in capsys.readouterr().err
    assert main(["statement", str(run), "--ledger", str(elsewhere), "--json"]) == 0
    capsys.readouterr()
    for name, text, words in (
        ("metrics.json", "{", "Expected JSON"),
        ("metrics.json", "[]", "one JSON object"),
        ("settings.toml", "=", "Expected TOML"),
    ):
        other = run_of("dp-sgd")
        (other / name).write_text(text)
        with pytest.raises(ModelError, match=words):
            read_facts(other)
    with pytest.raises(ModelError, match="Check the path"):
        read_facts(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no settings.toml"):
        read_facts(tmp_path / "empty")
    assert main(["statement", str(run_of("plain")), "--format", "opendp"]) == 2
    assert main(["statement", str(run_of("plain")), "--format", "croisant"]) == 2
    assert "Did you mean 'croissant'?" in capsys.readouterr().err
    assert main(["statement", str(run_of("plain")), "--format", "croissant"]) == 2


def test_files(run_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("dp-sgd")
    assert main(["statement", str(run), "--out", str(tmp_path / "both")]) == 0
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"statement.json", "statement.md"}
    assert faults(json.loads((tmp_path / "both" / "statement.json").read_text()), schema()) == []
    assert main(["statement", str(run), "--out", str(tmp_path / "one.md")]) == 0
    assert (tmp_path / "one.md").read_text() == (tmp_path / "both" / "statement.md").read_text()
    assert main(["statement", str(run), "--out", str(tmp_path / "one.pdf")]) == 2
    capsys.readouterr()
    assert main(["statement", str(run), "--all-releases", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["releases"]["same_people"] is None  # a copy has no record


# The fields of an entry in OpenDP's registry of deployments, by section: all that its schema allows, and in upper case
# those that it requires. github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at 057e5d81.
REGISTRY = {
    "basic": "NAME DATA_CURATORS DESCRIPTION INTENDED_USE DATA_PRODUCT_TYPE DATA_PRODUCT_REGION PUBLICATION_DATE "
    "data_product_sector",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details number_of_privacy_units privacy_parameters "
    "privacy_parameters_details",
    "deployment_model": "model_name model_name_details trust_assumptions actors release_type release_type_details "
    "data_source_type data_source_type_details access_type access_type_details",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms composition post_processing justification "
    "utility additional_information",
    "administrative": "STATUS REGISTRY_AUTHORS TIER evidence_sources",
}
TIER_3 = ("data_domain", "unprotected_quantities", "privacy_unit_details", "privacy_parameters_details", "actors",
          "trust_assumptions", "preprocessing_and_hyperparameter_tuning", "mechanisms", "composition",
          "post_processing", "justification", "utility")  # fmt: skip


@pytest.mark.parametrize("name", ["dp-sgd", "ldp"])
def test_an_entry_for_the_registry_has_its_fields(
    name: str, run_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["statement", str(run_of(name)), "--format", "opendp"]) == 0
    entry = yaml.safe_load(capsys.readouterr().out)
    assert set(entry) == {"url_slug", "deployment"} and set(entry["deployment"]) == set(REGISTRY)
    for section, names in REGISTRY.items():
        found, allowed = set(entry["deployment"][section]), set(names.lower().split())
        assert found <= allowed and {one.lower() for one in names.split() if one.isupper()} <= found
    flat = {key: value for section in entry["deployment"].values() for key, value in section.items()}
    assert all(flat[key] for key in TIER_3) and flat["tier"] == 3
    assert isinstance(flat["privacy_parameters"]["epsilon"], float)
    assert isinstance(flat["privacy_parameters"]["delta"], float)
    assert flat["variant_name"] == "Approximate DP" and flat["model_name"] == ("Local" if name == "ldp" else "Central")


def test_front_matter_is_yaml_that_the_hub_reads(
    run_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["statement", str(run_of("dp-sgd")), "--format", "huggingface"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("---\n") and text.endswith("---\n")
    values = yaml.safe_load(text.strip("-\n"))
    assert (
        values["pipeline_tag"] == "text-classification" and values["differential_privacy"]["trust_model"] == "central"
    )
    result = values["model-index"][0]["results"][0]
    assert {"task", "dataset", "metrics"} <= set(result) and {"name", "type"} <= set(result["dataset"])
    from huggingface_hub import ModelCard

    card = ModelCard(text + "\nText.\n")
    assert card.data.eval_results and card.data.tags


# Properties of Croissant RAI 1.0: github.com/mlcommons/croissant, docs/croissant-rai-spec.md.
RAI = {
    "dataCollection", "dataCollectionType", "dataCollectionMissingData", "dataCollectionRawData",
    "dataCollectionTimeframe", "dataImputationProtocol", "dataManipulationProtocol", "dataPreprocessingProtocol",
    "dataAnnotationProtocol", "dataAnnotationPlatform", "dataAnnotationAnalysis", "dataReleaseMaintenancePlan",
    "personalSensitiveInformation", "dataSocialImpact", "dataBiases", "dataLimitations", "dataUseCases",
    "annotationsPerItem", "annotatorDemographics", "machineAnnotationTools",
}  # fmt: skip


def test_sanitized_text_has_a_statement_and_a_croissant(
    tmp_path: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_with_people(tmp_path / "rows.csv", [("the heart was dull", "a"), ("a knee", "b")] * 4)
    out = tmp_path / "clean.csv"
    command = ["sanitize", str(rows), "--epsilon-per-word", "4", "--out", str(out), "--unit", "patient_id"]
    assert main([*command, "--model", str(tiny_encoder("bert"))]) == 0
    capsys.readouterr()
    found = checked_statement(out)
    assert found["release"]["kind"] == "sanitized text" and found["unit"] | {"name": "patient"} == found["unit"]
    assert found["parameters"]["guarantee"] == "certified" and found["algorithm"]["name"] == "santext"
    assert main(["statement", str(out), "--format", "croissant"]) == 0
    values = json.loads(capsys.readouterr().out)
    rai = {key.removeprefix("rai:") for key in values if key.startswith("rai:")}
    assert rai and rai <= RAI
    assert values["conformsTo"] == ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"]
    assert [one["name"] for one in values["recordSet"][0]["field"]] == ["text", "label", "patient_id", "sex"]
    assert len(values["distribution"][0]["sha256"]) == 64
    (tmp_path / "clean.csv.privacy.json").unlink()  # as written by earlier versions: the record of this machine is read
    again = checked_statement(out)
    assert again["parameters"]["epsilon"] == pytest.approx(found["parameters"]["epsilon"])
    assert main(["statement", str(rows)]) == 2


def test_every_protection_in_the_catalog_is_described() -> None:
    assert set(PROTECTIONS) <= set(METHODS)
    assert method_of({"name": "of somebody else"}) is METHODS["third party"]


def test_a_statement_never_loads_torch(run_of: Callable[..., Path]) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom pathlib import Path\nfrom discreet.statement.facts import read_facts\n"
        "from discreet.statement.statement import statement_of\nfrom discreet.statement.markdown import markdown_of\n"
        f"markdown_of(statement_of(read_facts(Path({str(run_of('dp-sgd'))!r}))))\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
