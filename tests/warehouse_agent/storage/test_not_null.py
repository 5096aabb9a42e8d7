"""A version declares NOT NULL only of columns whose files are all known to hold none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from driftline.values.types import Column, Recipe, parse_type

from tests.warehouse_agent.storage.test_table_formats import RECORD
from warehouse_agent.columns.layout import Layout, lay_out
from warehouse_agent.storage import formats, not_null
from warehouse_agent.storage.data_files import DataFile, DataFolder, without_null
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion, Snapshot
from warehouse_agent.tasks.write import WRITTEN, Sink, written

NAME = "t"
KINDS = ("int8", "text", "float8", "bytea")
NAMES = ("a", "b", "c", "d")


def laid_out(*nullable: str) -> Layout:
    kinds = zip(NAMES, KINDS, strict=True)
    columns = (Column(n, parse_type(k), n in nullable, i) for i, (n, k) in enumerate(kinds))
    return lay_out(Recipe(tuple(columns), 1), {}, where="test")


TIGHT = laid_out()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "warehouse"))


def rows(first: int, *null: str) -> pa.RecordBatch:
    """Three rows; the last one has NULL in these columns."""
    values: dict[str, list[Any]] = {
        "a": [first, first + 1, first + 2],
        "b": ["x", "y" * 9000, ""],
        "c": [0.5, 1.5, 2.5],
        "d": [b"", b"x", b"y"],
    }
    arrays = []
    for field in TIGHT.file_schema:
        *two, third = values.get(field.name, [1, 2, 3])
        arrays.append(pa.array([*two, None if field.name in null else third], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=TIGHT.file_schema)


def sunk(store: Store, first: int, *null: str) -> DataFile:
    """A file by our own writer, in two row groups."""
    folder = DataFolder(store, NAME, f"data-{first}")
    folder.make()
    with Sink(folder.uri(), "part", TIGHT.file_schema, "a") as sink:
        sink.add(rows(first, *null))
        sink._write()
        sink.add(rows(first + 3))
        (file,) = written(pa.Table.from_batches(list(sink.finish()), WRITTEN), folder)
    return file


def published(store: Store, new: NewVersion) -> Snapshot:
    version = formats.commit(store, NAME, new)
    found = formats.head(store, NAME)
    assert found is not None
    assert found.version == version
    return found


def declared(store: Store) -> set[str]:
    fields = DeltaTable(store.table(NAME)).schema().fields
    return {field.name for field in fields if not field.nullable}


@pytest.mark.parametrize("null", [(), ("b",), ("c",), ("b", "c", "d")])
def test_a_writer_knows_which_columns_hold_null(store: Store, null: tuple[str, ...]) -> None:
    file = sunk(store, 0, *null)
    assert file.not_null == {*TIGHT.file_schema.names} - {*null}
    footer = pq.read_metadata(file.uri.removeprefix("file://"))
    floats_and_ours = {"c"} | {n for n in TIGHT.file_schema.names if n.startswith("_driftline")}
    assert without_null(footer) - floats_and_ours == {"a", "b", "d"} - {*null}
    assert without_null(footer) <= file.not_null, "no statistics: nothing is known"


def test_a_file_of_sparks_is_known_by_its_statistics(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_batches([rows(0, "c")]), place := tmp_path / "part.parquet")
    assert without_null(pq.read_metadata(place)) == {*TIGHT.file_schema.names} - {"c"}


def test_a_version_declares_what_all_of_its_files_hold(store: Store) -> None:
    first = published(store, NewVersion(None, TIGHT, [sunk(store, 0)], (), RECORD))
    assert declared(store) == first.layout.not_null == {*NAMES}
    assert all(file.not_null == {*NAMES} for file in first.files)
    second = published(store, NewVersion(first, TIGHT, [sunk(store, 9, "b")], (), RECORD))
    assert declared(store) == second.layout.not_null == {"a", "c", "d"}
    third = published(store, NewVersion(second, TIGHT, [sunk(store, 18)], (), RECORD))
    assert declared(store) == {"a", "c", "d"}, "a file that is kept holds one"
    gone = [f for f in third.files if f.path.startswith("data-9/")]
    fourth = published(store, NewVersion(third, TIGHT, [], gone, RECORD))
    assert declared(store) == {*NAMES}, "what is left holds none, as its statistics say"
    assert fourth.layout == TIGHT
    assert {f.not_null for f in fourth.files} == {TIGHT.not_null}


def test_what_is_not_known_is_read_and_else_nullable(store: Store) -> None:
    file = sunk(store, 0, "b")
    unknown = DataFile(file.path, file.uri, file.size, file.rows, file.bounds)
    new = NewVersion(None, TIGHT, [unknown], (), RECORD)
    assert not_null.checked(new).not_null == {"a", "d"}
    Path(file.uri.removeprefix("file://")).write_bytes(b"no Parquet")
    assert not_null.checked(new).not_null == set()
    assert not_null.checked(NewVersion(None, TIGHT, [file], (), RECORD)).not_null == {
        "a", "c", "d",
    }  # fmt: skip


def test_a_table_that_names_features_names_invariants(store: Store) -> None:
    """Delta Lake on Spark opens no other one with NOT NULL; `timestamp` needs a named feature."""
    kinds = ("int8", "timestamp")
    columns = (Column(f"c{i}", parse_type(kind), False, i) for i, kind in enumerate(kinds))
    timed = lay_out(Recipe(tuple(columns), 1), {}, where="test")
    first = published(store, NewVersion(None, timed, [], (), RECORD))
    assert first.layout == timed
    features = DeltaTable(store.table(NAME)).protocol().writer_features or []
    assert sorted(features) == ["invariants", "timestampNtz"]
    assert declared(store) == {"c0", "c1"}


def test_a_table_gets_the_feature_with_the_column_that_needs_it(store: Store) -> None:
    first = published(store, NewVersion(None, TIGHT, [], (), RECORD))
    assert DeltaTable(store.table(NAME)).protocol().min_writer_version == 2
    columns = (*TIGHT.recipe.columns, Column("e", parse_type("timestamp"), True, 4))
    timed = lay_out(Recipe(columns, 1), {}, where="test")
    published(store, NewVersion(first, timed, [], (), RECORD))
    protocol = DeltaTable(store.table(NAME)).protocol()
    assert sorted(protocol.writer_features or []) == ["invariants", "timestampNtz"]
    assert protocol.reader_features == ["timestampNtz"], "readers need nothing more"
