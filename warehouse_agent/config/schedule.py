"""When to refresh: the timing of a fragment or a view, and the clock and hours of a source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from zoneinfo import ZoneInfo

from driftline.hours import WeekSpan
from driftline.settings import TomlTable, duration_s

from warehouse_agent.config.choices import choice
from warehouse_agent.schedule.timing import INTERVAL_MAX_S, Policy, Timing, closed_s

SETTINGS = (
    "freshness", "refreshes_per_day", "refresh_worth", "interval_max", "interval_min", "policy",
    "weights", "time_zone",
)  # fmt: skip
SOURCE_SETTINGS = ("time_zone", "refresh_hours")
UTC = "UTC"
_DAY_S = 86_400
_GOALS = SETTINGS[:3]
_SPANS = 'Write it like "Mon-Fri 09:00-18:00", "Sat,Sun" or "20:00-06:00".'


def parse(name: str, table: TomlTable, zone: str, hours: Sequence[WeekSpan] = ()) -> Timing | None:
    """Return the timing that a table asks for; None if it has no setting of one.

    Args:
        name: of the fragment or view.
        zone: of its source, where the table names none.
        hours: in which its source lets refreshes begin; none: always.

    Raises:
        ConfigurationError: a value is wrong, or what is asked for cannot be kept.
    """
    if not any(table.has(key) for key in SETTINGS):
        return None
    if len(goals := [key for key in _GOALS if table.has(key)]) > 1:
        raise table.error(
            goals[1], f"It stands beside `{goals[0]}`.", "Remove one of the two: each is a goal."
        )
    timing = Timing(
        by=name,
        freshness_s=_seconds(table, "freshness", None),
        refreshes_per_day=table.optional_number("refreshes_per_day"),
        refresh_worth=table.optional_number("refresh_worth"),
        interval_min_s=_seconds(table, "interval_min", 0) or 0,
        interval_max_s=_seconds(table, "interval_max", INTERVAL_MAX_S) or INTERVAL_MAX_S,
        policy=choice(table, "policy", table.text("policy", default="auto"), Policy),
        weights=_weights(table),
        zone=time_zone(table, zone),
        is_asked=bool(goals) or table.has("interval_max"),
    )
    _check_intervals(table, timing)
    _check_freshness(table, timing, hours)
    return timing


def time_zone(table: TomlTable, default: str) -> str:
    """Return the name of a time zone. Raises ConfigurationError: there is none of this name."""
    name = table.text("time_zone", default=default)
    if name == default:
        return name
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise table.error(
            "time_zone", f"{name!r} is no time zone.", 'Write it like "Europe/Vienna" or "UTC".'
        ) from None
    return name


def refresh_hours(table: TomlTable) -> tuple[WeekSpan, ...]:
    """Return the hours in which refreshes of a source may begin; none: always.

    Raises:
        ConfigurationError: an item is no span, or two of them overlap.
    """
    found = [_span(table, "refresh_hours", text) for text in table.texts("refresh_hours") or ()]
    if table.has("refresh_hours") and not found:
        raise table.error("refresh_hours", "It is empty.", "Remove the line, or write hours.")
    _refuse_overlaps(table, "refresh_hours", found)
    return tuple(found)


def _seconds(table: TomlTable, key: str, default: int | None) -> int | None:
    if not table.has(key):
        return default
    found = duration_s(text := table.text(key))
    if not found:
        raise table.error(key, f"{text!r} is no duration.", "Write it like 90s, 15m, 1h30m or 1d.")
    return found


def _weights(table: TomlTable) -> tuple[tuple[WeekSpan, float], ...]:
    inner = table.table("weights", None, required=False)
    found = [
        (_span(table, "weights", text), inner.number(text, default=1.0)) for text in inner.values
    ]
    _refuse_overlaps(table, "weights", [span for span, _ in found])
    return tuple(found)


def _span(table: TomlTable, key: str, text: str) -> WeekSpan:
    if (span := WeekSpan.parse(text)) is None:
        raise table.error(key, f"{text!r} are no hours of the week.", _SPANS)
    return span


def _refuse_overlaps(table: TomlTable, key: str, spans: Sequence[WeekSpan]) -> None:
    for one, other in combinations(spans, 2):
        if one.minutes() & other.minutes():
            raise table.error(
                key, f"{one} and {other} overlap.", "Write each hour of the week once."
            )


def _check_intervals(table: TomlTable, timing: Timing) -> None:
    """Refuse intervals that leave nothing to choose, and a number of refreshes outside of them."""
    least, most, often = timing.interval_min_s, timing.interval_max_s, timing.refreshes_per_day
    if least > most:
        raise table.error(
            "interval_min",
            f"It is {_said(least)}, longer than `interval_max`, {_said(most)}.",
            "Make it shorter, or `interval_max` longer.",
        )
    if often is not None and often * most < _DAY_S * (1 - 1e-9):
        raise table.error(
            "refreshes_per_day",
            f"{often:g} a day are fewer than `interval_max` needs, one every {_said(most)}.",
            f"Set `interval_max` to {_said(-int(-_DAY_S / often // 1))} or more.",
        )
    if often is not None and often * least > _DAY_S * (1 + 1e-9):
        raise table.error(
            "refreshes_per_day",
            f"{often:g} a day are more than `interval_min` allows, one every {_said(least)}.",
            "Make `interval_min` shorter.",
        )


def _check_freshness(table: TomlTable, timing: Timing, hours: Sequence[WeekSpan]) -> None:
    """Refuse a freshness that cannot be kept."""
    if (freshness := timing.freshness_s) is None:
        return
    if timing.policy not in (Policy.AUTO, Policy.FIXED):
        raise table.error(
            "policy",
            f'"{timing.policy.value}" places refreshes by their price, and `freshness` has none.',
            "Remove one of the two, or use `refreshes_per_day`.",
        )
    if freshness > timing.interval_max_s:
        raise table.error(
            "freshness",
            f"It is longer than `interval_max`, {_said(timing.interval_max_s)}, which is kept.",
            "Make it shorter, or `interval_max` longer.",
        )
    if freshness < timing.interval_min_s:
        raise table.error(
            "freshness",
            f"It cannot be kept: `interval_min` is {_said(timing.interval_min_s)}.",
            "Make it longer, or `interval_min` shorter.",
        )
    if freshness < (closed := closed_s(tuple(hours))):
        raise table.error(
            "freshness",
            f"It cannot be kept: `refresh_hours` of its source are closed for {_said(closed)}.",
            f"Set it to {_said(closed)} or more, or open the hours.",
        )


def _said(seconds: int) -> str:
    """Return a duration as the file has it."""
    parts = []
    for unit, size in (("d", _DAY_S), ("h", 3600), ("m", 60), ("s", 1)):
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"
