"""Notes of earlier refreshes and forecasts from their runs, from which the next one decides.

Beside the history of runs, notes have the last comparison of a fragment and the speed of the line
to its source. If they are lost, the next refresh costs more, and its result is the same.
"""

from __future__ import annotations

import json
import math
import threading
import time
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from warehouse_agent.config import Source
from warehouse_agent.planning.change_forecast import Expected, Past, Run, expect
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.notes import number
from warehouse_agent.storage.store import PRIVATE, Store

if TYPE_CHECKING:  # `status` reads these records, and needs neither gRPC nor messages
    from driftline import wire_pb2 as pb

    from warehouse_agent.transport.channel import Link, Stream

_NOTING = threading.Lock()  # one run of a source is described while another is compared
RTT_DAYS = 7  # between measurements, each of which opens a connection


def changes_expected(runs: list[Run], rows: int, now: datetime) -> Expected | None:
    """Return the forecast of changes at the time `now`, from the `runs` since a load, for `rows`
    rows of ours; None before the first refresh after the load."""
    history = pasts(runs)
    if not history:
        return None
    return expect(history, rows=rows, elapsed_s=(now - runs[-1].at).total_seconds())


def needed_spark(runs: list[Run], changes: Expected | None) -> bool:
    """Return True if the refresh whose changes are most like the forecast ran a step on Spark."""
    d = changes.median if changes is not None else 0
    changed = [run for run in reversed(runs[1:]) if run.changed]
    if not d or not changed:
        return False
    return min(changed, key=lambda run: abs(math.log(run.changed / d))).on_spark


def pasts(runs: list[Run]) -> list[Past]:
    """Return what refreshes found, in the order of `runs`, without the load that comes first."""
    return [
        Past(
            (run.at - before.at).total_seconds(),
            max(run.rows - run.inserted + run.deleted, 0),
            run.inserted,
            run.updated,
            run.deleted,
        )
        for before, run in pairwise(runs)
        if run.counts_changes
    ]


def line(store: Store, source: Source, rows_per_s: float | None) -> Line:
    """Return the line to a source as it was last measured, or a usual one.

    Neither rate is above the limit of the DBA that the source last described.

    Args:
        rows_per_s: how fast the source read the relation, by the notes of its fragment.
    """
    noted, usual = _noted(store, source), Line()
    size = number(noted, "bytes_per_s")
    return Line(
        number(noted, "rtt_s") or usual.rtt_s,
        min(size or usual.bytes_per_s, number(noted, "bytes_per_s_max") or math.inf),
        source.objective,
        min(rows_per_s or usual.rows_per_s, number(noted, "rows_per_s_max") or math.inf),
    )


def note_line(store: Store, link: Link, stream: Stream) -> None:
    """Note the byte rate, averaged with the noted one because lines are noisy, and, once in
    RTT_DAYS, the time of a round trip.

    Raises:
        WarehouseUnavailable: the note cannot be written.
    """
    rate, now = stream.bytes_per_s, time.time()
    measured = number(_noted(store, link.source), "rtt_at") or 0.0
    # A measurement in the future has the time of a wrong clock.
    is_fresh = 0 <= now - measured < RTT_DAYS * 86_400
    if is_fresh and rate is None:
        return
    rtt_s = None if is_fresh else link.round_trip_s()
    with _NOTING:
        noted = _noted(store, link.source)
        if rate is not None:
            before = number(noted, "bytes_per_s")
            noted["bytes_per_s"] = (before + rate) / 2 if before else rate
        if rtt_s is not None:
            noted |= {"rtt_s": rtt_s, "rtt_at": now}
        _note(store, link.source, noted)


def note_limits(store: Store, source: Source, description: pb.Description) -> None:
    """Note the limits of the source's DBA if they changed.

    Raises:
        WarehouseUnavailable: the note cannot be written.
    """
    limits = {"rows_per_s_max": description.rows_per_second}
    limits["bytes_per_s_max"] = description.bytes_per_second
    with _NOTING:
        noted = _noted(store, source)
        if any(noted.get(name, 0) != most for name, most in limits.items()):
            _note(store, source, noted | limits)


def _noted(store: Store, source: Source) -> dict[str, object]:
    """Return what is noted about the line to the source at its present address."""
    noted = store.read_json(PRIVATE, "sources", f"{source.name}.json")
    return noted if noted.get("address") == source.address else {}


def _note(store: Store, source: Source, noted: dict[str, object]) -> None:
    body = json.dumps(noted | {"address": source.address}).encode()
    store.write(body, PRIVATE, "sources", f"{source.name}.json")
