"""The counters of all tables, without reading all histories after each command.

`_driftline/metrics.json` has the counters of each table, and the size and time that its history had
when they were made. A history that is as it was then says nothing new; of one that grew by the line
of this command, the line is added; of any other the new lines are read, from its end. So counters
are what the histories give, whatever was killed, lost or done by others meanwhile, and the file may
be lost. If two commands write it at once, the next one reads again what the other one had read.

Of a table that is not known yet only the newest lines are read, down to an exact refresh: so the
first command knows all tables, and their counters begin with these lines. Prometheus takes the
differences of counters, and the whole past is in `status --totals` and the report. Rejected: whole
histories. Of 500 with 1,000 refreshes each all were known after ten to fifteen commands.

Histories are read READ_AT_ONCE at a time. A command stops after READ_S, and the next one goes on. A
failure that its history could not take, as on a full disk, is told by its command alone.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from driftline.errors import DriftlineError, WarehouseUnavailable

from warehouse_agent.history import refresh_history
from warehouse_agent.history.history_lines import (
    DAMAGED,
    FailureLine,
    HistoryLine,
    SuccessLine,
    parse,
)
from warehouse_agent.inspection.published_state import READ_AT_ONCE
from warehouse_agent.monitoring.table_counters import TableCounters, is_exact, mark_of
from warehouse_agent.storage.store import PRIVATE, Store, StoredFile

READ_S: Final = 1.0  # of reading histories; all that is told of a command has 2 s
INEXACT_MAX: Final = 20  # newest lines of a table that is never exact that are read at first
FAILED_MAX: Final = 200  # newest lines of one of which no refresh went well
_PLACE: Final = (PRIVATE, "metrics.json")
_FORMAT: Final = 1
_END: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class CountedTable:
    """A table's counters, and size in bytes and time (seconds since 1970) of its history."""

    size: int
    modified: float
    counters: TableCounters

    def is_of(self, file: StoredFile) -> bool:
        """Return True if the history is as it was."""
        return (self.size, self.modified) == (file.size, file.modified.timestamp())


def counted(
    store: Store,
    names: Sequence[str],
    lines: Mapping[str, str],
    *,
    read_s: float = READ_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, TableCounters]:
    """Return the counters of the tables that have a history and could be read in time.

    Args:
        names: of all tables that are configured.
        lines: those that this command appended, by table.

    Raises:
        WarehouseUnavailable: nothing can be read.
    """
    until = clock() + read_s
    files = {file.place[-1].removesuffix(_END): file for file in store.walk(PRIVATE, "runs")}
    before = dict(_read(store))
    now, unread = dict[str, CountedTable](), list[str]()
    for name in sorted(names, key=lambda name: name not in lines):  # stable
        if (file := files.get(name)) is None:
            continue
        known = before.get(name)
        if known is not None and known.is_of(file):
            now[name] = known
        elif (counters := _with_line(known, file, lines.get(name))) is not None:
            now[name] = CountedTable(file.size, file.modified.timestamp(), counters)
        else:
            unread.append(name)

    def newest(name: str) -> TableCounters | None:
        return _newest(store, name, before.get(name)) if clock() < until else None

    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        for name, read in zip(unread, pool.map(newest, unread), strict=True):
            if read is not None:
                file = files[name]
                now[name] = CountedTable(file.size, file.modified.timestamp(), read)
            elif name in before:
                now[name] = before[name]  # the next command reads what is new
    if now != before:
        _write(store, now)
    return {name: _with_failure(one.counters, lines.get(name)) for name, one in now.items()}


def _with_failure(counters: TableCounters, line: str | None) -> TableCounters:
    """Return the counters with the line of this command, if it failed on storage, so that no
    history has it."""
    parsed = None if line is None else parse(line.encode())
    if not isinstance(parsed, FailureLine) or parsed.code != WarehouseUnavailable.code:
        return counters
    return counters if mark_of(parsed) == counters.mark else counters.plus([parsed])


def _with_line(
    known: CountedTable | None, file: StoredFile, line: str | None
) -> TableCounters | None:
    """Return the counters with the line of this command, if nothing else is new; else None."""
    if known is None or line is None or known.size + len(line.encode()) + 1 != file.size:
        return None
    parsed = parse(line.encode())
    return None if parsed is None else known.counters.plus([parsed])


def _newest(store: Store, name: str, known: CountedTable | None) -> TableCounters:
    """Return the counters of a history, of which only the new lines are read."""
    if known is None or (mark := known.counters.mark) is None:
        return TableCounters.of(refresh_history.read(store, name, _first_lines()))
    history = refresh_history.read(store, name, lambda line: mark_of(line) == mark)
    newer = history.lines if history.is_whole else history.lines[:-1]
    return known.counters.plus(reversed(newer))


def _first_lines() -> refresh_history.Enough:
    """Read until an exact refresh; if there is none soon, until one that went well."""
    read, went_well = 0, False

    def enough(line: HistoryLine) -> bool:
        nonlocal read, went_well
        read += 1
        went_well |= isinstance(line, SuccessLine)
        return is_exact(line) or read >= (INEXACT_MAX if went_well else FAILED_MAX)

    return enough


def _read(store: Store) -> Iterator[tuple[str, CountedTable]]:
    """Yield what the last command knew; nothing if that is lost, damaged or of another release."""
    with contextlib.suppress(DriftlineError, *DAMAGED):
        body: dict[str, Any] = store.read_json(*_PLACE)
        if body["format"] != _FORMAT:
            return
        for name, one in body["tables"].items():
            counters = TableCounters.from_json(one["counters"])
            yield name, CountedTable(int(one["size"]), float(one["modified"]), counters)


def _write(store: Store, tables: Mapping[str, CountedTable]) -> None:
    """Keep what is known for the next command, which reads histories if that fails."""
    kept = {
        name: {"size": one.size, "modified": one.modified, "counters": one.counters.to_json()}
        for name, one in tables.items()
    }
    with contextlib.suppress(DriftlineError):
        store.write(json.dumps({"format": _FORMAT, "tables": kept}).encode(), *_PLACE)
