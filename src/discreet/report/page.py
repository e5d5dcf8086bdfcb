"""The report of a sweep: one HTML file that opens offline, the same in Markdown, and a model card."""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from discreet.core.files import write_atomic
from discreet.core.guarantee import in_digits
from discreet.core.randomness import Rng
from discreet.metrics.table import label_of
from discreet.metrics.utility import LOWER_IS_BETTER
from discreet.report import figures
from discreet.report.brief import Brief, brief_of
from discreet.report.command import Command, wrapped
from discreet.report.figures import SHAPES, Figure, shape
from discreet.report.tables import (
    adjacency_rows,
    blanks,
    first_points,
    guarantees,
    metrics_by_attack,
    setting_rows,
    shared_baseline,
)
from discreet.report.texts import by_attack, readings
from discreet.report.words import (
    GLOSSARY,
    at_most,
    badge_of,
    interval,
    metric_words,
    of_rows,
    percent,
    percent_at_most,
    released,
    size_words,
    useless,
    verdict_of,
)
from discreet.study.frontier import Point, WellBehaved, frontier, well_behaved
from discreet.study.grid import LESS_IS_MORE
from discreet.study.result import StudyResult, read_result

WIDTH = 76  # of a command


@dataclass(frozen=True)
class Written:
    """Where a report was written, its verdict in three sentences, its first screen, and the next command."""

    page: Path
    markdown: Path
    card: Path
    verdict: tuple[str, str, str]
    brief: Brief
    command: str | None = None


def write_report(folder: Path | str) -> Written:
    """Write report.html, report.md and model_card.md into a sweep's folder, and return where they are.

    Args:
        folder: The folder of a study.

    Guarantee: none; the page shows private texts and what was read of them. Keep it as private as the corpus.
    """
    folder = Path(folder)
    result = read_result(folder)
    sentences = verdict_of(result)
    brief = brief_of(result)
    command = None if brief.command is None else command_text(brief.command)
    values = _values(result, sentences, brief)
    written = Written(folder / "report.html", folder / "report.md", folder / "model_card.md", sentences, brief, command)
    plain = _environment(html=False)
    write_atomic(written.page, render_page(values))
    write_atomic(written.markdown, plain.get_template("report.md.j2").render(values))
    write_atomic(written.card, plain.get_template("card.md.j2").render(values))
    return written


def command_text(command: Command, width: float = math.inf) -> str:
    """Return a command for a shell, on one line or on lines of a width."""
    text = _environment(html=False).get_template("command.j2").render(command=command)
    return wrapped(text.splitlines(), width)


def render_page(values: Mapping[str, Any]) -> str:
    """Return the HTML page; its content security policy allows its own style and script, by hash, and nothing else."""
    style, script = _file("report.css"), _file("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    template = _environment(html=True).get_template("report.html.j2")
    return str(template.render({**values, "style": Markup(style), "script": Markup(script), "policy": policy}))


def _environment(html: bool) -> Any:
    from jinja2 import DictLoader, Environment, StrictUndefined

    names = ("report.html.j2", "report.md.j2", "card.md.j2", "command.j2")
    made = Environment(
        loader=DictLoader({name: _file(name) for name in names}),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": percent, "interval": interval, "metric": metric_words, "cell": cell}
    made.filters |= {
        "of_rows": of_rows,
        "badge": badge_of,
        "size": size_words,
        "label_of": label_of,
        "quoted": shlex.quote,
    }
    made.filters |= {"at_most": at_most, "percent_at_most": percent_at_most, "in_digits": in_digits}
    return made


_MARKDOWN = str.maketrans({sign: "\\" + sign for sign in "\\`*_[]|#~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def cell(text: object) -> str:
    """Return a text for a Markdown table: on one line, with every character escaped that could end a cell or mark up.

    >>> cell("<b>a|b</b>")
    '&lt;b&gt;a\\\\|b&lt;/b&gt;'
    """
    return " ".join(str(text).split()).translate(_MARKDOWN)


def _file(name: str) -> str:
    return (resources.files("discreet.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def model_verdicts(result: StudyResult) -> list[tuple[str, str, str]]:
    """Return what every attack on the trained model found, in words: the setting, the attack, and the verdict."""
    return [
        (point.label, name, str(attack["verdict"]))
        for point in result.points
        for name, attack in (point.trials[0].details.get("attacks") or {}).items()
        if attack.get("verdict")
    ]


def _values(result: StudyResult, sentences: tuple[str, str, str], brief: Brief) -> dict[str, Any]:
    """Return everything that the templates need, as plain values and SVG figures."""
    from discreet import __version__

    ceiling = None if result.goal is None else result.goal.ceiling
    panels = []
    for number, name in enumerate(result.leakages):
        goal = result.goal is not None and name == result.goal.leakage
        limit = ceiling if goal else None
        plot = figures.utility_against_leakage(result.points, name, result.utility, result.recommended, limit)
        curves = figures.noise_curves(result.points, name)
        panels.append(
            {
                "id": f"p{number}",
                "name": name,
                "words": metric_words(name),
                "plot": plot.svg(f"plot{number}"),
                "legend": legend(plot, result.points),
                "frontier": [p.label for p in frontier(result.points, name, result.utility)],
                "curves": [
                    {
                        "name": which,
                        "svg": curve.svg(f"curve{number}-{i}"),
                        "legend": {**legend(curve, result.points), "series": dict.fromkeys([which], *curve.series)},
                        "behaved": _behaved(result.points, name, which),
                    }
                    for i, (which, curve) in enumerate(curves)
                ],
            }
        )
    numbers, notes = blanks(result)
    shown = result.recommended or result.points[-1]
    return {
        "study": result.study,
        "title": result.title,
        "verdict": sentences,
        "brief": brief,
        "command": None if brief.command is None else command_text(brief.command, WIDTH),
        "utility": result.utility,
        "goal": result.goal,
        "chosen": result.recommended,
        "points": result.points,
        "leakages": result.leakages,
        "series": figures.series_of(result.points),
        "panels": panels,
        "corner": figures.best_corner(result.utility),
        "is_error": result.utility in LOWER_IS_BETTER,
        "members": [
            {"name": name, "svg": figure.svg(f"members{number}"), "legend": legend(figure, result.points)}
            for number, (name, figure) in enumerate(figures.membership_curves(result.points))
        ],
        "model_verdicts": model_verdicts(result),
        "exposed": drawn(figures.exposure_by_copies(result.points), "exposed", result.points),
        "spent": drawn(figures.epsilon_over_training(result.points), "spent", result.points),
        "readings": by_attack(readings(result), result),
        "rows": setting_rows(result, first_points(result)),
        "baseline": shared_baseline(result),
        "all_rows": setting_rows(result, result.points),
        "metrics": metrics_by_attack(result),
        "trials": list(result.trials.values()),
        "failures": result.failures,
        "risk": result.noise,
        "glossary": GLOSSARY.items(),
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "settings": result.toml,
        "warnings": useless(result.points, result.utility),
        "release": None if result.goal is None else released(result.goal.scope, shown),
        "seconds": sum(trial.seconds for trial in result.trials.values()),
        "not_attacked": [
            (point.label, attack, why)
            for point in result.points
            for attack, why in (point.trials[0].details.get("not_attacked") or {}).items()
        ],
        "blanks": numbers,
        "notes": notes,
        "adjacency_columns": adjacency_rows(result.points),
        "guarantee_groups": guarantees(result.points),
        "shapes": [Markup(shape(number, 9, 9)) for number in range(SHAPES)],
    }


def drawn(figure: Figure | None, name: str, points: Sequence[Point]) -> dict[str, Any] | None:
    """Return a figure as SVG with its legend, or None if there is nothing to draw; `name` makes its ids unique."""
    return None if figure is None else {"svg": figure.svg(name), "legend": legend(figure, points)}


def legend(figure: Figure, points: Sequence[Point]) -> dict[str, Any]:
    """Return the entries of a figure's legend: the protections in it, by name, and the styles of its lines."""
    every = figures.series_of(points).items()
    return {"series": {name: number for name, number in every if number in figure.series}, "styles": figure.styles}


def _behaved(points: Sequence[Point], leakage: str, name: str) -> WellBehaved | None:
    """Return how steadily an attack's leakage falls with a protection's noise, if there are enough strengths."""
    rows = [(at, p) for p in figures.of_variant(points, name) if leakage in p.leakage and (at := p.noise)]
    if len(rows) < 3:
        return None
    turn = -1.0 if rows[0][0][0] in LESS_IS_MORE else 1.0
    return well_behaved([turn * at[1] for at, _ in rows], [p.leakage[leakage] for _, p in rows], rng=Rng(0))
