"""Axes of charts: where a value lies, which ticks are labelled, and amounts in words.

A position is a share of the axis, 0 to 1; what is beyond an end lies on it. Amounts may be as large
as a damaged history says, so every maker bounds what it is given. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from warehouse_agent.report import GREATEST_SHOWN, digits

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
LEAST_SHOWN: Final = 1e-30  # less is none
_TICKS: Final = 4
_MOMENTS: Final = 5  # ticks of an axis of time
_STEPS_S: Final = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_557_600,
)  # fmt: skip
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Words = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis.

    Attributes:
        place: the position of a value before it is bounded, finite for every finite value.
        ticks: positions and labels, in ascending order.
    """

    place: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Return the position of a value."""
        place = self.place(value)
        return place if 0.0 <= place <= 1.0 else 0.0 if place < 0 else 1.0


def counts(most: float, words: Words) -> Axis:
    """Return an axis of counts from 0 to a round number that is at least `most`."""
    top, step = _rounded(min(max(most, 0.0), GREATEST_SHOWN))
    step = max(step, 1.0)
    top = max(math.ceil(top / step - 1e-9) * step, 1.0)
    return _even(top, step, words)


def spans(most_s: float) -> Axis:
    """Return an axis of spans of time from 0, in round seconds, minutes, hours or days."""
    most_s = min(max(most_s, 0.1), GREATEST_SHOWN)
    step = next((one for one in _STEPS_S if one * _TICKS >= most_s), None)
    if step is None:
        top, step_s = _rounded(most_s / _STEPS_S[-1])
        return _even(top * _STEPS_S[-1], step_s * _STEPS_S[-1], span_text)
    return _even(math.ceil(most_s / step) * step, step, span_text)


def logarithmic(values: Sequence[float], words: Words, *, zero: bool = False) -> Axis:
    """Return a logarithmic axis over positive values, from a power of ten to another one.

    Args:
        zero: the axis begins at 0, with as much room for 0 to 1 as for 1 to 10.
    """
    positive = [min(value, GREATEST_SHOWN) for value in values if value > 0]
    highest = math.ceil(round(math.log10(max(positive, default=1.0)), 9))
    lowest = math.floor(round(math.log10(min(positive, default=1.0)), 9))
    if zero:
        lowest = -1
        highest = max(highest, 0)
    highest = max(highest, lowest + 1)
    decades = highest - lowest

    def place(value: float) -> float:
        if zero:
            return 0.0 if value < 1 else (math.log10(value) + 1) / decades
        return (math.log10(value) - lowest) / decades if value > 0 else 0.0

    every = math.ceil(decades / _TICKS)
    powers = range(lowest + zero, highest + 1, every)
    ticks = [(place(10.0**power), words(10.0**power)) for power in powers]
    return Axis(place, tuple([(0.0, words(0.0)), *ticks] if zero else ticks))


def ratios(values: Sequence[float]) -> Axis:
    """Return a logarithmic axis of ratios with 1 in its middle, at least from 1/2 to 2."""
    bounded = [min(max(one, 1e-12), 1e12) for one in values if one > 0]
    far = max((abs(math.log10(one)) for one in bounded), default=0.0)
    limit = next(one for one in (2, 5, 10, 100, 1e3, 1e6, 1e12) if far <= math.log10(one) + 1e-9)
    width = 2 * math.log10(limit)

    def place(value: float) -> float:
        return 0.5 + math.log10(value) / width if value > 0 else 0.0

    labels = ((1 / limit, f"1/{limit:,.0f}"), (1.0, "1"), (limit, f"{limit:,.0f}"))
    return Axis(place, tuple((place(value), label) for value, label in labels))


def moments(first: float, last: float) -> Axis:
    """Return an axis of time between two moments, both in seconds since 1970."""
    first, last = min(first, last), max(first, last)
    if last - first < 1:
        first, last = first - HOUR_S, last + HOUR_S
    width = last - first
    step = next((one for one in _STEPS_S if one * _MOMENTS >= width), _STEPS_S[-1])
    if step * _MOMENTS < width:
        step = step * math.ceil(width / (_MOMENTS * step))
    began = math.ceil(first / step) * step
    at = [began + step * n for n in range(_MOMENTS + 1) if began + step * n <= last]
    ticks = tuple(((one - first) / width, _tick_text(one, step)) for one in at)
    return Axis(lambda value: (value - first) / width, ticks)


def slots(labels: Sequence[str]) -> Axis:
    """Return an axis of bars in equal slots; a value is the number of a slot, or a part of one.

    A label stands at the first of the slots that have it, if there is room for it.
    """
    width = max(len(labels), 1)
    apart = math.ceil(width / _TICKS)
    shown: list[int] = []
    for n, label in enumerate(labels):
        is_new = n == 0 or label != labels[n - 1]
        if is_new and (not shown or n - shown[-1] >= apart):
            shown.append(n)
    ticks = tuple(((n + 0.5) / width, labels[n]) for n in shown)
    return Axis(lambda value: value / width, ticks)


def count_text(amount: float) -> str:
    """Return a count in words, short where it is large: `999`, `1.2 k`, `3 M`, `5.6 bn`."""
    for unit in ("", " k", " M", " bn", " tn"):
        if amount < 999.5 or unit == " tn":
            break
        amount /= 1000
    return f"{digits(amount)}{unit}"


def span_text(seconds: float) -> str:
    """Return a span of time in words: `0.3 s`, `12 s`, `3 min`, `2.5 h`, `4 d`."""
    for length, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= length * (2 if unit != "h" else 1):
            return f"{digits(seconds / length)} {unit}"
    return f"{digits(seconds)} s"


def moment_text(at: float) -> str:
    """Return a moment in UTC to the minute, `2026-11-30 06:00`; empty if there is no such year."""
    moment = _moment(at)
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _rounded(most: float) -> tuple[float, float]:
    """Return a round top of an axis and the step of its ticks."""
    if most < LEAST_SHOWN:
        return 1.0, 1.0
    power = 10.0 ** math.floor(math.log10(most / _TICKS))
    step = next(one * power for one in (1, 2, 5, 10) if most <= one * power * _TICKS * (1 + 1e-9))
    return math.ceil(most / step - 1e-9) * step, step


def _even(top: float, step: float, words: Words) -> Axis:
    number = round(top / step)
    ticks = tuple((n * step / top, words(n * step)) for n in range(number + 1))
    return Axis(lambda value: value / top, ticks)


def _moment(at: float) -> datetime | None:
    try:
        return _EPOCH + timedelta(seconds=at)
    except OverflowError:
        return None


def _tick_text(at: float, step: float) -> str:
    moment = _moment(at)
    if moment is None:
        return ""
    if step >= 300 * DAY_S:
        return f"{moment:%Y}"
    if step >= DAY_S or (moment.hour, moment.minute) == (0, 0):
        return f"{moment.day} {moment:%b}"
    return f"{moment:%H:%M}" if step >= MINUTE_S else f"{moment:%H:%M:%S}"
