"""Differentials by Spark's joins against the definition; the state, and what damages it."""

import random

import pyarrow.parquet as pq
import pytest
from driftline.errors import DuplicateKey, NullKey, TableShrank

from tests.reference.snapshot_differentials import Change, Record, differential, distance
from tests.warehouse_agent.differential.files import BY_INTEGER, BY_TEXT, snapshot
from warehouse_agent.differential.joins import Algorithm, FileJoin, by_join, by_key, records_of
from warehouse_agent.differential.records import FileSnapshot
from warehouse_agent.differential.state import MANIFEST, StateUnusable, load, save

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SECRET = bytes(range(32))
OLD = [Record(k, "x") for k in range(3000)]
NEW = [Record(r.K, "y" if r.K % 10 == 3 else r.B) for r in OLD if r.K % 70] + [
    Record(9000 + i, "z" * i) for i in range(40)
]
random.Random(5).shuffle(NEW)


def records(spark, file, recipe=BY_INTEGER, *, whole=False, name="file"):
    return by_key(records_of(spark, snapshot(name, file, recipe), SECRET, whole=whole))


def join(spark, old, new, path, algorithm=Algorithm.HASH, pointers=True, recipe=BY_INTEGER):
    how = FileJoin(algorithm, pointers, SECRET)
    sides = records(spark, old, recipe), records(spark, new, recipe, whole=not pointers)
    return by_join(*sides, how, ("old.csv", snapshot("new.csv", new, recipe)), path)


def changes(path):
    rows = pq.ParquetFile(path).read().to_pylist()
    keys = (int(str(row["id"]).removeprefix("key ")) for row in rows)
    return [Change(row["_op"].capitalize(), k, row["b"]) for row, k in zip(rows, keys, strict=True)]


@pytest.mark.parametrize(
    ("algorithm", "pointers", "recipe"),
    [
        (Algorithm.SORT_MERGE, False, BY_TEXT),
        (Algorithm.SORT_MERGE, True, BY_INTEGER),
        (Algorithm.HASH, False, BY_INTEGER),
        (Algorithm.HASH, True, BY_TEXT),
    ],
)
def test_both_joins_find_the_least_set_of_changes(spark, tmp_path, algorithm, pointers, recipe):
    path = tmp_path / "changes.parquet"
    counts = join(spark, OLD, NEW, path, algorithm, pointers, recipe)
    found = changes(path)
    assert len(found) == len(set(found)) == counts.updates + counts.deletes + counts.inserts
    assert set(found) == differential(OLD, NEW)
    assert (counts.old, counts.new) == (len(OLD), len(NEW))
    assert counts.same + counts.updates + counts.deletes == len(OLD)
    assert counts.distance == distance(OLD, NEW)
    assert [p.name for p in tmp_path.iterdir()] == ["changes.parquet"]


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(Algorithm.SORT_MERGE, "SortMergeJoin"), (Algorithm.HASH, "ShuffledHashJoin")],
)
def test_spark_takes_the_join_that_was_asked_for(spark, algorithm, name):
    sides = [records(spark, OLD), records(spark, NEW)]
    both = sides[0].hint(algorithm.hint).join(sides[1], "key", "full_outer")
    assert name in both._jdf.queryExecution().executedPlan().toString()


def test_duplicates_null_keys_and_shrunk_files_are_refused(spark, tmp_path):
    path = tmp_path / "changes.parquet"
    with pytest.raises(DuplicateKey, match=r"old.csv: Records 8 and 3,001 have the same key"):
        join(spark, [*OLD, OLD[7]], NEW, path)
    with pytest.raises(TableShrank):
        join(spark, OLD, OLD[:10], path)
    null = FileSnapshot("new.csv", BY_TEXT, lambda: iter([[b"\0\2\xff\xff\xff\xff\0\0\0\1x"]]))
    sides = records(spark, OLD, BY_TEXT), by_key(records_of(spark, null, SECRET, whole=False))
    with pytest.raises(NullKey, match="The key of record 1 is NULL"):
        by_join(*sides, FileJoin(Algorithm.HASH, True, SECRET), ("old.csv", null), path)
    assert not list(tmp_path.iterdir())


def test_a_state_stands_in_for_the_old_file(spark, tmp_path):
    folder = tmp_path / "state"
    with pytest.raises(StateUnusable, match=r"has no state\.json"):
        load(folder, BY_INTEGER)
    for file in ([], OLD):  # the second one replaces the first
        save(folder, records(spark, file), BY_INTEGER, "monday.csv", SECRET)
    state = load(folder, BY_INTEGER)
    assert (state.name, state.secret) == ("monday.csv", SECRET)
    assert folder.stat().st_mode & 0o077 == 0
    path = tmp_path / "changes.parquet"
    how = FileJoin(Algorithm.SORT_MERGE, True, state.secret)
    new = snapshot("new.csv", NEW, BY_INTEGER)
    counts = by_join(state.records(spark), records(spark, NEW), how, (state.name, new), path)
    assert set(changes(path)) == differential(OLD, NEW)
    assert counts.distance == distance(OLD, NEW)
    kept = [pq.ParquetFile(p).read() for p in sorted((folder / "records").glob("*.parquet"))]
    keys = [k for table in kept for k in table.column("key").to_pylist()]
    assert keys == sorted(keys)
    assert len(keys) == len(OLD)

    with pytest.raises(StateUnusable, match="has other columns or another key"):
        load(folder, BY_TEXT)
    part = next((folder / "records").glob("*.parquet"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(StateUnusable, match=r"part-.*parquet is missing or damaged"):
        load(folder, BY_INTEGER)
    part.unlink()
    with pytest.raises(StateUnusable, match=r"part-.*parquet is missing or damaged"):
        load(folder, BY_INTEGER)
    (folder / MANIFEST).write_text("{", encoding="utf-8")
    with pytest.raises(StateUnusable, match=r"state.json cannot be read"):
        load(folder, BY_INTEGER)
