"""Small tables are loaded, refreshed and verified where no Spark can start."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import WarehouseUnavailable

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.places import parquet
from tests.pair.refresh.test_every_engine import ITEMS, ORDERS, TYPES, edit, fill
from warehouse_agent.inspection.readiness import examine
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.spark import java
from warehouse_agent.spark.machine import machine
from warehouse_agent.storage.formats import head
from warehouse_agent.table_maintenance.verification import damaged

ROWS = 3000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for table in (ORDERS, ITEMS):
        legacy.execute(table.format(**TYPES["sqlite"]))
    fill(legacy, ROWS)
    nowhere = NoSpark()
    relations = {"orders": 'table = "orders"', "items": 'table = "items"'}
    with Pair(nowhere, legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 32 << 20
        yield made
    legacy.close()


def check(pair: Pair) -> None:
    """Compare what a reader without Spark and without Driftline sees with the source."""
    table = pair.delta("orders").to_pyarrow_table()
    names = [name for name in table.column_names if not name.startswith("_driftline")]
    ours = zip(*(table[name].to_pylist() for name in names), strict=True)
    theirs = pair.legacy.rows("orders")
    assert Counter(map(plain, ours)) == Counter(map(plain, theirs))


def plain(row: object) -> tuple[str, ...]:
    assert isinstance(row, tuple)
    key, status, price, placed, note, *more = row
    return (str(key), status, f"{Decimal(str(price)):.2f}", placed, note, *more)


def refresh(pair: Pair, *, accept_schema: bool = False) -> Report:
    options = Options(allow_shrink=True, accept_schema=accept_schema)
    report = pair.refresh("orders", options=options)
    assert set(report.places.values()) <= {"driver"}
    check(pair)
    return report


def test_load_refresh_nothing_verify(pair: Pair) -> None:
    loaded = refresh(pair)
    assert (loaded.version, loaded.rows_inserted) == (0, ROWS)
    assert loaded.places == {"apply": "driver", "prove": "driver"}
    for _ in range(2):
        same = refresh(pair)
        assert same.version == 0
        assert same.places == {"reduce": "driver"}
    for seed in range(3):
        inserted, updated, deleted = edit(pair.legacy, seed)
        found = refresh(pair)
        assert (found.rows_inserted, found.rows_deleted) == (inserted, deleted)
        assert found.rows_updated <= updated
        assert found.places["apply"] == found.places["prove"] == "driver"
    pair.legacy.execute("DELETE FROM orders")
    assert refresh(pair).rows_total == 0
    fill_again = [(1, "O", "1.00", "1996-01-02", "again")]
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", fill_again)
    assert refresh(pair).rows_inserted == 1


def test_doctor_where_there_is_no_java(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure while every step is small; else it is, and Spark is not tried."""
    monkeypatch.setattr(java, "_candidates", list)
    refresh(pair)
    toml = pair.warehouse_toml()
    checks = {c.what: c for c in examine(toml)}
    assert [c.error for c in checks.values() if c.error] == []
    assert checks["Java"].found.startswith("none, nor is one needed while every step is small")
    assert "Spark" not in checks
    for small_bytes, view, why in (
        (0, "", "`small_bytes` is 0"),
        (1000, "", "for orders, which has "),
        (32 << 20, '[views.late]\nquery = "SELECT id FROM orders"\n', "for the rows of views"),
    ):
        pair.small_bytes = small_bytes
        toml = pair.warehouse_toml()
        toml.write_text(toml.read_text() + view)
        checks = {c.what: c for c in examine(toml)}
        error = checks["Java"].error
        assert error is not None
        assert error.details["Spark is needed"].startswith(why)
        assert "pip install 'driftline[java]'" in str(error)
        assert "Spark" not in checks


def test_a_text_key_of_two_columns_damage_and_its_repair(pair: Pair) -> None:
    pair.refresh("items")
    pair.legacy.execute("UPDATE items SET note = 'x' WHERE code LIKE '%1'")
    pair.legacy.execute("DELETE FROM items WHERE code LIKE '%2' AND line = 1")
    report = pair.refresh("items")
    assert set(report.places.values()) == {"driver"}
    table = pair.delta("items").to_pyarrow_table()
    ours = zip(
        *(table[name].to_pylist() for name in ("code", "line", "amount", "note")), strict=True
    )
    assert Counter(ours) == Counter(pair.legacy.rows("items"))
    pair.place(pair.delta("items").file_uris()[0]).unlink()
    mended = pair.refresh("items", options=Options(repair=True))
    assert mended.repaired_files == 1
    table = pair.delta("items").to_pyarrow_table()
    assert table.num_rows == len(pair.legacy.rows("items"))


def test_a_damaged_file_is_found_and_repaired(pair: Pair) -> None:
    """A byte of a column's name in the footer, which then is no UTF-8; a byte of a value."""
    refresh(pair)
    edit(pair.legacy, 1)
    refresh(pair)
    for is_footer in (True, False):
        file = pair.place(pair.delta("orders").file_uris()[0])
        data = bytearray(file.read_bytes())
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        if is_footer:
            at = data.index(b"_driftline_hi", footer)
        else:  # the last byte of a column's values, behind the header of the page
            column = parquet(file).metadata.row_group(0).column(2)
            begin = column.dictionary_page_offset or column.data_page_offset
            at = begin + column.total_compressed_size - 1
        data[at] ^= 0xFF
        file.write_bytes(data)
        report = pair.refresh("orders", options=Options(repair=True), attempts=3)
        if report.repaired_files == 0:  # in a column that a comparison does not read
            steps, now = pair.steps, head(pair.store, "orders")
            assert now is not None
            assert damaged(steps, pair.store, "orders", now)
            report = pair.refresh("orders", options=Options(repair=True), attempts=3)
        assert report.repaired_files == 1
        check(pair)


def test_a_large_load_asks_for_spark_before_it_asks_for_rows(pair: Pair) -> None:
    pair.legacy.execute("ANALYZE")  # from which SQLite knows how many rows there are
    pair.small_bytes = 1000
    error = pair.error("orders")
    assert error["details"]["Spark is needed"].startswith("for a step of `reduce`: it has at least")
    audit = pair.folder / "audit.jsonl"
    assert not audit.exists() or "Exchange" not in audit.read_text()


def test_a_key_that_nobody_vouches_for(pair: Pair) -> None:
    """A SELECT has no unique constraint, so its result is looked through for duplicates."""
    lines = 'query = "SELECT code, line, note FROM items"\nkey = ["code"]'
    pair.publish("codes", lines)
    error = pair.error("codes")
    assert error["code"] == "DUPLICATE_KEY"
    assert len(error["details"]) == 10
    assert error["details"]["sample 1"].startswith("code = 'Ä0")
    pair.publish("codes", lines.replace('["code"]', '["code", "line"]'))
    loaded = pair.refresh("codes")
    assert loaded.rows_total == ROWS
    assert loaded.places == {"apply": "driver", "prove": "driver"}


def test_a_step_that_is_too_large_says_what_needs_spark(pair: Pair) -> None:
    refresh(pair)
    pair.small_bytes = 100
    error = pair.error("orders")
    assert error["code"] == "CONFIGURATION"
    said = error["details"]["Spark is needed"]
    assert (
        said
        == f"for a step of `reduce`: it has at least {ROWS * 3:,} bytes, and `small_bytes` is 100"
    )
    pair.small_bytes = 32 << 20
    assert refresh(pair).version == 0


def test_more_than_the_drivers_share_needs_spark(pair: Pair) -> None:
    """Where no setting says which bytes are small, `plan` and the report say where steps run."""
    pair.small_bytes = None
    loaded = refresh(pair)
    assert loaded.places == {"apply": "driver", "prove": "driver"}
    assert {why["reason"] for why in loaded.places_why.values()} == {"seconds"}
    assert loaded.places_why["apply"]["driver_s"] < loaded.places_why["apply"]["spark_s"]
    pair.legacy.execute("UPDATE orders SET note = note || ' and more' WHERE id % 3 > 0")
    planned = json.loads(pair.said("plan", "orders", "--json"))["places_expected"]
    assert {place["place"] for place in planned.values()} == {"driver"}
    assert [*planned] == ["reduce", "apply", "prove"]
    assert "apply in the driver's process (driver 0.0 s, Spark " in pair.said("plan", "orders")

    share = 20_000 / machine().memory
    pair.warehouse_lines = f"driver_share = {share}\n"
    planned = json.loads(pair.said("plan", "orders", "--json"))["places_expected"]
    assert planned["prove"]["reason"] == "memory"
    assert "on Spark (" in pair.said("plan", "orders")
    error = pair.error("orders")
    assert error["code"] == "CONFIGURATION"
    most = int(machine().memory * share)
    said = error["details"]["Spark is needed"]
    assert said.startswith("for a step of `apply`: it has at least ")
    assert said.endswith(f"bytes, and the driver's share of memory (`driver_share`) is {most:,}")
    pair.warehouse_lines = ""
    assert refresh(pair).version == 1


def cut(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh, but for the commit: what came stays staged."""

    def fails(*_: Any, **__: Any) -> None:
        raise WarehouseUnavailable("cut")

    with monkeypatch.context() as patch:
        patch.setattr("warehouse_agent.storage.formats.commit", fails)
        pair.error("orders")


def test_other_columns(pair: Pair) -> None:
    refresh(pair)
    edit(pair.legacy, 1)
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN more TEXT")
    pair.restart()
    assert pair.error("orders")["code"] == "RECIPE"
    report = refresh(pair, accept_schema=True)
    assert (report.version, report.schema_changed) == (1, True)
    pair.legacy.execute("UPDATE orders SET more = note WHERE id % 5 = 0")
    assert refresh(pair).version == 2


def test_leftovers_of_two_cut_exchanges(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a first load, and of a refresh."""
    for seed in range(2):
        cut(pair, monkeypatch)
        edit(pair.legacy, seed)
    assert refresh(pair).version == 0
    for seed in range(2, 4):
        edit(pair.legacy, seed)
        cut(pair, monkeypatch)
    edit(pair.legacy, 4)
    assert refresh(pair).version == 1


@pytest.mark.parametrize(
    "lines",
    [
        'method = "group"',
        'method = "range"',
        'method = "full"',
        'read_at_most = 1000\nrequire = "fuzzy"',
        'require = "fuzzy"\nincremental = { rows = 500, pause_s = 0.01 }',
    ],
    ids=["group", "range", "full", "part", "tiles"],
)
def test_every_method_and_scope(pair: Pair, lines: str) -> None:
    pair.fragment_lines["orders"] = lines
    refresh(pair)
    if "read_at_most" in lines:  # a part finds what it compares: here the updates of one key
        pair.legacy.execute("UPDATE orders SET note = 'x' WHERE id = (SELECT min(id) FROM orders)")
    else:
        edit(pair.legacy, 1)
    assert refresh(pair).version == 1


LARGE_STEPS = {  # of a table with 3,000 rows, whose comparison reads 9,000 bytes of digests
    "groups": ('method = "group"', "reduce", 8_000, 9_000),
    "ranges": ('method = "range"', "reduce", 8_000, 9_000),
    "rows to write": ("", "apply", 20_000, 20_001),
    "other columns": ("", "reduce", 20_000, 20_001),
    "leftovers": ("", "reduce", 20_000, 20_001),
}


@pytest.mark.parametrize("what", LARGE_STEPS)
def test_every_large_step_says_what_needs_spark(
    pair: Pair, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which step, how large it is, and which setting; with more bytes it goes on."""
    lines, step, small_bytes, least = LARGE_STEPS[what]
    refresh(pair)
    pair.fragment_lines["orders"] = lines
    pair.legacy.execute("UPDATE orders SET note = note || ' and more' WHERE id % 3 > 0")
    is_other = what == "other columns"
    if is_other:
        pair.legacy.execute("ALTER TABLE orders ADD COLUMN more TEXT")
        pair.restart()
    if what == "leftovers":
        cut(pair, monkeypatch)
    pair.small_bytes = small_bytes
    error = pair.error("orders", options=Options(accept_schema=is_other))
    assert (error["code"], error["safe_to_retry"]) == ("CONFIGURATION", False)
    said = error["details"]["Spark is needed"]
    found = re.fullmatch(
        r"for a step of `(\w+)`: it has at least ([\d,]+) bytes, and `small_bytes` is ([\d,]+)",
        said,
    )
    assert found, said
    assert (found[1], found[3]) == (step, f"{small_bytes:,}")
    assert int(found[2].replace(",", "")) >= least
    pair.small_bytes = 32 << 20
    assert refresh(pair, accept_schema=is_other).version == 1


@pytest.mark.parametrize(
    ("fragment", "relation", "column", "place"),
    [
        ("note", "note", "note", "note.note"),
        ("note", "orders", "note", "note (relation orders).note"),
        ("orders", "note", "note", "orders (relation note).note"),
        ("orders", "note", "orders", "orders (relation note).orders"),
        ("note", "note", "note.note", "note.note.note"),
    ],
)
def test_a_column_called_as_its_relation_is_named(
    tmp_path: Path, fragment: str, relation: str, column: str, place: str
) -> None:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute(f'CREATE TABLE t (id INTEGER PRIMARY KEY, "{column}" INTEGER)')
    legacy.execute("INSERT INTO t VALUES (1, 'no number')")
    relations = dict.fromkeys((fragment, relation), 'table = "t"')
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as pair:
        pair.fragment_lines[fragment] = f'relation = "{relation}"'
        error = pair.error(fragment)
    legacy.close()
    assert (error["code"], error["where"]) == ("VALUE", place), error
