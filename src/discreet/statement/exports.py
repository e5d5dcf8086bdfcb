"""A privacy statement in the fields of others: the registry of deployments, model cards, and Croissant RAI.

- OpenDP's registry of deployments: an entry of tier 3, by its `schemas/deployments-schema.yaml`
  (github.com/opendp/deployments-registry-data, version of commit 057e5d81).
- Hugging Face: the front matter of a model card or a data card.
- Croissant with RAI (mlcommons.org/croissant/1.0 and /RAI/1.0), for sanitized text.

What only the owner of the data knows is written as `TO COMPLETE`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from discreet.core.errors import UnsupportedError
from discreet.core.files import sha256
from discreet.core.guarantee import in_digits
from discreet.core.task import Task
from discreet.runs.folder import card_values, in_yaml
from discreet.statement.facts import Facts, Kind
from discreet.statement.statement import NONE

COMPLETE = "TO COMPLETE"
_MODELS = {"central": "Central", "local": "Local", "federated": "Federated", "encrypted": "Federated"}
_FORMATS = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".jsonl": "application/jsonlines",
    ".json": "application/jsonlines",
    ".parquet": "application/x-parquet",
    ".txt": "text/plain",
}
# The terms of Croissant that its context names as they are.
_TERMS = (
    "citeAs", "column", "extract", "field", "fileObject", "fileProperty", "fileSet", "format", "includes",
    "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex", "repeated",
    "replace", "separator", "source", "subField", "transform",
)  # fmt: skip
_CONTEXT = {
    **{name: f"cr:{name}" for name in _TERMS},
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}


def opendp(statement: Mapping[str, Any]) -> str:
    """Return an entry of tier 3 for OpenDP's registry of deployments, as YAML.

    Args:
        statement: What `statement_of` returned.
    """
    if statement["parameters"]["guarantee"] == NONE:
        raise UnsupportedError(
            "Expected a release with a privacy guarantee for the registry of deployments, got one without. Protect it "
            "with a method of differential privacy."
        )
    first = f"# An entry for the registry of deployments. Fill in every {COMPLETE}, and check the type of the curator."
    return f"{first}\n{in_yaml(deployment(statement))}"


def deployment(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry of tier 3 as plain values."""
    parameters, unit, trust = statement["parameters"], statement["unit"], statement["trust"]
    algorithm, release = statement["algorithm"], statement["release"]
    text = release["kind"] == Kind.SANITIZED
    pure = parameters["delta"] == 0
    entry: dict[str, Any] = {
        "basic": {
            "name": release["name"],
            "data_curators": [{"data_curator_name": COMPLETE, "data_curator_type": "Industry"}],
            "description": f"{release['what']}; what leaves: {release['leaves']}",
            "intended_use": COMPLETE,
            "data_product_type": "Dataset" if text else "Machine learning model",
            "data_product_region": COMPLETE,
            "publication_date": "1900-01-01",
        },
        "dp_variant": {
            "variant_name": "Pure DP" if pure else "Approximate DP",
            "data_domain": f"text of any content, in rows that each belong to one {unit['name']}",
            "unprotected_quantities": "\n".join(f"- {point}" for point in statement["not_protected"]),
        },
        "privacy_loss": {
            "privacy_unit": f"{unit['name']}-level",
            "privacy_unit_details": f"{unit['neighbours']} {statement['contribution']['bound']}",
            **({} if unit["count"] is None else {"number_of_privacy_units": unit["count"]}),
            "privacy_parameters": {
                "epsilon": parameters["epsilon"],
                **({} if pure else {"delta": parameters["delta"]}),
            },
            "privacy_parameters_details": parameters["sentence"] + " " + _curve(parameters),
        },
        "deployment_model": {
            "model_name": _MODELS[trust["model"]],
            "model_name_details": trust["note"],
            "trust_assumptions": "; ".join(trust["trusted"]),
            "actors": "\n".join(f"- {row['who']}: {row['what']}" for row in trust["sees"]),
            "release_type": "One release",
            "release_type_details": COMPLETE,
            "data_source_type": "Static",
            "access_type": "Non-interactive",
            "access_type_details": "The release is a file; the data cannot be queried.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "\n".join(
                [
                    *(f"- without the data: {text}" for text in algorithm["chosen_without_data"]),
                    *(f"- from the data: {text}" for text in algorithm["chosen_with_data"]),
                    *(f"- not recorded: {text}" for text in algorithm["not_recorded"]),
                ]
            ),
            "mechanisms": "\n".join(
                [
                    f"{algorithm['label']}, by discreet {statement['made_by']['version']}. {algorithm['description']} "
                    f"Sensitivity: {algorithm['sensitivity'].rstrip('.')}.",
                    *(f"- {row['channel']}: {row['status']}. {row['sentence']}" for row in statement["side_channels"]),
                ]
            ),
            "composition": _composition(statement),
            "post_processing": "Everything after the noise, such as the optimizer's steps and predictions.",
            "justification": COMPLETE,
            "utility": _utility(statement["utility"]),
        },
        "administrative": {"status": "Draft", "registry_authors": [COMPLETE], "tier": 3},
    }
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", release["name"].lower()).strip("-") or "release",
        "deployment": entry,
    }


def _curve(parameters: Mapping[str, Any]) -> str:
    points = ", ".join(
        f"{one['false_positive_rate']:g}: {in_digits(one['largest_true_positive_rate'])}"
        for one in parameters["trade_off"]
    )
    return f"Largest true-positive rate of any membership test at each false-positive rate: {points}."


def _composition(statement: Mapping[str, Any]) -> str:
    ledger = statement["releases"]["ledger"]
    by = statement["parameters"]["accountant"]
    return f"{ledger['spends']} recorded spends, composed by the {by} accountant over privacy loss distributions."


def _utility(values: Mapping[str, Any]) -> str:
    shown = [
        f"{row['metric']} {row['value']:.4g}"
        + ("" if row["interval"] is None else f" [{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]")
        for row in values["metrics"]
        if row["value"] is not None
    ]
    return f"{', '.join(shown) or 'not measured'}. {values['note']}"


def huggingface(statement: Mapping[str, Any], facts: Facts) -> str:
    """Return the front matter of a model card, or of a data card for sanitized text.

    Args:
        statement: What `statement_of` returned.
        facts: The facts of the release, as `read_facts` returns them.
    """
    text = statement["release"]["kind"] == Kind.SANITIZED
    task = None if text else str(statement["release"]["task"] or Task.CLASSIFICATION)
    values = card_values(task, facts.guarantee, None if text else "discreet")
    if "differential_privacy" in values:
        values["differential_privacy"] |= {
            "algorithm": statement["algorithm"]["name"],
            "max_rows_per_unit": statement["contribution"]["max_rows_per_unit"],
            "trust_model": statement["trust"]["model"],
            "trade_off": statement["parameters"]["trade_off"],
        }
    measured = [row for row in statement["utility"]["metrics"] if row["value"] is not None]
    if measured and not text:
        result = {
            "task": {"type": values.get("pipeline_tag", "text-classification")},
            "dataset": {"name": "held-out rows", "type": "private"},
            "metrics": [{"type": row["metric"], "value": row["value"]} for row in measured],
        }
        values["model-index"] = [{"name": statement["release"]["name"], "results": [result]}]
    return f"---\n{in_yaml(values)}---\n"


def croissant(statement: Mapping[str, Any], facts: Facts) -> str:
    """Return the Croissant description of a sanitized file, with RAI properties, as JSON-LD.

    Args:
        statement: What `statement_of` returned.
        facts: The facts of the release, as `read_facts` returns them.
    """
    if facts.kind is not Kind.SANITIZED:
        raise UnsupportedError(
            f"Expected sanitized text for Croissant, which describes data sets, got a {facts.kind}. Use the format "
            "huggingface or opendp for a model."
        )
    path, columns = facts.path, _columns(facts)
    encoding = _FORMATS.get(path.suffix.lower(), "text/plain")
    parameters = statement["parameters"]
    values: dict[str, Any] = {
        "@context": dict(sorted(_CONTEXT.items())),
        "@type": "sc:Dataset",
        "name": re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem),
        "description": f"Rewritten texts. {parameters['sentence']}",
        "conformsTo": ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"],
        "license": COMPLETE,
        "url": COMPLETE,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path.name,
                "name": path.name,
                "contentUrl": path.name,
                "encodingFormat": encoding,
                "sha256": sha256(path),
            }
        ],
        "rai:dataCollection": COMPLETE,
        "rai:dataCollectionRawData": "The original texts are private and not part of this data set.",
        "rai:dataManipulationProtocol": f"{statement['algorithm']['label']}: {statement['algorithm']['description']} "
        f"{parameters['sentence']}",
        "rai:dataPreprocessingProtocol": [statement["contribution"]["bound"], *statement["algorithm"]["not_recorded"]],
        "rai:personalSensitiveInformation": [
            f"The original texts are about people; the unit of privacy is the {statement['unit']['name']}. "
            f"{statement['unit']['neighbours']}",
            *([f"Copied unchanged: {', '.join(columns[1])}."] if columns[1] else []),
        ],
        "rai:dataLimitations": [*statement["not_protected"], *statement["releases"]["outside"]],
        "rai:dataUseCases": [COMPLETE],
        "rai:dataReleaseMaintenancePlan": [COMPLETE],
    }
    if encoding != "text/plain" and (columns[0] or columns[1]):
        fields = [_field(name, path.name) for name in (*columns[0], *columns[1])]
        values["recordSet"] = [{"@type": "cr:RecordSet", "@id": "rows", "name": "rows", "field": fields}]
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _columns(facts: Facts) -> tuple[list[str], list[str]]:
    return list(facts.metrics.get("rewritten_columns") or []), list(facts.metrics.get("copied_columns") or [])


def _field(name: str, file: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"rows/{name}",
        "name": name,
        "dataType": "sc:Text",
        "source": {"fileObject": {"@id": file}, "extract": {"column": name}},
    }
