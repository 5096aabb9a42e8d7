"""The statistics of rows through loads, refreshes, cuts, full copies, new columns, old tables."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.errors import WarehouseUnavailable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from warehouse_agent import changes
from warehouse_agent.columns.layout import CHANGED, FIRST, RATE, STATISTICS, UPDATES
from warehouse_agent.history.refresh_history import read
from warehouse_agent.planning import change_forecast, update_probability
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import change_feed, key_lookup, row_statistics, scan, staged_rows
from warehouse_agent.tasks.data_frames import rows_of
from warehouse_agent.tasks.rewrites import replaced_rows

ROWS = 600
NAMES = [name for name, _ in STATISTICS]
TABLES = {
    "orders": "CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)",
    "items": "CREATE TABLE items (id INTEGER, code TEXT, note TEXT, PRIMARY KEY (id, code))",
}
# Of a key: first version, updates, last changed version.
Counts = dict[int, tuple[int | None, int | None, int | None]]


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    for sql in TABLES.values():
        legacy.execute(sql)
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
    legacy.many("INSERT INTO items VALUES (?, ?, ?)", [(i, f"c{i}", "x") for i in range(ROWS)])
    with Pair(spark, legacy, tmp_path / "pair", {n: f'table = "{n}"' for n in TABLES}) as made:
        yield made
    legacy.close()


def snapshot_of(pair: Pair, name: str, version: int | None = None) -> Snapshot:
    found = head(Store(str(pair.warehouse)), name, version=version)
    assert found is not None
    return found


def stored(pair: Pair, name: str, *columns: str) -> dict[int, tuple[Any, ...]]:
    """Return bookkeeping columns by key, from the data files; None where a file has no such one."""
    found: dict[int, tuple[Any, ...]] = {}
    for uri in snapshot_of(pair, name).uris():
        table = pq.ParquetFile(uri.removeprefix("file://")).read()
        missing = pa.nulls(len(table))
        parts = [table[c] if c in table.column_names else missing for c in columns]
        found |= zip(
            table["id"].to_pylist(),
            zip(*(part.to_pylist() for part in parts), strict=True),
            strict=True,
        )
    return found


def counts(pair: Pair, name: str) -> Counts:
    return stored(pair, name, FIRST, UPDATES, CHANGED)


def rates(pair: Pair, name: str) -> dict[int, float | None]:
    return {key: rate for key, (rate,) in stored(pair, name, RATE).items()}


def update(pair: Pair, name: str, *ids: int, text: str) -> None:
    pair.legacy.many(f"UPDATE {name} SET note = ? WHERE id = ?", [(text, i) for i in ids])


@pytest.mark.parametrize(
    ("name", "method", "held"),
    [
        *((name, method, ROWS + 1) for method in ("sketch", "range", "full") for name in TABLES),
        ("items", "sketch", 0),
        pytest.param("orders", "sketch", 0, marks=pytest.mark.soak),
        *(pytest.param(name, "full", 0, marks=pytest.mark.soak) for name in TABLES),
    ],
)
def test_rows_are_counted(
    pair: Pair, name: str, method: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether tasks look the rows before up for each frame, or in lots, on Spark as well."""
    if not held:
        pair.small_bytes = 0
    monkeypatch.setattr(staged_rows, "AT_ONCE_ROWS", held)
    pair.fragment_lines[name] = f'method = "{method}"'
    pair.refresh(name)
    expected: Counts = dict.fromkeys(range(ROWS), (0, 0, 0))
    assert counts(pair, name) == expected
    assert set(rates(pair, name).values()) == {0.0}

    update(pair, name, 3, 4, 5, text="one")
    values = (9_000, "new") if name == "orders" else (9_000, "c", "new")
    marks = ", ".join("?" * len(values))
    pair.legacy.many(f"INSERT INTO {name} VALUES ({marks})", [values])
    pair.refresh(name)
    expected |= dict.fromkeys((3, 4, 5), (0, 1, 1)) | {9_000: (1, 0, 1)}
    assert counts(pair, name) == expected
    found = rates(pair, name)
    assert (found[3], found[6], found[9_000]) == (1.0, 0.0, update_probability.BIRTH)

    pair.refresh(name)  # nothing changed, nothing is written
    update(pair, name, 4, 9_000, text="two")
    pair.legacy.execute(f"DELETE FROM {name} WHERE id IN (5, 6)")
    pair.refresh(name)
    expected |= {4: (0, 2, 2), 9_000: (1, 1, 2)}
    del expected[5], expected[6]
    assert counts(pair, name) == expected
    found = rates(pair, name)
    assert found[4] == pytest.approx(2.0, abs=1e-3)
    assert found[3] == 1.0

    # A key that comes back is a new row.
    values = (5, "back") if name == "orders" else (5, "c5", "back")
    pair.legacy.many(f"INSERT INTO {name} VALUES ({marks})", [values])
    pair.refresh(name)
    expected[5] = (3, 0, 3)
    assert counts(pair, name) == expected
    clock = snapshot_of(pair, name).record.clock
    assert clock is not None
    assert clock.versions == (0, 1, 2, 3)
    pair.check(name)
    for version in (1, 2, 3):
        pair.check_feed(name, version)
    together = changes(pair.spark, pair.warehouse, name, since=0).collect()
    assert Counter(row[0] for row in together) == {1: 7, 2: 6, 3: 1}


def test_packing_keeps_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_rows, "SMALL_FILES_MAX", 2)
    pair.refresh("orders")
    expected: Counts = dict.fromkeys(range(ROWS), (0, 0, 0))
    for version in range(1, 6):
        update(pair, "orders", version, 100, text=f"v{version}")
        pair.refresh("orders")
        expected |= {version: (0, 1, version), 100: (0, version, version)}
        assert counts(pair, "orders") == expected
        pair.check_feed("orders", version)
    pair.check("orders")


def test_what_a_cut_attempt_staged_counts_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.refresh("orders")
    update(pair, "orders", 1, 2, text="one")

    def cut(*_: Any, **__: Any) -> None:
        raise WarehouseUnavailable("cut")

    monkeypatch.setattr("warehouse_agent.storage.formats.commit", cut)
    pair.error("orders")
    update(pair, "orders", 2, 3, text="two")
    pair.error("orders")
    monkeypatch.undo()
    update(pair, "orders", 3, 4, text="three")
    pair.refresh("orders")
    expected: Counts = dict.fromkeys(range(ROWS), (0, 0, 0))
    expected |= dict.fromkeys((1, 2, 3, 4), (0, 1, 1))
    assert counts(pair, "orders") == expected
    pair.check("orders")


def test_a_new_column_keeps_them(pair: Pair) -> None:
    pair.refresh("orders")
    update(pair, "orders", 7, text="one")
    pair.refresh("orders")
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN more TEXT")
    update(pair, "orders", 8, text="two")
    pair.restart()
    report = pair.refresh("orders", options=Options(accept_schema=True))
    assert (report.schema_changed, report.modelled) == (True, None)
    expected: Counts = dict.fromkeys(range(ROWS), (0, 0, 0))
    expected |= {7: (0, 1, 1), 8: (0, 1, 2)}
    assert counts(pair, "orders") == expected
    pair.check("orders")
    # How many rows changed with it is not known, and is not taken for none.
    past = change_forecast.outcomes(read(Store(str(pair.warehouse)), "orders").earlier)
    assert [(one.inserted, one.updated) for one in past] == [(0, 1)]


def forget(pair: Pair, name: str) -> None:
    """Make the table's only version one of a Driftline that kept no statistics."""
    table = pair.warehouse / name
    log = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if add := line.get("add"):
            file = table / add["path"]
            pq.write_table(pq.read_table(file).drop_columns(NAMES), file)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            add["size"] = file.stat().st_size
        if data := line.get("metaData"):
            schema = json.loads(data["schemaString"])
            schema["fields"] = [f for f in schema["fields"] if f["name"] not in NAMES]
            data["schemaString"] = json.dumps(schema)
        if info := line.get("commitInfo"):
            meta = json.loads(info["driftline"])
            del meta["clock"], meta["layout"]["statistics"]
            info["driftline"] = json.dumps(meta)
    log.write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_a_table_without_statistics_gains_them_as_it_is_written(pair: Pair) -> None:
    pair.refresh("orders")
    forget(pair, "orders")
    assert counts(pair, "orders") == dict.fromkeys(range(ROWS), (None, None, None))
    pair.check("orders")
    values = [(i, "later") for i in range(10_000, 10_050)]
    pair.legacy.many("INSERT INTO orders VALUES (?, ?)", values)
    pair.refresh("orders")
    update(pair, "orders", 10_001, text="one")
    pair.refresh("orders")
    update(pair, "orders", 1, 10_001, 10_002, text="two")  # every file
    pair.refresh("orders")
    snapshot = snapshot_of(pair, "orders")
    for file in snapshot.files:
        assert pq.read_schema(pair.warehouse / "orders" / file.path).names[-len(NAMES) :] == NAMES
    assert snapshot.record.clock is not None
    assert snapshot.record.clock.versions[0] == 0
    expected: Counts = dict.fromkeys(range(ROWS), (None, None, None))
    expected |= dict.fromkeys(range(10_000, 10_050), (1, 0, 1))
    expected |= {10_001: (1, 2, 3), 10_002: (1, 1, 3), 1: (None, 1, 3)}
    assert counts(pair, "orders") == expected
    for version in (1, 2, 3):
        pair.check_feed("orders", version)
    pair.check("orders")
    assert len(pair.published("orders")[0]) == 2  # hidden
    view = update_probability.ChangeOutlook(row_statistics.clock_of(snapshot), 1e-3, 2e9, 86_400.0)
    wanted = pa.schema([snapshot.layout.file_schema.field(n) for n in (FIRST, CHANGED, RATE)])
    rows = rows_of(pair.spark, snapshot.files, wanted)
    columns = (column.to_numpy().astype(np.float64) for column in rows.toArrow().columns)
    found = update_probability.probability(view, *columns)
    assert ((found > 0) & (found <= 1)).all()


LANES = st.integers(0, 2)
MAYBE = st.none() | st.integers(0, 6)
BEFORE = st.none() | st.tuples(LANES, LANES, MAYBE, MAYBE, MAYBE, st.none() | st.floats(0, 9))


@given(st.lists(st.tuples(LANES, LANES, BEFORE), max_size=20), st.sampled_from([0.0, 0.25, 1.0]))
def test_what_is_carried_over(rows: list[Any], counts_as: float) -> None:
    """The four rules, row by row."""
    clock = update_probability.VersionClock(
        (0, 2, 5), (0.0, 2.5 * update_probability.DAY_S, 5.0 * update_probability.DAY_S)
    )
    stamp = row_statistics.StatisticsStamp(
        6, 9.0 * update_probability.DAY_S, update_probability.DAY_S, clock, 1, 1.0
    )
    expected = []
    for hi, lo, before in rows:
        if before is None:
            expected.append((6, 0, 6, update_probability.BIRTH))
            continue
        *lanes, first, updates, changed, rate = before
        if lanes == [hi, lo] or changed == 6:
            expected.append((first, updates, changed, rate))
            continue
        age = max(stamp.at_s - np.interp(changed or 0, clock.versions, clock.seconds), 0)
        left = (rate or 0) * np.exp(-age / update_probability.TAU_S)
        expected.append((first, (updates or 0) + 1, 6, counts_as + left))
    kinds = [pa.int64(), pa.int64(), *(kind for _, kind in STATISTICS)]
    columns = [
        pa.array([None if row[2] is None else row[2][i] for row in rows], kind)
        for i, kind in enumerate(kinds)
    ]
    hi, lo = (pa.array([row[i] for row in rows], pa.int64()) for i in range(2))
    found = row_statistics.carried(hi, lo, columns, stamp, counts_as)
    assert [array.type for array in found] == [kind for _, kind in STATISTICS]
    for at, row in enumerate(zip(*(array.to_pylist() for array in found), strict=True)):
        assert row[:3] == expected[at][:3]
        assert row[3] == (None if expected[at][3] is None else pytest.approx(expected[at][3]))


@given(st.lists(st.binary(max_size=2)), st.lists(st.binary(max_size=2)))
def test_keys_are_found_where_they_are_first(there: list[bytes], asked: list[bytes]) -> None:
    schema = pa.schema([("k", pa.binary()), ("n", pa.int64())])
    halves = [there[: len(there) // 2], there[len(there) // 2 :]]
    batches = [
        pa.record_batch([pa.array(half, pa.binary()), pa.array(range(len(half)))], schema=schema)
        for half in halves
    ]
    found = key_lookup.KeyedRows(pa.Table.from_batches(batches, schema), "k")
    where = found.find(pa.array(asked, pa.binary()))
    assert where.tolist() == [there.index(k) if k in there else -1 for k in asked]
    (numbers,) = found.at(where, ["n"])
    all_numbers = found.columns["n"].to_pylist()
    assert numbers.to_pylist() == [None if w < 0 else all_numbers[w] for w in where]


POSITIONS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(POSITIONS, min_size=1, max_size=300), st.integers(0, 1000))
def test_a_filter_holds_what_it_was_made_of(values: list[int], step: int) -> None:
    """At any number of values, also of neighbours, as keys are; and the files that may have one."""
    values += [min(values) + step * i for i in range(50) if min(values) + step * i < 2**63]
    found = key_lookup.KeyFilter.of("k", np.array(values, np.int64))
    assert found.may_hold(np.array(values, np.int64)).all()
    assert not found.may_hold(np.zeros(0, np.int64)).any()
    ends = [None, (min(values), min(values)), (-(2**63), min(values)), (max(values), 2**63 - 1)]
    files = [DataFile(str(end), str(end), 1, 1, end) for end in ends]
    beyond = DataFile("beyond", "beyond", 1, 1, (max(values) + 1, max(values) + 9))
    assert found.near([*files, beyond]) == [f.uri for f in files]


def test_a_filter_holds_few_others() -> None:
    """One in eighty, of scattered values as of neighbours: what a task keeps of them is bounded."""
    numbers = np.arange(200_000, dtype=np.int64)
    scattered = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 200_000)
    for own in (numbers[::2], scattered[::2]):
        found = key_lookup.KeyFilter.of("k", own[:65_536])  # the fullest of its size
        assert 8 * len(found.bits) == 16 * 65_536
        for others in (numbers[1::2], scattered[1::2], own[65_536:]):
            assert found.may_hold(others).mean() < 1 / 50


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.integers(1, 30),
    st.integers(1, 9),
    st.booleans(),
)
def test_lots_are_all_rows_that_pass_once(
    files: list[int], rows: int, at_once: int, is_hashed: bool
) -> None:
    """Of files of so many rows: lots of `rows` and less than a batch more, but for the last."""
    total = sum(files)
    column = "p" if is_hashed else "k"
    wanted = np.arange(0, max(total, 1), 2)
    passing = key_lookup.KeyFilter.of(column, wanted)
    schema = pa.schema([("k", pa.int64())])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "DIGEST_ROWS", at_once)
        uris, first = [], 0
        for number, count in enumerate(files):
            keys = pa.array(range(first, first := first + count), pa.int64())
            pq.write_table(pa.table({"k": keys, "p": keys}), f"{folder}/{number}.parquet")
            uris.append(f"file://{folder}/{number}.parquet")
        lots = list(key_lookup.KeyedRows.lots(uris, schema, "k", rows, passing))
    found = [lot.columns["k"].to_pylist() for lot in lots]
    expected = np.arange(total)[passing.may_hold(np.arange(total))].tolist()
    assert [key for lot in found for key in lot] == expected
    assert {*wanted.tolist()} & {*range(total)} <= {*expected}
    assert all(lot.columns.schema == schema for lot in lots)
    assert all(rows <= len(lot) < rows + at_once for lot in found[:-1])
    assert all(found)


def test_a_feed_that_does_not_add_up_is_not_published(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.refresh("orders")
    update(pair, "orders", 1, 2, text="one")
    with monkeypatch.context() as patch:
        # Updates without their after-images.
        patch.setattr(
            change_feed,
            "spread",
            lambda *_, **__: pa.table({"path": ["insert-x", "update_before-x"], "rows": [2, 2]}),
        )
        error = pair.error("orders")
    assert (error["code"], error["safe_to_retry"]) == ("PROOF", True)
    assert "The change feed does not add up" in error["message"]
    pair.refresh("orders")
    pair.check_feed("orders", 1)


@pytest.mark.parametrize("name", TABLES)
def test_a_feed_in_many_lots_and_batches_is_the_same(
    pair: Pair, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The task's function by itself, where limits that are set here count."""
    pair.refresh(name)
    values = [(9_000 + i, "new") if name == "orders" else (9_000 + i, "c", "new") for i in range(9)]
    marks = ", ".join("?" * len(values[0]))
    pair.legacy.many(f"INSERT INTO {name} VALUES ({marks})", values)
    pair.legacy.execute(f"UPDATE {name} SET note = 'edited' WHERE id % 3 = 0 AND id < 9000")
    pair.legacy.execute(f"DELETE FROM {name} WHERE id % 7 = 0")
    pair.refresh(name)
    pair.check_feed(name, 1)
    old, new = (snapshot_of(pair, name, version) for version in (0, 1))
    monkeypatch.setattr(scan, "BATCH_ROWS", 7)
    monkeypatch.setattr(scan, "DIGEST_ROWS", 7)
    place = f"file://{tmp_path}"
    run = change_feed._write(place, new.layout, old.files, new.files, 5_000, None)
    rows = [row for batch in run(iter([*old.uris(), *new.uris()])) for row in batch.to_pylist()]
    written = [row for row in rows if row["path"] is not None]
    found = Counter(
        tuple(row.values())
        for file in written
        for row in pq.read_table(tmp_path / file["path"]).to_pylist()
    )
    rows = changes(pair.spark, pair.warehouse, name, since=0).drop("_version").collect()
    assert found == Counter(map(tuple, rows))
    assert sum(file["rows"] for file in written) == len(rows) > 300
