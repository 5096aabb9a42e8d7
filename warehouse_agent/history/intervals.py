"""The memory of change of each fragment, kept beside its history of runs.

The history of runs keeps its newest lines alone. `_driftline/schedule/NAME.json` has what the
scheduler needs of all of them: the newest intervals and sums of the others
(`schedule.memory`). A refresh brings it up to date; a reader adds lines that it lacks. If it is
lost, the lines that are left tell the rest, and refreshes come by fixed intervals until there are
enough.
"""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warehouse_agent.events import Event, RefreshCommitted
from warehouse_agent.failpoints import Point
from warehouse_agent.history.record import DAMAGED_LINE, amount, durations_s, succeeded
from warehouse_agent.schedule.memory import DAMAGED, Memory, from_json
from warehouse_agent.storage.store import PRIVATE, Store

MEMORIES = 1024  # of fragments, that a process keeps: about 100 kB each
LATEST = 8  # refreshes, whose seconds and bytes the next one is expected to take


def remembered(store: Store, name: str, zone: str) -> Memory:
    """Return what refreshes of a fragment told about change, up to the newest.

    Args:
        zone: the time zone of its source.
    """
    memory = _kept(store.read(PRIVATE, "schedule", f"{name}.json") or b"", zone)
    new: list[dict[str, Any]] = []
    for report in succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl")):
        new.append(report)
        if memory.line == (report.get("as_of"), report.get("checked_at")):
            break
    return memory.after(new[::-1])


@functools.lru_cache(maxsize=MEMORIES)
def _kept(body: bytes, zone: str) -> Memory:
    """Return the memory that a file has: the same object for the same bytes, so that a process that
    decides for long fits no model twice."""
    with contextlib.suppress(ValueError, RecursionError, *DAMAGED):
        return from_json(json.loads(body)).in_zone(zone)
    return Memory().in_zone(zone)


def remember(store: Store, name: str, zone: str) -> None:
    """Bring the memory of a fragment up to date, after its report was appended to its history.

    Raises:
        WarehouseUnavailable: it cannot be written.
    """
    body = json.dumps(remembered(store, name, zone).to_json()).encode()
    store.write(body, PRIVATE, "schedule", f"{name}.json")
    Point.MEMORY_WRITTEN.reach()


def habits(store: Store, name: str) -> tuple[float, float | None]:
    """Return the seconds and the bytes sent that the next refresh is expected to take: medians of
    the last ones since a load; 0 and None if there was none."""
    seconds, sent = durations_s(store, name, LATEST), []
    for report in succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl")):
        with contextlib.suppress(*DAMAGED_LINE):
            sent.append(amount(report["bytes_sent"]) + amount(report["bytes_received"]))
            if report["previous_version"] is None or len(sent) == LATEST:
                break
    return (
        statistics.median(seconds) if seconds else 0.0,
        statistics.median(sent) if sent else None,
    )


@dataclass(frozen=True, slots=True)
class IntervalHistory:
    """A listener that keeps the memory of each fragment up to date, after its line was appended.

    `zones`: the time zone of each fragment.
    """

    store: Store
    zones: Mapping[str, str]

    def __call__(self, event: Event) -> None:
        """Remember what a refresh found; ignore other events.

        Raises:
            WarehouseUnavailable: the memory cannot be written.
        """
        if isinstance(event, RefreshCommitted) and (zone := self.zones.get(event.report.name)):
            remember(self.store, event.report.name, zone)
