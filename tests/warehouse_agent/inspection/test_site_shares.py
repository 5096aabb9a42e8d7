"""The share of each site in a view: what is pushed there, what a DBA could allow, and a join."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.views import Sites
from warehouse_agent import config as configure
from warehouse_agent.inspection.site_shares import decomposed, relation_name
from warehouse_agent.spark.session import DeferredSession

pytestmark = pytest.mark.starts

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, state INT, note VARCHAR",
        "lines": "ord INT NOT NULL, line INT NOT NULL, item INT, note VARCHAR,"
        " PRIMARY KEY (ord, line)",
    },
    "crm": {"customer": "id INTEGER PRIMARY KEY, name VARCHAR, city VARCHAR"},
}
VIEW = (
    "SELECT o.id, l.line, l.item, l.note, c.name FROM erp.orders o, erp.lines l, crm.customer c"
    " WHERE l.ord = o.id AND c.id = o.customer AND o.state = 1 AND upper(c.name) = 'X'"
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("allowed", [(), ("columns",), ("rows",)])
def test_what_a_dba_who_allows_less_would_save(
    spark: SparkSession, tmp_path: Path, allowed: tuple[str, ...]
) -> None:
    """Nothing is said of a relation of which every column and row is needed, and the line keeps
    what is allowed."""
    with Sites(spark, tmp_path, TABLES, {"v": VIEW}, derive=allowed) as sites:
        view = sites.config().views["v"]
        erp, crm = decomposed(sites.config(), view, ask=False)
    orders, lines = erp.tables
    assert bool(orders.pushed) == ("rows" in allowed)
    wanted = 'SELECT "id", "customer", "state" FROM orders WHERE "state" = 1'
    said = (
        f'with derive = ["columns", "rows"] in source.toml it would read 3 of 4 columns: {wanted}'
    )
    assert said in orders.notes
    assert not any("it would read" in note for note in lines.notes)
    parts = json.dumps(["columns", *allowed])
    said = f"with derive = {parts} in source.toml it would read 2 of 3 columns: "
    is_said = any(note.startswith(said) for note in crm.tables[0].notes)
    assert is_said == ("columns" not in allowed)


def test_what_is_saved_is_what_all_views_leave(tmp_path: Path) -> None:
    """One view alone would leave fewer columns, and no row but those of one name."""
    views = {
        "few": "SELECT c.id FROM crm.customer c WHERE c.name = 'x'",
        "all": "SELECT c.city, c.name FROM crm.customer c",
    }
    tables = {"crm": {"customer": "id INTEGER PRIMARY KEY, name VARCHAR, city VARCHAR, x, y"}}
    with Sites(DeferredSession({}), tmp_path, tables, views) as sites:
        config = sites.config()
        (site,) = decomposed(config, config.views["few"], ask=True)
    (saving,) = [note for note in site.tables[0].notes if "it would read" in note]
    assert saving == (
        'with derive = ["columns"] in source.toml it would read 3 of 5 columns: '
        'SELECT "id", "name", "city" FROM customer'
    )


def test_joins_at_a_site(tmp_path: Path) -> None:
    """What is pushed of a join, and why another one is not."""
    keys = ", FOREIGN KEY (customer) REFERENCES customer (id)"
    tables = {
        "erp": {
            "customer": "id INTEGER PRIMARY KEY, name VARCHAR",
            "orders": f"id INTEGER PRIMARY KEY, customer INT, state INT, note VARCHAR{keys}",
            "notes": "id INTEGER PRIMARY KEY, text VARCHAR",
        }
    }
    view = (
        "SELECT o.id FROM erp.orders o, erp.customer c, erp.notes n"
        " WHERE o.customer = c.id AND c.name = 'x' AND n.id = o.state AND n.text = 'y'"
    )
    pushed = """("customer") IN (SELECT "id" FROM customer WHERE "name" COLLATE BINARY = 'x')"""
    unknown = "no foreign key that is told: declare FOREIGN KEY … REFERENCES"
    for derive in (("columns", "rows", "joins"), ("columns", "rows")):
        folder = tmp_path / str(len(derive))
        with Sites(DeferredSession({}), folder, tables, {"v": view}, derive=derive) as sites:
            sites.view_lines["v"] = "site_joins = true"
            config = sites.config()
            (site,) = decomposed(config, config.views["v"], ask=True)
        orders = site.tables[0]
        is_joined = "joins" in derive
        assert (pushed in orders.pushed) == is_joined
        assert (pushed in str(orders.query)) == is_joined
        joins = [note for note in orders.notes if note.startswith("rows are not chosen by")]
        said = [f"rows are not chosen by those of notes (state = notes.id), {unknown}"]
        if not is_joined:
            said.insert(
                0,
                "rows are not chosen by those of customer (customer = customer.id), not allowed:"
                ' derive = ["rows", "joins"] here, "rows" there without `scan`',
            )
        assert joins == said


@pytest.mark.parametrize(("orders", "why"), [(None, "ANALYZE"), (32, ""), (33, "16 times")])
def test_why_rows_that_reference_others_do_not_choose(
    tmp_path: Path, orders: int | None, why: str
) -> None:
    keys = ", FOREIGN KEY (customer) REFERENCES customer (id)"
    tables = {
        "erp": {
            "customer": "id INTEGER PRIMARY KEY, name VARCHAR",
            "orders": f"id INTEGER PRIMARY KEY, customer INT, state INT{keys}",
        }
    }
    view = "SELECT c.id FROM erp.orders o, erp.customer c WHERE o.customer = c.id AND o.state = 1"
    derive = ("columns", "rows", "joins")
    with Sites(DeferredSession({}), tmp_path, tables, {"v": view}, derive=derive) as sites:
        sites.view_lines["v"] = "site_joins = true"
        for table, rows in (("customer", 2), ("orders", orders or 1)):
            for number in range(rows):
                sites.sql("erp", f"INSERT INTO {table} (id) VALUES (?)", number)
            if orders is not None:
                sites.sql("erp", f"ANALYZE {table}")
        config = sites.config()
        (site,) = decomposed(config, config.views["v"], ask=True)
    customer = site.tables[1]
    assert any("IN (SELECT" in one for one in customer.pushed) == (not why)
    notes = [note for note in customer.notes if note.startswith("rows are not chosen by those of")]
    assert [why in note for note in notes] == ([True] if why else [])


def test_a_condition_that_other_views_weaken(tmp_path: Path) -> None:
    views = {
        name: f"SELECT c.id FROM crm.customer c WHERE c.{condition}"
        for name, condition in (("x", "name = 'x'"), ("y", "city = 'y'"))
    }
    tables, derive = {"crm": TABLES["crm"]}, ("columns", "rows")
    said = "less is left out than is pushed here: other tables of views need more rows"
    for some in (views, {"x": views["x"]}):
        folder = tmp_path / str(len(some))
        folder.mkdir()
        with Sites(DeferredSession({}), folder, tables, some, derive=derive) as sites:
            config = sites.config()
            (site,) = decomposed(config, config.views["x"], ask=True)
        assert site.tables[0].pushed == ("\"name\" COLLATE BINARY = 'x'",)
        assert (said in site.tables[0].notes) is (len(some) > 1)


def test_proposals_have_names_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "warehouse.toml"
    file.write_text(
        '[warehouse]\npath = "w"\n[sources.erp]\naddress = "127.0.0.1:1"\ninsecure = true\n'
        '[sources."a b"]\naddress = "127.0.0.1:2"\ninsecure = true\n'
        '[fragments.x]\nsource = "erp"\nrelation = "V_erp"\n'
        + "".join(f'[views."{name}"]\nquery = "SELECT k FROM x"\n' for name in ("v", "a-b", "a_b"))
    )
    config = configure.load(file)
    found = [relation_name(config, view, "erp") for view in config.views.values()]
    assert found == ["v_erp_2", "a_b_erp", "a_b_erp_2"]
    assert relation_name(config, config.views["v"], "a b") == "v_a_b"
