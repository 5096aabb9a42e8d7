"""Views declare the columns of their query, and not the lineage that their files have."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.older_tables import declare, declaring_bookkeeping
from tests.harness.views import Sites, rows_at
from tests.pair.views.two_sites import filled
from warehouse_agent.columns.layout import RESERVED
from warehouse_agent.columns.view_layout import LINEAGE
from warehouse_agent.storage import formats

pytestmark = pytest.mark.spark

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
    with declaring_bookkeeping():
        return filled(spark, tmp_path_factory.mktemp("loaded"), VIEWS, batches=3)


def seen(sites: Sites, name: str) -> list[str]:
    return sites.delta(sites.store.folder(name)).to_pyarrow_table().column_names


def is_declared(sites: Sites, name: str) -> bool:
    assert [c for c in seen(sites, name) if not c.startswith(RESERVED)] == COLUMNS[name]
    return seen(sites, name) != COLUMNS[name]


def check_files(sites: Sites) -> None:
    """What the next refresh pairs rows by is in the files."""
    for view in VIEWS:
        head = formats.view_head(sites.store, view)
        assert head is not None
        for uri in head.uris():
            names = rows_at(uri).column_names
            assert names[: len(COLUMNS[view])] == COLUMNS[view]
            assert f"{LINEAGE}1" in names


def data_files(sites: Sites) -> dict[str, bytes]:
    places = (sites.root / sites.store.folder(name) for name in COLUMNS)
    return {str(file): file.read_bytes() for place in places for file in place.rglob("*.parquet")}


def versions(sites: Sites) -> dict[str, int]:
    return {name: sites.delta(sites.store.folder(name)).version() for name in COLUMNS}


def test_what_nothing_changes_is_undeclared_by_one_entry_each(sites: Sites) -> None:
    """Fragments and views, in one flip, without a row and without computing a view."""
    assert all(is_declared(sites, name) for name in COLUMNS)
    files, before = data_files(sites), versions(sites)
    reports = sites.well()
    sites.check()
    assert not any(is_declared(sites, name) for name in COLUMNS)
    assert data_files(sites) == files
    assert versions(sites) == {name: version + 1 for name, version in before.items()}
    assert {name: reports[name].version for name in COLUMNS} == versions(sites)
    assert all(reports[view].attempts == 0 for view in VIEWS)
    for name in COLUMNS:
        head = formats.any_head(sites.store, name)
        assert head is not None
        assert head.record.adopted == before[name]
    flipped = sites.pinned()
    assert {name: flipped.read(name).columns for name in COLUMNS} == COLUMNS
    sites.well()
    assert versions(sites) == {name: version + 1 for name, version in before.items()}, "once"
    sites.view_lines["joined"] = 'maintain = "incremental"'
    sites.sql("erp", "UPDATE orders SET amount = 70 WHERE id < 9")
    report = sites.well()["joined"]
    sites.check()
    assert report.method == "incremental", report.method_why  # the feed leads over the entries
    check_files(sites)


def test_an_input_waits_for_views_that_stay(sites: Sites) -> None:
    """A version of it that they are not made of would have them computed later."""
    before = versions(sites)
    sites.well("erp.orders", without=["joined", "large"])
    assert versions(sites) == before
    assert all(is_declared(sites, name) for name in COLUMNS)
    sites.well()
    sites.check()
    assert not any(is_declared(sites, name) for name in COLUMNS)


def test_views_and_their_inputs_are_undeclared_as_they_are_published(sites: Sites) -> None:
    sites.sql("erp", "UPDATE orders SET amount = 70 WHERE id < 9")
    sites.well()
    sites.check()
    assert not any(is_declared(sites, name) for name in COLUMNS), "also those that are equal"
    sites.sql("crm", "UPDATE customer SET name = 'other' WHERE id = 2")
    sites.well()
    sites.check()
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
