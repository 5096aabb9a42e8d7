"""The memory of change of each fragment, kept beside its history of refreshes.

The history of refreshes keeps its newest lines alone. `_driftline/schedule/NAME.json` has what the
scheduler needs of all of them: the newest intervals and sums of the others
(`change_models.memory`). A refresh brings it up to date; a reader adds lines that it lacks. If it
is lost, the lines that are left tell the rest, and refreshes come by fixed intervals until there
are enough.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import statistics
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

from warehouse_agent.change_models.memory import (
    DAMAGED,
    MeanSquare,
    Memory,
    RefreshObservation,
    from_json,
)
from warehouse_agent.events import Event, RefreshCommitted
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history.history_lines import ChangeCounts, HistoryLine, SuccessLine
from warehouse_agent.history.refresh_history import Histories, RefreshHistory, read
from warehouse_agent.storage.store import PRIVATE, Store

MEMORIES = 1024  # of fragments, that a process keeps: about 100 kB each
LATEST = 8  # refreshes, whose seconds and bytes the next one is expected to take


def remembered(store: Store, name: str, zone: str, history: RefreshHistory | None = None) -> Memory:
    """Return what refreshes of a fragment told about change, up to the newest.

    Args:
        zone: the time zone of its source.
        history: of the fragment, as far as it was read; None: it is read as far as need be.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    return _after(store, name, store.read(*_place(name)) or b"", zone, history)


def _after(
    store: Store, name: str, body: bytes, zone: str, history: RefreshHistory | None
) -> Memory:
    """Return the memory that a file has, with what the history of refreshes has since."""
    memory = _kept(body, zone)

    def is_known(line: HistoryLine) -> bool:
        return isinstance(line, SuccessLine) and memory.line == (line.as_of, str(line.refreshed_at))

    if history is None or not (history.is_whole or any(map(is_known, history.lines))):
        history = read(store, name, is_known)
    new = itertools.takewhile(lambda line: not is_known(line), history.successes)
    known = next(filter(is_known, history.successes), None)
    newest_first = [*new, *([] if known is None else [known])]
    return memory.after(map(observation, reversed(newest_first)))


def observation(line: SuccessLine) -> RefreshObservation:
    """Return what a line tells of change."""
    return RefreshObservation(
        as_of=line.as_of,
        refreshed_at=line.refreshed_at,
        changed=None if (rows := line.rows) is None else astuple(rows),
        total=line.total,
        is_part=line.is_part,
        is_load=line.is_load,
        is_other=not line.counts_changes or line.is_repair,
        exchange_s=line.exchange_s if line.is_tiled else 0.0,
        is_resumed=line.is_resumed,
        took_s=line.spent.seconds,
        moves=_moves(line.changed),
    )


def _moves(found: ChangeCounts | None) -> MeanSquare | None:
    """Return the moves of a numeric column; None: no updated row was compared, or none asked."""
    if found is None or found.moves is None or not found.compared:
        return None
    column, rows, square = found.moves
    return MeanSquare(column, square, min(rows / found.compared, 1.0))


@functools.lru_cache(maxsize=MEMORIES)
def _kept(body: bytes, zone: str) -> Memory:
    """Return the memory that a file has: the same object for the same bytes, so that a process that
    decides for long fits no model twice."""
    with contextlib.suppress(ValueError, RecursionError, *DAMAGED):
        return from_json(json.loads(body)).in_zone(zone)
    return Memory().in_zone(zone)


def remember(store: Store, name: str, zone: str, history: RefreshHistory | None = None) -> None:
    """Bring the memory of a fragment up to date, after its report was appended to its history.

    Arguments as of `remembered`.

    Raises:
        WarehouseUnavailable: it cannot be written.
    """

    def changed(body: bytes) -> bytes:
        return json.dumps(_after(store, name, body, zone, history).to_json()).encode()

    store.change(changed, *_place(name))
    WarehouseFailpoint.MEMORY_WRITTEN.reach()


def _place(name: str) -> tuple[str, ...]:
    return (PRIVATE, "schedule", f"{name}.json")


def habits(history: RefreshHistory) -> tuple[float, float | None]:
    """Return the seconds and the bytes sent that the next refresh is expected to take: medians of
    the last LATEST ones since a load; 0 and None if there was none."""
    seconds = history.durations_s(LATEST)
    moved = [line.spent.bytes for line in history.since_load]
    sent = [one for one in moved if one is not None][:LATEST]
    return (
        statistics.median(seconds) if seconds else 0.0,
        statistics.median(sent) if sent else None,
    )


@dataclass(frozen=True, slots=True)
class IntervalHistory:
    """A listener that keeps the memory of each fragment up to date, after its line was appended.

    `zones`: the time zone of each fragment; `histories`: of those whose turn is over with this.
    """

    store: Store
    zones: Mapping[str, str]
    histories: Histories = field(default_factory=Histories)

    def __call__(self, event: Event) -> None:
        """Remember what a refresh found; ignore other events.

        Raises:
            WarehouseUnavailable: the memory cannot be written.
        """
        if isinstance(event, RefreshCommitted) and (zone := self.zones.get(event.report.name)):
            name = event.report.name
            remember(self.store, name, zone, self.histories.over(name))
