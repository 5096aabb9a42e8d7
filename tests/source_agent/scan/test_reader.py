"""How a reader finds rows again, what it counts, and what it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, cycle, islice
from pathlib import Path

import numpy as np
import pytest
from driftline.errors import DatabaseRefused, LimitExceeded, NullKey, SnapshotLost

from source_agent.engines.interface import Rows
from source_agent.engines.relations.shapes import Consistency, Shape
from source_agent.scan.batches import Batch
from source_agent.scan.reader import INDEX_SHARE
from tests.harness.asked_source import AskedSource, asked_source
from tests.harness.exchange_pair import INTEGER, LOOSE, Schema, Table

ROWS: Table = [(key, f"row {key}", None) for key in range(1000)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def keys(batches: Iterator[Batch]) -> list[int]:
    return [int(key) for batch in batches for key in batch.positions]


def some(*ranges: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in ranges], np.int64), np.array([b for _, b in ranges], np.int64)


def test_few_rows_are_found_by_index_and_many_by_a_scan(source: AskedSource) -> None:
    limit = int(INDEX_SHARE * len(ROWS))
    for rows, total, is_scan in ((limit, 1000, False), (limit + 1, 1000, True), (999, None, False)):
        source.tally.scans = 0
        found = keys(source.reader().find(*some((3, 5), (900, 901)), rows=rows, total=total))
        assert source.tally.scans == is_scan
        assert found == (list(range(1000)) if is_scan else [3, 4, 5, 900, 901])


def test_without_an_index_every_row_is_read(tmp_path: Path) -> None:
    with asked_source(tmp_path, ROWS, LOOSE) as source:
        assert len(keys(source.reader().find(*some((3, 3)), rows=1, total=1000))) == 1000
        assert source.tally.scans == 1


def test_what_is_read_is_counted(source: AskedSource) -> None:
    reader = source.reader()
    assert source.tally.rows_expected == source.shape.rows_expected
    keys(reader.scan())
    keys(reader.find(*some((0, 9)), rows=10, total=1000))
    assert (source.tally.scans, source.tally.rows_read) == (1, 1010)


def test_a_part_ends_at_its_limit(source: AskedSource) -> None:
    zones = [some((0, 9)), some((500, 509), (700, 709))]
    assert len(keys(source.reader().part(iter(zones), rows_max=30))) == 30
    with pytest.raises(LimitExceeded, match="29 rows") as raised:
        keys(source.reader().part(iter(zones), rows_max=29))
    assert "read_at_most" in (raised.value.remedy or "")


def test_null_keys_are_refused_with_samples(tmp_path: Path) -> None:
    rows: Table = [(None if key % 300 == 0 else key, "a", None) for key in range(1000)]
    with asked_source(tmp_path, rows, LOOSE) as source, pytest.raises(NullKey) as raised:
        keys(source.reader().scan())
    assert raised.value.details["sample 1"].startswith("id=NULL")


def insert(source: AskedSource, key: int) -> None:
    with closing(sqlite3.connect(source.path)) as connection, connection:
        connection.execute("INSERT INTO t (id) VALUES (?)", (key,))


def add_column(source: AskedSource) -> None:
    with closing(sqlite3.connect(source.path)) as connection, connection:
        connection.execute("ALTER TABLE t ADD COLUMN c TEXT")


def test_the_snapshot_of_the_first_row_is_the_one_that_is_compared(source: AskedSource) -> None:
    reader = source.reader()
    reader.pause()
    insert(source, 5000)
    assert len(keys(reader.scan())) == 1001
    reader.check_snapshot()
    assert reader.consistency.value == "exact"
    reader.pause()
    insert(source, 5001)
    keys(reader.scan())
    assert reader.changed
    assert reader.consistency.value == "fuzzy"
    with pytest.raises(SnapshotLost):
        reader.check_snapshot()


def test_a_read_without_rows_begins_the_snapshot_too(tmp_path: Path) -> None:
    with asked_source(tmp_path, []) as source:
        reader = source.reader()
        assert keys(reader.scan()) == []
        reader.pause()
        insert(source, 5000)
        assert keys(reader.scan()) == [5000]
        with pytest.raises(SnapshotLost):
            reader.check_snapshot(agrees=False)


def test_other_columns_than_were_described_are_a_lost_snapshot(source: AskedSource) -> None:
    reader = source.reader()
    reader.pause()
    add_column(source)
    with pytest.raises(SnapshotLost):
        keys(reader.scan())


def test_reads_of_one_snapshot_that_disagree_are_no_change(source: AskedSource) -> None:
    """They do not agree when they are tried again, either; reads without a snapshot may."""
    reader = source.reader()
    keys(reader.scan())
    reader.check_snapshot(agrees=True)
    with pytest.raises(DatabaseRefused, match="random"):
        reader.check_snapshot(agrees=False)
    assert reader.shape.plan is not None
    plan = replace(reader.shape.plan, consistency=Consistency.FUZZY)
    reader.shape = replace(reader.shape, plan=plan)
    with pytest.raises(SnapshotLost):
        reader.check_snapshot(agrees=False)


def repeating(source: AskedSource, *, rows: int, begin: int) -> None:
    """Let the session's scan come back to row `begin` for ever, in batches of `rows` rows."""
    whole = source.session.scan

    def scan(shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        every = [row for batch in whole(shape, ordered=ordered) for row in batch]
        endless = chain(every[:begin], cycle(every[begin:]))
        while True:
            yield list(islice(endless, rows))

    source.session.scan = scan  # type: ignore[method-assign]


@pytest.mark.parametrize("schema", [INTEGER, LOOSE])
@pytest.mark.parametrize(
    ("rows", "begin"), [(300, 0), (300, 700), (7, 980), (1000, 999), (2500, 3)]
)
def test_keys_that_come_again_and_again_end_the_read(
    tmp_path: Path, schema: Schema, rows: int, begin: int
) -> None:
    with asked_source(tmp_path, ROWS, schema) as source:
        repeating(source, rows=rows, begin=begin)
        bounded = islice(source.reader().scan(), 5000)
        with pytest.raises(DatabaseRefused, match="again, so it might never end") as raised:
            keys(bounded)
        assert "integrity_check" in raised.value.remedy
        assert raised.value.where == source.shape.relation.name
        source.tally.rows_read = 0
        for _ in range(2):  # a reader that begins anew knows nothing of the read before
            assert len(keys(source.reader().find(*some((0, 99)), rows=1, total=None))) == 100


def test_equal_keys_that_end_are_not_a_read_without_end(tmp_path: Path) -> None:
    """They are refused later, by a name of their own."""
    rows: Table = [(5, "a", None)] * 5000
    with asked_source(tmp_path, rows, LOOSE) as source:
        assert keys(source.reader().scan()) == [5] * 5000
