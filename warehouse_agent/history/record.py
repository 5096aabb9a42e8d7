"""Records of earlier refreshes, from which the next one decides.

The table ω− of Lu, Liu and Hyland is the fragment's history of runs: one line for every refresh,
also for those that found no change. The commit of a version holds its line too: if the command was
killed before it wrote the line, the next one does (`complete`). Notes beside the history have the
prices of a row (`prices`) and the speed of the line. If records are lost, the next refresh costs
more, and its result is the same.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from driftline.errors import WarehouseUnavailable

from warehouse_agent.config import Source
from warehouse_agent.history.run_history import append
from warehouse_agent.planning.change_forecast import Expected, Past, Run, expect
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.notes import GREATEST, number
from warehouse_agent.schedule.retry import COUNTED, Failed
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot

if TYPE_CHECKING:  # `status` reads these records, and needs neither gRPC nor messages
    from driftline import wire_pb2 as pb

    from warehouse_agent.transport.channel import Link, Stream

_SPARK = "spark"  # of the places in a report
_NOTING = threading.Lock()  # one run of a source is described while another is compared
RTT_DAYS = 7  # between measurements, each of which opens a connection
_IDENTITY = ("version", "previous_version", "as_of", "checked_at")  # of the report of a version
DAMAGED_LINE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)  # of reading a line


def complete(store: Store, name: str, newest: Snapshot | None) -> None:
    """Write the line of the newest version if the command that published it could not.

    Hold the fragment's lock. A line that cannot be written now is written by a later command.
    """
    report = newest.record.report if newest else None
    # Older releases copy the report of another version when they publish its rows again.
    if newest is None or report is None or report.get("version") != newest.version:
        return
    place = (PRIVATE, "runs", f"{name}.jsonl")
    with contextlib.suppress(WarehouseUnavailable):
        if is_missing(store.lines_backwards(*place), report):
            append(store, name, json.dumps(report))


def is_missing(lines: Iterable[bytes], report: Mapping[str, Any]) -> bool:
    """Return True if a history has no line of the report with which its newest version was
    published, and never had one.

    Refreshes that found this version equal to its source say that the line was written, though it
    may be older than what is kept: each of them would have written it. The version may have the
    number of one in an earlier table of the same name.

    Args:
        lines: of the history, the newest first.
    """
    version = report.get("version")
    is_followed = has_others = False
    for body in succeeded(lines):
        if all(body.get(key) == report.get(key) for key in _IDENTITY):
            return False
        if body.get("version") == body.get("previous_version") == version:
            is_followed |= not has_others
        elif is_followed:
            return bool(body.get("version") == version)
        else:
            has_others = True
    return not is_followed


def runs(store: Store, name: str) -> list[Run]:
    """Return the successful refreshes since the last load, the load first."""
    return parse(store.read(PRIVATE, "runs", f"{name}.jsonl") or b"")


def refreshed_at(store: Store, name: str) -> datetime | None:
    """Return when the last successful refresh, or part of one, had compared; None: never."""
    for body in succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl")):
        with contextlib.suppress(*DAMAGED_LINE):
            return moment(body["checked_at"])
    return None


def put_off_until(store: Store, name: str) -> float | None:
    """Return the moment before which the source reads nothing, as it said at the last refresh;
    None: it did not."""
    with contextlib.suppress(StopIteration, *DAMAGED_LINE):
        newest = next(
            line for line in store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl") if line
        )
        return moment(json.loads(newest)["put_off_until"]).timestamp()
    return None


def failed(store: Store, name: str) -> Failed | None:
    """Return the refreshes that failed since the last that went well, or that a source put off;
    None: the last one did."""
    newest, times = None, 0
    for line in store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl"):
        with contextlib.suppress(*DAMAGED_LINE):
            body = json.loads(line)
            if body["command"] != "refresh":
                continue
            if body["error"] is None or body["put_off_until"] is not None or times == COUNTED:
                break
            code, exit_code = str(body["error"]["code"]), int(body["error"]["exit_code"])
            one = Failed(1, moment(body["failed_at"]).timestamp(), code, exit_code)
            newest, times = newest or one, times + 1
    return None if newest is None else replace(newest, times=times)


def rows_total(store: Store, name: str) -> int:
    """Return the rows that the last successful refresh left; 0: not known."""
    for body in succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl")):
        with contextlib.suppress(*DAMAGED_LINE):
            return int(amount(body["rows_total"]))
    return 0


def durations_s(store: Store, name: str, most: int) -> list[float]:
    """Return the seconds that the last successful refreshes since a load took, the newest first;
    if there is none since, those of the load."""
    found: list[float] = []
    for body in succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl")):
        with contextlib.suppress(*DAMAGED_LINE):
            seconds = sum(map(amount, body["seconds"].values()))
            if body["previous_version"] is None:
                return found or [seconds]
            found.append(seconds)
            if len(found) == most:
                break
    return found


def held_back_s(store: Store, name: str) -> tuple[float, float] | None:
    """Return for how many seconds the source held the last successful refresh back, and all that
    it took; None: there was none."""
    for body in succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl")):
        with contextlib.suppress(*DAMAGED_LINE):
            return amount(body["held_back_s"]), sum(map(amount, body["seconds"].values()))
    return None


def parse(lines: bytes) -> list[Run]:
    """Return the successful refreshes since the last load, oldest first; skip damaged lines."""
    found: list[Run] = []
    for line in lines.splitlines():
        try:
            run = _run(json.loads(line))
        except DAMAGED_LINE:
            continue
        if run is not None:
            found = [run] if run.is_load else [*found, run]
    return found


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


def succeeded(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the reports of refreshes that went well; skip others and damaged lines."""
    for line in lines:
        try:
            body = json.loads(line)
            is_one = body["error"] is None and body["command"] == "refresh"
        except DAMAGED_LINE:
            continue
        if is_one:
            yield body


def _run(body: dict[str, Any]) -> Run | None:
    if body["error"] is not None or body["command"] != "refresh":
        return None
    if body.get("rows_left"):  # a partial refresh counts only some of the changes
        return None
    return Run(
        moment(body["checked_at"]),
        int(amount(body["rows_inserted"])),
        int(amount(body["rows_updated"])),
        int(amount(body["rows_deleted"])),
        int(amount(body["rows_total"])),
        body["previous_version"] is None,
        body["method"],
        int(amount(body["source_scans"])),
        sum(map(amount, body["seconds"].values())),
        not body.get("schema_changed"),
        _SPARK in body.get("places", {}).values(),
    )


def moment(text: str) -> datetime:
    """Return a moment that a line names, in UTC if it has no time zone. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def amount(found: float) -> float:
    """Return an amount from a file. Raises ValueError, TypeError: it is not possible."""
    if not 0 <= found <= GREATEST:
        raise ValueError(found)
    return found
