"""The same two figures of a report by our SVG, matplotlib, Altair and Plotly: size, time, lines, and what a page needs.

    python -m benchmarks.figure_libraries [--packages PATH] [--out FOLDER]

`--packages` is a folder of installed packages with matplotlib, altair, vl-convert-python and plotly, for example that
of an environment made for this; a library that is missing is left out. All draw the `Figure` values of
`report/figures.py`. The table is in docs/decisions/figures.md.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import json
import random
import re
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.code_size import code_lines

from discreet.report import figures
from discreet.report.figures import Axis, Figure, Line, Mark

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568")
DASHES = {"solid": "-", "frontier": "-", "bound": "--", "limit": ":", "chance": ":"}


def scatter() -> Figure:
    """Return utility against leakage for 24 settings of four protections, with intervals, frontier and ceiling."""
    source = random.Random(0)
    figure = Figure(
        "accuracy against words recovered", Axis("words recovered", 0, 1, reverse=True), Axis("accuracy", 0.4, 1)
    )
    for number in range(24):
        leak = (number % 6 + 0.5) / 6
        value = 0.5 + 0.4 * leak + source.uniform(-0.05, 0.05)
        spread = f"[{value - 0.03:.3f}, {value + 0.03:.3f}]"
        words = f"method {number % 4} · {number}: accuracy {value:.3f} {spread}, leakage {leak:.2f}"
        figure.marks.append(
            Mark(leak, value, words, number % 4, leak - 0.05, leak + 0.05, value - 0.03, value + 0.03, number == 7,
                 label=f"method {number % 4} · {number}")
        )  # fmt: skip
    figure.lines.append(Line(((0.3, 0.4), (0.3, 1.0)), style="limit", words="ceiling 0.3", label="ceiling 0.3"))
    figure.lines.append(Line(tuple((i / 9, 0.5 + i / 22) for i in range(10)), style="frontier", words="frontier"))
    return figure


def curves() -> Figure:
    """Return four ROC curves on logarithmic axes with their bounds and with points that have intervals."""
    rates = [10 ** (-3 + i / 20) for i in range(61)]
    figure = Figure(
        "members found", Axis("non-members accused", 1e-3, 1, log=True), Axis("members found", 1e-3, 1, log=True)
    )
    figure.lines.append(Line(tuple((x, x) for x in rates), None, "chance", "random guessing"))
    for series in range(4):
        power = 0.9 - 0.15 * series
        figure.lines.append(Line(tuple((x, x**power) for x in rates), series))
        figure.lines.append(
            Line(tuple((x, min(1.0, 2 * x**power)) for x in rates), series, "bound", f"{series}: proven")
        )
        for x in (0.001, 0.01, 0.1):
            y = x**power
            words = f"method {series}: {y:.3f} of members at {100 * x:g}% of non-members"
            figure.marks.append(Mark(x, y, words, series, y_low=y / 1.3, y_high=min(1.0, y * 1.3)))
    return figure


def ours(figure: Figure, name: str) -> str:
    return str(figure.svg(name))


def by_matplotlib(figure: Figure, name: str) -> str:
    """Return the SVG of matplotlib, with names for screen readers and colours of the page, which it does not write."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text
    matplotlib.rcParams["svg.hashsalt"] = name
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(figsize=(6.4, 4.0))
    for axis, set_scale, set_limits, set_label in (
        (figure.x, axes.set_xscale, axes.set_xlim, axes.set_xlabel),
        (figure.y, axes.set_yscale, axes.set_ylim, axes.set_ylabel),
    ):
        set_scale("log" if axis.log else "linear")
        set_limits(*((axis.high, axis.low) if axis.reverse else (axis.low, axis.high)))
        set_label(axis.name)
    axes.grid(True)
    said = {}
    for number, line in enumerate(figure.lines):
        xs, ys = zip(*line.points, strict=True)
        colour = "#000001" if line.series is None else COLOURS[line.series % 6]
        axes.plot(xs, ys, DASHES[line.style], color=colour, gid=f"{name}-line-{number}")
        said[f"{name}-line-{number}"] = line.words
        if line.label:
            axes.annotate(line.label, line.points[-1], textcoords="offset points", xytext=(4, -10))
    for number, mark in enumerate(figure.marks):
        colour = COLOURS[mark.series % 6]
        if mark.y_low is not None and mark.y_high is not None:
            axes.plot([mark.x, mark.x], [mark.y_low, mark.y_high], color=colour, alpha=0.55)
        if mark.x_low is not None and mark.x_high is not None:
            axes.plot([mark.x_low, mark.x_high], [mark.y, mark.y], color=colour, alpha=0.55)
        axes.plot([mark.x], [mark.y], "os^DxH"[mark.series % 6], color=colour, gid=f"{name}-mark-{number}")
        said[f"{name}-mark-{number}"] = mark.words
        if mark.chosen:
            axes.plot([mark.x], [mark.y], "o", mfc="none", mec="#000001", ms=16)
        if mark.label:  # it has no placement that avoids collisions: adjustText is a package of its own
            axes.annotate(mark.label, (mark.x, mark.y), textcoords="offset points", xytext=(8, 3))
    held = io.StringIO()
    drawing.savefig(held, format="svg", metadata={"Date": None, "Title": figure.title})
    plt.close(drawing)
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    tree = ElementTree.fromstring(held.getvalue())
    first = True
    for element in tree.iter():
        words = said.get(element.get("id", ""))
        if words:
            title = ElementTree.SubElement(element, "{http://www.w3.org/2000/svg}title")
            title.text = words
        if words and "-mark-" in element.get("id", ""):
            element.attrib |= {"role": "listitem", "tabindex": "0" if first else "-1", "aria-label": words}
            first = False
    text = ElementTree.tostring(tree, encoding="unicode")
    for number, colour in enumerate(COLOURS):
        text = text.replace(colour, f"var(--s{number})")
    return text.replace("#000001", "var(--ink)").replace("#ffffff", "var(--card)").replace("#000000", "var(--ink)")


def _chart(figure: Figure) -> Any:
    import altair

    def scale(axis: Axis) -> Any:
        kind = "log" if axis.log else "linear"
        return altair.Scale(type=kind, domain=[axis.low, axis.high], reverse=axis.reverse, clamp=True)

    x = altair.X("x:Q", scale=scale(figure.x), title=figure.x.name)
    y = altair.Y("y:Q", scale=scale(figure.y), title=figure.y.name)
    layers = []
    for line in figure.lines:
        rows = altair.Data(values=[{"x": a, "y": b, "n": i} for i, (a, b) in enumerate(line.points)])
        dash = [] if line.style in ("solid", "frontier") else [5, 4]
        colour = "black" if line.series is None else COLOURS[line.series % 6]
        shape = altair.Chart(rows).mark_line(strokeDash=dash, color=colour, description=line.words)
        layers.append(shape.encode(x, y, order="n:Q"))
    rows = altair.Data(
        values=[{**vars(mark), "colour": COLOURS[mark.series % 6], "kind": str(mark.series)} for mark in figure.marks]
    )
    colour = altair.Color("colour:N", scale=None)
    base = altair.Chart(rows)
    if any(mark.y_low is not None for mark in figure.marks):
        layers.append(base.mark_rule().encode(x, altair.Y("y_low:Q"), altair.Y2("y_high:Q"), color=colour))
    if any(mark.x_low is not None for mark in figure.marks):
        layers.append(base.mark_rule().encode(altair.X("x_low:Q"), altair.X2("x_high:Q"), y, color=colour))
    points = base.mark_point(filled=True, size=60).encode(
        x, y, color=colour, shape=altair.Shape("kind:N", legend=None), tooltip="words:N", description="words:N"
    )
    return altair.layer(*layers, points, base.mark_text(align="left", dx=8).encode(x, y, text="label:N")).properties(
        width=560, height=330, title=figure.title
    )


def by_altair_svg(figure: Figure, name: str) -> str:
    held = io.StringIO()
    _chart(figure).save(held, format="svg")
    return held.getvalue()


def by_altair_page(figure: Figure, name: str) -> str:
    held = io.StringIO()
    _chart(figure).save(held, format="html", inline=True)
    return held.getvalue()


def by_plotly(figure: Figure, name: str) -> str:
    import plotly.graph_objects as go

    drawing = go.Figure()
    for line in figure.lines:
        xs, ys = zip(*line.points, strict=True)
        colour = "black" if line.series is None else COLOURS[line.series % 6]
        dash = "solid" if line.style in ("solid", "frontier") else "dash"
        drawing.add_scatter(x=xs, y=ys, mode="lines", line={"color": colour, "dash": dash}, hovertext=line.words)
    for mark in figure.marks:
        errors = {}
        for axis in ("x", "y"):
            low, at, high = getattr(mark, f"{axis}_low"), getattr(mark, axis), getattr(mark, f"{axis}_high")
            if low is not None:
                errors[f"error_{axis}"] = {"array": [high - at], "arrayminus": [at - low], "symmetric": False}
        symbol = ("circle", "square", "triangle-up", "diamond", "x", "circle-open")[mark.series % 6]
        drawing.add_scatter(
            x=[mark.x], y=[mark.y], mode="markers+text", text=mark.label, hovertext=mark.words,
            marker={"color": COLOURS[mark.series % 6], "symbol": symbol, "size": 10}, **errors,
        )  # fmt: skip
    for axis, update in ((figure.x, drawing.update_xaxes), (figure.y, drawing.update_yaxes)):
        update(title=axis.name, type="log" if axis.log else "linear", autorange="reversed" if axis.reverse else True)
    drawing.update_layout(title=figure.title, showlegend=False)
    return str(drawing.to_html(include_plotlyjs=True))


DRAWERS: dict[str, tuple[Callable[[Figure, str], str], tuple[Any, ...]]] = {
    "ours": (
        ours,
        (
            Axis.place,
            Axis.ticks,
            Figure,
            figures._box,
            figures._overlap,
            figures._text,
            figures.shape,
            figures._polygon,
        ),
    ),
    "matplotlib": (by_matplotlib, (by_matplotlib,)),
    "altair, SVG": (by_altair_svg, (_chart, by_altair_svg)),
    "altair, page": (by_altair_page, (_chart, by_altair_page)),
    "plotly": (by_plotly, (by_plotly,)),
}
NEEDED = {"matplotlib": "matplotlib", "altair, SVG": "vl_convert", "altair, page": "altair", "plotly": "plotly"}


def facts(text: str) -> dict[str, Any]:
    """Return what a single page without a network, with a dark mode and for a screen reader needs."""
    return {
        "kilobytes": round(len(text.encode()) / 1000, 1),
        "script_kilobytes": round(sum(map(len, re.findall(r"<script.*?</script>", text, re.DOTALL))) / 1000),
        "named_marks": len(re.findall(r'aria-label="method', text)),
        "fixed_colours": len(
            re.findall(r"#[0-9a-fA-F]{6}\b", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", help="a folder of packages that are not in this environment")
    parser.add_argument("--out", type=Path, help="a folder for the figures")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(options.packages)
    for name, (draw, parts) in DRAWERS.items():
        try:
            importlib.import_module(NEEDED.get(name, "discreet"))
        except ImportError:
            continue
        module = (
            "discreet.report.figures" if name == "ours" else NEEDED[name].replace("matplotlib", "matplotlib.pyplot")
        )
        added = f"import sys; sys.path.append({options.packages or '.'!r}); import time; began = time.process_time(); "
        timed = f"{added} import {module}; print(time.process_time() - began)"
        loading = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
        for figure in (scatter(), curves()):
            text = draw(figure, "a")
            began, count = time.process_time(), 0
            while time.process_time() - began < 1:
                text, count = draw(figure, "a"), count + 1
            row = {
                "by": name,
                "figure": figure.title,
                "lines": sum(code_lines(textwrap.dedent(inspect.getsource(part))) for part in parts),
                "import_seconds": round(float(loading.stdout), 2),
                "milliseconds": round(1000 * (time.process_time() - began) / count, 1),
                **facts(text),
            }
            print(json.dumps(row), flush=True)
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                kind = "html" if "<html" in text else "svg"
                (options.out / f"{name.replace(', ', '-')}-{figure.title.split()[0]}.{kind}").write_text(text)


if __name__ == "__main__":
    main()
