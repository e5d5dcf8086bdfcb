"""A privacy statement as Markdown, section by section, in the order of NIST SP 800-226."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from discreet.core.guarantee import in_digits


def markdown_of(statement: Mapping[str, Any]) -> str:
    """Return a statement as Markdown.

    Args:
        statement: What `statement_of` returned.
    """
    sections = (
        ("Privacy parameters", _parameters),
        ("Unit of privacy", _unit),
        ("Contribution of one unit", _contribution),
        ("Algorithm and sensitivity", _algorithm),
        ("Utility", _utility),
        ("Trust model", _trust),
        ("Side channels", _side_channels),
        ("What is not protected", lambda one: _items(one["not_protected"])),
        ("Releases", _releases),
        ("What was measured", _measured),
        (
            "To be completed by the owner of the data",
            lambda one: _items([f"{text}: ______" for text in one["to_complete"]]),
        ),
    )
    release = statement["release"]
    parts = [
        f"# Privacy statement: {_cell(release['name'])}",
        f"{_upper(release['what'])} ({release['kind']}). What leaves: {release['leaves']}.",
        f"**Guarantee: {statement['parameters']['guarantee']}.** {statement['parameters']['sentence']}",
    ]
    for number, (title, write) in enumerate(sections, start=1):
        parts += [f"## {number}. {title}", write(statement)]
    made = statement["made_by"]
    parts.append(
        f"Made by {made['name']} {made['version']} from what the release recorded ({statement['format']}).\n\n"
        "Signed: ______________________   Date: ______________"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _parameters(one: Mapping[str, Any]) -> str:
    values = one["parameters"]
    rows = [
        ("definition", values["definition"]),
        ("epsilon", _bound(values["epsilon"])),
        ("delta", _bound(values["delta"])),
        ("adjacency", values["adjacency"] or "none"),
        ("strength", values["strength"]),
        ("accountant", values["accountant"] or "none"),
    ]
    rows += [
        (f"epsilon, {name}", "not defined here" if value is None else in_digits(value))
        for name, value in values["epsilon_by_adjacency"].items()
    ]
    original = values["original"]
    rows += [(name.replace("_", " "), _plain(value)) for name, value in original["settings"].items()]
    rows += [(f"sampler, {name}", _plain(value)) for name, value in (original["sampler"] or {}).items()]
    if original["steps"] is not None:
        rows.append(("steps", str(original["steps"])))
    parts = [_table(("parameter", "value"), rows)]
    if original["events"]:
        parts.append("What was paid for (events of dp_accounting, with counts):")
        parts.append("\n".join(f"- {event['count']:,} × `{_event(event['event'])}`" for event in original["events"]))
    if values["trade_off"]:
        parts.append(_curve(values))
    return "\n\n".join(parts)


def _curve(values: Mapping[str, Any]) -> str:
    kind = "bound" if values["guarantee"] == "certified" else "estimate"
    rates = [
        (f"{100 * one['false_positive_rate']:g}%", f"{_bound(100 * one['largest_true_positive_rate'], 3)}%")
        for one in values["trade_off"]
    ]
    profile = [(_bound(one["epsilon"], 6), _bound(one["delta"], 3)) for one in values["privacy_profile"]]
    return (
        f"Trade-off curve ({kind}): the largest true-positive rate of any test that tells the neighbouring data sets "
        "of section 2 apart, by its false-positive rate.\n\n"
        + _table(("false-positive rate", "largest true-positive rate"), rates)
        + f"\n\nThe same as pairs of epsilon and delta ({kind}); each of them holds.\n\n"
        + _table(("epsilon", "delta"), profile)
    )


def _unit(one: Mapping[str, Any]) -> str:
    unit = one["unit"]
    if unit["population"] is not None:
        count = f"A population of {unit['population']:,} was assumed, which is public; the actual number is not."
    elif unit["count"] is not None:
        count = f"There are {unit['count']:,}, and this number is public."
    else:
        count = "Their number is not recorded."
    return f"The unit of privacy is the **{unit['name']}**. {count} {unit['neighbours']}"


def _contribution(one: Mapping[str, Any]) -> str:
    cap = one["contribution"]["max_rows_per_unit"]
    return f"Cap on rows per unit: {'none' if cap is None else f'**{cap}**'}. {one['contribution']['bound']}"


def _algorithm(one: Mapping[str, Any]) -> str:
    values = one["algorithm"]
    parts = [
        f"**{_upper(values['label'])}.** {values['description']}",
        f"Sensitivity: {values['sensitivity'].rstrip('.')}.",
    ]
    for name, title in (
        ("chosen_without_data", "Chosen without looking at the data:"),
        ("chosen_with_data", "Chosen or known from the data:"),
        ("not_recorded", "Not recorded:"),
    ):
        if values[name]:
            parts += [title, _items(values[name])]
    return "\n\n".join(parts)


def _utility(one: Mapping[str, Any]) -> str:
    values = one["utility"]
    parts = [values["note"]]
    if values["metrics"]:
        where = f" on the {values['measured_on']} split" if values["measured_on"] else ""
        rows = f", {values['rows']:,} rows" if values["rows"] is not None else ""
        parts.append(f"Measured{where}{rows}; intervals of {100 * values['confidence']:g}%.")
        parts.append(
            _table(
                ("metric", "value", "interval", "constant answer"),
                [
                    (row["metric"], _number(row["value"], 4), _interval(row["interval"]), _number(row["baseline"], 4))
                    for row in values["metrics"]
                ],
            )
        )
    for key, column, title in (
        ("by_class", "class", "By class (the share of its rows that the model gets right):"),
        ("by_subgroup", "group", f"By subgroup, column {_cell(str(values['subgroup_column']))}:"),
    ):
        if values[key]:
            parts += [
                title,
                _table(
                    (column, "rows", "metric", "value", "interval"),
                    [
                        (row[column], f"{row['rows']:,}", row["metric"], _number(row["value"], 4),
                         _interval(row["interval"]))
                        for row in values[key]
                    ],
                ),
            ]  # fmt: skip
    if values["by_class"] or values["by_subgroup"]:
        parts.append(f"Classes and subgroups of fewer than {values['fewest_rows']} rows are left out.")
    return "\n\n".join(parts)


def _trust(one: Mapping[str, Any]) -> str:
    trust = one["trust"]
    return "\n\n".join(
        (
            f"Model: **{trust['model']}**. {trust['note']}",
            "Trusted: " + "; ".join(trust["trusted"]) + ".",
            _table(("who", "sees"), [(row["who"], row["what"]) for row in trust["sees"]]),
        )
    )


def _side_channels(one: Mapping[str, Any]) -> str:
    return _table(
        ("channel", "status", "details"),
        [(row["channel"], row["status"], row["sentence"]) for row in one["side_channels"]],
    )


def _releases(one: Mapping[str, Any]) -> str:
    values, parts = one["releases"], []
    ledger = values["ledger"]
    if ledger is None:
        parts.append("There is no ledger: nothing was paid for.")
    else:
        total = ledger["guarantee"]
        figure = ""
        if total is not None:
            kind = "" if total["certified"] else "an estimated "
            epsilon = "no bound" if total["epsilon"] is None else f"{kind}epsilon {in_digits(total['epsilon'])}"
            figure = f" Everything in it together: {epsilon} at delta {in_digits(total['delta'])}."
        budget = ledger["budget"]
        limit = "" if budget is None else f" Its budget is epsilon {in_digits(budget['epsilon'])}."
        parts.append(
            f"The ledger holds {ledger['spends']:,} spends for each {ledger['unit']} ({ledger['adjacency']})."
            f"{figure}{limit}"
        )
    if values["clients"]:
        rows = [
            (
                _plain(row["client"]),
                "not recorded" if row["units"] is None else str(row["units"]),
                _bound(row["epsilon"]),
                _bound(row["delta"]),
                "not recorded" if row["spends"] is None else f"{row['spends']:,}",
            )
            for row in values["clients"]
        ]
        parts.append(_table(("client", "units", "epsilon", "delta", "spends"), rows))
        paid = [
            f"- client {_plain(row['client'])}: {event['count']:,} × `{_event(event['event'])}`"
            for row in values["clients"]
            for event in row["events"]
        ]
        if paid:
            parts += ["What every client paid for:", "\n".join(paid)]
    if values["same_people"] is not None:
        parts.append(f"Recorded on this machine, not for publication: {values['same_people']['sentence']}")
    parts += ["Outside the ledger:", _items(values["outside"])]
    return "\n\n".join(parts)


def _measured(one: Mapping[str, Any]) -> str:
    if not one["measured"]:
        return "No results of attacks or audits are stored with the release. A measurement is no proof in any case."
    lines = []
    for row in one["measured"]:
        if row["what"] == "audit":
            lines.append(
                f"audit: epsilon is at least {_number(row['lower_bound'])} ({_number(row['confidence'])} confidence); "
                f"claimed at most {_bound(row['upper_bound'])}{', which is refuted' if row['refuted'] else ''}"
            )
            lines += [f"audit, failed: {text}" for text in row["failed_checks"]]
            known = row["not_tested"] or ["the result does not say what was tested"]
            lines.append(f"audit, not tested: {'; '.join(known)}")
        for leakage in row.get("leakages", ()):
            chance = "" if leakage["chance"] is None else f", chance {_number(leakage['chance'], 3)}"
            interval = _interval([leakage["low"], leakage["high"]])
            lines.append(f"{row['what']}: {leakage['metric']} {_number(leakage['value'], 4)} {interval}{chance}")
    return _items(lines) + "\n\nAttacks show what is possible at least; they prove nothing about better attacks."


def _items(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(_cell(str(cell)) for cell in row) + " |" for row in rows)])


def _cell(text: str) -> str:
    """Return text that stays in its cell and is shown as it is: class names and columns are not ours."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _number(value: float | None, digits: int = 4) -> str:
    return "none" if value is None else f"{value:.{digits}g}"


def _bound(value: float | None, digits: int = 4) -> str:
    """Return an upper bound in few digits, rounded up."""
    return "none" if value is None else in_digits(value, digits) if value else "0"


def _interval(ends: Sequence[float | None] | None) -> str:
    if not ends or any(end is None for end in ends):
        return ""
    return f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _event(value: Any) -> str:
    """Return an event as text with numbers of six digits."""
    if isinstance(value, dict):
        return ", ".join(f"{key}({_event(inner)})" if isinstance(inner, dict) else f"{key}={_event(inner)}"
                         for key, inner in value.items())  # fmt: skip
    if isinstance(value, list):
        return "[" + ", ".join(_event(one) for one in value) + "]"
    return _plain(value)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
