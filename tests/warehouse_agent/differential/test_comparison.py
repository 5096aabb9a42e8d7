"""Differentials of files: what is written, and that nothing is if it is not whole."""

import csv

import pyarrow.parquet as pq
import pytest
from driftline.errors import ConfigurationError, DuplicateKey, TableShrank, UsageError
from driftline.rows.columns import gather
from driftline.values.types import Column, Recipe, parse_type

from tests.reference.snapshot_differentials import Change, Record, differential
from tests.warehouse_agent.differential.files import BY_INTEGER, BY_TEXT, snapshot
from warehouse_agent.differential.comparison import by_window
from warehouse_agent.differential.matching import WindowExhausted
from warehouse_agent.differential.output import ChangesFile
from warehouse_agent.differential.records import ChangeForm, FileSnapshot
from warehouse_agent.differential.window import WindowBuffers

OLD = [Record(k, "x") for k in range(200)]
NEW = [Record(r.K, 'y, "z"\n' if r.K % 50 == 3 else r.B) for r in OLD if r.K % 70] + [
    Record(900, ""),
    Record(901, "é"),
]


def compare(old, new, path, recipe=BY_INTEGER, **options):
    return by_window(
        snapshot("old.csv", old, recipe), snapshot("new.csv", new, recipe), path, **options
    )


def plain(rows):
    return {Change(change.capitalize(), int(k), b) for change, k, b in rows}


def test_parquet_has_the_changes_in_the_types_of_a_published_table(tmp_path):
    path = tmp_path / "changes.parquet"
    counts = compare(OLD, NEW, path)
    table = pq.ParquetFile(path).read()
    assert {f.name: str(f.type) for f in table.schema} == {
        "_op": "string",
        "id": "int64",
        "b": "string",
    }
    found = [tuple(row.values()) for row in table.to_pylist()]
    assert plain(found) == differential(OLD, NEW)
    assert len(found) == counts.updates + counts.deletes + counts.inserts
    assert [p.name for p in tmp_path.iterdir()] == ["changes.parquet"]


def test_csv_tells_null_from_an_empty_text(tmp_path):
    path = tmp_path / "changes.csv"
    compare(OLD, NEW, path)
    text = path.read_text(encoding="utf-8")
    assert '"insert","900",""\n' in text
    assert '"delete","70",\n' in text
    header, *rows = csv.reader(text.splitlines(keepends=True))
    assert header == ["_op", "id", "b"]
    found = plain((change, k, None if change == "delete" else b) for change, k, b in rows)
    assert found == differential(OLD, NEW)


def test_columns_come_in_the_order_of_the_relation_and_deletes_have_their_key(tmp_path):
    """The key is first in row bytes; in the relation it is the second column."""
    number, key = parse_type("int4"), parse_type("text")
    recipe = Recipe((Column("k", key, False, 1), Column("n", number, True, 0)), 1)
    row = b"\0\2\0\0\0\1a\0\0\0\4\0\0\0\7"
    with ChangesFile(tmp_path / "c.parquet", recipe) as output:
        output.put(ChangeForm.INSERT, gather([row]))
        output.put(ChangeForm.DELETE, gather([row[:7]]))
        output.finish()
    assert pq.ParquetFile(tmp_path / "c.parquet").read().to_pylist() == [
        {"_op": "insert", "n": 7, "k": "a"},
        {"_op": "delete", "n": None, "k": "a"},
    ]


@pytest.mark.parametrize("recipe", [BY_INTEGER, BY_TEXT])
def test_duplicates_are_refused_and_nothing_is_written(tmp_path, recipe):
    with pytest.raises(DuplicateKey, match=r"new.csv: Records 8 and 203 have the same key"):
        compare(OLD, [*OLD, *NEW[-2:], OLD[7]], _in(tmp_path), recipe)
    assert not list(tmp_path.iterdir())


def _in(folder):
    return folder / "changes.parquet"


def test_an_older_file_of_changes_stays_if_the_window_gives_up(tmp_path):
    _in(tmp_path).write_text("older")
    with pytest.raises(WindowExhausted):
        compare(OLD, OLD[::-1], _in(tmp_path), buffers=WindowBuffers(8, 16, left_bytes=100))
    assert _in(tmp_path).read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_of_less_than_half_the_records_must_be_allowed(tmp_path):
    with pytest.raises(TableShrank, match=r"has 99 records and the old one 200"):
        compare(OLD, OLD[:99], _in(tmp_path))
    assert not list(tmp_path.iterdir())
    assert compare(OLD, OLD[:99], _in(tmp_path), allow_shrink=True).deletes == 101
    assert compare(OLD, OLD[:100], _in(tmp_path)).deletes == 100


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path):
    def read():
        raise AssertionError("nothing is read")

    file = FileSnapshot("file", BY_INTEGER, read)
    with pytest.raises(UsageError, match=r"ends neither in .parquet nor in .csv"):
        by_window(file, file, tmp_path / "changes.txt")
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        by_window(file, file, tmp_path / "none" / "changes.csv")
