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
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from driftline.errors import Locked, NotFound, WarehouseUnavailable

from warehouse_agent.columns import parquet
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.storage.delta_log import shorten_log
from warehouse_agent.storage.log_entry import ENTRY_ALONE, checkpoint
from warehouse_agent.storage.opened_table import OpenedTable, opened, with_keys_of_now
from warehouse_agent.storage.store import (
    PRIVATE,
    Store,
    StoredFile,
    file_errors,
    one_line,
    why_not_logged,
)
from warehouse_agent.visible_versions.members import Member, MemberKind

FOLDER = "warehouse"  # below PRIVATE
TABLE = f"{PRIVATE}/{FOLDER}"
FORMAT = 1  # of the rows; a reader refuses a newer one
TRIES_MAX = 100  # commits of others that may overtake one flip
_META = "driftline"
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


@dataclass(frozen=True, slots=True)
class WarehouseVersion:
    """One version of the whole warehouse, pinned. `pin`: the handle for the next commit."""

    number: int
    flipped_at: datetime
    members: Mapping[str, Member]
    pin: OpenedTable = field(repr=False, compare=False)


def exists(store: Store) -> bool:
    """Return True if the warehouse has a table of versions."""
    return bool(store.files(PRIVATE, FOLDER, "_delta_log"))


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
    kept.add(_file(newest.pin))
    files = store.walk(PRIVATE, FOLDER)
    data = [f for f in files if len(f.place) == 3 and f.place[-1].endswith(".parquet")]
    return [f for f in data if f.place[-1] not in kept and _number(f) <= newest.number]


def shorten(oldest: WarehouseVersion) -> None:
    """Remove old entries of the log that no version from `oldest` on needs (`shorten_log`)."""
    shorten_log(oldest.pin, TABLE)


def _number(file: StoredFile) -> int:
    """Return the number of the version that a file was written for; -1: it is not one of ours."""
    number = file.place[-1].partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _table(store: Store, number: int | None) -> OpenedTable | None:
    """Return the handle of a version, None for the newest; None if there is no table."""
    try:
        return opened(store, TABLE, number)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if number is not None:
            last = _table(store, None)
            if last is not None and last.version() < number:
                raise NotFound(
                    f"There is no warehouse version {number}; the newest is {last.version()}.",
                    where=TABLE,
                    remedy="Read that one, or leave the version out.",
                ) from None
            if not _is_logged(store, number):
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
            data = store.read(PRIVATE, FOLDER, name)
        rows = None if data is None else _rows(data)
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


def _rows(data: bytes) -> pa.Table:
    """Return the rows of a file, read in this thread alone.

    `read_table` lets threads of Arrow read, of which one may be the last to drop `data`; if that is
    while the process ends, it aborts.
    """
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _file(table: DeltaTable) -> str:
    """Return the name of the file of a version. Raises WarehouseUnavailable: there is not one."""
    files = table.file_uris()
    if len(files) != 1:
        raise _foreign(table.version())
    return files[0].rsplit("/", 1)[-1]


def _noted(rows: pa.Table, version: int) -> dict[str, Any]:
    """Return what a flip notes in its file. Raises WarehouseUnavailable: another program's."""
    text = (rows.schema.metadata or {}).get(_META.encode())
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
    number = 0 if base is None else base.number + 1
    noted = {"format": FORMAT, "flipped_at": datetime.now(UTC).isoformat()}
    schema = SCHEMA.with_metadata({_META: json.dumps(noted).encode()})
    rows = pa.Table.from_pylist([_row(after[name]) for name in sorted(after)], schema)
    sink = pa.BufferOutputStream()
    with parquet.writer(sink, rows.schema) as file:
        file.write_table(rows)
    data, name = sink.getvalue().to_pybytes(), f"{number:010d}-{uuid.uuid4().hex[:12]}.parquet"
    store.write(data, PRIVATE, FOLDER, name)
    WarehouseFailpoint.FLIP_WRITTEN.reach()
    statistics = json.dumps({"numRecords": rows.num_rows})
    now = int(time.time() * 1000)
    add = AddAction(name, len(data), {}, now, True, statistics)
    properties = CommitProperties(custom_metadata={_META: json.dumps(noted)}, max_commit_retries=0)
    delta_schema = Schema.from_arrow(SCHEMA)
    try:
        if base is None:
            create_table_with_add_actions(
                store.table(TABLE),
                delta_schema,
                [add],
                mode="error",
                name="driftline_warehouse",
                storage_options=store.delta_options,
                commit_properties=properties,
                post_commithook_properties=ENTRY_ALONE,
            )
        else:
            gone = RemoveAction(_file(base.pin), True, now, 0, {})
            with_keys_of_now(store, TABLE, base.pin).create_write_transaction(
                [add, gone],
                "append",
                delta_schema,
                commit_properties=properties,
                post_commithook_properties=ENTRY_ALONE,
            )
            checkpoint(store, TABLE, base.number)
    except CommitFailedError:
        return _is_ours(store, number, name)
    except (DeltaError, OSError) as error:
        with contextlib.suppress(WarehouseUnavailable):
            if _is_logged(store, number):
                return _is_ours(store, number, name)
        found = store.answer(error)
        why = found.text if found else why_not_logged(error, store.table(TABLE), len(data))
        raise WarehouseUnavailable(
            f"The warehouse version could not be committed: {why}.",
            where=TABLE,
            remedy=found.remedy
            if found
            else "Check space and permissions. What was committed of each table stays, readers"
            " keep the version before, and the next refresh goes on from there.",
        ) from error
    return True


def _is_ours(store: Store, number: int, name: str) -> bool:
    """Return True if a version is the one of this file; else remove the file.

    A commit may be answered with an error although it was made: a store that repeats a write after
    a lost answer finds its own, and takes it for somebody else's.
    """
    with contextlib.suppress(NotFound):
        table = _table(store, number)
        if table is not None and _file(table) == name:
            return True
    store.remove_file(PRIVATE, FOLDER, name)
    return False


def _row(member: Member) -> dict[str, Any]:
    row = {name: getattr(member, name) for name in SCHEMA.names}
    return row | {"kind": member.kind.value, "inputs": sorted(member.inputs.items())}


def _member(row: dict[str, Any]) -> Member:
    known: dict[str, Any] = {name: row.get(name) for name in SCHEMA.names}
    known |= {"kind": MemberKind(row["kind"]), "inputs": dict(row["inputs"] or ())}
    return Member(**known)


def _is_logged(store: Store, number: int) -> bool:
    """Return True if the log has all that a version is read from: a checkpoint and what follows."""
    names = {name for name, _ in store.files(PRIVATE, FOLDER, "_delta_log")}
    begins = [int(name[:20]) for name in names if ".checkpoint." in name and name[:20].isdecimal()]
    first = max((at for at in begins if at <= number), default=-1) + 1
    return all(f"{version:020d}.json" in names for version in range(first, number + 1))


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
