"""Order the fragments of a command and divide them into runs, without I/O.

A run is the fragments of one source that share a snapshot. Fragments of higher priority come first;
of one priority those of which a second of their refresh is expected to save most, if that is known;
then those that were refreshed longest ago, and before them those that never were; then the name
decides. The source of the first fragment comes first.

With a deadline, a run has only those of its fragments that by their history end in time. They are
prepared, compared and finished together, so their durations are added; the median of a fragment's
last refreshes says how long it takes. Rejected: the longest of them. One slow day would keep a
fragment out of every later command, whose refresh alone could show that it is fast again.

A refresh in tiles takes long and shares no snapshot. So it is a run of its own after the other runs
of its source, whatever its priority, and lets other sources go first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from warehouse_agent.config import Fragment, Source

DURATIONS = 5  # of a fragment, from which the next one is expected
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SourceSchedule:
    """The runs of one source in their order.

    Attributes:
        shared: runs of fragments that share a snapshot.
        tiled: fragments that are refreshed in tiles, each in a run of its own, after the others.
    """

    source: Source
    shared: tuple[tuple[Fragment, ...], ...]
    tiled: tuple[Fragment, ...]


def schedule(
    fragments: Iterable[Fragment],
    refreshed_at: Mapping[str, datetime | None],
    *,
    ahead: int | None,
    together: Mapping[str, int] = MappingProxyType({}),
    gains: Mapping[str, float] = MappingProxyType({}),
) -> list[SourceSchedule]:
    """Return the runs of each source, the source of the first fragment first.

    Args:
        refreshed_at: by name, when a fragment was last equal to its source; None or absent: never.
        ahead: the most fragments in a run; None puts all of a source into one.
        together: a number for each fragment with views; those of one source with one number share
            a snapshot, so they are in one run, even if it gets larger.
        gains: row-hours that a second of the refresh of a fragment saves, by name; those without
            one come first.
    """

    def rank(fragment: Fragment) -> tuple[int, float, datetime, str]:
        gain = gains.get(fragment.name, math.inf)
        at = refreshed_at.get(fragment.name) or _NEVER
        return -fragment.priority, -gain, at, fragment.name

    by_source: dict[str, list[Fragment]] = {}
    for fragment in sorted(fragments, key=rank):
        by_source.setdefault(fragment.source.name, []).append(fragment)
    schedules = []
    for ordered in by_source.values():
        shared = [f for f in ordered if not f.incremental]
        runs = _runs(shared, ahead or max(len(shared), 1), together)
        tiled = tuple(f for f in ordered if f.incremental)
        schedules.append(SourceSchedule(ordered[0].source, tuple(runs), tiled))
    return schedules


def _runs(
    fragments: Sequence[Fragment], size: int, together: Mapping[str, int]
) -> Iterator[tuple[Fragment, ...]]:
    """Yield runs of at most `size` fragments, or of more that must be together."""
    left, run = list(fragments), list[Fragment]()
    while left:
        number = together.get(left[0].name)
        lot = left[:1] if number is None else [f for f in left if together.get(f.name) == number]
        if run and len(run) + len(lot) > size:
            yield tuple(run)
            run = []
        run += lot
        left = [f for f in left if f not in lot]
    if run:
        yield tuple(run)


def expected_s(durations_s: Sequence[float]) -> float:
    """Return the seconds that a refresh is expected to take: the median of earlier ones, the longer
    of two; 0 without any, so that a fragment without history is started while any time is left."""
    return sorted(durations_s)[len(durations_s) // 2] if durations_s else 0.0


def in_time(
    run: Iterable[Fragment], expected_s: Mapping[str, float], left_s: float
) -> list[Fragment]:
    """Return the fragments of a run that are expected to end in time, in their order.

    Args:
        expected_s: seconds, by name.
        left_s: seconds until the deadline; at 0 no fragment is started.
    """
    chosen, takes_s = list[Fragment](), 0.0
    for fragment in run:
        if left_s > 0 and takes_s + expected_s[fragment.name] <= left_s:
            takes_s += expected_s[fragment.name]
            chosen.append(fragment)
    return chosen
