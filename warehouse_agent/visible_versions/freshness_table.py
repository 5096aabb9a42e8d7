"""The table of freshness: how fresh each published table is, for every reader to join.

`<path>/driftline_freshness` is a Delta table beside the published ones, with a row for each
fragment and view since its first refresh. Each of its commits replaces all rows (`one_file_table`).
It is written after a refresh and decides nothing: if it is lost, the next refresh begins it anew
with the tables that it refreshes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from deltalake.exceptions import DeltaError
from driftline.errors import Locked, NotFound, WarehouseUnavailable

from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.delta_log import shorten_log
from warehouse_agent.storage.log_entry import META
from warehouse_agent.storage.one_file_table import OneFileTable, files_of, number_of
from warehouse_agent.storage.opened_table import OpenedTable
from warehouse_agent.storage.store import Store, StoredFile, one_line

TRIES_MAX: Final = 20  # commits of others that may overtake one
_MOMENT = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    [
        ("name", pa.string()),
        ("kind", pa.string()),
        ("version", pa.int64()),
        ("as_of", _MOMENT),
        ("checked_at", _MOMENT),
        ("proof", pa.string()),
        ("consistency", pa.string()),
        ("rows", pa.int64()),
        ("last_success_at", _MOMENT),
        ("last_failure_at", _MOMENT),
        ("last_failure_code", pa.string()),
        ("failures", pa.int64()),
        ("state", pa.string()),
    ]
)
_TABLE = OneFileTable(
    (FRESHNESS,),
    FRESHNESS,
    SCHEMA,
    f"{FRESHNESS} could not be written",
    remedy="Check space and permissions.",
)


@dataclass(frozen=True, slots=True)
class FreshnessRow:
    """Freshness of one table, as its last refresh left it. None: not known, or nothing yet.

    Attributes:
        kind: "fragment", "kept" or "view", as in `status --json`.
        version, as_of, checked_at, proof, consistency, rows: of what is published.
        last_success_at, last_failure_at: of its refreshes.
        last_failure_code: of the last failure, also if a success followed.
        failures: refreshes that failed since the last success.
        state: "ok", "warning", "critical" or "unknown".
    """

    name: str
    kind: str
    version: int | None = None
    as_of: datetime | None = None
    checked_at: datetime | None = None
    proof: str | None = None
    consistency: str | None = None
    rows: int | None = None
    last_success_at: datetime | None = None
    last_failure_at: datetime | None = None
    last_failure_code: str | None = None
    failures: int = 0
    state: str = "unknown"


def replace(
    store: Store, change: Callable[[Mapping[str, FreshnessRow]], Mapping[str, FreshnessRow]]
) -> None:
    """Commit other rows; nothing if they are the same. Make the table if there is none.

    Args:
        change: returns the next rows, by name, from the newest ones. Called again on newer rows if
            another command committed meanwhile.

    Raises:
        Locked: others committed again and again meanwhile.
        WarehouseUnavailable: the table cannot be read or written.
    """
    for _ in range(TRIES_MAX):
        base, before = _newest(store)
        after = change(before)
        if after == before and base is not None:
            return
        rows = pa.Table.from_pylist([asdict(after[name]) for name in sorted(after)], SCHEMA)
        if _TABLE.commit(store, base, rows, {}):
            return
    raise Locked(f"Other commands overtook this one {TRIES_MAX} times.", where=FRESHNESS)


def garbage(store: Store, since: datetime) -> tuple[int, list[StoredFile]]:
    """Return the oldest version that was the newest at `since` or later, and the files that no such
    version has; 0 without a table, and none if it cannot be read.

    A version is taken to be as old as its file.
    """
    with contextlib.suppress(DeltaError, OSError, WarehouseUnavailable):
        if (newest := _TABLE.opened(store)) is None:
            return 0, [f for f in _TABLE.garbage(store, (), 0) if f.modified <= since]
        number, current = newest.version(), files_of(newest)
        ours = _TABLE.garbage(store, (), number)
        oldest = max((number_of(f) for f in ours if f.modified <= since), default=0)
        unused = [f for f in ours if number_of(f) < oldest or number_of(f) == number]
        return oldest, [f for f in unused if f.place[-1] not in current and f.modified <= since]
    return 0, []


def shorten(store: Store, oldest: int) -> None:
    """Remove old entries of the log that no version from `oldest` on needs (`shorten_log`).

    What cannot be removed stays.
    """
    with contextlib.suppress(DeltaError, OSError, WarehouseUnavailable):
        if oldest and (table := _TABLE.opened(store, oldest)) is not None:
            shorten_log(table, FRESHNESS)


def data_file(store: Store) -> DataFile:
    """Return the file of the newest version.

    Raises:
        NotFound: there is no table.
        WarehouseUnavailable: it cannot be read.
    """
    try:
        table = _TABLE.opened(store)
        files = None if table is None else table.get_add_actions(flatten=True)
    except (DeltaError, OSError) as error:
        raise _unreadable(one_line(error)) from error
    if files is None:
        raise NotFound("No refresh has written it yet.", where=FRESHNESS)
    if files.num_rows != 1:
        raise _unreadable("another program wrote its rows")
    names = ("path", "size_bytes", "num_records")
    path, size, rows = (files.column(name).to_pylist()[0] for name in names)
    return DataFile(path, store.uri(FRESHNESS, path), size, rows)


def _newest(store: Store) -> tuple[OpenedTable | None, dict[str, FreshnessRow]]:
    """Return the handle of the newest version, and its rows by name; None: there is no table."""
    try:
        if (table := _TABLE.opened(store)) is None:
            return None, {}
        files = files_of(table)
        rows = _TABLE.read(store, files[0]) if len(files) == 1 else None
    except (DeltaError, OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unreadable(one_line(error)) from error
    if rows is None or META.encode() not in (rows.schema.metadata or {}):
        raise _unreadable("its rows are gone, or another program wrote them")
    return table, {row["name"]: _row(row) for row in rows.to_pylist()}


def _row(row: Mapping[str, Any]) -> FreshnessRow:
    known: dict[str, Any] = {name: row.get(name) for name in SCHEMA.names}
    return FreshnessRow(**known)


def _unreadable(why: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        f"The table cannot be read: {why}.",
        where=FRESHNESS,
        remedy="Move its folder away: the next refresh makes a new one.",
    )
