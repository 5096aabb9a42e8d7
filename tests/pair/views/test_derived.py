"""Kept relations have what views need of them, and follow the views; nothing is missed by it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from driftline.relations.derivations import text_of
from pyspark.sql import SparkSession

from source_agent.checks.total import read_receipt, total
from source_agent.config.file import load
from source_agent.engines.registry import connect
from tests.harness.legacy import LEGACIES
from tests.harness.pair import Pair
from tests.harness.views import Sites, served
from tests.warehouse_agent.cli.test_main import command
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.formats import head

pytestmark = pytest.mark.spark

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, amount INT, state INT,"
        " note VARCHAR, memo VARCHAR",
    },
    "crm": {"customer": "code VARCHAR PRIMARY KEY, id INT, name VARCHAR, city VARCHAR"},
}
OPEN = (
    "SELECT o.id, o.amount, c.name FROM erp.orders o JOIN crm.customer c ON c.id = o.customer"
    " WHERE o.state = 1 AND o.amount BETWEEN -5 AND 100 AND upper(c.name) <> 'X'"
)
LARGE = "SELECT x.id, x.note FROM erp.orders x WHERE x.amount > 40"
BOTH = ("columns", "rows")


def fill(sites: Sites) -> None:
    rows = [(i, i % 6, 2 * i - 10, i % 3, f"n{i}", f"m{i}") for i in range(60)]
    sites.pairs["erp"].legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", rows)
    for i in range(8):
        row = (f"c{i}", i % 5, f"name {i}", f"city {i}")
        sites.sql("crm", "INSERT INTO customer VALUES (?, ?, ?, ?)", *row)


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path) -> Iterator[Sites]:
    """Sites whose warehouse does not exist yet."""
    with Sites(spark, tmp_path, TABLES, {"open": OPEN}, derive=BOTH) as made:
        fill(made)
        yield made


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    with Sites(spark, folder, TABLES, {"open": OPEN}, derive=BOTH) as made:
        fill(made)
        made.well()
    return folder


@pytest.fixture
def loaded(spark: SparkSession, tmp_path: Path, template: Path) -> Iterator[Sites]:
    """Sites whose warehouse was loaded."""
    views = {"open": OPEN}
    with Sites(spark, tmp_path, TABLES, views, derive=BOTH, template=template) as made:
        yield made


def columns(sites: Sites, name: str) -> tuple[str, ...]:
    found = head(sites.store, name)
    assert found is not None
    return found.layout.data_names


def rows_where(sites: Sites, name: str) -> str | None:
    found = head(sites.store, name)
    assert found is not None
    derivation = found.layout.derivation
    if derivation is None or derivation.rows is None:
        return None
    return text_of(derivation.rows)


def versions(sites: Sites) -> dict[str, int | None]:
    return {name: report.version for name, report in sites.well().items()}


def test_only_what_views_need_travels(sites: Sites) -> None:
    reports = sites.well()
    sites.check()
    assert columns(sites, "erp.orders") == ("id", "customer", "amount", "state")
    where = "(\"amount\" <= '100') AND (\"amount\" >= '-5') AND (\"state\" = '1')"
    assert rows_where(sites, "erp.orders") == where
    # SQLite compares text as Spark does, but a function stays here.
    assert columns(sites, "crm.customer") == ("code", "id", "name")
    assert rows_where(sites, "crm.customer") is None
    orders = reports["erp.orders"]
    assert orders.rows_total == sum(
        row[3] == 1 and -5 <= row[2] <= 100 for row in sites.pairs["erp"].legacy.rows("orders")
    )
    assert "the rows where" in str(orders.derived)
    assert (orders.round_trips, orders.schema_changed) == (2, False)
    # Unused columns, and rows that no view needs, are no change; no description is asked for.
    sites.sql("erp", "UPDATE orders SET note = 'other', memo = NULL")
    sites.sql("erp", "UPDATE orders SET amount = amount + 1 WHERE state = 2")
    sites.sql("erp", "INSERT INTO orders VALUES (900, 1, 7, 0, 'n', 'm')")
    sites.sql("crm", "UPDATE customer SET city = 'elsewhere'")
    reports = sites.well()
    assert {n: r.version for n, r in reports.items()} == dict.fromkeys(reports, 0)
    assert reports["erp.orders"].round_trips == 1
    assert reports["erp.orders"].method == "sketch"
    sites.check()


def test_rows_enter_and_leave(loaded: Sites) -> None:
    sites = loaded
    inside = [r[0] for r in sites.pairs["erp"].legacy.rows("orders") if r[3] == 1 and r[2] >= -5]
    sites.sql("erp", "UPDATE orders SET state = 2 WHERE id = ?", inside[0])
    sites.sql("erp", "UPDATE orders SET state = NULL WHERE id = ?", inside[1])
    sites.sql("erp", "DELETE FROM orders WHERE id = ?", inside[2])
    sites.sql("erp", "UPDATE orders SET amount = 50 WHERE id = ?", inside[3])
    sites.sql("erp", "UPDATE orders SET state = 1 WHERE id IN (0, 9)")
    report = sites.well()["erp.orders"]
    assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == (1, 1, 3)
    pair = sites.pairs["erp"]
    assert sites.newest() is not None
    sites.check()
    # A row that comes back is an insert.
    sites.sql("erp", "UPDATE orders SET state = 1 WHERE id = ?", inside[0])
    report = sites.well()["erp.orders"]
    assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == (1, 0, 0)
    sites.check()
    assert pair.legacy.engine == "sqlite"


def test_views_that_share_a_relation(sites: Sites) -> None:
    sites.views["large"] = LARGE
    sites.well()
    sites.check()
    assert columns(sites, "erp.orders") == ("id", "customer", "amount", "state", "note")
    assert "(\"amount\" > '40') OR (" in str(rows_where(sites, "erp.orders"))
    sites.sql("erp", "UPDATE orders SET amount = 90 WHERE state = 0 AND id < 20")
    sites.well()
    sites.check()


def test_fragments_follow_the_views(loaded: Sites) -> None:
    sites = loaded
    before = rows_where(sites, "erp.orders")
    # Another view: more columns and rows, without being asked, and no view is refused.
    sites.views["large"] = LARGE
    reports = sites.well()
    sites.check()
    orders = reports["erp.orders"]
    assert (orders.version, orders.schema_changed) == (1, True)
    assert reports["open"].version in (0, 1)
    assert sites.well()["erp.orders"].round_trips == 1
    # It goes again: what it needed goes, too.
    del sites.views["large"]
    orders = sites.well()["erp.orders"]
    assert orders.version == 2
    assert (columns(sites, "erp.orders"), rows_where(sites, "erp.orders")) == (
        ("id", "customer", "amount", "state"), before,
    )  # fmt: skip
    sites.check()
    # Fewer than half of the rows are left, which is no reason to ask.
    sites.views["open"] = OPEN.replace("o.state = 1", "o.state = 1 AND o.id = 4")
    reports = sites.refresh(options=Options())
    assert reports["erp.orders"].rows_total == 1
    error = reports["open"].error
    assert error is not None
    assert error["code"] == "RECIPE"
    sites.well(options=Options(accept_schema=True))
    sites.check()
    # A view that needs every row.
    sites.views["every"] = "SELECT id, memo FROM erp.orders"
    sites.well()
    sites.check()
    assert rows_where(sites, "erp.orders") is None
    # The views' texts are the same when others change: nothing moves.
    assert versions(sites) == versions(sites)


def test_changes_while_views_change(loaded: Sites) -> None:
    sites = loaded
    sites.views["large"] = LARGE
    sites.sql("erp", "UPDATE orders SET note = 'new', amount = amount + 7 WHERE id % 2 = 0")
    sites.sql("erp", "DELETE FROM orders WHERE id % 7 = 0")
    sites.well()
    sites.check()
    sites.sql("erp", "UPDATE orders SET note = 'newer', state = 1 WHERE id % 5 = 0")
    del sites.views["open"]
    sites.well()
    sites.check()


def test_a_view_is_never_made_of_too_little(loaded: Sites) -> None:
    sites = loaded
    pair = sites.pairs["erp"]
    port = int(pair.address.rsplit(":", 1)[1])
    pair.stop()
    # Other columns, and other rows with the columns that are there.
    sites.views |= {"large": LARGE, "rows": "SELECT id, amount FROM erp.orders WHERE state = 2"}
    sites.sql("crm", "UPDATE customer SET name = 'somebody' WHERE id = 1")
    reports = sites.refresh()
    assert reports["large"].version is reports["rows"].version is None
    assert "lacks the column note" in str(reports["large"].not_started)
    assert "has only the rows where" in str(reports["rows"].not_started)
    assert reports["open"].version == 1
    pair.serve(port)
    sites.well()
    sites.check()
    # A view whose query changes is refused before anything else, and stays.
    pair.stop()
    sites.views["rows"] = "SELECT id, memo FROM erp.orders WHERE state = 2"
    reports = sites.refresh()
    assert "lacks the column memo" in str(reports["rows"].not_started)
    pinned = sites.pinned()
    assert pinned.read("rows").columns == ["id", "amount"]
    pair.serve(port)
    reports = sites.refresh()
    error = reports["rows"].error
    assert error is not None
    assert error["code"] == "RECIPE"
    sites.well(options=Options(accept_schema=True))
    sites.check()


@pytest.mark.parametrize("with_views", [False, True])
def test_withdrawn(loaded: Sites, with_views: bool) -> None:
    sites = loaded
    before = rows_where(sites, "erp.orders")
    pair = sites.pairs["erp"]
    pair.publish("orders", served("orders", ["columns"]))
    sites.sql("erp", "UPDATE orders SET amount = amount + 1")
    sites.sql("crm", "UPDATE customer SET name = 'somebody'")
    if with_views:  # also where a description is asked for anyway
        sites.views["large"] = LARGE
    reports = sites.refresh()
    error = reports["erp.orders"].error
    assert error is not None
    assert (error["code"], error["where"], error["exit_code"]) == ("DERIVE", "erp.orders", 6)
    assert "rows" in error["message"]
    assert "driftline refresh erp.orders --accept-schema" in error["remedy"]
    assert rows_where(sites, "erp.orders") == before
    assert reports["erp.orders"].version == 0
    assert reports["open"].version == 1  # with the other input
    assert sites.pinned().read("open").where("name = 'somebody'").count() > 0
    reports = sites.well(options=Options(accept_schema=True))
    assert rows_where(sites, "erp.orders") is None
    assert columns(sites, "erp.orders")[:4] == ("id", "customer", "amount", "state")
    sites.check()
    # Allowed again: the relation stays as it is until the views change, or somebody asks.
    pair.publish("orders", served("orders", BOTH))
    assert sites.well()["erp.orders"].round_trips == 1
    sites.well(options=Options(accept_schema=True))
    assert rows_where(sites, "erp.orders") is not None
    sites.check()


def test_columns_that_change_at_the_source(loaded: Sites) -> None:
    sites = loaded
    # Columns that no view needs.
    sites.sql("erp", "ALTER TABLE orders ADD COLUMN extra INT")
    sites.sql("erp", "ALTER TABLE orders DROP COLUMN memo")
    assert sites.well()["erp.orders"].version == 0
    # And one that a view needs.
    sites.sql("erp", "ALTER TABLE orders DROP COLUMN amount")
    error = sites.refresh()["erp.orders"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("RECIPE", "erp.orders")
    assert "column amount was dropped" in error["message"]
    assert "extra" not in str(error)


def test_accepted_when_the_relation_gains_what_is_left_out(sites: Sites) -> None:
    """The recipe of the columns that are chosen is that of the relation as it was, whole."""
    del sites.views["open"]
    sites.views["every"] = "SELECT code, id, name, city FROM crm.customer"
    sites.well()
    sites.sql("crm", "ALTER TABLE customer ADD COLUMN extra INT")
    error = sites.refresh()["crm.customer"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("RECIPE", "crm.customer")
    assert "column extra (int8) was added" in error["message"]
    sites.well(options=Options(accept_schema=True))
    assert columns(sites, "crm.customer") == ("code", "id", "name", "city")
    sites.sql("crm", "UPDATE customer SET extra = 7, city = 'moved' WHERE id = 1")
    report = sites.well()["crm.customer"]
    assert report.rows_updated == 2
    ddl = TABLES["crm"]["customer"] + ", extra INT"
    sites.tables = TABLES | {"crm": {"customer": ddl}}
    sites.check()


def test_accepted_when_nothing_is_left_to_choose(sites: Sites) -> None:
    """A choice of all columns is none; the DBA withdrew it, and nothing else changed."""
    sites.views["open"] = "SELECT o.id, o.amount FROM erp.orders o"
    sites.well()
    for name in ("customer", "state", "note", "memo"):
        sites.sql("erp", f"ALTER TABLE orders DROP COLUMN {name}")
    assert sites.well()["erp.orders"].version == 0
    sites.pairs["erp"].publish("orders", served("orders"))
    error = sites.refresh()["erp.orders"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("DERIVE", "erp.orders")
    sites.well(options=Options(accept_schema=True))
    found = head(sites.store, "erp.orders")
    assert found is not None
    assert found.layout.derivation is None
    sites.tables = TABLES | {"erp": {"orders": "id INTEGER PRIMARY KEY, amount INT"}}
    sites.sql("erp", "UPDATE orders SET amount = 9 WHERE id = 1")
    sites.well()
    sites.check()


@pytest.mark.parametrize("with_views", [False, True])
def test_a_compared_column_gets_another_type(sites: Sites, with_views: bool) -> None:
    """Its literals are none of the new type: the change is named, and can be accepted."""
    sites.views["open"] = "SELECT o.id, o.note FROM erp.orders o WHERE o.note = 'n1'"
    sites.well()
    sites.sql("erp", "ALTER TABLE orders DROP COLUMN note")
    sites.sql("erp", "ALTER TABLE orders ADD COLUMN note INT")
    sites.sql("erp", "UPDATE orders SET note = id")
    if with_views:  # a description is asked for anyway
        sites.views["large"] = "SELECT x.id, x.amount FROM erp.orders x WHERE x.amount > 40"
    error = sites.refresh()["erp.orders"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("RECIPE", "erp.orders")
    assert "column note was text and is int8" in error["message"]
    assert "driftline refresh erp.orders --accept-schema" in error["remedy"]
    sites.refresh(options=Options(accept_schema=True))
    where = rows_where(sites, "erp.orders")
    assert where is None, "a text against a number stays here, so all rows are needed"


def test_a_column_that_no_relation_has(sites: Sites) -> None:
    sites.views["wrong"] = "SELECT o.id, o.amonut FROM erp.orders o"
    error = sites.refresh()["wrong"].error
    assert error is not None
    assert error["code"] == "CONFIGURATION"
    assert "There is no column 'amonut'" in error["message"]
    assert error["where"].startswith("views.wrong.query, line 1, column 14")
    assert "amount" in error["remedy"]
    del sites.views["wrong"]  # which the oracle does not know either
    sites.check()


def test_whole_and_derived(sites: Sites) -> None:
    """A configured fragment is whole, whatever views need; its neighbour is derived."""
    sites.fragment_lines["orders"] = 'source = "erp"'
    sites.views["open"] = OPEN.replace("erp.orders", "orders")
    reports = sites.well()
    assert columns(sites, "orders") == ("id", "customer", "amount", "state", "note", "memo")
    assert rows_where(sites, "orders") is None
    assert (reports["orders"].derived, reports["orders"].rows_total) == (None, 60)
    assert columns(sites, "crm.customer") == ("code", "id", "name")
    sites.check()
    sites.sql("erp", "UPDATE orders SET memo = 'x' WHERE id = 3")
    assert versions(sites) == {"orders": 1, "crm.customer": 0, "open": 0}
    sites.check()


def test_without_leave_relations_are_whole(spark: SparkSession, tmp_path: Path) -> None:
    with Sites(spark, tmp_path, TABLES, {"open": OPEN}) as sites:
        fill(sites)
        reports = sites.well()
        assert len(columns(sites, "erp.orders")) == 6
        assert reports["erp.orders"].derived is None
        for name in ("erp.orders", "crm.customer"):
            found = head(sites.store, name)
            assert found is not None
            assert "derivation" not in found.record.body["layout"]
        sites.views["large"] = LARGE  # the wish is noted: nothing is to be done
        assert sites.well()["erp.orders"].version == 0
        sites.check()


def test_receipt_and_total(loaded: Sites, tmp_path: Path) -> None:
    sites = loaded
    toml = sites.toml()
    output = tmp_path / "orders.json"
    ended = command("receipt", "erp.orders", "--output", str(output), config=toml)
    assert ended.code == 0, ended.err
    body = json.loads(output.read_text())
    assert [name for name, _ in body["columns"]] == ["id", "customer", "amount", "state"]
    assert body["derivation"]["rows"]
    assert is_equal(sites.pairs["erp"], output)
    sites.sql("erp", "UPDATE orders SET memo = 'other'")
    assert is_equal(sites.pairs["erp"], output)
    sites.sql("erp", "UPDATE orders SET amount = 77 WHERE id = 7")
    assert not is_equal(sites.pairs["erp"], output)


def is_equal(pair: Pair, receipt: Path) -> bool:
    """The DBA's side of a receipt."""
    config = load(pair.source_toml())
    database = config.database
    engine = connect(database.url, database.password, database.limits)
    return total(config, engine, read_receipt(receipt)).equal


TYPED = {
    "one": {"r": "k INTEGER PRIMARY KEY, a INT, unused INT"},
    "two": {
        "s": "k VARCHAR(20) NOT NULL PRIMARY KEY, n NUMERIC(8,2), d DATE, m TIMESTAMP,"
        " t VARCHAR(20), unused INT"
    },
    "three": {
        "u": "k INT NOT NULL, l INT NOT NULL, n DECIMAL(8,2), d DATE, unused INT,"
        " PRIMARY KEY (k, l)"
    },
}
TYPED_VIEWS = {
    "money": "SELECT s.k, s.d, u.n FROM two.s JOIN three.u ON u.d = s.d"
    " WHERE s.n <= 1.5 AND u.n > -2.25 AND s.t <> 'x' AND NOT (s.k IN ('key 1', 'key 2'))",
    "times": "SELECT s.k, s.m FROM two.s"
    " WHERE (s.m >= TIMESTAMP '2020-01-02 00:00:00' OR s.d IS NULL) AND s.n IS NOT NULL",
    "days": "SELECT u.k, u.l, r.a FROM three.u, one.r WHERE u.k = r.k AND r.a IN (1, 2)"
    " AND u.d BETWEEN DATE '2020-01-01' AND DATE '2020-01-03'",
}


def typed_row(rng: random.Random, source: str, key: int) -> tuple[object, ...]:
    n = rng.choice([None, Decimal("-2.25"), Decimal("0.00"), Decimal("1.50"), Decimal("1.51")])
    d = rng.choice([None, *(date(2020, 1, i) for i in range(1, 6))])
    m = rng.choice([None, *(datetime.fromisoformat(f"2020-01-0{i}T00:00:00") for i in (1, 2, 3))])
    unused = rng.randint(0, 9)
    return {
        "one": (key, rng.choice([None, 0, 1, 2]), unused),
        "two": (f"key {key}", n, d, m, rng.choice([None, "x", "x ", "Ä"]), unused),
        "three": (key % 7, key, n, d, unused),
    }[source]


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.slow
def test_three_engines(spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    rng, legacies = random.Random(3), {}
    for source, engine in {"one": "sqlite", "two": "postgresql", "three": "mariadb"}.items():
        (tmp_path / engine).mkdir()
        legacies[source] = LEGACIES[engine](request, tmp_path / engine)
    try:
        with Sites(spark, tmp_path / "s", TYPED, dict(TYPED_VIEWS), legacies, BOTH) as sites:
            rows = {
                source: {key: typed_row(rng, source, key) for key in range(40)} for source in TYPED
            }
            for source, found in rows.items():
                (name,) = TYPED[source]
                marks = ", ".join("?" * len(found[0]))
                legacies[source].many(f"INSERT INTO {name} VALUES ({marks})", found.values())
            sites.well()
            sites.check()
            for name in ("one.r", "two.s", "three.u"):
                assert "unused" not in columns(sites, name)
                assert rows_where(sites, name) is not None
            for _ in range(2):
                for source, known in rows.items():
                    (name,) = TYPED[source]
                    own = "l" if source == "three" else "k"
                    for key in rng.sample(range(50), 12):
                        old = f"key {key}" if source == "two" else key
                        legacies[source].execute(f"DELETE FROM {name} WHERE {own} = ?", old)
                        if rng.random() < 0.8:
                            known[key] = typed_row(rng, source, key)
                            marks = ", ".join("?" * len(known[key]))
                            legacies[source].execute(
                                f"INSERT INTO {name} VALUES ({marks})", *known[key]
                            )
                    legacies[source].execute(f"UPDATE {name} SET unused = {rng.randint(0, 9)}")
                sites.well()
                sites.check()
    finally:
        for legacy in legacies.values():
            legacy.close()
