"""Conformance suite of the table formats: what `table.TableFormat` promises, for each of them.

`ManifestLog` is the second format, made for these tests; `test_a_warehouse_in_another_format` runs
the product over it. A new format is added to FORMATS below, with a way to write an entry that is
not Driftline's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable
from driftline.errors import Locked, NotFound, WarehouseUnavailable
from driftline.values.types import Column, Recipe, parse_type
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from tests.warehouse_agent.storage.manifest_log import ManifestLog
from warehouse_agent import changes
from warehouse_agent.columns.layout import Layout, lay_out
from warehouse_agent.planning.request_cost import CHECKPOINT_VERSIONS
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.storage import formats, log_entry, log_trial
from warehouse_agent.storage.data_files import DataFile, bounds_in
from warehouse_agent.storage.delta_log import DeltaLog
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import (
    NewVersion,
    Snapshot,
    TableFormat,
    VersionHeader,
    VersionRecord,
)
from warehouse_agent.table_maintenance.garbage import unreferenced

NAME = "orders"


def laid_out(*kinds: str) -> Layout:
    columns = (Column(f"c{i}", parse_type(kind), i > 0, i) for i, kind in enumerate(kinds))
    return lay_out(Recipe(tuple(columns), 1), {}, where="test")


LAYOUT = laid_out("int8", "text")
RECORD = VersionRecord(
    as_of="2026-01-01T00:00:00+00:00",
    checked_at="2026-01-02T00:00:00+00:00",
    consistency="exact",
    proof="part",
    fingerprint="blake3",
    vouched=True,
    rows=3,
    published_at="2026-01-03T00:00:00+00:00",
    changes="_version=1/0123",
    changes_files=("part-ä.parquet", "b"),
    rows_inserted=1,
    rows_updated=2,
    rows_deleted=3,
    repaired_files=4,
    repaired_rows=5,
    method="sketch",
    clock=VersionClock((0, 2), (1.5, 1e9 + 0.1)),
    row_security={"digest": "00", "policies": [["t", "p", "01"]]},
    restored=7,
    report={"version": 1, "seconds": {"apply": 0.5}},
)


def foreign_delta(store: Store) -> None:
    """Commit to the Delta log as another program does: without our metadata."""
    table = DeltaTable(store.table(NAME))
    properties = CommitProperties(custom_metadata={"writer": "another"})
    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)


def foreign_manifest(store: Store) -> None:
    folder = Path(store.table(NAME), ManifestLog.log)
    body = {"committed": datetime.now(UTC).isoformat(), "added": [], "files": []}
    number = len(list(folder.glob("*.json")))
    (folder / f"{number:020d}.json").write_text(json.dumps(body))


FORMATS: dict[str, tuple[TableFormat, Callable[[Store], None]]] = {
    "delta": (DeltaLog(), foreign_delta),
    "manifest": (ManifestLog(), foreign_manifest),
}


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> TableFormat:
    return FORMATS[request.param][0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "warehouse"))


def put(store: Store, path: str, keys: list[int], layout: Layout = LAYOUT) -> DataFile:
    """A data file of these keys, whose other columns are null or 0."""
    file = Path(store.table(NAME), path)
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = [pa.array(keys, pa.int64())]
    for field in list(layout.file_schema)[1:]:
        values = [None] * len(keys) if field.nullable else [0] * len(keys)
        columns.append(pa.array(values, field.type))
    pq.write_table(pa.Table.from_arrays(columns, schema=layout.file_schema), file)
    ends = bounds_in(pq.read_metadata(file), layout.integer_key)
    return DataFile(path, store.uri(NAME, path), file.stat().st_size, len(keys), ends)


def commit(
    form: TableFormat,
    store: Store,
    base: Snapshot | None,
    added: list[DataFile],
    *,
    removed: tuple[DataFile, ...] = (),
    layout: Layout = LAYOUT,
    record: VersionRecord = RECORD,
) -> Snapshot:
    """Commit a version; return it as it is read back."""
    version = form.commit(store, NAME, NewVersion(base, layout, added, removed, record))
    found = form.head(store, NAME, None)
    assert found is not None
    assert found.version == version
    return found


def test_a_first_commit(form: TableFormat, store: Store) -> None:
    assert (form.head(store, NAME, None), form.entries(store, NAME, None)) == (None, [])
    assert form.oldest(store, NAME) is None
    assert form.head(store, NAME, 0) is None
    file = put(store, "data-1/a.parquet", [5, 7, -3])
    assert file.bounds == (-3, 7)
    found = commit(form, store, None, [file])
    assert (found.version, found.files, found.lost, found.layout) == (0, (file,), (), LAYOUT)
    assert found.record == RECORD
    assert [*found.record.body] == [*RECORD.to_json(), "version", "layout"]
    assert (found.record.body["version"], found.rows) == (0, 3)
    assert found.table
    assert form.head(store, NAME, 0) == found
    assert not form.temporary.fullmatch(store.files(NAME, form.log)[0][0])


def test_files_are_added_and_removed(form: TableFormat, store: Store) -> None:
    a, b, c = (put(store, f"data-{i}/part.parquet", [i, i + 10]) for i in range(3))
    first = commit(form, store, None, [a, b])
    log = {f: Path(store.table(NAME), form.log, f).read_bytes() for f, _ in files_of(form, store)}
    second = commit(form, store, first, [c], removed=(a,))
    assert (second.version, second.files, second.table) == (1, (b, c), first.table)
    assert form.head(store, NAME, 0) == first
    assert {f: Path(store.table(NAME), form.log, f).read_bytes() for f in log} == log
    assert [form.added(store, NAME, v) for v in (0, 1)] == [{a.path, b.path}, {c.path}]
    with pytest.raises(NotFound):
        form.head(store, NAME, 2)
    with pytest.raises(WarehouseUnavailable):
        form.added(store, NAME, 2)


def test_a_header_says_what_the_head_says(form: TableFormat, store: Store) -> None:
    assert form.header(store, NAME) is None
    base: Snapshot | None = None
    for n in range(2 * CHECKPOINT_VERSIONS + 2):
        removed = base.files[:1] if base and n % 3 == 0 else ()
        file = put(store, f"data-{n}/a.parquet", [n, n + 1])
        base = commit(form, store, base, [file], removed=removed)
        assert form.header(store, NAME) == VersionHeader.of(base)
    other = laid_out("int8", "text", "timestamp")
    again = put(store, "data-new/a.parquet", [1], other)
    files = base.files if base else ()
    base = commit(form, store, base, [again], removed=files, layout=other)
    assert form.header(store, NAME) == VersionHeader.of(base)
    base = commit(form, store, base, [put(store, "data-last/a.parquet", [2], other)], layout=other)
    assert form.header(store, NAME) == VersionHeader.of(base)
    form.shorten(store, NAME, base.version)
    assert form.header(store, NAME) == VersionHeader.of(base)


def test_a_header_is_none_of_another_program(form: TableFormat, store: Store) -> None:
    commit(form, store, None, [put(store, "data-1/a.parquet", [1])])
    next(foreign for one, foreign in FORMATS.values() if one is form)(store)
    assert form.header(store, NAME) is None


def lost(log: Path) -> None:
    (log / f"{CHECKPOINT_VERSIONS + 1:020d}.json").unlink()


def emptied(log: Path) -> None:
    (log / f"{CHECKPOINT_VERSIONS + 1:020d}.json").write_bytes(b"")


def ends_early(log: Path) -> None:
    (log / f"{CHECKPOINT_VERSIONS + 2:020d}.json").unlink()
    (log / f"{CHECKPOINT_VERSIONS + 1:020d}.json").unlink()
    (log / f"{CHECKPOINT_VERSIONS:020d}.json").unlink()


def damaged(log: Path) -> None:
    (log / f"{CHECKPOINT_VERSIONS + 2:020d}.json").write_bytes(b'{"commitInfo":{"driftline":"{')


def of_an_older_release(log: Path) -> None:
    entry = log / f"{CHECKPOINT_VERSIONS + 2:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.get("commitInfo", {}).pop("driftline-files", None)
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("spoil", [lost, emptied, ends_early, damaged, of_an_older_release])
def test_a_log_that_is_not_whole_has_no_header(store: Store, spoil: Callable[[Path], None]) -> None:
    """What it says then is what delta-rs says of it."""
    appended(store, CHECKPOINT_VERSIONS + 2)
    assert DeltaLog().header(store, NAME) is not None
    spoil(Path(store.table(NAME), DeltaLog.log))
    assert DeltaLog().header(store, NAME) is None


def files_of(form: TableFormat, store: Store) -> list[tuple[str, int]]:
    return store.files(NAME, form.log)


def test_the_log_is_told_newest_first(form: TableFormat, store: Store) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    first = commit(form, store, None, [put(store, "data-1/a.parquet", [1])])
    file = put(store, "data-2/a.parquet", [2])
    second = commit(form, store, first, [file], record=replace(RECORD, rows=4))
    entries = form.entries(store, NAME, None)
    assert form.entries(store, NAME, second) == entries
    assert [(e.version, e.record) for e in entries] == [(1, second.record), (0, first.record)]
    assert form.oldest(store, NAME) == (0, first.record)
    times = [e.committed for e in reversed(entries)]
    assert [began, *times] == sorted([began, *times])
    assert times[-1] < datetime.now(UTC) + timedelta(seconds=1)


def test_a_version_that_the_log_lost_is_said_to_be_one(store: Store) -> None:
    """delta-rs removes entries before a checkpoint after 30 days."""
    form, newest = DeltaLog(), None
    for version in range(4):
        newest = commit(form, store, newest, [put(store, f"data-{version}/a.parquet", [version])])
    DeltaTable(store.table(NAME)).create_checkpoint()
    for version in range(3):
        Path(store.table(NAME), form.log, f"{version:020d}.json").unlink()
    with pytest.raises(NotFound, match="does not have version 1 any more"):
        form.head(store, NAME, 1)
    assert form.head(store, NAME, None) == newest


def checkpoints(store: Store) -> list[int]:
    files = Path(store.table(NAME), DeltaLog.log).glob("*.checkpoint.parquet")
    return sorted(int(file.name[:20]) for file in files)


def appended(store: Store, upto: int) -> Snapshot | None:
    """Commit versions, each of one file, up to a number."""
    form = DeltaLog()
    newest = form.head(store, NAME, None)
    for version in range(0 if newest is None else newest.version + 1, upto + 1):
        newest = commit(form, store, newest, [put(store, f"data-{version}/a.parquet", [version])])
    return newest


def test_every_tenth_version_has_a_checkpoint(store: Store) -> None:
    newest = appended(store, 2 * CHECKPOINT_VERSIONS)
    assert checkpoints(store) == [CHECKPOINT_VERSIONS]  # a version's, with the one after it
    assert DeltaLog().head(store, NAME, None) == newest
    for version in range(CHECKPOINT_VERSIONS + 1):
        head = DeltaLog().head(store, NAME, version)
        assert head is not None
        assert len(head.files) == version + 1
    log = Path(store.table(NAME), DeltaLog.log)
    for version in range(CHECKPOINT_VERSIONS):
        (log / f"{version:020d}.json").unlink()
    assert DeltaLog().head(store, NAME, None) == newest, "the checkpoint has all before it"
    foreign_delta(store)
    assert len(DeltaTable(store.table(NAME)).file_uris()) == 2 * CHECKPOINT_VERSIONS + 1


def test_an_older_table_gets_a_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_entry, "CHECKPOINT_VERSIONS", 1000)
    appended(store, CHECKPOINT_VERSIONS + 3)
    assert checkpoints(store) == []
    monkeypatch.setattr(log_entry, "CHECKPOINT_VERSIONS", CHECKPOINT_VERSIONS)
    newest = appended(store, 2 * CHECKPOINT_VERSIONS + 1)
    assert checkpoints(store) == [2 * CHECKPOINT_VERSIONS]
    assert DeltaLog().head(store, NAME, None) == newest


@pytest.mark.parametrize("written", [0, 1], ids=["no file", "a checkpoint that nothing names"])
def test_a_checkpoint_that_fails_fails_no_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    write, left = Store.write, iter(range(written))

    def failing(self: Store, data: bytes, *parts: str, private: bool = False) -> None:
        if "checkpoint" in parts[-1] and next(left, None) is None:
            raise WarehouseUnavailable("The store refuses.")
        write(self, data, *parts, private=private)

    monkeypatch.setattr(Store, "write", failing)
    newest = appended(store, CHECKPOINT_VERSIONS + 2)
    assert newest is not None
    assert newest.version == CHECKPOINT_VERSIONS + 2
    assert checkpoints(store) == [CHECKPOINT_VERSIONS] * written
    assert DeltaLog().head(store, NAME, None) == newest
    monkeypatch.undo()
    newest = appended(store, 2 * CHECKPOINT_VERSIONS + 1)
    assert DeltaLog().head(store, NAME, None) == newest


def test_old_entries_stay_until_they_are_removed(form: TableFormat, store: Store) -> None:
    base = None
    for version in range(6):
        base = commit(form, store, base, [put(store, f"data-{version}/a.parquet", [version])])
        if version in (2, 4) and isinstance(form, DeltaLog):
            DeltaTable(store.table(NAME)).create_checkpoint()
    log = Path(store.table(NAME), form.log)
    for file in log.iterdir():
        os.utime(file, (0, 0))
    commit(form, store, base, [put(store, "data-6/a.parquet", [6])])
    for version in range(7):
        known = form.head(store, NAME, version)
        assert known is not None
        assert len(known.files) == version + 1
    assert [entry.version for entry in form.entries(store, NAME, None, 4)] == [6, 5]
    assert form.entries(store, NAME, None, 6) == []
    form.shorten(store, NAME, 3)
    for version in range(3, 7):
        known = form.head(store, NAME, version)
        assert known is not None
        assert len(known.files) == version + 1
    assert form.added(store, NAME, 3) == {"data-3/a.parquet"}
    assert not (log / f"{1:020d}.json").exists()
    with pytest.raises((NotFound, WarehouseUnavailable)):
        form.head(store, NAME, 1)
    form.shorten(store, NAME, 3)
    assert (log / f"{3:020d}.json").exists()


def test_the_log_beside_a_version_that_is_not_the_newest(form: TableFormat, store: Store) -> None:
    """Others may commit after it was read, and commits are told under their own numbers."""
    versions: list[Snapshot] = []
    for version in range(5):
        base = versions[-1] if versions else None
        record = replace(RECORD, rows_inserted=10 * version)
        added = [put(store, f"data-{version}/a.parquet", [version])]
        versions.append(commit(form, store, base, added, record=record))
    for after in (None, 0, 1, 2):
        told = form.entries(store, NAME, versions[2], after)
        known = {e.version: e.record.rows_inserted for e in told if e.record}
        first = 0 if after is None else after + 1
        assert {v: n for v, n in known.items() if v <= 2} == {v: 10 * v for v in range(first, 3)}
        assert all(known[v] == 10 * v for v in known)


def test_which_files_are_needed_after_a_commit_that_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = DeltaLog()
    ours, theirs = (put(store, f"data-{i}/a.parquet", [i]) for i in range(2))
    first = commit(form, store, None, [ours])
    commit(form, store, first, [theirs], removed=(ours,))
    assert formats.needed_after_failure(store, NAME, None) == ()  # there was no commit
    assert formats.needed_after_failure(store, NAME, 0) == {ours.path}
    assert formats.needed_after_failure(store, NAME, 1) == {theirs.path}
    assert formats.needed_after_failure(store, NAME, 2) == ()
    with monkeypatch.context() as remote:
        remote.setattr(Store, "is_local", property(lambda _: False))
        assert formats.needed_after_failure(store, NAME, 0) == {ours.path}
        assert formats.needed_after_failure(store, NAME, 2) is None, "it may still arrive"
    Path(store.table(NAME), DeltaLog.log, f"{0:020d}.json").write_text("{")
    assert formats.needed_after_failure(store, NAME, 0) is None


def test_young_entries_stay(store: Store) -> None:
    """Delta's own retention counts as well: others may read a table by version."""
    form, base = DeltaLog(), None
    for version in range(3):
        base = commit(form, store, base, [put(store, f"data-{version}/a.parquet", [version])])
    DeltaTable(store.table(NAME)).create_checkpoint()
    form.shorten(store, NAME, 2)
    assert [entry.version for entry in form.entries(store, NAME, None)] == [2, 1, 0]


def test_one_of_two_commits_on_a_base_succeeds(form: TableFormat, store: Store) -> None:
    a, b, c = (put(store, f"data-{i}/part.parquet", [i]) for i in range(3))
    first = commit(form, store, None, [a])
    with pytest.raises(Locked):
        commit(form, store, None, [b])
    slow, fast = form.head(store, NAME, None), form.head(store, NAME, None)
    second = commit(form, store, fast, [b])
    for removed in ((), first.files):
        with pytest.raises(Locked):
            commit(form, store, slow, [c], removed=removed)
    assert form.head(store, NAME, None) == second
    assert commit(form, store, second, [c]).files == (a, b, c)


def test_other_columns(form: TableFormat, store: Store) -> None:
    wider = laid_out("int8", "text", "float8")
    first = commit(form, store, None, [put(store, "data-1/a.parquet", [1])])
    file = put(store, "data-2/a.parquet", [1, 2], wider)
    second = commit(form, store, first, [file], removed=first.files, layout=wider)
    assert (second.files, second.layout, second.table) == ((file,), wider, first.table)
    older = form.head(store, NAME, 0)
    assert older is not None
    assert (older.layout, older.files) == (LAYOUT, first.files)


def delta_entries(store: Store) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in Path(store.table(NAME), "_delta_log").glob("*.json")}


CHANGES = {
    "a timestamp is added": ("int8", "text", "timestamp"),
    "and one with a zone": ("int8", "text", "timestamptz", "timestamp"),
    "a column is dropped": ("int8",),
    "a column has another type": ("int8", "timestamp"),
    "the key has another type": ("timestamp", "text"),
    "each kind is added": (
        "int8", "text", "bool", "int2", "float4", "float8", "numeric(38,9)", "date", "bytea",
        "uuid", "jsonb", "numeric", "timestamp", "timestamptz",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kinds", CHANGES.values(), ids=CHANGES)
def test_columns_and_the_features_that_they_need_change_in_one_entry(
    form: TableFormat, store: Store, kinds: tuple[str, ...]
) -> None:
    """What delta-rs commits of a new timestamp nobody could open; the way back is tried as well."""
    other = laid_out(*kinds)
    files = [put(store, f"data-{i}/a.parquet", [1], lay) for i, lay in enumerate((LAYOUT, other))]
    first = commit(form, store, None, files[:1])
    second = commit(form, store, first, files[1:], removed=first.files, layout=other)
    assert (second.version, second.files, second.table) == (1, (files[1],), first.table)
    third = commit(form, store, second, files[:1], removed=second.files, layout=LAYOUT)
    assert (third.version, third.files, third.layout) == (2, (files[0],), LAYOUT)
    known = [form.head(store, NAME, version) for version in range(3)]
    assert known == [first, second, third]
    if isinstance(form, DeltaLog):
        assert len(delta_entries(store)) == 3
        needs = any(kind == "timestamp" for kind in kinds)
        # A key is NOT NULL: writers of features must have `invariants` among them.
        for version, has_features in ((0, False), (1, needs)):
            protocol = DeltaTable(store.table(NAME), version=version).protocol()
            assert protocol.reader_features == (["timestampNtz"] if has_features else None)
            written = ["invariants", "timestampNtz"] if has_features else []
            assert sorted(protocol.writer_features or []) == written


def test_an_entry_that_cannot_be_read_is_not_committed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, wider = DeltaLog(), laid_out("int8", "text", "timestamp")
    first = commit(form, store, None, [put(store, "data-0/a.parquet", [1])])
    file, before = put(store, "data-1/a.parquet", [1], wider), delta_entries(store)
    new = NewVersion(first, wider, [file], first.files, RECORD)
    with monkeypatch.context() as forgetful:
        forgetful.setattr(log_trial, "protocol_with", lambda folder, features: {})
        with pytest.raises(WarehouseUnavailable, match=r"could not be read back.*TIMESTAMP_NTZ"):
            form.commit(store, NAME, new)
    assert delta_entries(store) == before
    assert form.commit(store, NAME, new) == 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda a, b: ([b, b], []), "adds a file twice"),
        (lambda a, b: ([b], [a, a]), "removes a file twice"),
        (lambda a, b: ([], [b]), "removes a file that is not there"),
        (lambda a, b: ([a], []), "adds a file that is there"),
        (lambda a, b: ([replace(b, path="../b.parquet")], []), "out of the table"),
        (lambda a, b: ([replace(b, path="/b.parquet")], []), "out of the table"),
        (lambda a, b: ([replace(b, rows=0)], []), "no bytes or no rows"),
        (lambda a, b: ([replace(b, size=0)], []), "no bytes or no rows"),
        (lambda a, b: ([replace(b, bounds=(2, 1))], []), "the wrong way round"),
    ],
)
def test_actions_that_do_not_fit_together_are_not_committed(
    store: Store,
    wrong: Callable[[DataFile, DataFile], tuple[list[DataFile], list[DataFile]]],
    why: str,
) -> None:
    form = DeltaLog()
    a, b = (put(store, f"data-{i}/a.parquet", [i]) for i in range(2))
    first = commit(form, store, None, [a])
    added, removed = wrong(a, b)
    with pytest.raises(WarehouseUnavailable, match=why):
        form.commit(store, NAME, NewVersion(first, LAYOUT, added, removed, RECORD))
    assert form.head(store, NAME, None) == first


def test_the_cost_of_opening_an_entry_first_does_not_grow_with_the_versions(store: Store) -> None:
    """The last checkpoint and what follows is copied, also where more is there."""
    form, base = DeltaLog(), None
    for version in range(8):
        base = commit(form, store, base, [put(store, f"data-{version}/a.parquet", [version])])
        if version in (2, 6):
            DeltaTable(store.table(NAME)).create_checkpoint()
    with log_trial.copied(store, NAME, 7) as folder:
        found = sorted(p.name for p in Path(folder, log_trial.LOG).iterdir())
        assert found == [f"{6:020d}.checkpoint.parquet", f"{7:020d}.json"]
    assert base is not None
    wider = laid_out("int8", "timestamp")
    file = put(store, "data-9/a.parquet", [1], wider)
    assert commit(form, store, base, [file], removed=base.files, layout=wider).version == 8


def test_columns_change_directly_after_a_checkpoint(store: Store) -> None:
    """Of the newest version, as delta-rs makes one of each hundredth, or another program of any."""
    form = DeltaLog()
    first = commit(form, store, None, [put(store, "data-0/a.parquet", [1])])
    DeltaTable(store.table(NAME)).create_checkpoint()
    wider = laid_out("int8", "timestamp")
    file = put(store, "data-1/a.parquet", [1], wider)
    assert commit(form, store, first, [file], removed=first.files, layout=wider).version == 1


def test_a_log_that_an_older_release_ended_is_completed(store: Store) -> None:
    """A column of a type that needs a feature, without the feature, as older releases wrote it."""
    form, wider = DeltaLog(), laid_out("int8", "text", "timestamp")
    first = commit(form, store, None, [put(store, "data-0/a.parquet", [1])])
    file = put(store, "data-1/a.parquet", [1], wider)
    second = commit(form, store, first, [file], removed=first.files, layout=wider)
    entry = Path(store.table(NAME), form.log, log_trial.entry_name(1))
    whole = entry.read_bytes().splitlines(keepends=True)
    entry.write_bytes(b"".join(line for line in whole if not line.startswith(b'{"protocol"')))
    with pytest.raises(WarehouseUnavailable, match=r"older release.*does not declare.*Refresh it"):
        form.head(store, NAME, None)
    form.mend(store, NAME)
    assert form.head(store, NAME, None) == second
    file = put(store, "data-2/a.parquet", [2], wider)
    assert commit(form, store, second, [file], layout=wider).version == 2
    damaged = Path(store.table(NAME), form.log, log_trial.entry_name(2))
    damaged.write_bytes(b"{")
    form.mend(store, NAME)
    assert damaged.read_bytes() == b"{"
    with pytest.raises(WarehouseUnavailable, match="Check the folder"):
        form.head(store, NAME, None)


def test_a_version_of_a_release_that_is_not_read_any_more(store: Store) -> None:
    """It is refused by name, with what to do; behind a newer one it is no version of ours."""
    form = DeltaLog()
    first = commit(form, store, None, [put(store, "data-0/a.parquet", [1])])
    second = commit(form, store, first, [put(store, "data-1/a.parquet", [2])])
    entries = [
        Path(store.table(NAME), form.log, log_trial.entry_name(version)) for version in (0, 1)
    ]
    whole = [entry.read_text() for entry in entries]
    key = '\\"changes_files\\":'
    entries[0].write_text(whole[0].replace(key, '\\"files_of_changes\\":'))
    assert form.head(store, NAME, None) == second
    with pytest.raises(WarehouseUnavailable, match="older than those") as refused:
        form.head(store, NAME, 0)
    assert "7806bd7" in refused.value.remedy
    assert [e.record is None for e in form.entries(store, NAME, None)] == [False, True]
    assert form.oldest(store, NAME) is None
    entries[1].write_text(whole[1].replace(key, '\\"files_of_changes\\":'))
    with pytest.raises(WarehouseUnavailable, match=r"Version 1 .* older than those"):
        form.head(store, NAME, None)


def test_a_log_without_an_entry_of_ours(store: Store) -> None:
    """Another program removed the old entries, or made the table."""
    form = DeltaLog()
    commit(form, store, None, [put(store, "data-1/a.parquet", [1])])
    foreign_delta(store)
    DeltaTable(store.table(NAME)).create_checkpoint()
    Path(store.table(NAME), form.log, log_trial.entry_name(0)).unlink()
    with pytest.raises(WarehouseUnavailable, match=r"has no entry of an earlier.*Move the table's"):
        form.head(store, NAME, None)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_entry_of_somebody_else_is_refused(kind: str, store: Store) -> None:
    form, foreign = FORMATS[kind]
    first = commit(form, store, None, [put(store, "data-1/a.parquet", [1])])
    foreign(store)
    if isinstance(form, DeltaLog):  # the last of ours is what readers are given
        found = form.head(store, NAME, None)
        assert found == first
        assert found.other is not None
        assert (found.other.version, found.other.operations) == (1, ("WRITE",))
        assert (found.other.files, found.other.differs) == (first.files, None)
        with pytest.raises(WarehouseUnavailable, match="Version 1 of the table was not written by"):
            form.head(store, NAME, 1)
    else:
        with pytest.raises(WarehouseUnavailable):
            form.head(store, NAME, None)
    assert form.head(store, NAME, 0) == first
    entries = [(e.version, e.record) for e in form.entries(store, NAME, None)]
    assert entries == [(1, None), (0, first.record)]
    with pytest.raises(Locked):
        commit(form, store, first, [put(store, "data-2/a.parquet", [2])])


def test_a_table_that_begins_anew_has_another_id(form: TableFormat, store: Store) -> None:
    file = put(store, "data-1/a.parquet", [1])
    first = commit(form, store, None, [file])
    Path(store.table(NAME), form.log).rename(Path(store.root, "moved away"))
    assert form.head(store, NAME, None) is None
    assert commit(form, store, None, [file]).table != first.table


def test_a_file_in_place_of_the_table(form: TableFormat, store: Store) -> None:
    Path(store.root).mkdir()
    Path(store.table(NAME)).write_bytes(b"")
    with pytest.raises(WarehouseUnavailable):
        form.commit(store, NAME, NewVersion(None, LAYOUT, [], [], RECORD))


def test_the_format_of_a_table_is_that_of_its_log(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New tables get the last format; a table of before keeps its own."""

    def version_after(base: Snapshot | None) -> NewVersion:
        return NewVersion(base, LAYOUT, [], [], RECORD)

    monkeypatch.setattr(formats, "FORMATS", (ManifestLog(),))
    formats.commit(store, "old", version_after(None))
    monkeypatch.setattr(formats, "FORMATS", (ManifestLog(), DeltaLog()))
    formats.commit(store, "new", version_after(None))
    for name, form in (("old", ManifestLog), ("new", DeltaLog)):
        assert isinstance(formats.format_of(store, name), form)
        formats.commit(store, name, version_after(formats.head(store, name)))
        assert [e.version for e in formats.entries(store, name)] == [1, 0]
        assert store.folders(name) == [form.log]


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(formats, "FORMATS", (ManifestLog(),))
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, f"order {i}") for i in range(400)])
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        yield made
    legacy.close()


@pytest.mark.spark
def test_a_warehouse_in_another_format(pair: Pair) -> None:
    """Load, refresh, read, the change feed, repair and gc know no format."""
    store = Store(str(pair.warehouse))
    pair.refresh(NAME)
    pair.check(NAME)
    pair.legacy.execute("UPDATE orders SET note = 'new' WHERE id % 50 = 3")
    pair.legacy.execute("DELETE FROM orders WHERE id = 7")
    pair.refresh(NAME)
    pair.check(NAME)
    pair.check_feed(NAME, 1)
    assert changes(pair.spark, pair.warehouse, NAME, since=0).count() == 8 * 2 + 1
    assert len(pair.published(NAME, version=0)) == 400
    before = formats.head(store, NAME)
    assert before is not None
    largest = max(before.files, key=lambda f: f.rows)
    os.unlink(largest.uri.removeprefix("file://"))
    report = pair.refresh(NAME)
    assert (report.version, report.repaired_rows) == (2, largest.rows)
    pair.check(NAME)
    (Path(store.table(NAME)) / ManifestLog.log / f"{'0' * 32}.tmp").write_bytes(b"{")
    later = datetime.now(UTC) + timedelta(days=400)
    with store.lock(NAME):
        garbage = unreferenced(store, NAME, keep_hours=1, now=later)
    for place in garbage.places:
        store.remove_file(*place)
    pair.check(NAME)
    now = formats.head(store, NAME)
    assert now is not None
    left = {path.relative_to(store.table(NAME)).as_posix() for path in found(store)}
    assert left == {f.path for f in now.files}
    assert not list(Path(store.table(NAME)).rglob("*.tmp"))
    assert not Path(store.table(NAME), "_delta_log").exists()


def found(store: Store) -> Iterator[Path]:
    return Path(store.table(NAME)).rglob("*.parquet")
