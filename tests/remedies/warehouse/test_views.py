"""Remedies of views, and of readers of versions: with what each says, they are computed and read.

Values that raise, and rows that are not those of the query, are made in the newest version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from driftline.errors import DriftlineError, UsageError, WarehouseUnavailable
from pyspark.sql import SparkSession

from source_agent.checks.total import read_receipt, total
from source_agent.config.file import load as source_config
from source_agent.engines.registry import connect
from tests.harness.views import Sites
from tests.remedies.site import rewrite
from tests.remedies.told import told
from warehouse_agent import at, changes, read
from warehouse_agent.cli.main import cli
from warehouse_agent.refresh.job import Options
from warehouse_agent.spark import session
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion, NewViewVersion
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.views.maintenance.recompute import recompute
from warehouse_agent.views.maintenance.view_job import ViewAt
from warehouse_agent.views.query import read_query

pytestmark = pytest.mark.spark

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, amount INT, note VARCHAR",
        "other": "id INTEGER PRIMARY KEY, mark INT",
        "items": "id INTEGER PRIMARY KEY, amount INT, note VARCHAR",
    },
}
VIEWS = {"large": "SELECT o.id, o.amount FROM orders o WHERE o.amount > 10"}
LAG = 'max_lag = "1h"\nchunk_rows = 20'
KEPT = "SELECT x.id, x.amount FROM erp.items x WHERE x.amount > 10"


def made(spark: SparkSession, folder: Path, template: Path | None = None) -> Sites:
    sites = Sites(spark, folder, TABLES, dict(VIEWS), derive=("columns", "rows"), template=template)
    sites.fragment_lines = {"orders": 'source = "erp"', "other": 'source = "erp"'}
    return sites


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    with made(spark, folder) as sites:
        rows = [(i, i, f"n{i}") for i in range(20)]
        for name in ("orders", "items"):
            sites.pairs["erp"].legacy.many(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        sites.pairs["erp"].legacy.many("INSERT INTO other VALUES (?, 0)", [(i,) for i in range(9)])
        sites.views["kept"] = KEPT
        sites.view_lines["large"] = LAG
        sites.well()
        sites.sql("erp", "UPDATE orders SET note = 'x' WHERE id = 3")
        sites.well()  # from then on the time between refreshes is known
    return folder


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path, template: Path) -> Iterator[Sites]:
    with made(spark, tmp_path, template) as found:
        yield found


def error_of(sites: Sites, name: str, **options: Any) -> dict[str, Any]:
    error = sites.refresh(**options)[name].error
    assert error is not None
    return error


# The remedy, what a view computes, and what it computes when the remedy was followed.
EXPRESSIONS = {
    "a": (
        (
            "Change the expression so that it fails on no row (such as try_divide, try_cast,"
            " nullif), or mend the rows at the source."
        ),
        "CAST(o.note AS INT)",
        "try_cast(o.note AS INT)",
    ),
    "b": (
        "Correct the query: Spark refuses it whatever the rows are.",
        "o.amount + INTERVAL 1 DAY",
        "o.amount + 1",
    ),
    "c": ("Convert it: CAST(… AS …), such as STRING.", "NULL", "CAST(NULL AS STRING)"),
}


def test_expressions_of_views(sites: Sites) -> None:
    query = "SELECT o.id, {} AS x FROM orders o"
    sites.views |= {name: query.format(bad) for name, (_, bad, _) in EXPRESSIONS.items()}
    reports = sites.refresh()
    for name, (remedy, _, _) in EXPRESSIONS.items():
        error = reports[name].error
        assert error is not None, name
        told(error["remedy"], remedy)
    sites.views |= {name: query.format(good) for name, (_, _, good) in EXPRESSIONS.items()}
    assert set(EXPRESSIONS) <= sites.well().keys()


def test_what_readers_wait_for(sites: Sites, spark: SparkSession) -> None:
    """The view may lag behind, so its fragment is committed before the next flip."""
    sites.view_lines["large"] = LAG
    given = [Path(uri) for uri in DeltaTable(str(sites.warehouse / "orders")).file_uris()]
    sites.sql("erp", "UPDATE orders SET amount = 30 WHERE id = 3")
    newest = sites.well()["orders"].version
    assert newest is not None
    with pytest.raises(DriftlineError) as caught:
        changes(spark, sites.warehouse, "orders", since=newest)
    told(caught.value, "Ask again after the next flip.")
    kept = {Path(uri) for uri in DeltaTable(str(sites.warehouse / "orders")).file_uris()}
    for path in set(given) - kept:
        path.rename(path.with_suffix(".away"))
    error = verified(sites, "orders")["error"]
    remedy = told(
        error["remedy"],
        "Readers are given this version, …. Refresh a view over … by its name: readers are then"
        " given the newest one.",
    )
    assert "a view over orders" in remedy
    sites.well("large")
    assert changes(spark, sites.warehouse, "orders", since=newest).count() == 0
    assert read(spark, sites.warehouse, "orders").where("amount = 30").count() == 1
    assert verified(sites, "orders")["error"] is None


def driftline(sites: Sites, *words: object) -> Result:
    """Run a command with the warm session."""
    with mock.patch.object(session, "start", return_value=sites.spark):
        return CliRunner().invoke(cli, ["--config", str(sites.toml()), *map(str, words)])


def verified(sites: Sites, name: str, *, repair: bool = False) -> dict[str, Any]:
    """Run `verify`; return its report, or what it raises."""
    options = ["--json", *(["--repair"] if repair else [])]
    printed = driftline(sites, "verify", name, *options).stdout.splitlines()
    report: dict[str, Any] = json.loads(next(t for t in reversed(printed) if t[0] == "{"))
    return report


def test_rows_that_are_not_those_of_the_query(sites: Sites) -> None:
    anew = (
        "Run `driftline verify … --repair`: it computes the view anew. Report it if nobody changed"
        " files."
    )
    rewrite(
        sites.warehouse / "large",
        lambda rows: rows.set_column(1, rows.field(1), pc.negate(rows["amount"])),
    )
    remedy = told(verified(sites, "large")["error"]["remedy"], anew)
    assert "verify large --repair" in remedy
    assert verified(sites, "large", repair=True)["error"] is None
    sites.check("large")


def test_a_receipt_of_a_view(sites: Sites) -> None:
    output = sites.folder / "receipt.json"
    refused = driftline(sites, "receipt", "large", "--output", output).exception
    assert isinstance(refused, UsageError)
    told(
        refused,
        "`driftline verify …` computes it again; ask for receipts of what it reads: ….",
    )
    assert verified(sites, "large")["error"] is None
    assert driftline(sites, "receipt", "orders", "--output", output).exit_code == 0
    assert read_receipt(output).digest.count == 20


def test_a_commit_before_that_of_a_view_that_fails(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = formats.commit

    def failing(store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        if name == "orders":
            raise WarehouseUnavailable("no answer", where=name)
        return commit(store, name, new)

    sites.sql("erp", "UPDATE orders SET amount = 50 WHERE id = 3")
    monkeypatch.setattr(formats, "commit", failing)
    told(
        error_of(sites, "large")["remedy"],
        "Run the refresh again: it goes on from what was committed.",
    )
    monkeypatch.undo()
    sites.well()
    sites.check("large")


def test_a_version_that_lacks_what_a_view_needs(sites: Sites, spark: SparkSession) -> None:
    sites.views = {"kept": KEPT}
    text = "SELECT x.id, x.amount FROM erp.items x"
    store = sites.store
    found = formats.head(store, "erp.items")
    assert found is not None
    given = [PinnedInput.published("erp.items", found)]
    with pytest.raises(DriftlineError) as caught:
        recompute(spark, store, ViewAt("more", read_query(text, where="v"), given, None))
    remedy = told(caught.value, "Refresh what it reads: driftline refresh …")
    sites.views["more"] = text
    sites.well(remedy.rpartition(" ")[2])
    assert sites.pinned().read("more").count() == 20


def test_columns_and_conditions_of_a_reader(sites: Sites, spark: SparkSession) -> None:
    sites.views = {"kept": KEPT}
    with pytest.raises(DriftlineError) as caught:
        read(spark, sites.warehouse, "kept", columns=["nothing"])
    names = told(caught.value, "It has: ….").removeprefix("It has: ").rstrip(".").split(", ")
    expected = read(spark, sites.warehouse, "kept").count()
    with pytest.raises(DriftlineError) as caught:
        read(spark, sites.warehouse, "kept", where=[(names[0], "!=", 0)])
    told(caught.value, "Use one of … and a value.")
    found = read(spark, sites.warehouse, "kept", columns=names[:1], where=[(names[0], ">=", 0)])
    assert (found.columns, found.count()) == (names[:1], expected)


def test_rows_of_a_receipt_that_cannot_be_chosen(sites: Sites) -> None:
    sites.views = {"kept": KEPT}
    pair = sites.pairs["erp"]
    output = sites.folder / "receipt.json"

    def compared() -> bool:
        output.unlink(missing_ok=True)
        assert driftline(sites, "receipt", "erp.items", "--output", output).exit_code == 0
        return of_source()

    def of_source() -> bool:
        database = source_config(pair.folder / "source.toml").database
        engine = connect(database.url, database.password, database.limits)
        return total(source_config(pair.folder / "source.toml"), engine, read_receipt(output)).equal

    assert compared()
    sites.sql("erp", "ALTER TABLE items DROP COLUMN amount")
    with pytest.raises(DriftlineError) as caught:
        of_source()
    told(
        caught.value,
        "Ask the DBA for `derive` of the relation, or run the view's command again with a query"
        " that the source still evaluates.",
    )
    sites.views = {"kept": "SELECT x.id, x.note FROM erp.items x WHERE x.note > 'n3'"}
    sites.well("kept", options=Options(accept_schema=True))
    assert compared()


def feed(spark: SparkSession, sites: Sites, since: int) -> int:
    return changes(spark, sites.warehouse, "other", since=since).count()


def test_a_feed_that_was_removed_and_a_table_that_began_anew(
    sites: Sites, spark: SparkSession
) -> None:
    for mark in (1, 2):
        sites.sql("erp", f"UPDATE other SET mark = {mark} WHERE id = 3")
        sites.well("other")
    for path in (sites.warehouse / "_driftline" / "changes" / "other").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(DriftlineError) as caught:
        feed(spark, sites, 0)
    told(caught.value, "Read the newest version once and the feed from there on.")
    assert read(spark, sites.warehouse, "other").where("mark = 2").count() == 1
    sites.sql("erp", "UPDATE other SET mark = 3 WHERE id = 3")
    sites.well("other")
    assert feed(spark, sites, 2) == 2
    (sites.warehouse / "other").rename(sites.warehouse / "away")
    sites.well("other", options=Options(accept_restored=True))
    with pytest.raises(DriftlineError) as caught:
        feed(spark, sites, 3)
    told(
        caught.value,
        "The table began anew: read its newest version once and the feed from there on.",
    )
    assert read(spark, sites.warehouse, "other").where("mark = 3").count() == 1
    sites.sql("erp", "UPDATE other SET mark = 4 WHERE id = 3")
    sites.well("other")
    assert feed(spark, sites, 0) == 2


def test_a_version_that_was_lost(sites: Sites, spark: SparkSession) -> None:
    for mark in (1, 2):
        sites.sql("erp", f"UPDATE other SET mark = {mark} WHERE id = 3")
        sites.well("other")
    (sites.warehouse / "other" / "_delta_log" / f"{2:020d}.json").unlink()
    time.sleep(1.1)  # times have whole seconds
    sites.sql("erp", "DELETE FROM other WHERE id > 2")
    options = Options(accept_restored=True)
    assert sites.refresh("other", options=options)["other"].error is not None  # it shrank
    with pytest.raises(DriftlineError) as caught:
        at(spark, sites.warehouse).read("other")
    remedy = told(
        caught.value, "Run `driftline refresh …`, and read the newest version of the warehouse."
    )
    assert "refresh other" in remedy
    sites.well("other", options=Options(allow_shrink=True))
    assert at(spark, sites.warehouse).read("other").count() == 3


def test_what_is_not_in_a_version_of_the_warehouse(sites: Sites, spark: SparkSession) -> None:
    old = at(spark, sites.warehouse)
    sites.fragment_lines["again"] = 'source = "erp"\nrelation = "other"'
    sites.well("again")
    with pytest.raises(DriftlineError) as caught:
        old.read("again")
    told(caught.value, "`names` has the tables of this version; `read` reads others one by one.")
    assert {"orders", "large"} <= set(old.names)
    assert read(spark, sites.warehouse, "again").count() == 9
    (sites.warehouse / "_driftline" / "warehouse").rename(sites.folder / "away")
    with pytest.raises(DriftlineError) as caught:
        at(spark, sites.warehouse, 0)
    told(caught.value, "Read the newest state: `at(spark, path)` without a version.")
    assert at(spark, sites.warehouse).read("orders").count() == 20
