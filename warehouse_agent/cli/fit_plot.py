"""A picture of a fit as SVG: rates by hour of the week with their intervals, and goodness of fit.

Written by hand, because it is a few shapes: a plotting library (matplotlib: 60 MB with what it
needs) would be the largest dependency of a command that is run once a month. Any browser shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

import numpy as np
from driftline.arrays import Floats
from driftline.peer_text import one_line
from driftline.settings.hours import DAYS

from warehouse_agent.change_models.fit import Model
from warehouse_agent.change_models.week import HOURS

WIDTH, HEIGHT = 980, 400
_LEFT, _TOP, _BOTTOM = 60, 50, 340
_RATES, _FIT = (_LEFT, 660), (730, 960)  # x of the two panels
LINE_CHARACTERS = 140
_TICKS = 4
Scale = Callable[[float], float]
_INK, _LINE, _BAND, _GRID = "#333333", "#1f5fa8", "#c9dcf0", "#e4e4e4"


def svg(name: str, model: Model, uniform: Floats, verdict: str) -> str:
    """Return the picture.

    Args:
        name: of the fragment.
        uniform: values that have a uniform distribution on 0..1 if the model is right, [n].
        verdict: the result of the test in words.
    """
    title = f"{name}: {model.mean:.3g} changed rows an hour ({model.structure}, {model.zone})"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="{_INK}">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, size=15),
        *_rates(model),
        *_fit(uniform, verdict),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rates(model: Model) -> list[str]:
    """Return the panel of rates: a step for each hour, in its 95 % interval."""
    low, high = model.bounds()
    most = _ceiling(float(high.max()))
    x, y = _scale(_RATES, HOURS), _scale((_BOTTOM, _TOP), most)
    edges = np.arange(HOURS + 1, dtype=np.float64)
    upper = _steps(edges, high[model.segments], x, y)
    lower = _steps(edges, low[model.segments], x, y)
    parts = [
        f'<line x1="{x(24 * day):.1f}" y1="{_TOP}" x2="{x(24 * day):.1f}" y2="{_BOTTOM}" '
        f'stroke="{_GRID}"/>'
        for day in range(8)
    ]
    parts += _axis_y(most, y, _RATES)
    parts += [_text(x(24 * day + 12), _BOTTOM + 18, DAYS[day], at="middle") for day in range(7)]
    parts += [
        f'<polygon class="interval" points="{_points([*upper, *lower[::-1]])}" fill="{_BAND}"/>',
        (
            f'<polyline class="rate" points="{_points(_steps(edges, model.hourly, x, y))}" '
            f'fill="none" stroke="{_LINE}" stroke-width="1.5"/>'
        ),
        _text(_LEFT, _BOTTOM + 40, "changed rows an hour, with 95 % intervals"),
    ]
    return parts


def _fit(uniform: Floats, verdict: str) -> list[str]:
    """Return the panel of goodness of fit: how often a value is at most u, which is to be u."""
    x, y = _scale(_FIT, 1.0), _scale((_BOTTOM, _TOP), 1.0)
    ordered = np.sort(uniform)
    shares = np.arange(len(ordered) + 1) / max(len(ordered), 1)
    edges = np.concatenate([[0.0], ordered, [1.0]])
    parts = _axis_y(1.0, y, _FIT)
    parts += [
        (
            f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}" '
            f'stroke="{_INK}" stroke-dasharray="4 3"/>'
        )
    ]
    if len(ordered):
        parts.append(
            f'<polyline class="fit" points="{_points(_steps(edges, shares, x, y))}" fill="none" '
            f'stroke="{_LINE}" stroke-width="1.5"/>'
        )
    parts += [_text(x(at), _BOTTOM + 18, f"{at:g}", at="middle") for at in (0.0, 0.5, 1.0)]
    parts.append(_text(_FIT[0], _BOTTOM + 40, f"goodness of fit: {verdict}"))
    return parts


def _scale(span: tuple[float, float], most: float) -> Scale:
    return lambda value: span[0] + (span[1] - span[0]) * value / most


def _steps(edges: Floats, heights: Floats, x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Return the corners of a step function, with edges [n + 1] and heights [n]."""
    pairs = zip(edges[:-1], edges[1:], heights, strict=True)
    return [point for a, b, h in pairs for point in ((x(a), y(h)), (x(b), y(h)))]


def _axis_y(most: float, y: Scale, span: tuple[float, float]) -> list[str]:
    elements = []
    for n in range(_TICKS + 1):
        value = most * n / _TICKS
        at = f"{y(value):.1f}"
        elements += [
            f'<line x1="{span[0]}" y1="{at}" x2="{span[1]}" y2="{at}" stroke="{_GRID}"/>',
            _text(span[0] - 6, y(value) + 4, f"{value:.3g}", at="end"),
        ]
    return elements


def _ceiling(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten; 1 if nothing changes."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))


def _points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)


def _text(x: float, y: float, text: str, *, size: int = 12, at: str = "start") -> str:
    shown = escape(one_line(text, LINE_CHARACTERS))
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{at}">{shown}</text>'
