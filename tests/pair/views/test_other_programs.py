"""Other programs maintain tables that views read, those of views, and the table of versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.harness.views import Sites
from tests.pair.views.two_sites import filled
from tests.warehouse_agent.cli.test_main import Run
from warehouse_agent import changes
from warehouse_agent.storage import formats
from warehouse_agent.visible_versions.warehouse_versions import TABLE

pytestmark = pytest.mark.spark

VIEWS = {
    "joined": "SELECT o.id, o.amount, c.name FROM erp.orders o"
    " JOIN crm.customer c ON c.id = o.customer",
    "large": "SELECT j.id, j.name FROM joined j WHERE j.amount > 50",
}
ALL = ("erp.orders", "crm.customer", *VIEWS)


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(spark, tmp_path_factory.mktemp("loaded"), VIEWS, batches=3)


def opened(sites: Sites, name: str) -> DeltaTable:
    return sites.delta(sites.store.folder(name))


def compact(table: DeltaTable) -> None:
    table.optimize.z_order([table.schema().fields[0].name])


def compact_and_vacuum(table: DeltaTable) -> None:
    compact(table)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def update(table: DeltaTable) -> None:
    table.update(updates={table.schema().fields[1].name: "NULL"})


@pytest.mark.parametrize("work", [compact, compact_and_vacuum], ids=lambda work: work.__name__)
def test_views_go_on_after_all_tables_were_compacted(
    sites: Sites, work: Callable[[DeltaTable], None], run: Run
) -> None:
    before = {name: formats.any_head(sites.store, name) for name in ALL}
    for name in ALL:
        work(opened(sites, name))
    if work is compact:
        sites.check()  # readers are given the versions of before, whose files are there
        toml = sites.toml('[spark]\n"spark.master" = "local[1]"')
        for words in (["status"], ["history", "joined"], ["verify", "--all"], ["gc", "--all"]):
            ended = run(*words, config=toml)
            assert ended.code == 0, (words, ended.err)
    sites.sql("erp", "UPDATE orders SET amount = 70 WHERE id < 9")
    sites.sql("erp", "DELETE FROM orders WHERE id = 20")
    reports = sites.well()
    sites.check()
    assert reports["joined"].rows_updated == (9 if work is compact else 0)
    orders = before["erp.orders"]
    assert orders is not None
    feed = changes(
        sites.pinned().spark,
        str(sites.root),
        "erp.orders",
        since=orders.version,
        storage=sites.storage,
    )
    assert feed.count() == 2 * 9 + 1, "maintenance changes nothing, and ends no feed"
    sites.sql("erp", "UPDATE orders SET amount = 71 WHERE id = 3")
    sites.well()
    sites.check()


def test_views_go_on_without_a_change_at_the_source(sites: Sites) -> None:
    for name in ALL:
        compact_and_vacuum(opened(sites, name))
    sites.well()
    sites.check()
    for name in ALL:
        head = formats.any_head(sites.store, name)
        assert head is not None
        assert head.other is None, name
    sites.well()
    sites.check()


def test_what_others_write_into_a_view_is_taken_back(sites: Sites) -> None:
    for view in VIEWS:
        update(opened(sites, view))
    sites.check()
    sites.sql("erp", "UPDATE orders SET amount = 70 WHERE id < 9")
    sites.well()
    sites.check()
    for view in VIEWS:
        rows = opened(sites, view).to_pyarrow_table()
        assert not any(rows.column(1).is_null().to_pylist()), "also for readers of Delta"


def test_the_table_of_versions_is_maintained(sites: Sites) -> None:
    newest = sites.newest()
    assert newest is not None
    for work in (
        lambda t: t.vacuum(0, dry_run=False, enforce_retention_duration=False),
        lambda t: t.create_checkpoint(),
        lambda t: t.optimize.compact(),
        lambda t: t.restore(newest.number),
        lambda t: t.cleanup_metadata(),
    ):
        work(sites.delta(sites.store.folder(TABLE)))
        sites.check()
    found = sites.newest()
    assert found is not None
    assert found.members == newest.members
    sites.sql("erp", "UPDATE orders SET amount = 70 WHERE id < 9")
    sites.well()
    sites.check()
