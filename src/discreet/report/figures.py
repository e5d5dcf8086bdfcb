"""Figures as SVG text: a frame with scales, marks that differ by shape as well as colour, and names for screen readers.

Every word that goes into a figure is escaped. Colours are CSS classes, so that light, dark and paper each have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 18.0, 16.0, 52.0
SHAPES = 6


@dataclass(frozen=True)
class Axis:
    """One axis: its name, its ends, whether it is logarithmic, and whether it runs backwards."""

    name: str
    low: float
    high: float
    log: bool = False
    reverse: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies between the ends, from 0 to 1; what lies outside is put at the end."""
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
            every = [m * 10.0**p for p in range(first, last + 1) for m in ((1,) if last - first > 2 else (1, 2, 5))]
            return [v for v in every if self.low * 0.999 <= v <= self.high * 1.001] or [self.low, self.high]
        span = (self.high - self.low) or 1.0
        step = 10 ** math.floor(math.log10(span / 4))
        step = next(step * m for m in (1, 2, 2.5, 5, 10) if span / (step * m) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        return [round(step * i, 10) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Mark:
    """One point of a figure, with its interval and the words that say what it is."""

    x: float
    y: float
    words: str
    series: int = 0
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None
    chosen: bool = False
    drawn: bool = True


@dataclass(frozen=True)
class Line:
    """A line through points: solid for what was measured, dashed for what is proven, dotted for a limit."""

    points: tuple[tuple[float, float], ...]
    series: int | None = None
    style: str = "solid"
    words: str = ""


@dataclass
class Figure:
    """A frame with axes, lines and marks, drawn as SVG."""

    title: str
    x: Axis
    y: Axis
    lines: list[Line] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def series(self) -> set[int]:
        """The series that have something in the frame, which a legend must name; it need name no other."""
        return {mark.series for mark in self.marks} | {line.series for line in self.lines if line.series is not None}

    @property
    def styles(self) -> set[str]:
        """The styles of the lines in the frame."""
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
            "</g></svg>",
        ]
        return Markup("".join(parts))

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
        told = f"<title>{escape(line.words)}</title>" if line.words else ""
        return f'<polyline class="line {line.style}{series}" points="{path}">{told}</polyline>'

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
        # one stop for the Tab key in each figure; arrows go from mark to mark
        return (
            f'<g class="mark s{mark.series % SHAPES}" role="listitem" tabindex="{0 if first else -1}" '
            f'aria-label="{escape(mark.words)}">{ring}{bars}{shape(mark.series, x, y)}</g>'
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
    """Return a number as a reader would write it.

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
    """Return ends of an axis that hold all values with a little room."""
    low, high = min(values), max(values)
    if log:
        return (low / 1.3, high * 1.3) if high > low else (low / 3, high * 3)
    room = max((high - low) * 0.08, least, 1e-3)
    return low - room, high + room
