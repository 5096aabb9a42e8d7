"""Fragments that run ahead of the flip, and view phases inside one command."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from driftline.errors import NotFound
from pyspark.sql import SparkSession

from tests.harness.no_spark import NoSpark
from tests.harness.views import Sites, rows_at
from tests.warehouse_agent.cli.test_main import Run, command
from warehouse_agent import changes, read
from warehouse_agent.history.refresh_history import append
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import MovedViews, Report
from warehouse_agent.storage import formats
from warehouse_agent.table_maintenance.garbage import unreferenced
from warehouse_agent.visible_versions import warehouse_versions

pytestmark = pytest.mark.spark

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, amount INT",
        "other": "id INTEGER PRIMARY KEY, mark INT",
    },
    "crm": {"customer": "id INTEGER PRIMARY KEY, name VARCHAR"},
}
VIEWS = {
    "joined": "SELECT o.id, o.amount, c.name FROM orders o JOIN crm.customer c ON c.id = o.customer"
}
LAG = 'max_lag = "1h"\nchunk_rows = 20'


@contextmanager
def made(spark: SparkSession, folder: Path, template: Path | None = None) -> Iterator[Sites]:
    with Sites(spark, folder, deepcopy(TABLES), dict(VIEWS), template=template) as found:
        found.fragment_lines = {"orders": 'source = "erp"'}
        if template is None:
            for i in range(40):
                found.sql("erp", "INSERT INTO orders VALUES (?, ?, 0)", i, i % 5)
            for i in range(5):
                found.sql("crm", "INSERT INTO customer VALUES (?, ?)", i, f"name {i}")
        yield found


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path) -> Iterator[Sites]:
    """Sites whose warehouse does not exist yet."""
    with made(spark, tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regular")
    with made(spark, folder) as found:
        make_regular(found)
    return folder


@pytest.fixture
def regular(spark: SparkSession, tmp_path: Path, template: Path) -> Iterator[Sites]:
    """Sites after `make_regular`."""
    with made(spark, tmp_path, template) as found:
        found.view_lines = {"joined": LAG}
        yield found


def make_regular(sites: Sites) -> None:
    """Load, and refresh once more: from then on the time between refreshes is known."""
    sites.view_lines = {"joined": LAG}
    sites.well()
    edit(sites, 0, 1)
    sites.well()


def edit(sites: Sites, first: int, count: int) -> None:
    sites.sql(
        "erp",
        "UPDATE orders SET amount = amount + 1 WHERE id >= ? AND id < ?",
        first,
        first + count,
    )


def without_spark(sites: Sites, *names: str) -> dict[str, Report]:
    """A refresh after which the views wait: it goes well, and needs no Spark."""
    spark, sites.spark = sites.spark, NoSpark()
    try:
        reports = sites.well(*names)
    finally:
        sites.spark = spark
    return reports


def check_version(sites: Sites, number: int) -> None:
    """The view of a version is what its fragments of the same version join to."""
    names = {row[0]: row[1] for row in sites.seen("crm.customer", number).elements()}
    orders = sites.seen("orders", number).elements()
    expected = Counter((o[0], o[2], names[o[1]]) for o in orders if o[1] in names)
    assert sites.seen("joined", number) == expected


def test_fragments_run_ahead_until_the_chunk_is_full(regular: Sites) -> None:
    sites = regular
    before = sites.seen("joined"), sites.seen("orders")
    edit(sites, 0, 5)
    reports = without_spark(sites)
    ahead = reports["orders"].ahead
    assert ahead is not None
    assert (ahead["rows"], ahead["chunk_rows"]) == (5, 20)
    assert ahead["since"] < ahead["due_by"]
    assert reports["joined"].ahead == ahead
    assert reports["crm.customer"].ahead is None
    assert (reports["orders"].version, reports["joined"].version) == (2, 1)
    assert {r.warehouse_version for r in reports.values()} == {1}
    assert (sites.seen("joined"), sites.seen("orders")) == before
    # Nothing changed: what waits goes on waiting.
    reports = without_spark(sites)
    assert reports["orders"].ahead is not None
    assert reports["orders"].version == 2
    edit(sites, 5, 10)
    assert without_spark(sites, "orders")["joined"].ahead is not None
    assert (sites.seen("joined"), sites.seen("orders")) == before
    edit(sites, 3, 5)
    sites.sql("crm", "UPDATE customer SET name = 'other' WHERE id = 2")
    reports = sites.well()
    assert {n: r.version for n, r in reports.items()} == {
        "orders": 4, "crm.customer": 1, "joined": 2,
    }  # fmt: skip
    assert {r.warehouse_version for r in reports.values()} == {2}
    assert {r.ahead is None for r in reports.values()} == {True}
    sites.check()
    found = reports["joined"].staleness
    assert found is not None
    assert found["rows"] == 5 + 10 + 5 + 1
    assert found["s1_s"] == 0
    assert found["vs_s"] == found["s2_s"] > 0
    assert found["age_s"] > 0
    (phase,) = reports["joined"].view_phases
    assert phase.rows == found["rows"]
    assert 0 < phase.seconds < found["s2_s"] + phase.seconds


def test_a_view_that_is_named_is_brought_up_to_date(regular: Sites) -> None:
    sites = regular
    edit(sites, 0, 5)
    assert without_spark(sites)["joined"].ahead is not None
    reports = sites.well("joined")
    assert reports["joined"].ahead is None
    assert reports["orders"].warehouse_version == 2
    sites.check()
    # A fragment that is refreshed alone takes along what is ahead of the others.
    edit(sites, 0, 1)
    assert without_spark(sites)["orders"].ahead is not None
    sites.view_lines = {}
    reports = sites.well("crm.customer")
    assert reports["joined"].version == 3
    newest = sites.newest()
    assert newest is not None
    assert newest.members["orders"].version == 3
    sites.check()


def test_a_short_lag_is_never_exceeded(sites: Sites) -> None:
    sites.view_lines = {"joined": 'max_lag = "1s"\nchunk_rows = 1000'}
    sites.well()
    for first in range(3):
        edit(sites, first, 1)
        reports = sites.well()
        assert reports["joined"].version == first + 1, "the next refresh would be too late"
        sites.check()


def test_the_learned_chunk(sites: Sites) -> None:
    """With `chunk_rows = "auto"` a phase waits for as many rows as the history makes optimal."""
    sites.view_lines = {"joined": 'max_lag = "1h"'}
    sites.well()
    now = datetime.now(UTC)
    for name, rows in (("orders", 8), ("crm.customer", 0), ("joined", 0)):
        for minutes in (60, 50, 40, 30, 20, 10):
            report = Report(name, version=0, previous_version=0, rows_updated=rows)
            at = (now - timedelta(minutes=minutes)).isoformat()
            report.checked_at, report.seconds = at, {"exchange": 1.0}
            if name == "joined":  # long phases, so that few are best
                report.view_phases = [MovedViews(8, 900.0, at)]
            append(sites.store, name, report.to_json())
    edit(sites, 0, 3)
    ahead = without_spark(sites)["orders"].ahead
    assert ahead is not None
    assert ahead["rows"] == 3
    learned = ahead["chunk_rows"]
    assert learned > 6, "more than are gathered, and half of what the next refresh brings"
    before = sites.seen("joined")
    edit(sites, 0, 40)
    reports = sites.well()
    assert reports["joined"].ahead is None, f"43 changed rows are more than {learned}"
    assert sites.seen("joined") != before
    sites.check()


def test_what_others_say_while_fragments_are_ahead(regular: Sites, run: Run) -> None:
    sites = regular
    toml = sites.toml('[spark]\n"spark.master" = "local[1]"')
    edit(sites, 0, 5)
    ended = run("refresh", config=toml)
    assert ended.code == 0, ended.err
    assert "5 changed rows of its component gathered for readers, until 20" in ended.out
    (told,) = command("status", "orders", "--json", config=toml).lines
    assert (told["version"], told["visible_version"], told["ahead"]["rows"]) == (2, 1, 5)
    assert told["visible_as_of"] <= told["as_of"]
    shown = command("status", "--verbose", config=toml).out
    assert "readers are given version 1 of orders until the next flip: 5 changed rows wait" in shown
    assert "joined was " in shown
    (planned,) = command("plan", "joined", "--json", config=toml).lines
    assert planned["ahead"]["rows"] == 5
    assert "5 changed rows already wait for it" in command("plan", "joined", config=toml).out
    assert "version 1:" in command("history", "orders", config=toml).out
    assert "which readers are given" in command("history", "orders", config=toml).out
    histories = command("history", "joined", "--json", config=toml).lines
    assert [line["staleness"] is None for line in histories] == [False, True]
    verified = run("verify", "orders", config=toml)
    assert verified.code == 0, verified.err
    assert "version 2, 40 rows verified; readers are given version 1" in verified.out
    spark = sites.pinned().spark
    assert (
        read(spark, str(sites.root), "orders", storage=sites.storage).where("amount > 1").count()
        == 0
    )
    assert (
        read(spark, str(sites.root), "orders", 2, storage=sites.storage).where("amount > 1").count()
        == 1
    )
    assert changes(spark, str(sites.root), "orders", since=0, storage=sites.storage).count() == 2
    assert changes(spark, str(sites.root), "orders", since=1, storage=sites.storage).count() == 0
    with pytest.raises(NotFound, match="Version 2 waits for the views over it"):
        changes(spark, str(sites.root), "orders", since=2, storage=sites.storage)
    # `driftline refresh` alone names no view; this does.
    assert run("refresh", "join*", config=toml).code == 0
    sites.check()


def test_gc_keeps_what_readers_are_given(regular: Sites) -> None:
    sites = regular
    for first in range(3):
        edit(sites, first, 2)
        assert without_spark(sites)["orders"].ahead is not None
    before = sites.seen("joined"), sites.seen("orders")
    later = datetime.now(UTC) + timedelta(days=400)
    for name in ("orders", "crm.customer", "joined"):
        found = unreferenced(sites.store, name, keep_hours=24, now=later, is_view=name == "joined")
        for place in found.places:
            sites.store.remove_file(*place)
    assert (sites.seen("joined"), sites.seen("orders")) == before
    spark = sites.pinned().spark
    feed = changes(spark, str(sites.root), "orders", since=1, upto=4, storage=sites.storage)
    assert feed.where("_op = 'update_after'").count() == 6, "the views still need it"
    sites.well("joined")
    sites.check()


def test_other_columns_do_not_wait(regular: Sites) -> None:
    sites = regular
    edit(sites, 0, 5)
    assert without_spark(sites)["joined"].ahead is not None
    sites.sql("erp", "ALTER TABLE orders ADD COLUMN more INT")
    sites.tables["erp"]["orders"] += ", more INT"
    reports = sites.refresh(options=Options(accept_schema=True))
    assert reports["orders"].schema_changed
    assert reports["joined"].error is None
    assert {r.ahead is None for r in reports.values()} == {True}
    sites.check()


def test_a_view_that_is_removed_while_its_fragments_are_ahead(sites: Sites) -> None:
    sites.views["small"] = "SELECT o.id FROM other o WHERE o.mark = 1"
    sites.fragment_lines["other"] = 'source = "erp"'
    make_regular(sites)
    edit(sites, 0, 5)
    assert without_spark(sites)["joined"].ahead is not None
    del sites.views["joined"], sites.view_lines["joined"]
    before = sites.newest()
    reports = sites.well("orders")
    newest = sites.newest()
    assert before is not None
    assert newest is not None
    assert reports["orders"].warehouse_version == newest.number == before.number + 1
    assert newest.members["orders"].version == 2
    assert "joined" not in newest.members
    spark = sites.pinned().spark
    assert read(spark, str(sites.root), "joined", storage=sites.storage).count() == 40, (
        "nobody removed it"
    )
    sites.views |= VIEWS
    sites.well()
    sites.check()


def test_a_view_that_fails_does_not_wait(sites: Sites) -> None:
    sites.views["inverse"] = "SELECT j.id, 100 div (j.amount - 7) AS x FROM joined j"
    sites.view_lines = {"joined": LAG, "inverse": LAG + '\non_failure = "stale"'}
    sites.well()
    edit(sites, 0, 1)
    sites.well()
    sites.sql("erp", "UPDATE orders SET amount = 7 WHERE id = 20")
    assert without_spark(sites)["inverse"].ahead is not None
    reports = sites.refresh("inverse")
    assert reports["inverse"].error is not None
    assert (reports["orders"].warehouse_version, reports["joined"].version) == (2, 2)
    edit(sites, 0, 1)
    reports = sites.refresh()
    assert reports["inverse"].error is not None, "it is tried again, although 20 rows may wait"
    assert reports["joined"].version == 3
    sites.view_lines["inverse"] = ""
    sites.sql("erp", "UPDATE orders SET amount = 8 WHERE id = 20")
    reports = sites.well()
    assert reports["joined"].ahead is None, "the least max_lag counts"
    sites.views["inverse"] = "SELECT j.id, 100 // (j.amount - 7) AS x FROM joined j"
    sites.check()


def with_lines(sites: Sites, lines: str) -> None:
    toml = sites.toml
    sites.toml = lambda more="": toml(lines)  # type: ignore[method-assign]


def both(sites: Sites) -> dict[str, Report]:
    edit(sites, 0, 5)
    sites.sql("crm", "UPDATE customer SET name = name || '!' WHERE id = 2")
    return sites.well()


def test_phases_inside_one_command(sites: Sites) -> None:
    """One source after the other, each with its flip; no version shows half of one."""
    sites.view_lines = {"joined": "chunk_rows = 1"}
    with_lines(sites, "sources_at_once = 1")
    sites.well()
    reports = both(sites)
    newest = sites.newest()
    assert newest is not None
    assert newest.number == 2, "two phases, two flips"
    assert sorted(reports[n].warehouse_version or 0 for n in ("orders", "crm.customer")) == [1, 2]
    assert reports["joined"].version == 2
    assert reports["joined"].previous_version == 0
    assert len(reports["joined"].view_phases) == 2
    last = max(("orders", "crm.customer"), key=lambda n: reports[n].warehouse_version or 0)
    (earlier,) = reports[last].view_phases
    found = reports["joined"].staleness
    assert found is not None
    rows = {"orders": 5, "crm.customer": 1}
    assert found["rows"] == 6
    assert found["s1_s"] == pytest.approx(earlier.seconds * rows[last] / 6, abs=0.01)
    for number in range(3):
        check_version(sites, number)
    sites.check()


@pytest.mark.parametrize(("phase_s", "flips"), [(0.01, 2), (500.0, 1)])
def test_the_learned_number_of_phases(sites: Sites, phase_s: float, flips: int) -> None:
    with_lines(sites, "sources_at_once = 1")
    sites.well()
    for name, rows in (("orders", 5), ("crm.customer", 1), ("joined", 0)):
        phases = [phase_s] if name == "joined" else []
        for minute in range(6):
            report = Report(name, version=0, previous_version=0, rows_updated=rows)
            report.checked_at = f"2026-01-01T00:{minute:02}:00Z"
            report.seconds = {"exchange": 100.0}
            at = report.checked_at
            report.view_phases = [MovedViews(6, s, at) for s in phases]
            append(sites.store, name, report.to_json())
    reports = both(sites)
    assert len(reports["joined"].view_phases) == flips
    newest = sites.newest()
    assert newest is not None
    assert newest.number == flips
    sites.check()


@pytest.mark.parametrize("require", ["exact", "fuzzy"])
def test_one_source_is_cut_only_where_it_is_fuzzy(sites: Sites, require: str) -> None:
    sites.views = {
        "pairs": "SELECT o.id, o.amount, t.mark FROM orders o JOIN other t ON t.id = o.id"
    }
    lines = f'source = "erp"\nrequire = "{require}"'
    sites.fragment_lines = {"orders": lines, "other": lines}
    sites.view_lines = {"pairs": "chunk_rows = 1"}
    with_lines(sites, "ahead = 1")
    for i in range(40):
        sites.sql("erp", "INSERT INTO other VALUES (?, 0)", i)
    sites.well()
    edit(sites, 0, 3)
    sites.sql("erp", "UPDATE other SET mark = 1")
    reports = sites.well()
    newest = sites.newest()
    assert newest is not None
    if require == "exact":
        assert newest.number == 1
    else:
        assert newest.number in (1, 2), "runs of one source overlap"
    assert len(reports["pairs"].view_phases) == newest.number
    sites.check()


def test_a_source_that_is_down_while_fragments_are_ahead(regular: Sites) -> None:
    sites = regular
    edit(sites, 0, 5)
    assert without_spark(sites)["joined"].ahead is not None
    pair = sites.pairs["crm"]
    port = int(pair.address.rsplit(":", 1)[1])
    pair.stop()
    edit(sites, 5, 20)
    reports = sites.refresh()
    error = reports["crm.customer"].error
    assert error is not None
    assert error["code"] == "UNREACHABLE"
    assert (reports["orders"].warehouse_version, reports["joined"].version) == (2, 2)
    pair.serve(port)
    sites.check()
    # The source of what changed fails: what waits, waits.
    edit(sites, 0, 1)
    assert without_spark(sites)["joined"].ahead is not None
    pair = sites.pairs["erp"]
    pair.stop()
    reports = sites.refresh()
    assert reports["orders"].error is not None
    assert reports["joined"].ahead is not None


def test_readers_beside_refreshes_that_run_ahead(sites: Sites) -> None:
    """Every row carries its round; a reader of one version must find one round everywhere."""
    query = "SELECT o.id, o.amount AS x, t.mark AS y FROM orders o JOIN other t ON t.id = o.id"
    sites.views = {"joined": query}
    sites.fragment_lines["other"] = 'source = "erp"'
    for i in range(40):
        sites.sql("erp", "INSERT INTO other VALUES (?, 0)", i)
    sites.view_lines = {"joined": 'max_lag = "1h"\nchunk_rows = 200'}
    sites.well()
    store, stop = sites.store, threading.Event()
    rounds: list[int] = []
    wrong: list[str] = []
    mixed_heads = 0

    def values(name: str, version: int | None) -> set[int]:
        look = formats.view_head if name == "joined" else formats.head
        snapshot = look(store, name, version=version)
        assert snapshot is not None
        columns = {"joined": ["x", "y"], "orders": ["amount"], "other": ["mark"]}[name]
        found = set()
        for file in snapshot.files:
            rows = rows_at(file.uri, columns)
            found |= {value for column in columns for value in rows[column].to_pylist()}
        return found

    def readers() -> None:
        nonlocal mixed_heads
        while not stop.is_set():
            newest = warehouse_versions.newest(store)
            assert newest is not None
            names = ("orders", "other", "joined")
            found = set().union(*(values(n, newest.members[n].version) for n in names))
            if len(found) != 1 or (rounds and min(found) < rounds[-1]):
                wrong.append(f"version {newest.number}: {found} after {rounds[-1:]}")
            rounds.extend(found)
            mixed_heads += len(set().union(*(values(n, None) for n in names))) > 1

    reader = threading.Thread(target=readers)
    reader.start()
    try:
        flips = 0
        for number in range(1, 9):
            sites.sql("erp", "UPDATE orders SET amount = ?", number)
            sites.sql("erp", "UPDATE other SET mark = ?", number)
            reports = sites.well()
            flips += reports["joined"].ahead is None
    finally:
        stop.set()
        reader.join()
    assert not wrong, wrong
    assert 0 < flips < 8
    assert mixed_heads > 0, "heads are ahead"
    sites.well("joined")
    sites.check()
