"""The timings that make a fragment due: its own, and those of the views over it."""

from __future__ import annotations

from dataclasses import replace

from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.timetable.timing import Timing, closed_s
from warehouse_agent.views import component_graph
from warehouse_agent.views.inputs import inputs_of

LIMIT_INTERVALS = 2  # a refresh takes its time, and one may fail


def timings_of(config: WarehouseConfig, fragment: Fragment) -> list[Timing]:
    """Return the timings that make a fragment due: its own and those of the views over it.

    The timing of a view has the time zone of the fragment's source, if it names none.
    """
    over = component_graph.above([fragment.name], inputs_of(config.views))
    asked = [config.views[name].timing for name in config.views if name in over]
    timings = [one for one in (fragment.timing, *asked) if one is not None and one.is_asked]
    return [replace(one, zone=one.zone or fragment.source.time_zone) for one in timings]


def longest_s(config: WarehouseConfig, fragment: Fragment) -> float | None:
    """Return the longest time between two scheduled refreshes of a fragment, in seconds.

    It is the longest interval that is asked for and the longest time in which none may begin; None:
    none is asked for.
    """
    intervals_s = [timing.interval_max_s for timing in timings_of(config, fragment)]
    return min(intervals_s) + closed_s(fragment.source.refresh_hours) if intervals_s else None


def freshness_limit_s(config: WarehouseConfig, table: Fragment | View) -> float | None:
    """Return the age in seconds from which a table is stale: the `freshness` that is asked for,
    else LIMIT_INTERVALS times `interval_max` and the longest time in which no refresh may begin;
    None: neither is asked for."""
    if isinstance(table, Fragment):
        timings, hours = timings_of(config, table), [table.source.refresh_hours]
    else:
        timings = [one for one in (table.timing,) if one is not None and one.is_asked]
        inputs = inputs_of(config.views)
        hours = [
            one.source.refresh_hours
            for one in config.fragments.values()
            if one.source.refresh_hours and table.name in component_graph.above([one.name], inputs)
        ]
    closed = max((closed_s(one) for one in hours), default=0)
    limits = [
        LIMIT_INTERVALS * one.interval_max_s + closed
        if one.freshness_s is None
        else one.freshness_s
        for one in timings
    ]
    return min(limits, default=None)
