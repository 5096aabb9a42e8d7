"""Try an entry of a Delta log on a copy of the log's end, before it is put in place.

An entry that no reader can open ends a table: nothing can be read or committed after it. delta-rs
commits such entries: it adds a column of a type that needs a table feature, and not the feature. So
an entry that changes the schema or the protocol is first made in a temporary folder, beside the
last checkpoint and the entries after it, and the log is opened there. The cost depends on the
number of data files, and not on that of versions.

What a schema needs is asked of delta-rs as well: it is what a new table with these columns has.

Rejected: to declare every feature for each new table. Readers that know none of them, of which
there are many, could read no table any more.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable, Schema, TableFeatures
from deltalake.exceptions import DeltaError
from deltalake.transaction import create_table_with_add_actions
from driftline.errors import WarehouseUnavailable

from warehouse_agent.storage.store import Store, file_errors, one_line

LOG: Final = "_delta_log"
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.([0-9]{10})\.([0-9]{10}))?\.parquet")
ENTRY = re.compile(r"[0-9]{20}\.json")
_NUMBERED = re.compile(r"[0-9]{20}\.(json|checkpoint\.)")  # an entry or a checkpoint
# Features that our columns may need, each with delta-rs's name of it.
FEATURES = {
    "timestampNtz": TableFeatures.TimestampWithoutTimezone,
    "invariants": TableFeatures.Invariants,
}
_NAMES_FEATURES = 7  # the least writer version of tables that name their features one by one


@contextlib.contextmanager
def copied(store: Store, name: str, version: int | None) -> Iterator[str]:
    """Copy a log up to a version into a temporary folder; None: an empty one.

    Yields the folder of a table that has this log, and none of its data files.

    Raises:
        WarehouseUnavailable: the log cannot be copied, or delta-rs does not open what is made of
            the copy.
    """
    with tempfile.TemporaryDirectory(prefix="driftline-log-") as folder:
        log = Path(folder, LOG)
        with file_errors("written", str(log)):
            log.mkdir()
            for file in () if version is None else _needed(store, name, version):
                (log / file).write_bytes(store.read(name, LOG, file) or b"")
        try:
            yield folder
        except DeltaError as error:
            number = 0 if version is None else version + 1
            raise unreadable(name, number, one_line(error)) from error


def completed(store: Store, name: str) -> tuple[int, bytes] | None:
    """Return the newest entry of a log that cannot be opened, with what makes it readable.

    Older releases changed columns and did not declare the table features of their types. Nobody
    could read that entry, and none could follow it.

    Returns:
        The version and the whole entry; None: something else is wrong with the log.
    """
    numbers = [int(file[:20]) for file, _ in store.files(name, LOG) if ENTRY.fullmatch(file)]
    version = max(numbers, default=0)
    entry = store.read(name, LOG, entry_name(version)) or b""
    try:
        actions = [json.loads(line) for line in entry.splitlines()]
        columns = next(a["metaData"]["schemaString"] for a in actions if "metaData" in a)
        schema = Schema.from_json(columns)
    except (StopIteration, ValueError, KeyError, TypeError, DeltaError):
        return None
    if any("protocol" in action for action in actions):
        return None
    with tempfile.TemporaryDirectory(prefix="driftline-log-") as folder:
        create_table_with_add_actions(folder, schema, [], mode="error")
        lines = entry_of(folder, 0).splitlines()
    whole = entry.rstrip(b"\n") + b"\n"
    whole += b"".join(line + b"\n" for line in lines if "protocol" in json.loads(line))
    with copied(store, name, version) as folder, contextlib.suppress(WarehouseUnavailable):
        replaced(folder, name, version, whole)
        return version, whole
    return None


def entry_name(version: int) -> str:
    """Return the name of the file of an entry."""
    return f"{version:020d}.json"


def entry_of(folder: str, version: int) -> bytes:
    """Return an entry of a copied log."""
    return Path(folder, LOG, entry_name(version)).read_bytes()


def missing_features(table: DeltaTable | None, schema: Schema) -> list[str]:
    """Return the table features that a schema needs and the table's protocol does not have; None: a
    new table, as delta-rs makes it.

    Delta Lake on Spark opens no table that names its features and has a column NOT NULL unless it
    names "invariants", which concerns writers alone. delta-rs does not add it.
    """
    with tempfile.TemporaryDirectory(prefix="driftline-log-") as folder:
        create_table_with_add_actions(folder, schema, [], mode="error")
        needed = DeltaTable(folder).protocol()
    known = needed if table is None else table.protocol()
    wanted = {*(needed.reader_features or ()), *(needed.writer_features or ())}
    names = max(needed.min_writer_version, known.min_writer_version) >= _NAMES_FEATURES
    if names and not all(field.nullable for field in schema.fields):
        wanted.add("invariants")
    return sorted(wanted - {*(known.reader_features or ()), *(known.writer_features or ())})


def protocol_with(folder: str, features: Sequence[str]) -> dict[str, Any]:
    """Return the action that gives a copied table's protocol more features; the copy gets it.

    Raises WarehouseUnavailable: a feature is none of ours.
    """
    action: dict[str, Any] = {}
    for feature in features:
        table = DeltaTable(folder)
        if feature not in FEATURES:
            raise WarehouseUnavailable(f"The columns need the table feature {feature}.")
        version = table.version() + 1
        table.alter.add_feature(FEATURES[feature], allow_protocol_versions_increase=True)
        for line in entry_of(folder, version).splitlines():
            action |= {k: v for k, v in json.loads(line).items() if k == "protocol"}
    return action


def replaced(folder: str, name: str, version: int, entry: bytes) -> DeltaTable:
    """Make `entry` the entry of a version of a copied log, without those after it; open it.

    Raises WarehouseUnavailable: delta-rs cannot open the log with this entry.
    """
    log = Path(folder, LOG)
    for file in log.glob("*.json"):
        if file.name >= entry_name(version) and file.name[0].isdecimal():
            file.unlink()
    (log / entry_name(version)).write_bytes(entry)
    try:
        table = DeltaTable(folder)
        table.get_add_actions()
    except (DeltaError, OSError) as error:
        raise unreadable(name, version, one_line(error)) from error
    if table.version() != version:
        raise unreadable(name, version, f"version {table.version()} was read")
    return table


def unreadable(name: str, version: int, why: str) -> WarehouseUnavailable:
    """Return the error of an entry that was not put in place, because it is not right."""
    return WarehouseUnavailable(
        f"The entry of version {version} could not be read back, so it was not committed: {why}.",
        where=name,
        remedy="Report it: the last published version is untouched.",
    )


def _needed(store: Store, name: str, version: int) -> list[str]:
    """Return the files of a log from which a version is read: a checkpoint, and what follows; of a
    version with a checkpoint its entry too, without which delta-rs commits nothing after it."""
    names = [file for file, _ in store.files(name, LOG)]
    whole = {at: files for at, files in _checkpoints(names).items() if at <= version}
    first = max(whole, default=-1)
    needed = whole.get(first, [])
    entries = (file for file in names if ENTRY.fullmatch(file))
    first = min(first + 1, version)
    return needed + [file for file in entries if first <= int(file[:20]) <= version]


def _checkpoints(names: Sequence[str]) -> dict[int, list[str]]:
    """Return the files of each checkpoint that is whole, by its version."""
    parts: dict[int, list[tuple[str, int]]] = {}
    for file in names:
        if checkpoint := _CHECKPOINT.fullmatch(file):
            parts.setdefault(int(checkpoint[1]), []).append((file, int(checkpoint[3] or 1)))
    return {
        at: [file for file, _ in files] for at, files in parts.items() if len(files) >= files[0][1]
    }


def newest(store: Store, name: str) -> int | None:
    """Return the newest version of a log, by the names of its entries.

    None if there is none, or if the log may not be read: an entry since the first, or since the
    last checkpoint, is missing or empty; or a checkpoint has no entry. Raises WarehouseUnavailable.
    """
    listed = store.files(name, LOG)
    whole = {int(file[:20]) for file, size in listed if size and ENTRY.fullmatch(file)}
    newest = max((int(file[:20]) for file, _ in listed if _NUMBERED.match(file)), default=None)
    if newest is None or newest not in whole:
        return None
    first = max(_checkpoints([file for file, _ in listed]), default=0)
    return newest if whole.issuperset(range(min(first, newest), newest + 1)) else None
