"""A refresh of views that is killed between the first commit and the flip.

Whatever is left, readers of the warehouse see the version before, whole; and the next refresh, in
which nothing changed at the sources, brings everything to what the sources have.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from driftline.failpoints import VARIABLE
from pyspark.sql import SparkSession

from tests import ROOT
from tests.faults.sweep import ON_SPARK, RUNS
from tests.faults.test_killed_steps import KILLED
from tests.harness.forks import WAREHOUSE, run
from tests.harness.lineage_oracle import LineageOracle
from tests.harness.pair import environment
from tests.harness.views import Sites
from tests.harness.warm_jvm import warm_jvm
from tests.warehouse_agent.cli.test_main import command
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.storage import formats

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = {
    "erp": {"orders": "id INTEGER PRIMARY KEY, customer INT, amount INT"},
    "crm": {"customer": "id INTEGER PRIMARY KEY, name VARCHAR"},
}
VIEWS = {
    "joined": "SELECT o.id, c.name, o.amount FROM erp.orders o JOIN crm.customer c "
    "ON c.id = o.customer",
    "over": "SELECT j.id, j.amount + 1 AS more FROM joined j WHERE j.amount > 5",
}
# By what it has learned, a refresh may show what one source changed before the other is done.
ONE_PHASE = "chunk_rows = 1000"
# Two fragments and two views are committed, then comes the flip. A point, at which time.
PLACES = [
    (WarehouseFailpoint.VIEW_COMPUTED, 2),
    (WarehouseFailpoint.COMMITTED, 1),
    (WarehouseFailpoint.COMMITTED, 2),
    (WarehouseFailpoint.VIEW_COMMITTED, 1),
    (WarehouseFailpoint.VIEW_COMMITTED, 2),
    (WarehouseFailpoint.FLIP_WRITTEN, 1),
    (WarehouseFailpoint.FLIPPED, 1),
]


def shares(places: Sequence[object], first: int) -> list[Any]:
    """Return every other place, from this one on, for each run; for the soak all."""
    whole = pytest.param(places, id="all", marks=pytest.mark.soak)
    return [pytest.param(places[first::2], id="every other one"), whole]


@pytest.fixture
def empty(spark: SparkSession, tmp_path: Path) -> Iterator[Sites]:
    """Sites whose warehouse does not exist yet."""
    with Sites(spark, tmp_path, TABLES, VIEWS) as made:
        fill(made)
        yield made


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    with Sites(spark, folder, TABLES, VIEWS) as made:
        fill(made)
        made.well()
    return folder


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path, template: Path) -> Iterator[Sites]:
    """Sites whose warehouse was loaded."""
    with Sites(spark, tmp_path, TABLES, VIEWS, template=template) as made:
        yield made


def fill(sites: Sites) -> None:
    for i in range(30):
        sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?)", i, i % 5, i)
    for i in range(5):
        sites.sql("crm", "INSERT INTO customer VALUES (?, ?)", i, f"name {i}")


@pytest.mark.parametrize("places", shares(PLACES, 1))
def test_killed_at(sites: Sites, places: Sequence[tuple[WarehouseFailpoint, int]]) -> None:
    """At one after the other: what a kill leaves must not hinder the refreshes after it."""
    sites.view_lines = dict.fromkeys(VIEWS, ONE_PHASE)
    for number, (point, nth) in enumerate(places):
        kill_at(sites, number, point, nth)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("point", sorted(ON_SPARK, key=str), ids=str)
def test_killed_again_and_again(sites: Sites, point: WarehouseFailpoint) -> None:
    """At the points that the sweep of kills leaves out, as often as at each of its own."""
    sites.view_lines = dict.fromkeys(VIEWS, ONE_PHASE)
    for number in range(RUNS):
        kill_at(sites, number, point, 1 + number % len(VIEWS))


def kill_at(sites: Sites, number: int, point: WarehouseFailpoint, nth: int) -> None:
    """Change the sources, refresh until a point is reached, check what is left, and refresh."""
    before = all_seen(sites)
    edit(sites, number)
    run_killed(sites, WAREHOUSE, **{VARIABLE: f"{point.value}:kill:{nth}"})
    if point is WarehouseFailpoint.FLIPPED:
        sites.check()
    else:
        assert all_seen(sites) == before, (point, nth)
    sites.well()
    sites.check()
    newest = sites.newest()
    assert newest is not None
    inputs = {"joined": newest.members["joined"].version}
    assert newest.members["over"].inputs == inputs, (point, nth)


# Of the maintenance of a view by affected keys, from its first data file on.
INCREMENTAL = [
    ("tasks.semi_join:select", "after", 1),
    ("views.maintenance.incremental:_joined", "after", 1),
    ("tasks.rewrites.view_rows:remove", "after", 1),
    ("tasks.rewrites.view_rows:write_feed", "after", 1),
    ("views.maintenance.slice_proof:check", "after", 2),
    ("storage.formats:commit", "after", 1),
    ("storage.formats:commit", "after", 3),
]


@pytest.mark.parametrize("places", shares(INCREMENTAL, 0))
def test_killed_in_an_incremental_phase(
    sites: Sites, places: Sequence[tuple[str, str, int]]
) -> None:
    """The next refresh goes on incrementally, from the feeds of what was committed or not."""
    sites.view_lines = dict.fromkeys(VIEWS, f'maintain = "incremental"\n{ONE_PHASE}')
    oracle = LineageOracle(sites)
    oracle.check()
    for number, place in enumerate(places):
        before = all_seen(sites)
        edit(sites, number)
        killed(sites, *place)
        assert all_seen(sites) == before, place
        sites.sql("erp", "INSERT INTO orders VALUES (?, 2, 70)", deleted(number))
        reports = sites.well()
        assert reports["over"].method == reports["joined"].method == "incremental", place
        oracle.check()


# Of a recomputation: the files of the first view are there, its feed, the files of the second; and
# of a first load: its files, what checks their lineage.
RECOMPUTED = [("write_rows", "after", 1), ("write_changes", "after", 1),
              ("write_rows", "after", 2)]  # fmt: skip
FIRST = [("write_rows", "after", 1), ("check_lineage", "after", 1)]


def test_killed_in_a_recomputation(sites: Sites) -> None:
    """Readers keep what they have; `gc` removes what was begun."""
    sites.view_lines = dict.fromkeys(VIEWS, 'maintain = "recompute"')
    for number, (function, when, call) in enumerate(RECOMPUTED):
        before = all_seen(sites)
        edit(sites, number)
        killed(sites, f"views.maintenance.recompute:{function}", when, call)
        assert all_seen(sites) == before, (function, when)
        sites.sql("erp", "DELETE FROM orders WHERE id = ?", 1 + 2 * number)
        reports = sites.well()
        assert reports["joined"].method == reports["over"].method == "recompute"
        sites.check()
        check_cleaned(sites)


def test_killed_in_a_first_load(empty: Sites) -> None:
    """Readers have nothing; the next load goes on; `gc` removes what was begun."""
    sites = empty
    sites.view_lines = dict.fromkeys(VIEWS, 'maintain = "recompute"')
    for function, when, call in FIRST:
        killed(sites, f"views.maintenance.recompute:{function}", when, call)
        assert sites.newest() is None, (function, when)
        sites.sql("erp", "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)")
    reports = sites.well()
    assert reports["joined"].method == reports["over"].method == "recompute"
    sites.check()
    check_cleaned(sites)


def check_cleaned(sites: Sites) -> None:
    """Let `gc` remove what no version needs; only the files of the newest are left."""
    assert command("gc", "--all", "--yes", "--keep-hours", "0", config=sites.toml()).code == 0
    for name in VIEWS:
        head = formats.view_head(sites.store, name)
        assert head is not None
        table = Path(sites.store.table(name))
        left = {str(file.relative_to(table)) for file in table.rglob("data-*/**/*.parquet")}
        assert left == {file.path for file in head.files}


AHEAD: list[tuple[str, int, list[str]]] = [
    ("storage.formats:commit", 1, []),  # of a fragment that is to run ahead
    ("components.view_phase:maintain", 1, ["joined"]),
    ("storage.formats:commit", 2, ["joined"]),  # the first view, after a fragment
    ("visible_versions.warehouse_versions:flip", 1, ["joined"]),
]


@pytest.mark.parametrize("places", shares(AHEAD, 0))
def test_killed_while_fragments_are_ahead(
    sites: Sites, places: Sequence[tuple[str, int, list[str]]]
) -> None:
    sites.view_lines = dict.fromkeys(VIEWS, f'max_lag = "1h"\n{ONE_PHASE}')
    for number, (function, call, names) in enumerate(places):
        for first in (0, 10):
            sites.sql("erp", "UPDATE orders SET amount = amount + 100 WHERE id > ?", first)
            reports = sites.well()
        assert reports["joined"].ahead is not None, (function, call)
        before = all_seen(sites)
        edit(sites, number)
        killed(sites, function, "after", call, *names)
        if "flip" in function:
            sites.check()
        else:
            assert all_seen(sites) == before, (function, call)
        sites.well("over")
        sites.check()


def test_killed_between_two_commits_of_one_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    """A later command that names another fragment shows neither half of the transaction."""
    tables = {
        "erp": {
            "a_from": "id INTEGER PRIMARY KEY, amount INT",
            "b_to": "id INTEGER PRIMARY KEY, amount INT",
        },
        "crm": {"customer": "id INTEGER PRIMARY KEY, name VARCHAR"},
    }
    query = (
        "SELECT f.id, f.amount + t.amount AS total, c.name FROM erp.a_from f "
        "JOIN erp.b_to t ON t.id = f.id JOIN crm.customer c ON c.id = f.id"
    )
    with Sites(spark, tmp_path, tables, {"balance": query}) as sites:
        for i in range(5):
            sites.sql("erp", "INSERT INTO a_from VALUES (?, 100)", i)
            sites.sql("erp", "INSERT INTO b_to VALUES (?, 0)", i)
            sites.sql("crm", "INSERT INTO customer VALUES (?, ?)", i, f"name {i}")
        sites.well()
        before = {name: sites.seen(name) for name in ("balance", "erp.a_from", "erp.b_to")}
        sites.sql("erp", "UPDATE a_from SET amount = amount - 30")
        sites.sql("erp", "UPDATE b_to SET amount = amount + 30")
        killed(sites, "storage.formats:commit", "after", 1)
        committed = [formats.head(sites.store, name) for name in ("erp.a_from", "erp.b_to")]
        assert [one and (one.version, one.record.beside) for one in committed] == [
            (1, {"erp.b_to": 1}),
            (0, {"erp.a_from": 0}),
        ]
        sites.sql("crm", "UPDATE customer SET name = 'other' WHERE id = 2")
        assert sites.refresh("crm.customer")["crm.customer"].error is None
        assert (2, 100, "other") in sites.seen("balance")
        for name in ("erp.a_from", "erp.b_to"):
            assert sites.seen(name) == before[name]
        sites.well()
        sites.check()
        assert sites.seen("erp.a_from") == Counter({(i, 70): 1 for i in range(5)})


def killed(sites: Sites, function: str, when: str, call: int, *names: str) -> None:
    """Refresh in a process that is killed before or after a call of a function."""
    run_killed(sites, ["-c", KILLED.format(function=function, when=when, call=call)], *names)


def run_killed(sites: Sites, program: Sequence[str], *names: str, **more: str) -> None:
    """Refresh in a process that is killed; `more`: its environment."""
    toml = sites.toml('[spark]\n"spark.master" = "local[1]"')
    log = sites.folder / "log"
    with log.open("w") as out:
        done = run(
            [*program, "--config", str(toml), "refresh", *names],
            cwd=ROOT,
            env=environment(**warm_jvm(), **more),
            stdout=out,
            stderr=out,
        )
    assert done.returncode == -signal.SIGKILL, log.read_text()


def edit(sites: Sites, number: int) -> None:
    """Change and delete rows, others in each round, and a partner of some."""
    sites.sql("erp", "UPDATE orders SET amount = amount + 100 WHERE id % 4 = 0")
    sites.sql("erp", "DELETE FROM orders WHERE id = ?", deleted(number))
    sites.sql("crm", "UPDATE customer SET name = ? WHERE id = 2", f"other {number}")


def deleted(number: int) -> int:
    """The order that `edit` deletes in a round."""
    return 7 + 2 * number  # odd: not one that the round changes


def all_seen(sites: Sites) -> dict[str, Counter[tuple[object, ...]]]:
    return {name: sites.seen(name) for name in (*VIEWS, "erp.orders", "crm.customer")}
