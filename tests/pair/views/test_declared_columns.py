"""Views declare the columns of their query, and not the lineage that their files have."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.harness.older_tables import declare, declaring_bookkeeping
from tests.harness.views import Sites
from warehouse_agent.columns.layout import RESERVED
from warehouse_agent.columns.view_layout import LINEAGE
from warehouse_agent.storage import formats

pytestmark = pytest.mark.spark

TABLES = {
    "erp": {"orders": "id INTEGER PRIMARY KEY, customer INT, amount INT"},
    "crm": {"customer": "code VARCHAR PRIMARY KEY, id INT, name VARCHAR"},
}
VIEWS = {
    "joined": "SELECT o.amount, c.name, o.id FROM erp.orders o"
    " JOIN crm.customer c ON c.id = o.customer",
    "large": "SELECT j.id, j.name FROM joined j WHERE j.amount > 50",
}
FRAGMENTS = ("erp.orders", "crm.customer")
COLUMNS = {
    "erp.orders": ["id", "customer", "amount"],
    "crm.customer": ["code", "id", "name"],
    "joined": ["amount", "name", "id"],
    "large": ["id", "name"],
}


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a release left it that declared bookkeeping columns."""
    folder = tmp_path_factory.mktemp("loaded")
    with Sites(spark, folder, TABLES, VIEWS) as made, declaring_bookkeeping():
        for i in range(5):
            made.sql("crm", "INSERT INTO customer VALUES (?, ?, ?)", f"c{i}", i, f"name {i}")
        for i in range(80):
            made.sql("erp", "INSERT INTO orders VALUES (?, ?, ?)", i, i % 5, i)
        made.well()
    return folder


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path, template: Path) -> Iterator[Sites]:
    with Sites(spark, tmp_path, deepcopy(TABLES), dict(VIEWS), template=template) as made:
        yield made


def seen(sites: Sites, name: str) -> list[str]:
    return DeltaTable(sites.store.table(name)).to_pyarrow_table().column_names


def is_declared(sites: Sites, name: str) -> bool:
    assert [c for c in seen(sites, name) if not c.startswith(RESERVED)] == COLUMNS[name]
    return seen(sites, name) != COLUMNS[name]


def check_files(sites: Sites) -> None:
    """What the next refresh pairs rows by is in the files."""
    for view in VIEWS:
        for uri in DeltaTable(sites.store.table(view)).file_uris():
            names = pq.read_schema(uri.removeprefix("file://")).names
            assert names[: len(COLUMNS[view])] == COLUMNS[view]
            assert f"{LINEAGE}1" in names


def test_views_and_their_inputs_are_undeclared_as_they_are_published(sites: Sites) -> None:
    assert all(is_declared(sites, name) for name in COLUMNS)
    sites.well()
    sites.check()
    assert all(is_declared(sites, name) for name in COLUMNS), "views are made of these versions"
    sites.sql("erp", "UPDATE orders SET amount = 70 WHERE id < 9")
    sites.well()
    sites.check()
    assert {name: is_declared(sites, name) for name in COLUMNS} == {
        "erp.orders": False, "crm.customer": True, "joined": False, "large": False,
    }  # fmt: skip
    sites.sql("crm", "UPDATE customer SET name = 'other' WHERE id = 2")
    sites.well()
    sites.check()
    assert not any(is_declared(sites, name) for name in COLUMNS)
    check_files(sites)
    feed = sites.pinned()
    assert feed.read("joined").columns == COLUMNS["joined"]


def test_views_go_on_where_tables_declare_and_do_not_declare(sites: Sites) -> None:
    """In turn, as if releases took turns."""
    for number, name in enumerate(("joined", "erp.orders", "large")):
        sites.sql("erp", "UPDATE orders SET amount = amount + 40 WHERE id % 7 = ?", number % 7)
        if number % 3 == 0:
            sites.sql("crm", "UPDATE customer SET name = ? WHERE id = 1", f"name {number}")
        sites.well()
        sites.check()
        declare(sites.store, name)
        assert is_declared(sites, name)
        head = formats.any_head(sites.store, name)
        assert head is not None
        assert head.record.adopted == head.version - 1
    sites.sql("erp", "DELETE FROM orders WHERE id % 7 = 2")
    sites.sql("crm", "DELETE FROM customer WHERE id = 3")
    sites.well()
    sites.check()
    assert not any(is_declared(sites, name) for name in COLUMNS)
    check_files(sites)
