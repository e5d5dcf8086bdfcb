"""Draw the figures of a report as SVG: utility against leakage, leakage against noise, ROC curves, epsilon by step.

Marks differ by shape as well as colour and have names for screen readers. Every text in a figure is escaped. Colours
are CSS classes, so that light, dark and print each have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape

from discreet.core.guarantee import in_digits
from discreet.metrics.utility import LOWER_IS_BETTER
from discreet.report.words import at_most, ceiling_words, interval, metric_words, of_rows
from discreet.study.frontier import Measured, Point, frontier
from discreet.study.grid import LESS_IS_MORE

WIDTH, HEIGHT = 640.0, 400.0
LETTER = 6.9  # width of a letter of a label, in the units of a figure
WIDE = 10.0  # a ratio of the largest to the smallest leakage from which its axis is logarithmic
LEFT, RIGHT, TOP, BOTTOM = 64.0, 18.0, 16.0, 52.0
SHAPES = 6


@dataclass(frozen=True)
class Axis:
    """One axis: its name, its limits, whether it is logarithmic, and whether it is reversed."""

    name: str
    low: float
    high: float
    log: bool = False
    reverse: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value between the limits, from 0 to 1, clipped."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            at = (math.log(max(value, self.low)) - low) / ((high - low) or 1.0)
        else:
            at = (value - self.low) / ((self.high - self.low) or 1.0)
        at = min(max(at, 0.0), 1.0)
        return 1 - at if self.reverse else at

    def ticks(self) -> list[float]:
        """Return round values to label.

        >>> Axis("x", 0.0, 1.0).ticks()
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        """
        if self.log:
            first, last = math.floor(math.log10(self.low) + 1e-9), math.ceil(math.log10(self.high) - 1e-9)
            few = self.high > 400 * self.low
            every = [m * 10.0**p for p in range(first, last + 1) for m in ((1,) if few else (1, 2, 5))]
            return [v for v in every if self.low * 0.999 <= v <= self.high * 1.001] or [self.low, self.high]
        span = (self.high - self.low) or 1.0
        step = 10 ** math.floor(math.log10(span / 4))
        step = next(step * m for m in (1, 2, 2.5, 5, 10) if span / (step * m) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        return [round(step * i, 10) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Mark:
    """One point of a figure, with its intervals and a description for tooltips and screen readers."""

    x: float
    y: float
    words: str
    series: int = 0
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None
    chosen: bool = False
    label: str = ""  # what is written beside it; the part before " · " is left out on a narrow screen


@dataclass(frozen=True)
class Line:
    """A line through points: solid for measurements, dashed for bounds, dotted for limits.

    `label` is written at its last point.
    """

    points: tuple[tuple[float, float], ...]
    series: int | None = None
    style: str = "solid"
    words: str = ""
    label: str = ""


@dataclass
class Figure:
    """Axes, lines and marks, rendered as SVG."""

    title: str
    x: Axis
    y: Axis
    lines: list[Line] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def series(self) -> set[int]:
        """The series that are in the figure, which its legend names."""
        return {mark.series for mark in self.marks} | {line.series for line in self.lines if line.series is not None}

    @property
    def styles(self) -> set[str]:
        """The styles of the lines in the figure."""
        return {line.style for line in self.lines if line.points}

    def svg(self, name: str) -> Markup:
        """Return the figure as SVG; `name` makes its ids unique on the page."""
        parts = [
            f'<svg class="figure" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="group" '
            f'aria-labelledby="{escape(name)}-t">'
            f'<title id="{escape(name)}-t">{escape(self.title)}</title>',
            self._grid(),
            *(self._line(line) for line in self.lines),
            f'<g class="marks" role="list" aria-label="{escape(self.title)}">',
            *(self._mark(mark, number == 0) for number, mark in enumerate(self.marks)),
            "</g>",
            *self._labels(),
            "</svg>",
        ]
        return Markup("".join(parts))

    def _labels(self) -> list[str]:
        """Return the labels of lines and marks; one that would lie on another, or on a mark, is left out.

        The recommended mark is labelled first. Every mark has its name for a pointer or a screen reader too.
        """
        places = [self._at(mark.x, mark.y) for mark in self.marks]
        taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in places]
        parts = []
        for line in self.lines:
            if line.label and line.points:
                x, y = self._at(*line.points[-1])
                upright = line.points[0][0] == line.points[-1][0]
                at, anchor = ((x + 5, y + 13), "start") if upright else ((x - 4, y - 6), "end")
                if upright and x + 5 + LETTER * len(line.label) > WIDTH - RIGHT:
                    at, anchor = (x - 5, y + 13), "end"
                box = _box(at, anchor, len(line.label))
                taken.append(box)
                parts.append(_text("note", at, anchor, line.label))
        order = sorted(range(len(self.marks)), key=lambda number: not self.marks[number].chosen)
        for number in order:
            mark, (x, y) = self.marks[number], places[number]
            for at, anchor in (((x + 10, y + 4), "start"), ((x - 10, y + 4), "end"), ((x, y - 12), "middle"),
                               ((x, y + 21), "middle"), ((x + 9, y - 9), "start"), ((x - 9, y - 9), "end"),
                               ((x + 9, y + 17), "start"), ((x - 9, y + 17), "end")):  # fmt: skip
                box = _box(at, anchor, len(mark.label))
                inside = box[0] >= LEFT and box[2] <= WIDTH - 2 and box[1] >= 2 and box[3] <= HEIGHT - BOTTOM
                if not mark.label or not inside or any(_overlap(box, other) for other in taken):
                    continue
                taken.append(box)
                parts.append(_text("label chosen" if mark.chosen else "label", at, anchor, mark.label))
                break
        return parts

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.place(y) * (HEIGHT - TOP - BOTTOM),
        )

    def _grid(self) -> str:
        parts = ['<g class="grid" aria-hidden="true">']
        for value in self.x.ticks():
            at, _ = self._at(value, self.y.low)
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{number(value)}</text>')
        for value in self.y.ticks():
            _, at = self._at(self.x.low, value)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(
            f'<text class="axis" x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(self.x.name)}</text>'
        )
        middle = (TOP + HEIGHT - BOTTOM) / 2
        parts.append(
            f'<text class="axis" transform="rotate(-90)" x="{-middle}" y="16" text-anchor="middle">'
            f"{escape(self.y.name)}</text></g>"
        )
        return "".join(parts)

    def _line(self, line: Line) -> str:
        if not line.points:
            return ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in line.points))
        series = "" if line.series is None else f" s{line.series % SHAPES}"
        title = f"<title>{escape(line.words)}</title>" if line.words else ""
        return f'<polyline class="line {line.style}{series}" points="{path}">{title}</polyline>'

    def _mark(self, mark: Mark, first: bool) -> str:
        x, y = self._at(mark.x, mark.y)
        bars = ""
        if mark.y_low is not None and mark.y_high is not None:
            _, low = self._at(mark.x, mark.y_low)
            _, high = self._at(mark.x, mark.y_high)
            bars += f'<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
        if mark.x_low is not None and mark.x_high is not None:
            low, _ = self._at(mark.x_low, mark.y)
            high, _ = self._at(mark.x_high, mark.y)
            bars += f'<line class="bar" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="12"/>' if mark.chosen else ""
        # one stop for the Tab key in each figure; arrow keys move from mark to mark
        return (
            f'<g class="mark s{mark.series % SHAPES}" role="listitem" tabindex="{0 if first else -1}" '
            f'aria-label="{escape(mark.words)}">{ring}{bars}{shape(mark.series, x, y)}</g>'
        )


Box = tuple[float, float, float, float]


def _box(at: tuple[float, float], anchor: str, letters: int) -> Box:
    """Return the left, upper, right and lower end of a text."""
    width = LETTER * letters
    left = at[0] - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, at[1] - 10, left + width, at[1] + 3


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _text(kind: str, at: tuple[float, float], anchor: str, text: str) -> str:
    name, dot, rest = text.rpartition(" · ")
    who = f'<tspan class="who">{escape(name)} </tspan>' if dot else ""
    return (
        f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" aria-hidden="true">'
        f"{who}{escape(rest)}</text>"
    )


def shape(series: int, x: float, y: float, r: float = 5.5) -> str:
    """Return the mark of a series: circle, square, triangle, diamond, cross or ring."""
    draw: list[Callable[[], str]] = [
        lambda: f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>',
        lambda: f'<rect class="dot" x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}"/>',
        lambda: _polygon([(x, y - r * 1.3), (x + r * 1.2, y + r), (x - r * 1.2, y + r)]),
        lambda: _polygon([(x, y - r * 1.4), (x + r * 1.4, y), (x, y + r * 1.4), (x - r * 1.4, y)]),
        lambda: f'<path class="dot stroke" d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}"/>',
        lambda: f'<circle class="dot hollow" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>',
    ]
    return draw[series % SHAPES]()


def _polygon(corners: Sequence[tuple[float, float]]) -> str:
    return f'<polygon class="dot" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}"/>'


def number(value: float) -> str:
    """Return a number in a readable form.

    >>> [number(v) for v in (0.25, 1000.0, 12345.0, 1e6, 0.0001)]
    ['0.25', '1,000', '12,345', '10⁶', '0.0001']
    """
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e5 or size < 1e-4:
        power = math.floor(math.log10(size) + 1e-12)
        head = value / 10.0**power
        raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"10{raised}" if abs(head - 1) < 1e-9 else f"{head:.2g}·10{raised}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"


def around(values: Sequence[float], *, log: bool = False, least: float = 0.0) -> tuple[float, float]:
    """Return limits of an axis that contain all values with a small margin."""
    low, high = min(values), max(values)
    if log:
        return (low / 1.3, high * 1.3) if high > low else (low / 3, high * 3)
    margin = max((high - low) * 0.08, least, 1e-3)
    return low - margin, high + margin


def series_of(points: Sequence[Point]) -> dict[str, int]:
    """Return the number of every protection, which sets its shape and colour in all figures."""
    return {name: index for index, name in enumerate(dict.fromkeys(point.name for point in points))}


def utility_against_leakage(
    points: Sequence[Point], leakage: str, utility: str, chosen: Point | None, ceiling: float | None
) -> Figure:
    """Return a plot of utility against leakage for all settings, with the frontier and the ceiling."""
    known = [p for p in points if leakage in p.leakage and utility in p.utility]
    series = series_of(points)
    levels = [level for p in known if (level := p.utility[utility].chance) is not None]
    figure = Figure(
        f"{utility} against {metric_words(leakage)}; the {best_corner(utility)} corner is best",
        leakage_axis(known, leakage, ceiling),  # the attack and metric are in the heading above the figure
        utility_axis(utility, [p.utility[utility] for p in known]),
    )
    if ceiling is not None:
        ends = ((ceiling, figure.y.low), (ceiling, figure.y.high))
        words = f"ceiling {ceiling_words(ceiling)}"
        figure.lines.append(Line(ends, style="limit", words=words, label=words))
    if levels:
        level = sum(levels) / len(levels)
        ends = ((figure.x.low, level), (figure.x.high, level))
        words = f"constant answer {level:.3f}"
        figure.lines.append(Line(ends, None, "chance", words, words))
    best = frontier(known, leakage, utility)
    if len(best) > 1:
        steps: list[tuple[float, float]] = []
        for point in best:
            at = (point.leakage[leakage].value, point.utility[utility].value)
            if steps:
                steps.append((at[0], steps[-1][1]))
            steps.append(at)
        figure.lines.append(Line(tuple(steps), style="frontier", words="frontier: no setting is better in both"))
    for p in known:
        leak, useful = p.leakage[leakage], p.utility[utility]
        words = f"{p.label}: {utility} {interval(useful)} ({of_rows(useful, utility)}), leakage {interval(leak)}"
        words += _proven(leak.bound)
        figure.marks.append(
            Mark(
                leak.value,
                useful.value,
                words + (", recommended" if p is chosen else ""),
                series[p.name],
                leak.low,
                leak.high,
                useful.low,
                useful.high,
                chosen=p is chosen,
                label=short_label(p),
            )
        )
    return figure


def best_corner(utility: str) -> str:
    """Return the corner of a plot of utility against leakage where both are best."""
    return "lower left" if utility in LOWER_IS_BETTER else "upper left"


def utility_axis(utility: str, measured: Sequence[Measured]) -> Axis:
    """Return the axis of a utility: shares end at 0 and 1, and errors that differ by a factor of 10 are logarithmic."""
    ys = [v for one in measured for v in (one.low, one.high, one.chance) if v is not None] or [0.0, 1.0]
    least, most = min(ys), max(ys)
    if utility in LOWER_IS_BETTER and 0 < WIDE * least <= most:
        return Axis(f"{utility} (logarithmic)", *around(ys, log=True), log=True)
    low, high = around(ys, least=0.02)
    return Axis(utility, max(low, 0.0) if least >= 0 else low, min(high, 1.0) if most <= 1 else high)


def leakage_axis(points: Sequence[Point], leakage: str, ceiling: float | None = None) -> Axis:
    """Return the axis of a leakage: logarithmic where its values differ by a factor of 10 or more and none is 0.

    On a linear axis a few settings that leak nearly everything press all others against its end.
    """
    values = [point.leakage[leakage].value for point in points]
    high = most_of(points, leakage)
    if not values or min(values) <= 0 or max(values) < WIDE * min(values):
        return Axis("leakage", 0.0, high)
    chances = [c for point in points if (c := point.leakage[leakage].chance) is not None and c > 0]
    least = min([*values, *chances, *([ceiling] if ceiling else [])])
    return Axis("leakage (logarithmic)", least / 1.5, high * 1.15, log=True)


_SIGNS = {
    "epsilon": "ε", "epsilon_per_word": "ε per word", "epsilon_per_message": "ε per message",
    "noise_multiplier": "noise", "kappa": "κ",
}  # fmt: skip


def short_label(point: Point) -> str:
    """Return the name of a setting for the mark of a figure: its protection, and its strength after a dot.

    >>> short_label(Point("dp-sgd, epsilon 1.4", {"name": "dp-sgd", "epsilon": 1.4}, {}, {}, None))
    'dp-sgd · ε 1.4'
    """
    strength = point.strength
    if strength is None:
        return point.label
    name, value = strength
    return f"{point.variant or point.name} · {_SIGNS.get(name, name.replace('_', ' '))} {value:g}"


def noise_curves(points: Sequence[Point], leakage: str) -> list[tuple[str, Figure]]:
    """Return a plot of leakage against noise, with bounds, for every protection with at least two strengths.

    Variants of one protection, such as two mechanisms, have a plot each.
    """
    series, figures = {p.variant or p.name: series_of(points)[p.name] for p in points}, []
    for name in series:
        mine = [(at, p) for p in of_variant(points, name) if leakage in p.leakage and (at := p.noise) is not None]
        axes = {at[0] for at, _ in mine}
        if len(axes) != 1 or len({at[1] for at, _ in mine}) < 2:
            continue
        rows = sorted(((at[1], p) for at, p in mine), key=lambda row: row[0])
        axis = axes.pop()
        positive = rows[0][0] > 0
        low, high = around([x for x, _ in rows], log=positive)
        figure = Figure(
            f"{metric_words(leakage)} against {axis} of {name}",
            Axis(f"{axis.replace('_', ' ')} (more noise to the right)", low, high, positive, axis in LESS_IS_MORE),
            Axis("leakage", 0.0, most_of([p for _, p in rows], leakage)),
        )
        bounds = [(x, p.leakage[leakage].bound) for x, p in rows]
        proven = tuple((x, b) for x, b in bounds if b is not None)
        if len(proven) > 1:
            words = "certified bound: no attack does better"
            figure.lines.append(Line(proven, series[name], "bound", words))
        figure.lines.append(Line(tuple((x, p.leakage[leakage].value) for x, p in rows), series[name], "solid"))
        chances = [c for _, p in rows if (c := p.leakage[leakage].chance) is not None]
        if chances:
            level = sum(chances) / len(chances)
            figure.lines.append(Line(((rows[0][0], level), (rows[-1][0], level)), None, "chance", "random guessing"))
        for x, p in rows:
            value = p.leakage[leakage]
            words = f"{p.label}: leakage {interval(value)}{_proven(value.bound)}"
            figure.marks.append(Mark(x, value.value, words, series[name], y_low=value.low, y_high=value.high))
        figures.append((name, figure))
    return figures


def _proven(bound: float | None, places: int = 3) -> str:
    """Return the proven bound of a mark in words, or an empty text."""
    return "" if bound is None else f", proven at most {at_most(bound, places)}"


def most_of(points: Sequence[Point], leakage: str) -> float:
    """Return the upper limit of an axis of leakage: 1 for shares, and more for a leakage in bits."""
    highs = [point.leakage[leakage].high for point in points]
    return 1.0 if max(highs, default=0.0) <= 1 else 1.08 * max(highs)


def of_variant(points: Sequence[Point], variant: str) -> list[Point]:
    """Return the settings that differ in their strength alone."""
    return [point for point in points if (point.variant or point.name) == variant]


_SWEEP = tuple(10 ** (-3 + i / 10) for i in range(31))
_LOSS = "a threshold on the loss"


def membership_curves(points: Sequence[Point]) -> list[tuple[str, Figure]]:
    """Return the ROC curve of a threshold on the loss, and of every membership attack of a study, on logarithmic axes.

    Each has the bound on any attack.
    """
    series, figures = series_of(points), []
    tables = [(point, _membership(point)) for point in points[:12]]
    for name in dict.fromkeys(name for _, curves in tables for name in curves):
        figure = Figure(
            f"{name}: true-positive rate against false-positive rate",
            Axis("false-positive rate", _SWEEP[0], 1.0, log=True),
            Axis("true-positive rate", _SWEEP[0], 1.0, log=True),
            [Line(tuple((x, x) for x in _SWEEP), None, "chance", "random guessing")],
        )
        for point, curves in tables:
            curve = curves.get(name, {})
            rows = zip(curve.get("false_positives", ()), curve.get("true_positives", ()), strict=True)
            rates = [(float(x), float(y)) for x, y in rows if x >= _SWEEP[0]]
            if not rates:
                continue
            figure.lines.append(Line(tuple((x, max(y, _SWEEP[0])) for x, y in rates), series[point.name]))
            if curve.get("bound"):
                both = zip(map(float, curve["false_positives"]), map(float, curve["bound"]), strict=True)
                bound = tuple((x, max(y, _SWEEP[0])) for x, y in both if x >= _SWEEP[0])
                figure.lines.append(Line(bound, series[point.name], "bound", f"{point.label}: proven for every attack"))
            for rate, measured in _measured_rates(point, name, curve).items():
                words = f"{point.label}: {interval(measured)} of members at {100 * rate:g}% of non-members"
                words += _proven(measured.bound)
                low, value, high = (max(v, _SWEEP[0]) for v in (measured.low, measured.value, measured.high))
                figure.marks.append(Mark(rate, value, words, series[point.name], y_low=low, y_high=high))
        if figure.marks:
            figures.append((name, figure))
    return figures


def _membership(point: Point) -> dict[str, dict[str, Any]]:
    """Return the ROC curves of a setting's first trial by the name of the test."""
    details = point.trials[0].details
    attacks = {
        name: ((one or {}).get("details") or {}).get("roc") or {}
        for name, one in (details.get("attacks") or {}).items()
    }
    return {name: curve for name, curve in {_LOSS: details.get("roc") or {}, **attacks}.items() if curve}


def _measured_rates(point: Point, name: str, curve: Mapping[str, Any]) -> dict[float, Measured]:
    """Return the true-positive rates of a test with their intervals, by false-positive rate."""
    if "measured" in curve:
        bounds = list(zip(curve["false_positives"], curve["bound"] or (), strict=False))
        return {
            float(rate): Measured(
                value, low, high, 1, bound=min((y for x, y in bounds if x >= float(rate)), default=None)
            )
            for rate, (value, low, high) in curve["measured"].items()
        }
    found = {rate: point.leakage.get(f"{name}/tpr_at_{rate:g}") for rate in (0.001, 0.01, 0.1)}
    return {rate: measured for rate, measured in found.items() if measured is not None}


def exposure_by_copies(points: Sequence[Point]) -> Figure | None:
    """Return a plot of the mean exposure of canaries against their number of copies, with the bound on any attack."""
    series = series_of(points)
    rows = [
        (point, table)
        for point in points[:12]
        for attack in (point.trials[0].details.get("attacks") or {}).values()
        if (table := (attack.get("details") or {}).get("exposure"))
    ]
    if not rows:
        return None
    values = [row for _, table in rows for row in table]
    copies = [float(row["copies"]) for row in values]
    bounds = [float(row["bound"]) for row in values if row["bound"] is not None]
    low, high = around(copies, log=True)
    figure = Figure(
        "exposure of planted secrets against their number of copies",
        Axis("copies of a canary", low, high, log=True),
        Axis("exposure in bits", 0.0, 1.08 * max([float(row["high"]) for row in values] + bounds)),
        [Line(tuple((x, float(values[0]["chance"])) for x in (low, high)), None, "chance", "never seen")],
    )
    for point, table in rows:
        at = [(float(row["copies"]), row) for row in table]
        figure.lines.append(Line(tuple((x, float(row["mean"])) for x, row in at), series[point.name]))
        proven = tuple((x, float(row["bound"])) for x, row in at if row["bound"] is not None)
        if proven:
            figure.lines.append(Line(proven, series[point.name], "bound", f"{point.label}: proven for every attack"))
        for x, row in at:
            words = (
                f"{point.label}: {row['copies']} copies, {row['mean']:.1f} bits [{row['low']:.1f}, {row['high']:.1f}]"
            )
            words += _proven(row["bound"], 1)
            figure.marks.append(
                Mark(
                    x, float(row["mean"]), words, series[point.name], y_low=float(row["low"]), y_high=float(row["high"])
                )
            )
    return figure


def epsilon_over_training(points: Sequence[Point]) -> Figure | None:
    """Return a plot of the epsilon spent over the steps of training."""
    series = series_of(points)
    rows: list[tuple[Point, list[tuple[float, float]]]] = []
    for point in points[:12]:
        curve = point.trials[0].details.get("epsilon_over_training") or []
        kept = [(float(step), float(value)) for step, value in curve if value is not None and math.isfinite(value)]
        if len(kept) > 1:
            rows.append((point, kept))
    if not rows:
        return None
    largest = max(value for _, kept in rows for _, value in kept)
    least = min(value for _, kept in rows for _, value in kept if value > 0)
    log = largest > 30 * least
    figure = Figure(
        "epsilon spent over training",
        Axis("step", 0.0, max(kept[-1][0] for _, kept in rows)),
        Axis("epsilon spent", least / 1.2 if log else 0.0, largest * 1.08, log),
    )
    for point, kept in rows:
        figure.lines.append(Line(tuple(kept), series[point.name], "solid", point.label))
        step, value = kept[-1]
        adjacency = point.guarantee.adjacency if point.guarantee is not None else ""
        figure.marks.append(
            Mark(
                step,
                value,
                f"{point.label}: epsilon {in_digits(value, 3)} after {step:g} steps ({adjacency})",
                series[point.name],
            )
        )
    return figure
