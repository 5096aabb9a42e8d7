"""When to refresh: the timing of a fragment or a view, and the clock and hours of a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from driftline.settings.declarations import SettingsTable, in_units
from driftline.settings.hours import WeekSpan
from driftline.settings.kinds import TEXT, ZONE, choice, duration, map_of, number, table_of, written

from warehouse_agent.timetable.timing import INTERVAL_MAX_S, Timing, TimingPolicy, closed_s

UTC = "UTC"
SPANS = 'hours such as `["20:00-06:00", "Sat,Sun"]`'
_DAY_S = 86_400
_GOALS = ("freshness", "refreshes_per_day", "refresh_worth")


SPAN = written(
    "hours of the week",
    WeekSpan.parse,
    lack="are no hours of the week.",
    wrong="Mon-Fri 9-18",
    remedy='Write it like "Mon-Fri 09:00-18:00", "Sat,Sun" or "20:00-06:00".',
)


def apart(table: SettingsTable, key: str, spans: Sequence[WeekSpan]) -> tuple[WeekSpan, ...]:
    """Return the spans. Raises ConfigurationError: two of them overlap."""
    for one, other in combinations(spans, 2):
        if one.minutes() & other.minutes():
            raise table.error(
                key, f"{one} and {other} overlap.", "Write each hour of the week once."
            )
    return tuple(spans)


def _weights(
    table: SettingsTable, key: str, weights: Mapping[str, float]
) -> tuple[tuple[WeekSpan, float], ...]:
    spans = apart(table, key, [SPAN.parse(table, key, text) for text in weights])
    return tuple(zip(spans, weights.values(), strict=True))


class ChangeWeightsTable(SettingsTable):
    """Weights of kinds of change."""

    insert = number("weight").by_default(1.0, "of an inserted row")
    update = number("weight").by_default(1.0, "of an updated row")
    delete = number("weight").by_default(1.0, "of a deleted row")


class DistanceTable(SettingsTable):
    """A numeric column by whose moves an updated row weighs: ((new − old) / scale)²."""

    column = TEXT.required("a column that is published as a number", "in `distance`")
    scale = number("unit of the column").by_default(1.0, "the move that counts as one changed row")


class TimingTable(SettingsTable):
    """The timing of a fragment, or of what a view reads."""

    freshness = duration().optional(
        "a change is published after at most this time; one of this and the next two, or none: see"
        " [scheduling](operating/scheduling.md#what-you-ask-for)"
    )
    refreshes_per_day = number("refreshes a day").optional(
        "about how many refreshes a day are made; they are placed where they save most"
    )
    refresh_worth = number("row-hours").optional("the row-hours that a refresh has to save")
    interval_max = duration().optional(
        "the longest time between two refreshes by `refresh --due`; whatever is known. With neither"
        " a goal nor this line a fragment is never due ([scheduling](operating/scheduling.md))",
        f'with a goal `"{in_units(INTERVAL_MAX_S)}"`',
    )
    interval_min = duration().optional("the shortest time between two refreshes")
    policy = choice(TimingPolicy).by_default(
        TimingPolicy.AUTO.value,
        "how refreshes are placed; see [scheduling](operating/scheduling.md)",
    )
    weights = (
        map_of(number("weight"), called="HOURS")
        .then(_weights)
        .by_default(
            {}, 'weights of hours of the week, 1 for all others: `{ "Mon-Fri 09:00-18:00" = 4 }`'
        )
    )
    weights_by_change = table_of(ChangeWeightsTable).by_default(
        {}, "weights of changes that a refresh has not shown yet"
    )
    time_zone = ZONE.optional("the time zone of these hours", "that of the source")


def parse(
    name: str, table: TimingTable, zone: str, hours: Sequence[WeekSpan] = ()
) -> Timing | None:
    """Return the timing that a table asks for; None if it has no setting of one.

    Args:
        name: of the fragment or view.
        zone: of its source, where the table names none.
        hours: in which its source lets refreshes begin; none: always.

    Raises:
        ConfigurationError: a value is wrong, or what is asked for cannot be kept.
    """
    if not any(table.has(key) for key in TimingTable.declared):
        return None
    if len(goals := [key for key in _GOALS if table.has(key)]) > 1:
        raise table.error(
            goals[1], f"It stands beside `{goals[0]}`.", "Remove one of the two: each is a goal."
        )
    by_change = table.weights_by_change
    timing = Timing(
        by=name,
        freshness_s=table.freshness,
        refreshes_per_day=table.refreshes_per_day,
        refresh_worth=table.refresh_worth,
        interval_min_s=table.interval_min or 0,
        interval_max_s=table.interval_max or INTERVAL_MAX_S,
        policy=table.policy,
        weights=table.weights,
        by_change=(by_change.insert, by_change.update, by_change.delete),
        zone=table.time_zone or zone,
        is_asked=bool(goals) or table.has("interval_max"),
    )
    _check_intervals(table, timing)
    _check_freshness(table, timing, hours)
    return timing


def _check_intervals(table: TimingTable, timing: Timing) -> None:
    """Refuse intervals that leave nothing to choose, and a number of refreshes outside of them."""
    least, most, often = timing.interval_min_s, timing.interval_max_s, timing.refreshes_per_day
    if least > most:
        raise table.error(
            "interval_min",
            f"It is {in_units(least)}, longer than `interval_max`, {in_units(most)}.",
            "Make it shorter, or `interval_max` longer.",
        )
    if often is not None and often * most < _DAY_S * (1 - 1e-9):
        raise table.error(
            "refreshes_per_day",
            f"{often:g} a day are fewer than `interval_max` needs, one every {in_units(most)}.",
            f"Set `interval_max` to {in_units(-int(-_DAY_S / often // 1))} or more.",
        )
    if often is not None and often * least > _DAY_S * (1 + 1e-9):
        raise table.error(
            "refreshes_per_day",
            f"{often:g} a day are more than `interval_min` allows, one every {in_units(least)}.",
            "Make `interval_min` shorter.",
        )


def _check_freshness(table: TimingTable, timing: Timing, hours: Sequence[WeekSpan]) -> None:
    """Refuse a freshness that cannot be kept."""
    if (freshness := timing.freshness_s) is None:
        return
    if timing.policy not in (TimingPolicy.AUTO, TimingPolicy.FIXED):
        raise table.error(
            "policy",
            f'"{timing.policy.value}" places refreshes by their price, and `freshness` has none.',
            "Remove one of the two, or use `refreshes_per_day`.",
        )
    if freshness > timing.interval_max_s:
        raise table.error(
            "freshness",
            f"It is longer than `interval_max`, {in_units(timing.interval_max_s)}, which is kept.",
            "Make it shorter, or `interval_max` longer.",
        )
    if freshness < timing.interval_min_s:
        raise table.error(
            "freshness",
            f"It cannot be kept: `interval_min` is {in_units(timing.interval_min_s)}.",
            "Make it longer, or `interval_min` shorter.",
        )
    if freshness < (closed := closed_s(tuple(hours))):
        raise table.error(
            "freshness",
            f"It cannot be kept: `refresh_hours` of its source are closed for {in_units(closed)}.",
            f"Set it to {in_units(closed)} or more, or open the hours.",
        )
