"""The privacy statement of a release: one JSON object by `statement.schema.json`, for a person to sign.

Its sections follow the order of NIST SP 800-226: parameters and unit; contribution of one unit; algorithm, sensitivity
and what was chosen with or without the data; utility; trust model; side channels; what is not protected; releases. It
is made from what the run recorded; what only its owner knows is listed in `to_complete`.

Paper: Near, Darais, Lefkovitz and Howarth 2025, Guidelines for Evaluating Differential Privacy Guarantees (NIST SP
800-226). Dong, Roth and Su 2022, Gaussian Differential Privacy, for trade-off curves.

Guarantee: none of its own; a statement is post-processing of what a run releases. Utility is measured on held-out rows,
which are not protected, and the statement says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from discreet import __version__
from discreet.core.files import finite
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits, strength
from discreet.core.task import Task
from discreet.data.samplers import Poisson, RandomAllocation, Sampler, TruncatedPoisson, sampler_kind
from discreet.statement.facts import TRAINED, Facts, Kind, innermost, record_of
from discreet.statement.methods import (
    CENTRAL,
    CORRELATED,
    ENCRYPTED,
    FEDERATED,
    LATER,
    LOCAL,
    Method,
    filled,
    method_of,
)

if TYPE_CHECKING:
    from discreet.accounting.ledger_file import Statement

FORMAT = "discreet.statement/1"
CERTIFIED, ESTIMATE, NONE = KINDS = ("certified", "estimate", "none")
_RATES = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5)  # false-positive rates of the trade-off curve
_EPSILONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the privacy profile, besides that of the guarantee
_CLOSE = 0.05
_FEWEST = 5  # rows of a class or a subgroup with which its utility is stated
_ENCRYPTED = ("secure-sum", "encrypted-sum")  # aggregations in which the server sees only the sum
_SUMS = ("dp-sgd", "dir-dp-sgd", "central-dp", "secure-sum")  # noisy sums, which protect labels too
_HONEST_SERVER = "that the server follows the protocol and invents no clients: their keys are not signed"
_LARGEST_CLIENT = (
    " Each client does this for its own people, with its own noise and ledger; these figures, and the events above, "
    "are those of the client with the largest epsilon; the events of every client are listed with its ledger. Epsilon, "
    "delta and the curves hold for all clients."
)
_FLOATING_POINT = "docs/secure_randomness.md"
TO_COMPLETE = (
    "who publishes the release, and for what use",
    "who has access to the original data, and how it is secured",
    "how the data was collected, and what people agreed to",
    "how the settings were chosen, and whether earlier trials looked at the same data",
    "plans for further releases about the same people",
)

_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "one with all rows of a {unit}, and the same one without them",
    Adjacency.ZERO_OUT: "one with all rows of a {unit}, and the same one in which they are replaced by an empty record",
    Adjacency.REPLACE_ONE: "one with all rows of a {unit}, and the same one in which they are exchanged for any others",
}


def statement_of(
    facts: Facts,
    *,
    groups: Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the statement of a release as plain values.

    `groups` are measured utilities by class and subgroup, and `others` the total over all releases of the same people
    that this machine recorded, which is for the owner and not for publication.

    Args:
        facts: The facts of the release, as `read_facts` returns them.
        groups: Measured utilities by class and subgroup.
        others: The total over all releases of the same people that this machine recorded, which is for the owner.
    """
    method = method_of(facts.protection)
    values = _template_values(facts)
    return {
        "format": FORMAT,
        "made_by": {"name": "discreet", "version": __version__},
        "release": _release(facts, method, values),
        "parameters": _parameters(facts),
        "unit": _unit(facts),
        "contribution": _contribution(facts, method, values),
        "algorithm": _algorithm(facts, method, values),
        "utility": _utility(facts, groups),
        "trust": _trust(facts, method, values),
        "side_channels": _side_channels(facts),
        "not_protected": _not_protected(facts, method, values),
        "releases": _releases(facts, others),
        "measured": _measured(facts),
        "to_complete": list(TO_COMPLETE),
    }


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a statement."""
    text = resources.files("discreet.statement").joinpath("statement.schema.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


def kind_of(guarantee: Guarantee | None) -> str:
    """Return whether a guarantee is certified, an estimate or none.

    >>> kind_of(None), kind_of(Guarantee(3.0, 1e-5, "note", Adjacency.ADD_REMOVE, "pld"))
    ('none', 'certified')
    """
    if guarantee is None or not guarantee.exists:
        return NONE
    return CERTIFIED if guarantee.certified else ESTIMATE


def _release(facts: Facts, method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": facts.kind.value,
        "name": facts.path.resolve().name,
        "what": facts.released,
        "leaves": filled(method.seen, values),
        "task": facts.settings.get("task"),
        "classes": list(facts.settings.get("classes") or []),
    }


def _parameters(facts: Facts) -> dict[str, Any]:
    guarantee, kind = facts.guarantee, kind_of(facts.guarantee)
    result: dict[str, Any] = {
        "guarantee": kind,
        "definition": "none" if kind == NONE else "(epsilon, delta)-differential privacy",
        "epsilon": None,
        "delta": None,
        "strength": strength(math.inf if guarantee is None else guarantee.epsilon).value,
        "adjacency": None if guarantee is None else guarantee.adjacency.value,
        "accountant": None,
        "reason": None if guarantee is None else guarantee.reason,
        "caveats": [] if guarantee is None else sorted(guarantee.caveats),
        "sentence": _sentence(facts),
        "original": _original(facts),
        "epsilon_by_adjacency": dict(facts.metrics.get("epsilon_by_adjacency") or {}),
        "pure_epsilon": facts.metrics.get("pure_epsilon"),
        "trade_off": None,
        "privacy_profile": None,
    }
    if guarantee is None or kind == NONE:
        return result
    result |= {"epsilon": guarantee.epsilon, "delta": guarantee.delta, "accountant": guarantee.accountant}
    if facts.ledgers:
        result |= _curves([ledger.event for ledger in facts.ledgers], guarantee)
    return result


def _sentence(facts: Facts) -> str:
    if facts.guarantee is not None:
        return facts.guarantee.sentence(assumptions=False)
    return "None: this release has no privacy guarantee, and may reveal the text it was made from."


def _original(facts: Facts) -> dict[str, Any]:
    """Return the parameters of the mechanism itself: its settings, and every event that was paid for."""
    sampler = facts.metrics.get("sampler")
    return {
        "settings": dict(facts.protection or {}),
        "sampler": dict(sampler) if isinstance(sampler, Mapping) else None,
        "steps": _steps(facts),
        "events": _events(facts.ledger),
    }


def _steps(facts: Facts) -> Any:
    """Return the number of steps that the guarantee covers: of a run that stopped early, all planned ones."""
    return facts.metrics.get("counted_steps", facts.metrics.get("steps"))


def _events(ledger: Statement | None) -> list[dict[str, Any]]:
    """Return every event that a ledger holds, with its count."""
    from discreet.accounting.events import event_to_json

    spent = () if ledger is None else ledger.spent
    return [{"event": json.loads(event_to_json(event)), "count": count} for event, count in spent]


def _clients(facts: Facts) -> list[dict[str, Any]]:
    """Return the figures of every client of a federated run; one that was gone at the end has a ledger alone."""
    rows = []
    for client in facts.clients:
        ledger = facts.client_ledgers.get(str(client.get("client")))
        stated = client.get("guarantee") or {}
        figures = {"epsilon": stated.get("epsilon"), "delta": stated.get("delta")}
        rows.append({"client": client.get("client"), "units": client.get("units"), **figures, **_paid(ledger)})
    known = {str(client.get("client")) for client in facts.clients}
    for name, ledger in facts.client_ledgers.items():
        if name not in known and facts.guarantee is not None:
            total = ledger.guarantee(facts.guarantee.delta) if ledger.spends else None
            exists = total is not None and total.exists
            epsilon = total.epsilon if exists and total is not None else None if ledger.spends else 0.0
            figures = {"epsilon": epsilon, "delta": facts.guarantee.delta}
            rows.append({"client": int(name) if name.isdigit() else None, "units": None, **figures, **_paid(ledger)})
    return rows


def _paid(ledger: Statement | None) -> dict[str, Any]:
    """Return the spends of a client's ledger, and their events."""
    return {"spends": None if ledger is None else ledger.spends, "events": _events(ledger)}


def _curves(events: Sequence[Any], guarantee: Guarantee) -> dict[str, Any]:
    """Return points of the trade-off curve and of the privacy profile; both are bounds where the guarantee is one.

    A unit is in one of the events, and each point is the largest of all of them.
    """
    from discreet.accounting.interpret import delta
    from discreet.accounting.risk import most_true_positives_at

    curves = [most_true_positives_at(event, _RATES, guarantee.adjacency) for event in events]
    rates = [max(float(curve[i]) for curve in curves) for i in range(len(_RATES))]
    own = round(guarantee.epsilon, 6)
    epsilons = sorted([own, *(one for one in _EPSILONS if abs(one - own) > _CLOSE)])
    return {
        "trade_off": [
            {"false_positive_rate": rate, "largest_true_positive_rate": min(1.0, most)}
            for rate, most in zip(_RATES, rates, strict=True)
        ],
        "privacy_profile": [
            {"epsilon": epsilon, "delta": max(delta(event, epsilon, guarantee.adjacency) for event in events)}
            for epsilon in epsilons
        ],
    }


def _unit(facts: Facts) -> dict[str, Any]:
    population, adjacency = facts.metrics.get("population"), facts.adjacency
    sentence = "No two data sets are hidden from each other: there is no guarantee."
    if kind_of(facts.guarantee) != NONE:
        assert adjacency is not None
        sentence = f"These two data sets are neighbours: {_NEIGHBOURS[adjacency].format(unit=facts.unit)}."
        sentence += _odds(facts)
    return {
        "name": facts.unit,
        "count": _count(facts),
        "population": population,
        "count_is_public": population is None,
        "neighbours": sentence,
    }


def _count(facts: Facts) -> int | None:
    if facts.metrics.get("units") is not None:
        return int(facts.metrics["units"])
    expected = facts.federation.get("clients")
    if facts.kind is Kind.FEDERATED and facts.unit == "client":
        return None if expected is None else int(expected)
    present = facts.clients and len(facts.clients) == expected  # a client may be gone at the end
    if present and all("units" in client for client in facts.clients):
        return sum(int(client["units"]) for client in facts.clients)
    return None


def _odds(facts: Facts) -> str:
    if facts.guarantee is None or not facts.ledgers:
        return ""
    from discreet.accounting.risk import most_true_positives

    most = max(most_true_positives(ledger.event, 0.01, facts.guarantee.adjacency) for ledger in facts.ledgers)
    kind = "recognizes" if facts.guarantee.certified else "recognizes, by this estimate,"
    return (
        " A test that sees the release and takes the second for the first in at most 1 of 100 cases "
        f"{kind} the first in at most {in_digits(100 * min(1.0, most), 3)} of 100 cases."
    )


def _contribution(facts: Facts, method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    cap = facts.max_per_unit
    sentence = filled(method.contribution, values)
    if cap is not None:
        rows = "1 row" if cap == 1 else f"{cap} rows"
        sentence += (
            f" At most {rows} of each {facts.unit} are used, chosen at random without looking at their content; the "
            "cap was set before training."
        )
    elif facts.kind in TRAINED:
        each = facts.unit == "row"
        sentence += " Each row is a unit." if each else f" There is no cap on the rows of a {facts.unit}."
    return {"max_rows_per_unit": cap, "cap_chosen_without_data": None if cap is None else True, "bound": sentence}


def _algorithm(facts: Facts, method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    several = bool(facts.other_ledgers) and kind_of(facts.guarantee) != NONE
    return {
        "name": None if facts.protection is None else str(facts.protection.get("name")),
        "label": method.label,
        "description": filled(method.algorithm, values)
        + _phases(facts)
        + _search(facts)
        + (_LARGEST_CLIENT if several else ""),
        "sensitivity": filled(method.sensitivity, values),
        "chosen_without_data": _chosen_without(facts),
        "chosen_with_data": _chosen_with(facts),
        "not_recorded": [
            ("how the tried values were found" if facts.tuning else "how the settings were found")
            + ": trials on the same data cost privacy too, and count only if they are releases in the list below",
        ],
    }


def _phases(facts: Facts) -> str:
    """Return what DP-SGD trained before all layers, and on what."""
    protection, train = facts.protection or {}, facts.settings.get("training")
    if protection.get("name") != "dp-sgd":
        return ""
    text = ""
    if protection.get("public"):
        text += " Training started from weights that were trained on public text, without noise."
    if isinstance(train, Mapping) and train.get("head_share"):
        text += f" The first {_short(100.0 * train['head_share'])}% of the steps trained only the head."
    return text


def _search(facts: Facts) -> str:
    """Return how the settings of a tuned model were found, and that the cost is counted."""
    about = facts.tuning
    if not about:
        return ""
    noise = about.get("score_noise")
    score = "free of cost" if noise is None else f"with Gaussian noise of standard deviation {_short(noise)}"
    return (
        f" This model is the best of a random number of such trainings ({_short(about['mean_trials'])} on average; "
        f"{about['distribution']}), each with one of {len(about['candidates'])} combinations of settings and epsilon "
        f"{in_digits(about['trial_epsilon'])} of its own. They were compared by their {about['score']} on "
        f"{about['scored_on']}, {score}. Epsilon covers all of them and the choice; their number and the others stay "
        "secret."
    )


def _chosen_without(facts: Facts) -> list[str]:
    chosen = []
    if facts.protection is not None:
        others = "other " if {"clip_norm", "clipping"} & set(facts.tuned) else ""
        chosen.append(f"the method and its {others}settings, which are given or calibrated from public numbers alone")
    model, train = facts.settings.get("model"), facts.settings.get("training")
    if isinstance(model, Mapping):
        chosen.append(f"the model {model.get('encoder')}, of which {model.get('train')} is trained")
    if isinstance(train, Mapping):
        names = ("epochs", "batch_size", "learning_rate", "weight_decay", "optimizer")
        kept = [name for name in names if name in train and name not in facts.tuned]
        shown = [f"{name.replace('_', ' ')} {_short(train[name])}" for name in kept]
        chosen.append("the training settings, given or default: " + ", ".join(shown))
    if facts.tuning:
        count = len(facts.tuning["candidates"])
        chosen.append(f"the {count} combinations of {_named(facts.tuned)} that were tried, and their mean number")
    if facts.kind in TRAINED:
        chosen.append("which rows are held out, by a keyed hash of the identity of each unit")
    if facts.max_per_unit is not None:
        chosen.append(f"the cap of {facts.max_per_unit} rows per {facts.unit}")
    if facts.settings.get("classes") and _classes_given(facts):
        chosen.append("the names of the classes, which were given or are those of a built-in corpus")
    if facts.metrics.get("population") is not None:
        chosen.append(f"the population of {facts.metrics['population']:,} {facts.unit}s")
    return chosen


def _classes_given(facts: Facts) -> bool:
    """Return whether the names of the classes were known without the labels.

    A protection of labels records a caveat if the names were read from them.
    """
    method = facts.protection or {}
    if facts.guarantee is None:
        return False
    noisy = method.get("label_epsilon") is not None or method.get("labels") == "noisy"
    return (noisy or method.get("name") in _SUMS) and Caveat.PRIVATE_CLASSES not in facts.guarantee.caveats


def _chosen_with(facts: Facts) -> list[str]:
    chosen: list[str] = []
    if facts.kind not in TRAINED:
        return chosen
    if facts.metrics.get("population") is None:
        chosen.append(f"the number of {facts.unit}s, which is public, and with it delta and the sampling rate")
    if facts.settings.get("classes") and not _classes_given(facts):
        if facts.guarantee is not None and Caveat.PRIVATE_CLASSES in facts.guarantee.caveats:
            chosen.append("the names of the classes, which were read from private labels: epsilon is an estimate")
        else:
            chosen.append("the names of the classes, unless they were given; labels are not protected")
    model = facts.settings.get("model")
    if (
        isinstance(model, Mapping)
        and model.get("pairs") == "separate"
        and facts.settings.get("task") == Task.REGRESSION
    ):
        chosen.append("the scores from which the head starts: around those of held-out rows, which are not protected")
    if facts.tuning:
        values = ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in facts.tuned.items())
        chosen.append(f"{values}: by a private search, whose cost is in epsilon")
    train = facts.settings.get("training")
    if isinstance(train, Mapping) and train.get("patience") is not None:
        chosen.append(
            "when training stopped, by the utility of the noisy model on held-out rows, which are not protected; "
            "epsilon counts all planned steps"
        )
    return chosen


def _named(names: Iterable[str]) -> str:
    *most, last = (name.replace("_", " ") for name in names)
    return f"{', '.join(most)} and {last}" if most else last


def _utility(facts: Facts, groups: Mapping[str, Any] | None) -> dict[str, Any]:
    metrics, quality = facts.metrics, facts.metrics.get("quality") or {}
    rows = []
    for name, value in (metrics.get("utility") or {}).items():
        main = name == quality.get("metric")
        rows.append(
            {
                "metric": name,
                "value": finite(value),
                "interval": [finite(end) for end in quality["interval"]] if main else None,
                "baseline": finite(quality["baseline"]) if main else None,
            }
        )
    measured = groups or {}
    stored = [one for one in metrics.get("utility_by_class") or [] if one["rows"] >= _FEWEST]
    on = measured.get("measured_on") or metrics.get("evaluated_on")
    return {
        "measured_on": on,
        "rows": measured.get("rows") or quality.get("rows"),
        "confidence": 0.95,
        "metrics": measured.get("metrics") or rows,
        "by_class": measured.get("by_class") or stored,
        "subgroup_column": measured.get("subgroup_column"),
        "by_subgroup": measured.get("by_subgroup") or [],
        "fewest_rows": _FEWEST,
        "learned_nothing": quality.get("learned_nothing"),
        "covered_by_guarantee": False,
        "note": _utility_note(on, bool(rows or measured)),
    }


def _utility_note(on: str | None, measured: bool) -> str:
    if not measured:
        return "Not measured: no rows were held out, or the release is not a model."
    if on == "train":
        return "Measured on the training rows themselves: the figures are too high, and reveal more than the model."
    return (
        "Measured on held-out rows of people that the guarantee does not cover. Noise costs most where there is least "
        "data: read the figures by class and by subgroup before the total."
    )


def _trust(facts: Facts, method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    leaves = filled(method.seen, values)
    if facts.kind is Kind.FEDERATED:
        return _federated_trust(facts, leaves)
    if method.trust == LOCAL:
        return {
            "model": LOCAL,
            "trusted": ["the device or program that randomizes a text before it leaves"],
            "sees": [
                {"who": "the owner of a text, or whoever ran this program for them", "what": "the original text"},
                {"who": "the server, and everyone after it", "what": leaves},
            ],
            "note": "Randomization needs no other person's text. In this run one process held all texts; in the local "
            "model each device holds its own.",
        }
    return {
        "model": CENTRAL,
        "trusted": ["the curator who holds the original text and runs the training"],
        "sees": [
            {"who": "the curator", "what": "the original text, the noise and the gradients"},
            {"who": "whoever receives the release", "what": leaves},
        ],
        "note": "The guarantee holds against recipients of the release, not against the curator.",
    }


def _federated_trust(facts: Facts, leaves: str) -> dict[str, Any]:
    aggregation = facts.federation.get("aggregation")
    name = str(aggregation.get("name")) if isinstance(aggregation, Mapping) else "mean"
    hidden = name in _ENCRYPTED
    central = name == "central-dp"
    each = "only the sum of all clients' updates" if hidden else "the update of every client in every round"
    noisy = (facts.metrics.get("guarantee") or {}).get("epsilon") is not None
    noisy = noisy or (hidden and facts.metrics.get("client_guarantee") is not None)
    return {
        "model": ENCRYPTED if hidden else FEDERATED,
        "trusted": [
            "each client, for the text that it holds",
            *(["the server, which adds the noise"] if central else []),
            *(["the server: updates without noise reveal text"] if not (central or hidden or noisy) else []),
            *([_HONEST_SERVER, "that clients do not collude with the server to unmask others"] if hidden else []),
        ],
        "sees": [
            {"who": "each client", "what": "its own text, and the weights that the server sends"},
            {"who": "the server", "what": each + (" (with each client's own noise)" if noisy else "")},
            {"who": "whoever receives the model", "what": leaves},
        ],
        "note": f"{facts.federation.get('clients') or len(facts.clients)} clients; aggregation: {name}.",
    }


def _side_channels(facts: Facts) -> list[dict[str, str]]:
    """Return what is known about floating point, timing and randomness."""
    guarantee = facts.guarantee
    if guarantee is None:
        none = {"status": "not applicable", "sentence": "There is no guarantee to weaken."}
        return [{"channel": name, **none} for name in ("floating point", "timing", "randomness")]
    kernels = Caveat.UNSTEADY_KERNELS in guarantee.caveats
    seeded = Caveat.FIXED_SEED in guarantee.caveats
    rewritten = facts.kind is Kind.SANITIZED
    floating = (
        "The rounding of one unit's gradient depended on other units of its batch on this device."
        if kernels
        else "Noise is drawn and added in float64 and the sum is rounded once, so its low bits carry no more than "
        "the guarantee; float64 arithmetic is otherwise taken as exact. Sums of clipped gradients are formed in "
        f"float32. See {_FLOATING_POINT}."
    )
    if facts.protection is not None and facts.protection.get("name") == "secure-sum":
        floating = "Noise consists of integers that are sampled exactly, so there is no rounding to learn from."
    if rewritten:
        floating = "Words are sampled from weights computed in float64, which is taken as exact."
    return [
        {"channel": "floating point", "status": "not addressed" if kernels else "partly addressed",
         "sentence": floating},
        {"channel": "timing", "status": "not addressed",
         "sentence": "How long a step takes, and how much memory, depends on the data. It is not part of the release; "
         "do not let others observe the computation."},
        {"channel": "randomness", "status": "not addressed" if seeded else "addressed",
         "sentence": "The noise was drawn from a fixed seed: whoever knows it can remove the noise." if seeded else
         "Batches and noise come from a secret seed of the operating system, expanded by a cryptographic generator; "
         "it is deleted when the run is finished."},
    ]  # fmt: skip


def _not_protected(facts: Facts, method: Method, values: Mapping[str, Any]) -> list[str]:
    """Return what the guarantee does not cover: caveats, what the method leaves open, and its assumptions."""
    guarantee = facts.guarantee
    open_points = [filled(text, values) for text in method.not_protected]
    if guarantee is not None:
        if guarantee.reason:
            open_points.insert(0, guarantee.reason)
        open_points += [f"assumed: {text}" for text in guarantee.assumptions]
    if guarantee is not None and guarantee.exists:
        open_points += [
            "what the release says about everyone: a model may show that an illness is common without showing who has "
            "it",
            f"a {facts.unit} whose rows carry another name, or who is written about in the rows of others",
            "the original data where it is stored: the guarantee is about the release alone",
        ]
    return list(dict.fromkeys(open_points))


def _releases(facts: Facts, others: Mapping[str, Any] | None) -> dict[str, Any]:
    spent = facts.ledger
    outside = [
        "every release about the same people that is not in this ledger, such as earlier models, files or tables"
    ]
    if facts.kind in TRAINED:
        outside.append("figures about held-out rows, such as the utility above")
        outside.append("output of attacks and audits, which is for the owner")
    if facts.clients and not facts.other_ledgers:
        outside.append("the ledgers of the other clients: each client pays for its own people")
    return {
        "ledger": None if spent is None else {**spent.values(), "guarantee": _total(facts)},
        "clients": _clients(facts),
        "same_people": None if others is None else dict(others),
        "outside": outside,
    }


def _total(facts: Facts) -> dict[str, Any] | None:
    """Return the guarantee of everything in the ledger, at the delta of the release."""
    if facts.guarantee is None or not facts.ledgers:
        return None
    totals = [ledger.guarantee(facts.guarantee.delta) for ledger in facts.ledgers]
    return {
        "epsilon": finite(max(total.epsilon for total in totals)),
        "delta": facts.guarantee.delta,
        "certified": all(total.certified for total in totals),
    }


def _measured(facts: Facts) -> list[dict[str, Any]]:
    """Return the stored results of attacks and audits, without texts."""
    rows: list[dict[str, Any]] = []
    for result in facts.results:
        if "lower_bound" in result:
            claimed = facts.guarantee.epsilon if facts.guarantee is not None else math.inf
            rows.append(
                {
                    "what": "audit",
                    "file": result.get("file"),
                    "lower_bound": finite(result["lower_bound"]),
                    "upper_bound": finite(claimed),
                    "confidence": result.get("confidence"),
                    "refuted": bool(result.get("refuted")) or result["lower_bound"] > claimed,
                    "failed_checks": [one["what"] for one in result.get("checks", ()) if not one["passed"]],
                    "not_tested": [one["what"] for one in result.get("not_tested", ())],
                }
            )
            continue
        leakages = [
            {"metric": str(one["metric"]), **{key: finite(one.get(key)) for key in ("value", "low", "high", "chance")}}
            for one in result["leakage"]
        ]
        rows.append({"what": str(result["attack"]), "file": result.get("file"), "leakages": leakages})
    return rows


def _template_values(facts: Facts) -> dict[str, Any]:
    from discreet.accounting.events import RandomAllocationDpEvent, TruncatedSubsampledGaussianDpEvent

    protection, sampler = dict(facts.protection or {}), facts.metrics.get("sampler")
    values: dict[str, Any] = {**protection, "unit": facts.unit}
    kind: type[Sampler] = Poisson
    if facts.ledger is not None and len(facts.ledger.spent) == 1:  # what was paid for, if a run does not record it
        event = facts.ledger.spent[0][0]
        for name, value in (
            ("rate", getattr(event, "sampling_probability", None)),
            ("noise_multiplier", getattr(innermost(event), "noise_multiplier", None)),
            ("steps", facts.ledger.spends),
        ):
            if value is not None:
                values.setdefault(name, value)
        if isinstance(event, RandomAllocationDpEvent):  # an epoch is one spend
            kind = RandomAllocation
            values |= {"steps": f"At most {facts.ledger.spends * event.bins}", "bins": event.bins}
        elif isinstance(event, TruncatedSubsampledGaussianDpEvent):
            kind, values["largest"] = TruncatedPoisson, event.truncated_batch_size
    if isinstance(sampler, Mapping):
        kind = sampler_kind(sampler)
        values |= {name: value for name, value in sampler.items() if name != "name"}
    if _steps(facts) is not None:
        values["steps"] = _steps(facts)
    if isinstance(protection.get("mix"), int):
        values["others"] = protection["mix"] - 1
    values["drawing"] = filled(kind.drawing, values)
    correlated = CORRELATED.get(str(protection.get("correlation")), "")
    values["correlated"] = filled(correlated, values)
    values["later"] = filled(LATER, values) if correlated else ""
    values["labels"] = " with its label" if protection.get("label_epsilon") is None else " with a randomized label"
    return values


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def same_people(facts: Facts) -> dict[str, Any] | None:
    """Return the total over all releases of the same people that this machine recorded; None if it has no record."""
    from discreet.runs.people import People

    record = record_of(facts.path)
    if record is None:
        return None
    total = People().total_of(record)
    return {**total.as_dict(), "sentence": str(total.sentence())}
