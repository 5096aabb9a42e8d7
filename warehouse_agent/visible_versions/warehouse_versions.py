"""The table of versions: which versions of all tables of a warehouse belong together.

`<path>/_driftline/warehouse` is a Delta table that anybody can read. Each of its commits replaces
all rows and is one warehouse version, written last: the flip. A row is a `members.Member`.

The rows are in one small Parquet file per version. A commit that was overtaken is made again on the
newer members, so commands on different tables do not disturb each other. A newest version that
Driftline did not write is refused.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from driftline.errors import Locked, NotFound, WarehouseUnavailable

from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.storage.delta_log import shorten_log
from warehouse_agent.storage.log_entry import META
from warehouse_agent.storage.one_file_table import OneFileTable, files_of
from warehouse_agent.storage.opened_table import OpenedTable
from warehouse_agent.storage.store import PRIVATE, Store, StoredFile, file_errors, one_line
from warehouse_agent.visible_versions.members import Member, MemberKind

FOLDER = "warehouse"  # below PRIVATE
TABLE = f"{PRIVATE}/{FOLDER}"
FORMAT = 1  # of the rows; a reader refuses a newer one
TRIES_MAX = 100  # commits of others that may overtake one flip
_INPUTS = pa.map_(pa.string(), pa.int64())
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("kind", pa.string()),
        ("folder", pa.string()),
        ("version", pa.int64()),
        ("as_of", pa.string()),
        ("consistency", pa.string()),
        ("proof", pa.string()),
        ("moved_at", pa.string()),
        ("checked", pa.string()),
        ("inputs", _INPUTS),
        ("stale", pa.string()),
        ("stale_since", pa.string()),
    ]
)
_VERSIONS = OneFileTable(
    (PRIVATE, FOLDER),
    "driftline_warehouse",
    SCHEMA,
    "The warehouse version could not be committed",
    remedy="Check space and permissions. What was committed of each table stays, readers keep the"
    " version before, and the next refresh goes on from there.",
)


@dataclass(frozen=True, slots=True)
class WarehouseVersion:
    """One version of the whole warehouse, pinned. `pin`: the handle for the next commit."""

    number: int
    flipped_at: datetime
    members: Mapping[str, Member]
    pin: OpenedTable = field(repr=False, compare=False)


def exists(store: Store) -> bool:
    """Return True if the warehouse has a table of versions."""
    return _VERSIONS.exists(store)


def newest(store: Store) -> WarehouseVersion | None:
    """Return the newest warehouse version; None if there is no table of versions.

    Raises:
        WarehouseUnavailable: the table cannot be read; somebody else or a newer release wrote it.
    """
    return _opened(store, None)


def visible_member(store: Store, name: str) -> Member | None:
    """Return a table as readers are given it; None: no warehouse version names it.

    Raises:
        WarehouseUnavailable: as `newest`.
    """
    found = newest(store) if exists(store) else None
    return None if found is None else found.members.get(name)


def at_version(store: Store, number: int) -> WarehouseVersion:
    """Return an earlier warehouse version. Raises NotFound; WarehouseUnavailable as `newest`."""
    if (version := _opened(store, number)) is None:
        raise NotFound(
            "The warehouse has no versions: no view was published yet.",
            where=TABLE,
            remedy="Read the newest state: `at(spark, path)` without a version.",
        )
    return version


def since(store: Store, moment: datetime) -> list[WarehouseVersion]:
    """Return the version that was the newest at a moment, and all later ones, ascending.

    Those before the last one that `gc` removed, or the log lost, are left out: nobody can pin them.
    When a version was made whose time is before that of the one before it is not known.

    Raises:
        WarehouseUnavailable: as `newest`.
    """
    versions: list[WarehouseVersion] = []
    version = newest(store)
    while version is not None:
        versions.append(version)
        before = None if version.number == 0 else _kept(store, version.number - 1)
        is_known = before is None or before.flipped_at <= version.flipped_at
        if is_known and version.flipped_at <= moment:
            break
        version = before
    return versions[::-1]


def flip(
    store: Store, change: Callable[[Mapping[str, Member]], Mapping[str, Member] | None]
) -> WarehouseVersion | None:
    """Commit the next warehouse version; make the table if there is none.

    Args:
        change: returns the next members from the newest ones, empty without a table; None: nothing
            moved. Called again on newer members if somebody else flipped meanwhile.

    Returns:
        The newest warehouse version afterwards; None if there is no table.

    Raises:
        Locked: others flipped again and again meanwhile.
        WarehouseUnavailable: the table cannot be read or written.
    """
    for _ in range(TRIES_MAX):
        base = newest(store)
        after = change({} if base is None else base.members)
        if after is None:
            return base
        if _commit(store, base, after):
            WarehouseFailpoint.FLIPPED.reach()
            return newest(store)
    raise Locked(
        f"Other commands overtook this one {TRIES_MAX} times.",
        where=TABLE,
        remedy="Run the command again.",
    )


def garbage(store: Store, oldest: int, newest: WarehouseVersion) -> list[StoredFile]:
    """Return files of the table that no version from `oldest` to `newest` needs.

    Among them are those of flips that others overtook. The file of a flip that is being made has a
    higher number than `newest`, and stays.
    """
    tables = (_table(store, number) for number in range(oldest, newest.number))
    kept = {_file(table) for table in tables if table is not None}
    return _VERSIONS.garbage(store, kept | {_file(newest.pin)}, newest.number)


def shorten(oldest: WarehouseVersion) -> None:
    """Remove old entries of the log that no version from `oldest` on needs (`shorten_log`)."""
    shorten_log(oldest.pin, TABLE)


def _table(store: Store, number: int | None) -> OpenedTable | None:
    """Return the handle of a version, None for the newest; None if there is no table."""
    try:
        return _VERSIONS.opened(store, number)
    except (DeltaError, OSError) as error:
        if number is not None:
            last = _table(store, None)
            if last is not None and last.version() < number:
                raise NotFound(
                    f"There is no warehouse version {number}; the newest is {last.version()}.",
                    where=TABLE,
                    remedy="Read that one, or leave the version out.",
                ) from None
            if not _VERSIONS.is_logged(store, number):
                raise _gone(number, "the log does not have it any more") from error
        raise _unreadable(one_line(error)) from error


def _kept(store: Store, number: int) -> WarehouseVersion | None:
    """Return a version; None if it cannot be pinned any more."""
    with contextlib.suppress(NotFound):
        return _opened(store, number)
    return None


def _opened(store: Store, number: int | None) -> WarehouseVersion | None:
    table = _table(store, number)
    if table is None:
        return None
    name = _file(table)
    try:
        with file_errors("read", name):
            rows = _VERSIONS.read(store, name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise _unreadable(f"{name}: {one_line(error)}") from error
    if rows is None:
        if number is None:
            raise _unreadable(f"{name} is missing")
        raise _gone(number, "`gc` removed its file")
    noted = _noted(rows, table.version())
    members = (_member(row) for row in rows.to_pylist())
    flipped_at = datetime.fromisoformat(noted["flipped_at"])
    return WarehouseVersion(table.version(), flipped_at, {m.name: m for m in members}, table)


def _file(table: DeltaTable) -> str:
    """Return the name of the file of a version. Raises WarehouseUnavailable: there is not one."""
    files = files_of(table)
    if len(files) != 1:
        raise _foreign(table.version())
    return files[0]


def _noted(rows: pa.Table, version: int) -> dict[str, Any]:
    """Return what a flip notes in its file. Raises WarehouseUnavailable: another program's."""
    text = (rows.schema.metadata or {}).get(META.encode())
    if text is None:
        raise _foreign(version)
    noted: dict[str, Any] = json.loads(text)
    if noted["format"] > FORMAT:
        raise WarehouseUnavailable(
            f"Warehouse version {version} was written by a newer release of Driftline.",
            where=TABLE,
            remedy="Install that release, or a newer one, here as well.",
        )
    return noted


def _commit(store: Store, base: WarehouseVersion | None, after: Mapping[str, Member]) -> bool:
    """Commit members as the next version; return False if somebody else was faster."""
    noted: dict[str, str | int] = {"format": FORMAT, "flipped_at": datetime.now(UTC).isoformat()}
    rows = pa.Table.from_pylist([_row(after[name]) for name in sorted(after)], SCHEMA)
    pin = None if base is None else base.pin
    return _VERSIONS.commit(store, pin, rows, noted, WarehouseFailpoint.FLIP_WRITTEN.reach)


def _row(member: Member) -> dict[str, Any]:
    row = {name: getattr(member, name) for name in SCHEMA.names}
    return row | {"kind": member.kind.value, "inputs": sorted(member.inputs.items())}


def _member(row: dict[str, Any]) -> Member:
    known: dict[str, Any] = {name: row.get(name) for name in SCHEMA.names}
    known |= {"kind": MemberKind(row["kind"]), "inputs": dict(row["inputs"] or ())}
    return Member(**known)


def _gone(number: int, why: str) -> NotFound:
    return NotFound(
        f"Warehouse version {number} cannot be pinned any more: {why}.",
        where=TABLE,
        remedy="Pin a newer one.",
    )


def _unreadable(why: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        f"The table of versions cannot be read: {why}.",
        where=TABLE,
        remedy="Restore the folder from a backup; or move it away: the next refresh of a view makes"
        " a new one from the newest version of every table.",
    )


def _foreign(version: int) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        f"Version {version} of the table of versions was not written by Driftline.",
        where=TABLE,
        remedy="Restore the last version that Driftline wrote; or move the folder away: the next"
        " refresh of a view makes a new one from the newest version of every table.",
    )
