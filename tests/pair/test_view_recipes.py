"""A view that means something else under this Spark is refused, and stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.views import Sites
from warehouse_agent.columns.view_layout import ViewRecipe
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.formats import view_head
from warehouse_agent.views import evaluate

pytestmark = pytest.mark.spark

TABLES = {"erp": {"orders": "id INTEGER PRIMARY KEY, amount INT"}}
VIEWS = {"doubled": "SELECT o.id, o.amount * 2 AS amount FROM erp.orders o"}
LEGACY = "spark.sql.legacy.castComplexTypesToString.enabled"


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path) -> Iterator[Sites]:
    with Sites(spark, tmp_path, deepcopy(TABLES), dict(VIEWS)) as made:
        for i in range(9):
            made.sql("erp", "INSERT INTO orders VALUES (?, ?)", i, i)
        made.well()
        made.sql("erp", "UPDATE orders SET amount = 70 WHERE id = 7")
        yield made


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("spark", "Spark, which was {version} and is 9.9"),
        ("setting", f"the setting {LEGACY}, which was None and is true"),
    ],
)
def test_another_spark_or_legacy_setting(
    sites: Sites, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, what: str, says: str
) -> None:
    if what == "spark":
        monkeypatch.setattr(type(spark), "version", property(lambda _: "9.9.0"))
    else:
        known = evaluate._settings
        monkeypatch.setattr(evaluate, "_settings", lambda s: {**known(s), LEGACY: "true"})
    newest = sites.newest()
    assert newest is not None
    before = sorted(map(tuple, sites.pinned().read("doubled").collect()))
    reports = sites.refresh()
    error = reports["doubled"].error
    assert error is not None
    assert (error["code"], error["exit_code"]) == ("RECIPE", 6)
    assert says.format(version=_published(sites).spark) in error["message"]
    pinned = sites.pinned()
    assert pinned.stale("doubled") == error["message"]
    assert pinned.read("erp.orders").where("amount = 70").count() == 1, "the fragment moved"
    assert sorted(map(tuple, pinned.read("doubled").collect())) == before
    reports = sites.well(options=Options(accept_schema=True))
    assert reports["doubled"].version == 1
    sites.check()
    recipe = _published(sites)
    assert recipe.spark == "9.9" if what == "spark" else recipe.settings[LEGACY] == "true"


def test_a_column_that_may_be_null_at_the_source_now(spark: SparkSession, tmp_path: Path) -> None:
    """A recipe says that all columns may be NULL, so the view means the same and follows."""
    strict = {"erp": {"orders": "id INTEGER PRIMARY KEY, amount INT NOT NULL"}}
    views = {
        "known": "SELECT o.id, o.amount FROM erp.orders o WHERE o.amount IS NOT NULL",
        "unknown": "SELECT o.id, COALESCE(o.amount, -1) AS amount FROM erp.orders o"
        " WHERE o.amount IS NULL OR o.amount > 5",
    }
    with Sites(spark, tmp_path, strict, views) as made:
        for i in range(9):
            made.sql("erp", "INSERT INTO orders VALUES (?, ?)", i, i)
        made.well()
        made.sql("erp", "ALTER TABLE orders RENAME TO before")
        made.tables["erp"]["orders"] = "id INTEGER PRIMARY KEY, amount INT"
        made.sql("erp", f"CREATE TABLE orders ({made.tables['erp']['orders']})")
        made.sql("erp", "INSERT INTO orders SELECT * FROM before")
        made.sql("erp", "UPDATE orders SET amount = NULL WHERE id < 3")
        reports = made.well()
        assert not any(report.schema_changed for report in reports.values())
        made.check()
        assert made.pinned().read("unknown").where("amount = -1").count() == 3


def _published(sites: Sites) -> ViewRecipe:
    snapshot = view_head(sites.store, "doubled")
    assert snapshot is not None
    return snapshot.layout.recipe
