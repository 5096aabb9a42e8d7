"""What earlier refreshes of a fragment left behind that the next one decides from.

The table ω− of Lu, Liu and Hyland is the fragment's history of runs: one line for every refresh,
also for those that found nothing. Notes beside it say what a row costs on the line and what the
line is like. All of it may be lost at any time; then the next refresh costs more and is as right.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from warehouse_agent.configure import Source
from warehouse_agent.expect import Expected, Past, expect
from warehouse_agent.line import Line
from warehouse_agent.link import Link, Stream
from warehouse_agent.plan import FEW
from warehouse_agent.store import PRIVATE, Store

RTT_DAYS = 7  # a measurement is a connection of its own
COLUMN_BYTES_UNKNOWN = 8.0  # of a column on the wire, before anything was shipped
FEW_KEPT = 0.9  # of what is known of few rows, at each further refresh
FRAME_BYTES = 120  # of a frame of few rows, beside the rows


@dataclass(frozen=True, slots=True)
class Run:
    """An earlier refresh that went well. `rows` are after it; `changed` is d; `at` when it ran."""

    at: datetime
    inserted: int
    updated: int
    deleted: int
    rows: int
    is_load: bool
    method: str | None
    scans: int
    seconds: float

    @property
    def changed(self) -> int:
        return self.inserted + self.updated + self.deleted


def runs(store: Store, name: str) -> list[Run]:
    """The refreshes that went well since the last load, the load first."""
    return parse(store.read(PRIVATE, "runs", f"{name}.jsonl") or b"")


def parse(lines: bytes) -> list[Run]:
    """The refreshes that went well since the last load, oldest first; a damaged line is passed
    over."""
    found: list[Run] = []
    for line in lines.splitlines():
        try:
            run = _run(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if run is not None:
            found = [run] if run.is_load else [*found, run]
    return found


def changes_expected(runs: list[Run], rows: int, now: datetime) -> Expected | None:
    """The distribution of the number of changed rows; None before the first refresh after a load.

    Args:
        rows: of our side, now.
    """
    history = pasts(runs)
    if not history:
        return None
    return expect(history, rows=rows, elapsed_s=(now - runs[-1].at).total_seconds())


def pasts(runs: list[Run]) -> list[Past]:
    """What these refreshes found, without the load that is the first of them."""
    return [
        Past(
            (run.at - before.at).total_seconds(),
            max(run.rows - run.inserted + run.deleted, 0),
            run.inserted,
            run.updated,
            run.deleted,
        )
        for before, run in pairwise(runs)
    ]


def row_bytes(notes: dict[str, object], columns: int) -> float:
    """Of a row on the wire, compressed: as the last time, or a guess."""
    return _number(notes, "row_bytes") or COLUMN_BYTES_UNKNOWN * columns


def few_row_bytes(notes: dict[str, object], row_bytes: float) -> float:
    """Of one of few rows: as in refreshes that shipped few, or as of one of many."""
    rows = _number(notes, "few_rows")
    return _number(notes, "few_bytes") / rows if rows > 0 else row_bytes


def prices(
    notes: dict[str, object], *, frame_bytes: int, shipped: int, changed: int
) -> dict[str, float]:
    """What a refresh tells of the price of a changed row, also of one that is gone and takes
    nothing: the last of many rows, the mean of few, earlier ones forgotten. Many of which most are
    gone tell nothing: a full copy of rows that are there would seem to cost as little."""
    changed = max(changed, shipped)
    if changed > FEW:
        return {"row_bytes": frame_bytes / changed} if 2 * shipped >= changed else {}
    if not changed:
        return {}
    return {
        "few_bytes": FEW_KEPT * _number(notes, "few_bytes") + max(frame_bytes - FRAME_BYTES, 0),
        "few_rows": FEW_KEPT * _number(notes, "few_rows") + changed,
    }


def _number(notes: dict[str, object], name: str) -> float:
    """A note, 0 where there is none."""
    known = notes.get(name)
    return float(known) if isinstance(known, int | float) else 0.0


def rows_per_s(notes: dict[str, object], usual: float) -> float:
    """Of the source, read in an exchange, as the last time."""
    known = _number(notes, "rows_per_s")
    return known if known > 0 else usual


def line(store: Store, source: Source) -> Line:
    """The line as it was measured the last time, or an ordinary one."""
    notes = store.read_json(PRIVATE, "sources", f"{source.name}.json")
    rtt_s, bytes_per_s = notes.get("rtt_s"), notes.get("bytes_per_s")
    usual = Line()
    return Line(
        float(rtt_s) if isinstance(rtt_s, int | float) else usual.rtt_s,
        float(bytes_per_s) if isinstance(bytes_per_s, int | float) else usual.bytes_per_s,
        source.objective,
    )


def note_line(store: Store, link: Link, stream: Stream) -> None:
    """Note how fast rows came, averaged with what was known, as lines are noisy; and once in
    RTT_DAYS what a round trip takes."""
    name = f"{link.source.name}.json"
    notes = store.read_json(PRIVATE, "sources", name)
    rate, before, now = stream.bytes_per_s, notes.get("bytes_per_s"), time.time()
    measured = notes.get("rtt_at")
    is_fresh = isinstance(measured, int | float) and now - measured < RTT_DAYS * 86_400
    if is_fresh and rate is None:
        return
    if rate is not None:
        notes["bytes_per_s"] = (before + rate) / 2 if isinstance(before, int | float) else rate
    if not is_fresh and (rtt_s := link.round_trip_s()) is not None:
        notes |= {"rtt_s": rtt_s, "rtt_at": now}
    store.write(json.dumps(notes).encode(), PRIVATE, "sources", name)


def _run(body: dict[str, Any]) -> Run | None:
    if body["error"] is not None or body["command"] != "refresh":
        return None
    if body.get("rows_left"):  # what changed in a part tells little of the whole
        return None
    at = datetime.fromisoformat(body["checked_at"])
    return Run(
        at if at.tzinfo else at.replace(tzinfo=UTC),
        int(body["rows_inserted"]),
        int(body["rows_updated"]),
        int(body["rows_deleted"]),
        int(body["rows_total"]),
        body["previous_version"] is None,
        body["method"],
        int(body["source_scans"]),
        sum(body["seconds"].values()),
    )
