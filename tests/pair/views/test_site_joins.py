"""Rows of kept relations that are chosen by rows that they reference, at their site."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.relations.derivations import text_of
from driftline.wire import negotiation
from driftline.wire.negotiation import REFERRING
from pyspark.sql import SparkSession

from tests.harness.legacy import LEGACIES
from tests.harness.views import Sites, served
from tests.pair.views.test_derived import is_equal
from tests.warehouse_agent.cli.test_main import command
from warehouse_agent.inspection import view_prediction
from warehouse_agent.inspection.site_shares import decomposed
from warehouse_agent.planning.site_joins import COMPARISON_BYTES
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.formats import head

pytestmark = pytest.mark.spark

ALL = ("columns", "rows", "joins")
TABLES = {
    "customer": "id INTEGER NOT NULL PRIMARY KEY, t VARCHAR(20), n INT",
    "orders": "id INTEGER NOT NULL PRIMARY KEY, customer INT, t VARCHAR(20), n INT",
    "product": "code VARCHAR(20) NOT NULL, size INT NOT NULL, t VARCHAR(20), n INT,"
    " PRIMARY KEY (code, size)",
    "line": "id INTEGER NOT NULL PRIMARY KEY, ord INT, product VARCHAR(20), size INT,"
    " t VARCHAR(20), n INT",
}
KEYS = {
    "orders": ", FOREIGN KEY (customer) REFERENCES customer (id)",
    "line": ", FOREIGN KEY (ord) REFERENCES orders (id)"
    ", FOREIGN KEY (product, size) REFERENCES product (code, size)",
}
# Pairs of tables that join: the first with a foreign key, but for the last.
EDGES = [
    ("line", ("ord",), "orders", ("id",)),
    ("line", ("product", "size"), "product", ("code", "size")),
    ("orders", ("customer",), "customer", ("id",)),
    ("line", ("n",), "customer", ("n",)),
]
TEXTS = ("x", "y", "Ä", "", "x ")
LINES = (
    "SELECT l.id, l.n, o.t FROM shop.line l JOIN shop.orders o ON o.id = l.ord"
    " JOIN shop.customer c ON c.id = o.customer WHERE c.t = 'x' AND o.n < 3"
)
FROM_LINES = LINES.replace("o.n < 3", "l.n = 4 AND l.t IS NULL")


class Shop(Sites):
    """One site with foreign keys, and another one with a copy of its customers.

    The oracle's tables have no foreign keys: it reads rows that reference nothing.
    """

    def __init__(
        self,
        request: pytest.FixtureRequest,
        spark: SparkSession,
        folder: Path,
        views: dict[str, str],
        *,
        engine: str = "sqlite",
        derive: tuple[str, ...] = ALL,
    ) -> None:
        self.engine = engine
        folder.mkdir(exist_ok=True)
        (folder / "files").mkdir()
        self._legacies = {
            "shop": LEGACIES[engine](request, folder / "files"),
            "crm": LEGACIES["sqlite"](request, folder),
        }
        tables = {n: f"{ddl}{KEYS.get(n, '')}" for n, ddl in TABLES.items()}
        all_ = {"shop": tables, "crm": {"customer": TABLES["customer"]}}
        super().__init__(spark, folder / "sites", all_, views, self._legacies, derive)
        self.view_lines = dict.fromkeys(views, "site_joins = true")
        self.tables = {"shop": TABLES, "crm": {"customer": TABLES["customer"]}}

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for legacy in self._legacies.values():
            legacy.close()

    def where(self, name: str) -> str:
        found = head(self.store, name)
        assert found is not None
        chosen = found.layout.derivation
        return "" if chosen is None or chosen.rows is None else text_of(chosen.rows)


# Rows are chosen by rows that reference them if it is known how many those are.
ANALYZE = {
    "sqlite": "ANALYZE {}",
    "postgresql": "ANALYZE {}",
    "mariadb": "ANALYZE TABLE {}",
}
ANY_SIZE = Options(allow_shrink=True)  # an edit may leave none of the rows that are kept


def some_rows(rng: random.Random, rows: int) -> dict[str, list[tuple[object, ...]]]:
    """Rows of each table; a foreign key may be NULL, and any other references a row."""

    def text() -> str | None:
        return rng.choice([None, *TEXTS])

    def number() -> int | None:
        return rng.choice([None, *range(5)])

    values: dict[str, list[tuple[object, ...]]] = {
        "customer": [(i, text(), number()) for i in range(rows // 3)],
        "product": [(f"p{i}", j, text(), number()) for i in range(3) for j in range(2)],
    }
    keys = [None, *range(rows // 3)]
    values["orders"] = [(i, rng.choice(keys), text(), number()) for i in range(rows)]
    codes = [None, *(f"p{i}" for i in range(3))]
    values["line"] = [
        (i, rng.choice([None, *range(rows)]), rng.choice(codes), i % 2, text(), number())
        for i in range(2 * rows)
    ]
    return values


def fill(shop: Shop, rng: random.Random, rows: int) -> None:
    """Fill the tables of both sites."""
    values = some_rows(rng, rows)
    for source, names in {"shop": TABLES, "crm": {"customer": ""}}.items():
        for name in names:
            marks = ", ".join("?" * len(values[name][0]))
            sql = f"INSERT INTO {name} VALUES ({marks})"
            legacy = shop.pairs[source].legacy
            legacy.many(sql, values[name])
            legacy.execute(ANALYZE[shop.engine if source == "shop" else "sqlite"].format(name))


@pytest.fixture
def shop(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    with Shop(request, spark, tmp_path, {"lines": LINES}) as made:
        fill(made, random.Random(7), 30)
        made.well()
        yield made


def test_rows_that_join_with_nothing_stay_at_the_site(shop: Shop) -> None:
    customer = """("customer") IN (SELECT "id" FROM "customer" ("t" text) WHERE "t" = 'x')"""
    there = f"""SELECT "id" FROM "orders" ("n" int8) WHERE ("n" < '3') AND ({customer})"""
    assert shop.where("shop.line") == f'("ord") IN ({there})'
    shop.check()
    kept = head(shop.store, "shop.line")
    assert kept is not None
    assert kept.rows == sum(shop.expected("lines").values())
    # A customer that is none any more takes its orders' lines along, and no line changed.
    shop.sql("shop", "UPDATE customer SET t = CASE t WHEN 'x' THEN 'y' ELSE 'x' END")
    reports = shop.well()
    assert reports["shop.line"].rows_deleted
    assert reports["shop.line"].rows_inserted
    shop.check()
    shop.sql("shop", "UPDATE orders SET n = 0 WHERE id % 3 = 0")
    shop.well("shop.orders")  # brings those along whose rows it chooses
    shop.check()
    reports = shop.well()
    assert {report.version for report in reports.values() if report.rows_inserted} == set()


def test_rows_that_nothing_references_stay_at_the_site(shop: Shop) -> None:
    """An order is kept while a line needs it: it comes and goes with lines, without a change."""
    del shop.views["lines"]
    for maintain in ("incremental", "recompute"):
        shop.views[maintain] = FROM_LINES
        shop.view_lines[maintain] = f'site_joins = true\nmaintain = "{maintain}"'
    shop.sql("shop", "UPDATE line SET t = 'x' WHERE id > 9")
    shop.sql("shop", "UPDATE customer SET t = 'x'")
    shop.well(options=ANY_SIZE)
    line = """SELECT "ord" FROM "line" ("n" int8, "t" text) WHERE ("n" = '4') AND ("t" IS NULL)"""
    assert f'("id") IN ({line})' in shop.where("shop.orders")
    assert f'("id") IN (SELECT "customer" FROM "orders" () WHERE ("id") IN ({line}))' in shop.where(
        "shop.customer"
    )
    shop.check()
    shop.sql("shop", "UPDATE orders SET customer = 1 WHERE id = 1")
    shop.sql("shop", "DELETE FROM line WHERE ord = 1 OR ord IS NULL")
    shop.well(options=ANY_SIZE)
    for sql, change in (
        ("INSERT INTO line VALUES (900, 1, NULL, NULL, NULL, 4)", "inserted"),
        ("INSERT INTO line VALUES (901, 1, NULL, NULL, NULL, 4)", ""),
        ("UPDATE orders SET t = 'new' WHERE id = 1", "updated"),
        ("UPDATE line SET ord = NULL WHERE id = 900", ""),
        ("DELETE FROM line WHERE id = 901", "deleted"),
    ):
        shop.sql("shop", sql)
        report = shop.well("shop.line", options=ANY_SIZE)["shop.orders"]
        found = {
            name: getattr(report, f"rows_{name}") for name in ("inserted", "updated", "deleted")
        }
        assert found == {name: int(name == change) for name in found}, sql
        shop.check()


def test_an_older_source_is_asked_for_what_it_can(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are chosen by those that they reference alone, until both sides know more."""
    older = {name: what for name, what in negotiation.FEATURES.items() if name != REFERRING}
    with Shop(request, spark, tmp_path, {"lines": LINES}) as shop:
        fill(shop, random.Random(7), 30)
        with monkeypatch.context() as patch:
            patch.setattr("source_agent.server.service.FEATURES", older)
            shop.well()
        assert shop.where("shop.customer") == """"t" = 'x'"""
        shop.check()
        shop.well(options=Options(accept_schema=True))
        assert '"orders"' in shop.where("shop.customer")
        shop.check()


def test_the_view_decides(shop: Shop) -> None:
    del shop.view_lines["lines"]
    shop.well()
    assert shop.where("shop.line") == ""
    assert shop.where("shop.customer") == """"t" = 'x'""", "it is asked for by what it was, too"
    shop.check()
    config, rows = shop.config(), sum(shop.expected("lines").values())
    (site,) = decomposed(config, config.views["lines"], ask=False)
    planned = view_prediction.forecast(shop.store, config.views["lines"], config)
    prices = {price.fragment: price for price in planned.site_joins}
    price = prices["shop.line"]
    assert (price.fragment, price.rows, price.joined) == ("shop.line", 60, rows)
    assert (price.read, price.others) == (40, ("customer", "orders"))
    loaded = COMPARISON_BYTES + 60 * price.row_bytes
    assert price.load_bytes[0] == pytest.approx(loaded, abs=1)
    said = price.describe()
    assert f"would keep at most {rows} of the 60 rows of shop.line" in said
    assert "would also read about 40 rows of customer, orders" in said
    for table in site.tables:
        advised = (one := prices.get(table.name)) is not None and one.is_advised
        assert (one is not None and one.describe() in table.notes) == advised


def test_a_view_waits_while_its_rows_are_of_two_snapshots(shop: Shop) -> None:
    """One of the tables failed: what another one chose by it may lack rows that both had."""
    before, pair = shop.expected("lines"), shop.pairs["shop"]
    shop.sql("shop", "UPDATE customer SET t = 'x'")
    pair.publish("line", served("line", ("columns", "rows")))
    for _ in range(2):
        reports = shop.refresh()
        assert reports["shop.line"].error
        assert reports["shop.orders"].error is None
        stale = reports["lines"].stale
        assert stale is not None
        assert "rows of shop.line, of " in stale
        assert "were chosen by those of shop.customer" in stale
        assert shop.seen("lines") == before
    pair.publish("line", served("line", ALL))
    shop.well()
    assert shop.seen("lines") != before
    shop.check()


def test_withdrawn_it_is_refused_and_never_widened(shop: Shop) -> None:
    before, pair = shop.where("shop.line"), shop.pairs["shop"]
    for name, derive in (("line", ("columns", "rows")), ("customer", ("columns",))):
        pair.publish(name, served(name, derive))
        error = shop.refresh()["shop.line"].error
        assert error is not None
        assert (error["code"], error["where"]) == ("DERIVE", "shop.line")
        assert "driftline refresh shop.line --accept-schema" in error["remedy"]
        assert shop.where("shop.line") == before
        pair.publish(name, served(name, ALL))
    shop.well()
    pair.publish("line", served("line", ("columns", "rows")))
    shop.well(options=Options(accept_schema=True))
    assert shop.where("shop.line") == ""
    shop.check()


def test_a_column_of_the_other_relation_gets_another_type(shop: Shop) -> None:
    shop.sql("shop", "ALTER TABLE orders DROP COLUMN n")
    shop.sql("shop", "ALTER TABLE orders ADD COLUMN n VARCHAR(9) DEFAULT '1'")
    error = shop.refresh()["shop.line"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("DERIVE", "shop.line")
    assert "'n' of 'orders' is text, not 'int8'" in error["message"]
    shop.well(options=Options(accept_schema=True))
    assert '"n"' not in shop.where("shop.line"), "a text is not compared with a number there"


def test_a_receipt_of_joined_rows(shop: Shop) -> None:
    path = shop.folder / "receipt.json"
    ended = command("receipt", "shop.line", "--output", str(path), config=shop.toml())
    assert ended.code == 0, ended.err
    assert is_equal(shop.pairs["shop"], path)
    shop.sql("shop", "UPDATE customer SET t = 'gone' WHERE t = 'x'")
    assert not is_equal(shop.pairs["shop"], path)


def random_view(rng: random.Random) -> str:
    start = rng.choice(["line", "line", "orders"])
    tables = [("o0", start)]
    text = f"FROM shop.{start} o0"
    for i in range(1, rng.randint(2, 5)):
        alias, table = rng.choice(tables)
        options = [e for e in EDGES if e[0] == table] + [
            (d, dc, c, cc) for c, cc, d, dc in EDGES if d == table and rng.random() < 0.4
        ]
        if not options:
            continue
        _, own, other, columns = rng.choice(options)
        site = "crm" if other == "customer" and rng.random() < 0.15 else "shop"
        pairs = [[f"{alias}.{a}", f"o{i}.{b}"] for a, b in zip(own, columns, strict=True)]
        for sides in pairs:
            rng.shuffle(sides)
        rng.shuffle(pairs)
        text += f" JOIN {site}.{other} o{i} ON {' AND '.join(map(' = '.join, pairs))}"
        tables.append((f"o{i}", other))

    def predicate() -> str:
        alias = rng.choice(tables)[0]
        return rng.choice(
            [
                f"{alias}.n < {rng.randint(1, 4)}",
                f"{alias}.n IN (0, {rng.randint(1, 4)})",
                f"{alias}.n IS NULL",
                f"{alias}.t = '{rng.choice(TEXTS)}'",
                f"NOT ({alias}.t = '{rng.choice(TEXTS)}' OR {alias}.n = 2)",
                f"({alias}.t = 'x' OR {rng.choice(tables)[0]}.n > 2)",
                f"upper({alias}.t) = 'X'",
            ]
        )

    where = " AND ".join(predicate() for _ in range(rng.randint(1, 3)))
    outputs = [f"{alias}.n AS n{alias}, {alias}.t AS t{alias}" for alias, _ in tables]
    return f"SELECT {', '.join(outputs)} {text} WHERE {where}"


def edit(rng: random.Random, shop: Shop, rows: int) -> None:
    """Change values and foreign keys; delete lines, and orders that have none."""
    for _ in range(rng.randint(1, 8)):
        key, number = rng.randrange(2 * rows), rng.randrange(5)
        changes: list[tuple[str, *tuple[object, ...]]] = [
            ("UPDATE line SET ord = ? WHERE id = ?", rng.randrange(rows), key),
            ("UPDATE line SET product = ? WHERE id = ?", f"p{number % 3}", key),
            ("DELETE FROM line WHERE id = ?", key),
            ("UPDATE orders SET customer = NULL WHERE id = ?", key % rows),
            ("UPDATE orders SET n = ? WHERE id = ?", number, key % rows),
            ("UPDATE customer SET t = ? WHERE id = ?", rng.choice(TEXTS), key % 10),
            ("UPDATE product SET n = ? WHERE code = ?", number, f"p{key % 3}"),
        ]
        sql, *values = rng.choice(changes)
        shop.sql("shop", sql, *values)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize(
    "seed", [*range(9), *(pytest.param(s, marks=pytest.mark.soak) for s in range(9, 1000))]
)
def test_random_views(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Views with joins at their site, and then without, equal what DuckDB computes.

    There are few in each warehouse: what many need together is often every row.
    """
    rng = random.Random(seed)
    engine = ("sqlite", "postgresql", "mariadb")[seed % 3]
    views = {f"v{i}": random_view(rng) for i in range(rng.choice([1, 2, 3]))}
    with Shop(request, spark, tmp_path / "shop", views, engine=engine) as shop:
        fill(shop, rng, 30)
        shop.well(options=ANY_SIZE)
        shop.check()
        for _ in range(2):
            edit(rng, shop, 30)
            shop.well(options=ANY_SIZE)
            shop.check()
        shop.view_lines = {}
        edit(rng, shop, 30)
        shop.well(options=ANY_SIZE)
        shop.check()
