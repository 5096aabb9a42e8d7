"""Views maintained by affected keys, where it is easy to be wrong.

Each view has `maintain = "incremental"`. After each refresh its rows are those that DuckDB makes of
the sources' rows, its lineage that of a recomputation, and its feed leads from the version before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from driftline.errors import NotFound, SparkLost, ViewFailed
from pyspark.sql import SparkSession

from tests.harness.lineage_oracle import LineageOracle
from tests.harness.places import remove
from tests.harness.views import Sites
from tests.warehouse_agent.cli.test_main import command
from warehouse_agent import changes
from warehouse_agent.components.view_phase import ViewPhase
from warehouse_agent.history.view_notes import ViewNotes
from warehouse_agent.planning.view_cost import ViewMethod
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.storage.formats import view_head
from warehouse_agent.tasks.rewrites import replaced_rows
from warehouse_agent.views.evaluate import rows_in, stamp_of
from warehouse_agent.views.maintenance import incremental as incremental_road
from warehouse_agent.views.maintenance import slice_proof

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, amount INT, note VARCHAR",
        "line": "id INT NOT NULL, pos INT NOT NULL, part VARCHAR, PRIMARY KEY (id, pos)",
    },
    "crm": {"customer": "code VARCHAR PRIMARY KEY, id INT, name VARCHAR, region INT"},
}
VIEWS = {
    "chain": "SELECT o.id, c.name, l.part FROM erp.orders o"
    " JOIN crm.customer c ON c.id = o.customer JOIN erp.line l ON l.id = o.id WHERE o.amount > 10",
    "same": "SELECT a.name, b.name AS other, a.region FROM crm.customer a JOIN crm.customer b"
    " ON a.region = b.region AND a.code <= b.code",
    "cross": "SELECT o.id, c.name FROM erp.orders o CROSS JOIN crm.customer c"
    " WHERE o.amount < c.id",
    "cast": "SELECT o.id, l.pos, o.note FROM erp.orders o JOIN erp.line l ON o.note = l.id",
    "safe": "SELECT o.id, c.code FROM erp.orders o JOIN crm.customer c"
    " ON o.customer IS NOT DISTINCT FROM c.id",
    "cycle": "SELECT o.id, l.pos, c.code FROM erp.orders o, erp.line l, crm.customer c"
    " WHERE o.id = l.id AND o.customer = c.id AND c.region = l.pos",
    "none": "SELECT o.id, c.name FROM erp.orders o JOIN crm.customer c ON c.id = o.customer"
    " WHERE o.amount > 1000000",
    "over": "SELECT h.id, h.name, l.pos FROM chain h JOIN erp.line l ON l.part = h.part",
}

# Of as many relations as a view may have: a chain of five, a star and a cycle of six.
LARGE = {
    "five": "SELECT o.id, d.name, m.id AS other, m.pos FROM erp.orders o"
    " JOIN crm.customer c ON c.id = o.customer JOIN crm.customer d ON d.region = c.region"
    " JOIN erp.line l ON l.id = o.id JOIN erp.line m ON m.part = l.part AND m.pos <= l.pos",
    "star": "SELECT o.id, p.amount, c.name, d.code, l.part, m.pos FROM erp.orders o"
    " JOIN erp.orders p ON p.id = o.amount JOIN crm.customer c ON c.id = o.customer"
    " JOIN crm.customer d ON d.region = o.customer JOIN erp.line l ON l.id = o.id"
    " JOIN erp.line m ON m.id = o.id",
    "six": "SELECT o.id, p.id AS other, c.name, l.part FROM erp.orders o, crm.customer c,"
    " crm.customer d, erp.orders p, erp.line l, erp.line m WHERE o.customer = c.id"
    " AND c.region = d.region AND p.customer = d.id AND l.id = o.id AND m.id = p.id"
    " AND l.part = m.part AND o.id < p.id",
}


def fill(sites: Sites) -> None:
    for i in range(40):
        customer = None if i % 7 == 3 else i % 6
        note = str(i % 9)
        sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?, ?)", i, customer, i, note)
        for pos in range(i % 3):
            sites.sql("erp", "INSERT INTO line VALUES (?, ?, ?)", i, pos, f"p{(i + pos) % 7}")
    for i in range(9):
        id_ = None if i == 5 else i % 6
        sites.sql("crm", "INSERT INTO customer VALUES (?, ?, ?, ?)", f"c{i}", id_, f"n{i}", i % 3)


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path) -> Iterator[Sites]:
    """Sites whose warehouse does not exist yet."""
    with Sites(spark, tmp_path, TABLES, dict(VIEWS)) as made:
        fill(made)
        made.view_lines |= dict.fromkeys(made.views, 'maintain = "incremental"')
        yield made


class Only(Protocol):
    def __call__(self, *names: str) -> tuple[Sites, LineageOracle]: ...


@pytest.fixture(scope="module")
def templates() -> dict[tuple[str, ...], Path]:
    """Folders of sites that were loaded, by names of their views."""
    return {}


@pytest.fixture
def only(
    spark: SparkSession,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    templates: dict[tuple[str, ...], Path],
) -> Iterator[Only]:
    """Make sites with some of the views, which are loaded, and an oracle that has seen them."""
    with ExitStack() as stack:

        def make(*names: str) -> tuple[Sites, LineageOracle]:
            views = {name: VIEWS[name] for name in names}
            lines = dict.fromkeys(names, 'maintain = "incremental"')
            if names not in templates:
                folder = tmp_path_factory.mktemp("loaded")
                with Sites(spark, folder, TABLES, dict(views)) as loaded:
                    fill(loaded)
                    loaded.view_lines |= lines
                    loaded.well()
                templates[names] = folder
            sites = stack.enter_context(
                Sites(spark, tmp_path / "sites", TABLES, views, template=templates[names])
            )
            sites.view_lines |= lines
            oracle = LineageOracle(sites)
            oracle.check()
            return sites, oracle

        yield make


def incremental(reports: dict[str, Report], *names: str) -> None:
    for name in names:
        report = reports[name]
        assert report.method == ViewMethod.INCREMENTAL, report.method_why


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_random_edits_of_all(only: Only, rounds: int) -> None:
    """Chain, cycle, self-join, cross join, a cast, `<=>`, a view over a view, and no row at all."""
    (sites, oracle), rng = only(*VIEWS), random.Random(16)
    for _ in range(rounds):
        for key in rng.sample(range(45), 4):
            sites.sql("erp", "DELETE FROM orders WHERE id = ?", key)
            if rng.random() < 0.7:
                row = (
                    key,
                    rng.choice([None, 0, 1, 5, 9]),
                    rng.randrange(60),
                    str(rng.randrange(9)),
                )
                sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?, ?)", *row)
        if rng.random() < 0.6:
            key = rng.randrange(9)
            sites.sql("crm", "UPDATE customer SET id = ?, region = ? WHERE code = ?",
                      rng.choice([None, 1, 2, 7]), rng.choice([None, 0, 1]), f"c{key}")  # fmt: skip
        if rng.random() < 0.6:
            sites.sql("erp", "DELETE FROM line WHERE id = ? AND pos = 0", rng.randrange(40))
            sites.sql("erp", "INSERT INTO line VALUES (?, 9, 'p1')", 50 + rng.randrange(1000))
        reports = sites.well()
        incremental(reports, *(n for n in VIEWS if reports[n].method is not None))
        oracle.check()


def test_views_of_five_and_six_relations(sites: Sites) -> None:
    """Rows of each table change, which stands in every view more than once."""
    sites.views = dict(LARGE)
    sites.view_lines = dict.fromkeys(LARGE, 'maintain = "incremental"')
    oracle = LineageOracle(sites)
    sites.well()
    oracle.check()
    edits = [
        ("erp", "UPDATE orders SET customer = 1 WHERE id IN (2, 9, 14)"),
        ("crm", "UPDATE customer SET region = 0 WHERE code = 'c4'"),
        ("erp", "DELETE FROM line WHERE id = 8"),
        ("erp", "INSERT INTO line VALUES (9, 7, 'p1')"),
    ]
    for statements in (edits[:1], edits[1:2], edits[2:]):
        for source, statement in statements:
            sites.sql(source, statement)
        incremental(sites.well(), *LARGE)
        newest = sites.newest()
        assert newest is not None
        assert {newest.members[name].checked for name in LARGE} == {"slice"}
        oracle.check()
    for name in LARGE:
        head = view_head(sites.store, name)
        assert head is not None
        assert head.version > 0, "it changed"


def test_a_key_deleted_and_inserted_again_between(only: Only) -> None:
    """The view is left out while its inputs move twice: feeds of two versions are united."""
    sites, oracle = only("chain", "same")
    sites.sql("erp", "DELETE FROM orders WHERE id = 20")
    sites.sql("crm", "UPDATE customer SET region = 0 WHERE code = 'c1'")
    sites.refresh(without=["chain", "same"])
    sites.sql("erp", "INSERT INTO orders VALUES (20, 2, 77, 'again')")
    sites.sql("erp", "UPDATE orders SET amount = 0 WHERE id = 31")
    sites.sql("crm", "UPDATE customer SET region = 1 WHERE code = 'c1'")
    reports = sites.well()
    incremental(reports, "chain", "same")
    oracle.check()
    head = view_head(sites.store, "same")
    assert head is not None
    assert head.version == 0, "the region is what it was"
    # What it is right for now is noted: only later feeds are read.
    sites.sql("crm", "UPDATE customer SET name = 'n' WHERE code = 'c1'")
    incremental(sites.well(), "same")
    oracle.check()


def test_all_rows_deleted_and_back(only: Only) -> None:
    sites, oracle = only("chain", "over")
    rows = sites.pairs["crm"].legacy.rows("customer")
    sites.sql("crm", "DELETE FROM customer")
    reports = sites.well(options=Options(allow_shrink=True))
    incremental(reports, "chain", "over")
    assert reports["chain"].rows_total == reports["over"].rows_total == 0
    oracle.check()
    for row in rows:
        sites.sql("crm", "INSERT INTO customer VALUES (?, ?, ?, ?)", *row)
    incremental(sites.well(), "chain", "over")
    oracle.check()


def recomputed_without_feed(sites: Sites, oracle: LineageOracle) -> None:
    report = sites.well()["chain"]
    assert report.method == ViewMethod.RECOMPUTE
    assert report.method_why == "the change feed of version 1 of erp.orders was removed"
    oracle.check()


def test_a_feed_that_is_gone(only: Only) -> None:
    sites, oracle = only("chain")
    sites.sql("erp", "UPDATE orders SET amount = 90 WHERE id = 3")
    sites.refresh(without=["chain"])
    remove(sites.root / "_driftline" / "changes" / "erp.orders")
    sites.sql("erp", "UPDATE orders SET amount = 91 WHERE id = 4")
    recomputed_without_feed(sites, oracle)
    sites.sql("erp", "UPDATE orders SET amount = 92 WHERE id = 4")
    incremental(sites.well(), "chain")
    oracle.check()


def test_a_feed_that_gc_removed(only: Only) -> None:
    """It keeps what any view is made of, so it is one that was configured no more for a while."""
    sites, oracle = only("chain", "none")
    chain = sites.views.pop("chain")
    for amount in (90, 91):
        sites.sql("erp", "UPDATE orders SET amount = ? WHERE id = 3", amount)
        sites.well()
    toml = sites.toml()
    assert command("gc", "--all", "--yes", "--keep-hours", "0", config=toml).code == 0
    with pytest.raises(NotFound, match=r"Version 1 has lost .* of its change feed"):
        changes(sites.pinned().spark, str(sites.root), "erp.orders", since=0, storage=sites.storage)
    sites.views["chain"] = chain
    sites.sql("erp", "UPDATE orders SET amount = 92 WHERE id = 4")
    recomputed_without_feed(sites, oracle)
    sites.sql("erp", "UPDATE orders SET amount = 93 WHERE id = 4")
    assert command("gc", "--all", "--yes", "--keep-hours", "0", config=toml).code == 0
    incremental(sites.well(), "chain")
    oracle.check()


def test_an_input_that_began_anew(only: Only) -> None:
    """The table was moved away: the same version number is another version."""
    sites, oracle = only("chain")
    kept = sites.root / "_driftline" / "kept" / "erp.orders"
    remove(kept)
    sites.sql("erp", "UPDATE orders SET amount = 99 WHERE id = 3")
    report = sites.well()["chain"]
    assert report.method == ViewMethod.RECOMPUTE
    assert "erp.orders" in str(report.method_why)
    oracle.check()


def test_a_proof_that_fails(only: Only, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are lost on the way: nothing of the view moves, and the next refresh recomputes it."""
    sites, oracle = only("chain", "over")
    files = [file.place for file in sites.store.walk("chain")]
    sites.sql("erp", "UPDATE orders SET amount = 90 WHERE id IN (11, 14, 17, 20, 23, 26, 29)")
    with monkeypatch.context() as patched:
        patched.setattr(slice_proof, "SLICES", 1)  # every anchor
        patched.setattr(incremental_road, "_joined", lambda *_: [])
        reports = sites.refresh()
    error = reports["chain"].error
    assert error is not None
    assert error["code"] == "PROOF"
    assert "This is a bug of Driftline" in error["message"]
    assert int(error["details"]["missing"]) > 0
    assert reports["over"].not_started is not None
    assert sites.pinned().stale("chain") is not None
    head = view_head(sites.store, "chain")
    assert head is not None
    assert (head.version, [file.place for file in sites.store.walk("chain")]) == (0, files)
    commit, at_commit = ViewPhase.commit, list[str | None]()

    def noticed(self: ViewPhase, *given: Any) -> None:
        at_commit.append(ViewNotes.read(sites.store, "chain").distrusted)
        commit(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(ViewPhase, "commit", noticed)
        report = sites.well()["chain"]
    assert at_commit == [stamp_of(head)], "its base is distrusted until it is found right"
    assert report.method == ViewMethod.RECOMPUTE
    assert report.method_why == "its last incremental maintenance failed"
    oracle.check()
    sites.sql("crm", "UPDATE customer SET name = 'renamed'")
    incremental(sites.well(), "chain", "over")
    oracle.check()


def test_a_row_that_is_missed_where_nothing_differs(
    only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No version is made, and the slices move on all the same."""
    sites, oracle = only("chain")
    numbers: list[int] = []
    real = slice_proof.check

    def check(*given: Any) -> None:
        numbers.append(given[-1])
        real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(slice_proof, "check", check)
        for note in "xyz":
            sites.sql("erp", "UPDATE orders SET note = ? WHERE id = 0", note)
            sites.sql("crm", "UPDATE customer SET id = ? WHERE code = 'c5'", 90 + ord(note))
            report = sites.well()["chain"]
            assert (report.version, report.method) == (0, ViewMethod.INCREMENTAL)
    assert numbers == [1, 2, 3]
    sites.sql("erp", "INSERT INTO line VALUES (20, 77, 'missed')")
    with monkeypatch.context() as patched:
        patched.setattr(slice_proof, "SLICES", 1)
        patched.setattr(incremental_road, "_joined", lambda *_: [])
        error = sites.refresh()["chain"].error
    assert error is not None
    assert error["code"] == "PROOF"
    assert sites.well()["chain"].method == ViewMethod.RECOMPUTE
    oracle.check()


def test_a_bug_of_the_incremental_road(only: Only, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is not stuck: the next refresh recomputes it."""
    sites, oracle = only("chain")

    def raises(problem: Exception) -> Any:
        def run(*_: object) -> None:
            raise problem

        return run

    for amount, problem, is_ours in [
        (90, AssertionError("a bug"), True),
        (91, ViewFailed("an expression", where="chain"), False),
        (92, SparkLost("lost"), False),
    ]:
        sites.sql("erp", "UPDATE orders SET amount = ? WHERE id = 20", amount)
        with monkeypatch.context() as patched:
            patched.setattr(incremental_road, "_joined", raises(problem))
            given = sites.refresh()["chain"]
        print("GIVEN", given)
        assert given.error is not None
        report = sites.well()["chain"]
        assert (report.method == ViewMethod.RECOMPUTE) == is_ours, report.method_why
        oracle.check()


def test_the_anchors_are_of_the_largest_input(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a first table with few rows, most slices would have none."""
    sites.views = {"few": "SELECT c.name, o.id FROM crm.customer c JOIN erp.orders o"
                   " ON o.customer = c.id"}  # fmt: skip
    sites.view_lines = {"few": 'maintain = "incremental"'}
    sites.well()
    sites.sql("erp", "UPDATE orders SET customer = 0 WHERE id % 2 = 0")
    sliced = []

    def rows(*words: Any) -> Any:
        *_, inputs, slices = words
        sliced.append([inputs[number].name for number in slices])
        return rows_in(*words)

    monkeypatch.setattr(slice_proof, "rows_in", rows)
    incremental(sites.well(), "few")
    assert sliced == [["erp.orders"]]
    sites.check()


def test_small_files_are_merged(only: Only, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_rows, "SMALL_FILES_MAX", 3)
    sites, oracle = only("chain")
    for key in range(20, 25):
        sites.sql("erp", "INSERT INTO line VALUES (?, 50, 'new')", key)
        incremental(sites.well(), "chain")
        oracle.check()
        head = view_head(sites.store, "chain")
        assert head is not None
        assert len(head.files) <= 5


def test_every_step_on_spark(only: Only) -> None:
    """Steps run as Spark's tasks where their bytes are too many for this process."""
    sites, oracle = only("chain", "same", "cross")
    sites.small_bytes = 0
    sites.sql("erp", "UPDATE orders SET amount = 13 WHERE id IN (3, 20, 31)")
    sites.sql("crm", "UPDATE customer SET region = 2, id = 1 WHERE code IN ('c1', 'c4')")
    reports = sites.well()
    incremental(reports, "chain", "same", "cross")
    assert set(reports["chain"].places.values()) == {"spark"}
    oracle.check()


def test_affected_rows_that_do_not_fit(only: Only, monkeypatch: pytest.MonkeyPatch) -> None:
    """Affected rows before and after are paired by Spark, and the slice compared there."""
    monkeypatch.setattr(incremental_road, "PAIRED_BYTES_MAX", 1)
    monkeypatch.setattr(slice_proof, "COLLECTED_BYTES_MAX", 0)
    monkeypatch.setattr(slice_proof, "_differences", None)
    sites, oracle = only("chain", "over")
    sites.sql("erp", "UPDATE orders SET amount = 44 WHERE id IN (3, 20, 31)")
    sites.sql("erp", "DELETE FROM line WHERE id = 20")
    incremental(sites.well(), "chain", "over")
    oracle.check()


def test_auto_learns(only: Only) -> None:
    """What a view's phases took is noted, and the report says what was expected."""
    sites, oracle = only("chain")
    sites.view_lines = {}
    sites.sql("erp", "UPDATE orders SET amount = 44 WHERE id = 20")
    report = sites.well()["chain"]
    assert report.method == ViewMethod.RECOMPUTE, "small views are recomputed"
    assert "expected to take" in str(report.method_why)
    assert ViewNotes.read(sites.store, "chain").factors
    oracle.check()
