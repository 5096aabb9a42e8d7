"""Views over several sites: they move with their fragments, or stay behind and say so."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from driftline.errors import NotFound, WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.no_locks import without_locks
from tests.harness.no_spark import NoSpark
from tests.harness.places import move, parquet, write_parquet
from tests.harness.views import Sites, rows_at
from tests.pair.since.rig import OLD, by_time, now
from tests.warehouse_agent.cli.test_main import REPORT, Run, command
from warehouse_agent import changes, read
from warehouse_agent.components import view_phase
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.storage import formats
from warehouse_agent.storage.formats import view_head
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion, NewViewVersion
from warehouse_agent.table_maintenance.garbage import unreferenced
from warehouse_agent.tasks.file_damage import absent
from warehouse_agent.views.maintenance.maintain import maintain
from warehouse_agent.views.maintenance.next_version import Computed
from warehouse_agent.views.selection import select
from warehouse_agent.visible_versions.warehouse_versions import WarehouseVersion

pytestmark = pytest.mark.spark

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, amount INT, note VARCHAR",
        "other": "id INTEGER PRIMARY KEY, mark INT",
    },
    "crm": {"customer": "code VARCHAR PRIMARY KEY, id INT, name VARCHAR"},
}
VIEWS = {
    "joined": "SELECT o.id, o.amount, c.name FROM orders o JOIN crm.customer c ON c.id = o.customer"
    " WHERE o.amount > 0",
    "inverse": "SELECT j.id, 100 / (j.amount - 7) AS x FROM joined j",
}


def fill(sites: Sites) -> None:
    for i in range(40):
        sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?, ?)", i, i % 6, 2 * i - 10, f"n{i}")
        sites.sql("erp", "INSERT INTO other VALUES (?, 0)", i)
    for i in range(8):
        sites.sql("crm", "INSERT INTO customer VALUES (?, ?, ?)", f"c{i}", i % 5, f"name {i}")


@contextlib.contextmanager
def made(spark: SparkSession, folder: Path, template: Path | None = None) -> Iterator[Sites]:
    with Sites(spark, folder, TABLES, dict(VIEWS), template=template) as found:
        found.fragment_lines = {"orders": 'source = "erp"', "other": 'source = "erp"'}
        found.views["inverse"] = VIEWS["inverse"].replace("100 /", "100 div")
        if template is None:
            fill(found)
        yield found


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    with made(spark, folder) as found:
        found.well()
    return folder


@pytest.fixture
def empty(spark: SparkSession, tmp_path: Path) -> Iterator[Sites]:
    """Sites whose warehouse does not exist yet."""
    with made(spark, tmp_path) as found:
        yield found


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path, template: Path) -> Iterator[Sites]:
    """Sites whose warehouse was loaded: warehouse version 0, each table's version 0."""
    with made(spark, tmp_path, template) as found:
        yield found


def test_views_move_with_their_fragments(empty: Sites) -> None:
    sites = empty
    reports = sites.well()
    assert {n: r.version for n, r in reports.items()} == {
        "orders": 0, "other": 0, "crm.customer": 0, "joined": 0, "inverse": 0,
    }  # fmt: skip
    sites.check()
    assert {r.warehouse_version for r in reports.values() if r.name != "other"} == {0}
    newest = sites.newest()
    assert newest is not None
    assert {n: m.kind.value for n, m in newest.members.items()} == {
        "orders": "fragment", "other": "fragment", "crm.customer": "kept", "joined": "view",
        "inverse": "view",
    }  # fmt: skip
    assert newest.members["joined"].inputs == {"orders": 0, "crm.customer": 0}
    assert {n: m.checked for n, m in newest.members.items() if m.checked} == {
        "joined": "total", "inverse": "total",
    }  # fmt: skip
    pinned = sites.pinned()
    as_of = [pinned.as_of(name) for name in ("orders", "crm.customer")]
    assert pinned.as_of("joined") == pinned.as_of("inverse") == min(as_of)
    # Nothing changed: no Spark, no flip, no version.
    spark, sites.spark = sites.spark, NoSpark()
    reports = sites.well()
    assert {r.version for r in reports.values()} == {0}
    after = sites.newest()
    assert after is not None
    assert after.number == newest.number
    sites.spark = spark
    # A reader that pinned the old version keeps it.
    old = sites.pinned()
    before = sorted(map(tuple, old.read("joined").collect()))
    sites.sql("erp", "UPDATE orders SET amount = amount + 2 WHERE id % 3 = 0")
    sites.sql("erp", "DELETE FROM orders WHERE id = 17")
    sites.sql("crm", "INSERT INTO customer VALUES ('new', 1, 'newcomer')")
    reports = sites.well()
    assert {n: r.version for n, r in reports.items()} == {
        "orders": 1, "other": 0, "crm.customer": 1, "joined": 1, "inverse": 1,
    }  # fmt: skip
    assert reports["joined"].inputs == {"orders": 1, "crm.customer": 1}
    sites.check()
    assert sorted(map(tuple, old.read("joined").collect())) == before
    assert (old.version, sites.pinned().version) == (0, 1)
    # A fragment without views is flipped in the same command.
    sites.sql("erp", "UPDATE other SET mark = 1")
    reports = sites.well("other")
    assert reports["other"].warehouse_version == 2
    assert sites.pinned().read("other").where("mark = 1").count() == 40


def test_one_fragment_brings_its_views(sites: Sites) -> None:
    sites.sql("erp", "UPDATE orders SET amount = 100 WHERE id = 3")
    sites.sql("crm", "UPDATE customer SET name = 'not yet'")
    reports = sites.well("orders")
    assert list(reports) == ["orders", "joined", "inverse"]
    pinned = sites.pinned()
    assert pinned.read("joined").where("amount = 100").count() > 0
    assert pinned.read("joined").where("name = 'not yet'").count() == 0
    sites.well("joined")
    sites.check()


def test_a_source_that_is_down(sites: Sites) -> None:
    sites.sql("erp", "UPDATE orders SET amount = 50 WHERE id = 9")
    sites.sql("crm", "DELETE FROM customer WHERE code = 'c0'")
    pair = sites.pairs["crm"]
    port = int(pair.address.rsplit(":", 1)[1])
    pair.stop()
    before = sites.pinned().as_of("crm.customer")
    reports = sites.refresh()
    error = reports["crm.customer"].error
    assert error is not None
    assert error["code"] == "UNREACHABLE"
    assert reports["orders"].version == reports["joined"].version == 1
    newest = sites.newest()
    assert newest is not None
    assert newest.members["joined"].inputs == {"orders": 1, "crm.customer": 0}
    assert newest.members["joined"].as_of == newest.members["crm.customer"].as_of == before
    assert sites.pinned().as_of("orders") > before
    pair.serve(port)
    sites.well()
    sites.check()


def test_an_expression_that_raises_on_a_row(sites: Sites) -> None:
    sites.sql("erp", "UPDATE orders SET amount = 7 WHERE id = 20")
    reports = sites.refresh()
    error = reports["inverse"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("VIEW_FAILED", "inverse")
    assert "DIVIDE_BY_ZERO" in error["details"]["condition"]
    assert "amount - 7" in error["details"]["in"], "the expression"
    assert (reports["joined"].version, reports["orders"].version) == (1, 1)
    pinned = sites.pinned()
    assert "zero" in str(pinned.stale("inverse")).lower()
    assert pinned.stale("joined") is None
    newest = sites.newest()
    assert newest is not None
    assert newest.members["inverse"].inputs == {"joined": 0}
    assert sites.refresh()["inverse"].error is not None, "it is tried again"
    sites.sql("erp", "UPDATE orders SET amount = 8 WHERE id = 20")
    sites.well()
    sites.check()


def test_a_stale_view_is_no_input(empty: Sites) -> None:
    """A view over it stays behind as well, also when a refresh moves another of its inputs."""
    sites = empty
    sites.views.clear()
    sites.views["w"] = "SELECT o.id, 100 div (o.amount - 7) AS x FROM orders o"
    sites.views["v"] = (
        "SELECT w.id, w.x, o.amount, c.name FROM w JOIN orders o ON o.id = w.id"
        " JOIN crm.customer c ON c.id = o.customer"
    )
    sites.well()
    sites.sql("erp", "UPDATE orders SET amount = 7 WHERE id = 20")
    assert sites.refresh("orders")["w"].error is not None
    sites.sql("crm", "UPDATE customer SET name = 'new' WHERE id = 2")
    reports = sites.refresh("crm.customer")
    assert reports["crm.customer"].version == 1
    assert reports["v"].not_started == "It stays as it is: its input w is stale."
    assert (reports["v"].version, sites.pinned().stale("v")) == (0, "its input w is stale")
    sites.sql("erp", "UPDATE orders SET amount = 8 WHERE id = 20")
    sites.well()
    sites.check()


def test_a_component_that_cannot_move_stops_no_other(sites: Sites) -> None:
    """The log of an input that is not refreshed is damaged, then that of the table of versions."""
    for number, damaged in enumerate(("_driftline/kept/crm.customer", "_driftline/warehouse"), 1):
        sites.sql("erp", "UPDATE orders SET amount = amount + 2 WHERE id = 9")
        sites.sql("erp", "UPDATE other SET mark = mark + 1")
        (*_, entry) = sorted((sites.root / damaged / "_delta_log").glob("*.json"))
        whole = entry.read_bytes()
        entry.write_bytes(b"{")
        reports = sites.refresh("orders", "other")
        for name in ("orders", "joined", "inverse"):
            error = reports[name].error
            assert error is not None, name
            assert error["code"] == "WAREHOUSE"
        if damaged.endswith("customer"):
            assert reports["other"].error is None
        assert reports["other"].version == number
        entry.write_bytes(whole)
        sites.well()
        sites.check()


def test_a_view_that_holds_its_component(sites: Sites) -> None:
    sites.view_lines["inverse"] = 'on_failure = "hold"'
    sites.sql("erp", "UPDATE orders SET amount = 7 WHERE id = 20")
    reports = sites.refresh()
    assert reports["inverse"].error is not None
    assert reports["orders"].held == "inverse failed, and its component waits for it"
    assert (reports["orders"].version, reports["orders"].warehouse_version) == (1, 0)
    assert sites.pinned().read("orders").where("amount = 7").count() == 0
    reports = sites.refresh("orders", without=["inverse"])
    assert reports["orders"].error is None
    pinned = sites.pinned()
    assert pinned.read("orders").where("amount = 7").count() == 1
    assert pinned.stale("inverse") == "left out with --without"
    sites.sql("erp", "UPDATE orders SET amount = 8 WHERE id = 20")
    sites.well()
    sites.check()


def test_another_query(sites: Sites) -> None:
    sites.views["joined"] = VIEWS["joined"].replace("o.amount > 0", "o.amount > 20")
    reports = sites.refresh()
    error = reports["joined"].error
    assert error is not None
    assert error["code"] == "RECIPE"
    assert "the query" in error["message"]
    assert "stale" in str(reports["inverse"].not_started)
    assert sites.pinned().stale("joined") is not None
    sites.well(options=Options(accept_schema=True))
    sites.check()


def test_inputs_that_were_never_loaded(empty: Sites) -> None:
    sites = empty
    reports = sites.refresh("orders")
    assert reports["orders"].version == 0
    assert reports["joined"].not_started == (
        "It stays as it is: its input crm.customer was never published."
    )
    assert sites.newest() is None
    sites.well()
    sites.check()


def test_two_commands_on_one_component(sites: Sites) -> None:
    """Each waits for the views of the other; together they are what one command would be."""
    config = sites.config()
    for turn in range(2):
        sites.sql("erp", "UPDATE orders SET amount = amount + 2 WHERE id % 3 = ?", turn)
        sites.sql("crm", "UPDATE customer SET name = ? WHERE id = ?", f"turn {turn}", turn)

        def refresh(name: str) -> list[Report]:
            runner = Runner(sites.spark, config, attempts=1)
            return runner.refresh(select(config, [name], False), Options())

        with ThreadPoolExecutor(2) as pool:
            reports = [r for one in pool.map(refresh, ("orders", "crm.customer")) for r in one]
        assert [r.error or r.stale for r in reports] == [None] * 6
        newest = sites.newest()
        assert newest is not None
        members = newest.members
        assert members["joined"].inputs == dict.fromkeys(("orders", "crm.customer"), 1 + turn)
        sites.check()


def test_two_commands_where_locks_exclude_nobody(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided on members that another command moved is not flipped."""
    sites.sql("erp", "UPDATE orders SET amount = amount + 2 WHERE id = 9")
    sites.sql("crm", "UPDATE customer SET name = 'other' WHERE id = 2")
    monkeypatch.setattr(Store, "lock", lambda *_: contextlib.nullcontext())
    versions = list[WarehouseVersion | None]()

    def overtaken(*arguments: Any, **options: Any) -> Computed:
        made = maintain(*arguments, **options)
        if not versions:
            versions.append(None)
            sites.well("crm.customer")
            versions.append(sites.newest())
        return made

    monkeypatch.setattr(view_phase, "maintain", overtaken)
    reports = sites.refresh("orders")
    assert {r.error["code"] for r in reports.values() if r.error} == {"LOCKED"}
    assert reports["orders"].version == 1, "it is committed, and ahead"
    newest = sites.newest()
    assert newest is not None
    assert newest == versions[1]
    assert newest.members["joined"].inputs == {"orders": 0, "crm.customer": 1}
    sites.well()
    sites.check()


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_commit_of_a_view_that_raises_although_it_was_made(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    """What the newest version names stays, also while nobody can read which version that is."""
    sites.sql("erp", "UPDATE orders SET amount = amount + 2 WHERE id > 20")
    commit = formats.commit

    def unreadable(*_: object, **__: object) -> None:
        raise WarehouseUnavailable("no answer")

    def failing(store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        number = commit(store, name, new)
        if name == "joined":
            if not is_readable:
                monkeypatch.setattr(formats, "view_head", unreadable)
            raise WarehouseUnavailable("no answer", where=name)
        return number

    monkeypatch.setattr(formats, "commit", failing)
    assert sites.refresh()["joined"].error is not None
    monkeypatch.undo()
    newest = view_head(sites.store, "joined")
    assert newest is not None
    assert newest.version == 1
    assert not absent(sites.store, "joined", newest.files)
    sites.well()
    sites.check()


def test_another_key(sites: Sites) -> None:
    """The lineage of a view are keys: with another key at the source all of it is computed anew."""
    sites.sql("crm", "ALTER TABLE customer RENAME TO old")
    sites.sql("crm", "CREATE TABLE customer (code VARCHAR, id INT, name VARCHAR PRIMARY KEY)")
    sites.sql("crm", "INSERT INTO customer SELECT code, id, name FROM old WHERE code <> 'c2'")
    sites.sql("erp", "DELETE FROM orders WHERE id = 22")
    reports = sites.refresh()
    error = reports["crm.customer"].error
    assert error is not None
    assert error["code"] == "RECIPE"
    assert reports["joined"].error is None, "it moves with the other fragment"
    sites.well(options=Options(accept_schema=True))
    sites.check()
    sites.sql("crm", "UPDATE customer SET id = 3 WHERE code = 'c1'")
    sites.well()
    sites.check()


def test_somebody_else_wrote_the_table_of_a_view(sites: Sites) -> None:
    """Rows are taken back; what the files alone do not say is an error until somebody mends it."""
    rows = sites.pinned().read("joined").count()
    table = sites.delta("joined")
    write_deltalake(table, table.to_pyarrow_table().slice(0, 3), mode="append")
    assert sites.pinned().read("joined").count() == rows
    sites.sql("erp", "UPDATE orders SET amount = 50 WHERE id = 20")
    sites.well()
    sites.check()
    table = sites.delta("joined")
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    sites.sql("erp", "UPDATE orders SET amount = 60 WHERE id = 20")
    reports = sites.refresh()
    error = reports["joined"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("WAREHOUSE", "joined")
    assert "deletionVectors" in error["message"]
    assert "Move the table's folder away" in error["remedy"]
    assert reports["orders"].version == 2
    pinned = sites.pinned()
    assert pinned.stale("joined") is not None
    assert pinned.read("joined").count() == rows
    assert sites.refresh()["joined"].error is not None, "until somebody mends it"
    move(sites.root / "joined", sites.root / "away")
    sites.well()
    sites.check()


@pytest.mark.parametrize(("proof", "more"), [("keys", ""), ("claimed", ', deletes = "never"')])
def test_a_view_says_the_weakest_proof_of_its_inputs(
    spark: SparkSession, tmp_path: Path, proof: str, more: str
) -> None:
    tables = {
        "erp": {"stock": "id INTEGER PRIMARY KEY, item INT, updated_at DATETIME NOT NULL"},
        "crm": {"item": "id INTEGER PRIMARY KEY, name VARCHAR"},
    }
    query = "SELECT s.id, i.name FROM stock s JOIN crm.item i ON i.id = s.item"
    with Sites(spark, tmp_path, tables, {"named": query}) as sites:
        sites.fragment_lines = {"stock": f'source = "erp"\nproof = "{proof}"\nmethod = "since"'}
        pair = sites.pairs["erp"]
        pair.publish("stock", f'table = "stock"\nmarker = {by_time(pair.legacy, more)}')
        for i in range(20):
            sites.sql("erp", "INSERT INTO stock VALUES (?, ?, ?)", i, i % 4, OLD)
            sites.sql("crm", "INSERT INTO item VALUES (?, ?)", i, f"item {i}")
        sites.well()
        newest = sites.newest()
        assert newest is not None
        assert {m.proof for m in newest.members.values()} == {"total"}
        expected = {"stock": proof, "crm.item": "total", "named": proof}
        reports = sites.well()
        unmoved = sites.newest()
        assert unmoved is not None
        assert reports["stock"].proof == proof
        # Nothing changed, so that readers keep an older instant, with the proof that it has.
        instants = {name: (m.as_of, m.proof) for name, m in newest.members.items()}
        assert {name: (m.as_of, m.proof) for name, m in unmoved.members.items()} == instants
        assert (reports["named"].as_of, reports["named"].proof) == instants["named"]
        sites.sql("erp", "UPDATE stock SET item = 9, updated_at = ? WHERE id = 3", now(pair.legacy))
        sites.well()
        sites.check()
        newest = sites.newest()
        assert newest is not None
        assert {name: member.proof for name, member in newest.members.items()} == expected


def test_a_relation_that_the_source_does_not_serve(sites: Sites) -> None:
    sites.views["wrong"] = "SELECT n.id FROM erp.nope n JOIN orders o ON o.id = n.id"
    sites.sql("erp", "UPDATE orders SET amount = 60 WHERE id = 20")
    reports = sites.refresh()
    error = reports["erp.nope"].error
    assert error is not None
    assert error["code"] == "NOT_FOUND"
    assert reports["wrong"].not_started is not None
    assert reports["orders"].version == reports["joined"].version == 1, "the others move"
    del sites.views["wrong"]
    sites.well()
    sites.check()


@pytest.mark.parametrize("remedy", ["restore", "move away"])
def test_somebody_else_wrote_the_table_of_versions(sites: Sites, remedy: str, run: Run) -> None:
    toml = sites.toml('[spark]\n"spark.master" = "local[1]"')
    table = sites.delta("_driftline/warehouse")
    place = table.root
    good, rows = table.version(), sorted(map(tuple, sites.pinned().read("joined").collect()))
    write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")
    sites.sql("erp", "UPDATE orders SET amount = 60 WHERE id = 20")
    refused = [["refresh"], ["refresh", "joined"], ["status"], ["gc", "--all"]]
    for words in refused if remedy == "restore" else ():  # it is the same before both remedies
        ended = run(*words, config=toml)
        assert ended.code == 1, (words, ended.err)
        assert "Version 1 of the table of versions was not written by Driftline" in ended.err
        assert "Restore the last version that Driftline wrote" in ended.err
    with pytest.raises(WarehouseUnavailable, match="not written by Driftline"):
        sites.pinned()
    pinned = sites.pinned(good)
    assert sorted(map(tuple, pinned.read("joined").collect())) == rows, "what was given before"
    if remedy == "restore":
        sites.delta("_driftline/warehouse").restore(good)
    else:
        move(place, place.with_name("away"))
    assert run("refresh", config=toml).code == 0
    sites.check()
    sites.sql("erp", "UPDATE orders SET amount = 61 WHERE id = 21")
    sites.well()
    sites.check()


def test_the_first_view_over_fragments_with_versions(empty: Sites) -> None:
    """Until then the newest versions are read; from then on those that the flip names."""
    sites = empty
    views, sites.views = sites.views, {}
    for amount in (150, 151, 152):
        sites.sql("erp", "UPDATE orders SET amount = ? WHERE id = 20", amount)
        reports = sites.well()
    assert reports["orders"].version == 2
    assert sites.pinned().version is None
    assert sites.pinned().read("orders").where("amount = 152").count() == 1
    sites.views = views
    sites.sql("erp", "UPDATE orders SET amount = 153 WHERE id = 20")
    reports = sites.well("joined")
    assert (reports["orders"].version, reports["joined"].version) == (3, 0)
    newest = sites.newest()
    assert newest is not None
    assert newest.number == 0
    assert newest.members["other"].version == 0, "it did not change, and is in it as well"
    assert newest.members["joined"].inputs == {"orders": 3, "crm.customer": 0}
    sites.well()
    sites.check()
    spark = sites.pinned().spark
    assert (
        read(spark, str(sites.root), "orders", 1, storage=sites.storage)
        .where("amount = 151")
        .count()
        == 1
    )
    feed = changes(spark, str(sites.root), "orders", since=0, storage=sites.storage).where(
        "_op = 'update_after'"
    )
    assert sorted(row.amount for row in feed.collect()) == [151, 152, 153]


def test_without_locks_a_view_is_said_to_be_of_what_it_was_made_of(
    empty: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command commits a fragment, and flips nothing yet, while the view is computed."""
    sites = empty
    del sites.views["inverse"]
    sites.view_lines["joined"] = 'max_lag = "1h"\nchunk_rows = 20'
    without_locks(monkeypatch)
    sites.well()
    sites.sql("erp", "UPDATE orders SET amount = amount + 2 WHERE id = 29")
    sites.sql("crm", "UPDATE customer SET name = 'other' WHERE id = 2")
    sites.well()
    sites.well("joined")
    compute = vars(view_phase)["maintain"]

    def beside(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(view_phase, "maintain", compute)
        made = compute(*args, **options)
        with contextlib.closing(sqlite3.connect(sites.folder / "crm.db")) as crm, crm:
            crm.execute("UPDATE customer SET name = 'new' WHERE id = 1")
        with ThreadPoolExecutor(1) as rival:
            assert rival.submit(sites.well, "crm.customer").result()["crm.customer"].ahead
        return made

    sites.sql("erp", "UPDATE orders SET amount = amount + 2 WHERE id = 30")
    monkeypatch.setattr(view_phase, "maintain", beside)
    for inputs in ({"orders": 2, "crm.customer": 1}, {"orders": 2, "crm.customer": 2}):
        sites.well("joined")
        newest = sites.newest()
        assert newest is not None
        assert newest.members["joined"].inputs == inputs
    sites.check("joined")


def test_a_view_whose_commit_fails_after_it_was_made_and_is_followed(
    empty: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a fragment (tests/faults/test_pair.py): nobody removes the files of its version."""
    sites = empty
    del sites.views["inverse"]
    without_locks(monkeypatch)
    sites.well()
    sites.sql("erp", "UPDATE orders SET amount = amount + 2")
    commit = formats.commit

    def made_then_failed(store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        version = commit(store, name, new)
        if name == "joined":
            monkeypatch.setattr(formats, "commit", commit)
            with contextlib.closing(sqlite3.connect(sites.folder / "erp.db")) as erp, erp:
                erp.execute("UPDATE orders SET amount = amount + 4")
            with ThreadPoolExecutor(1) as rival:
                assert rival.submit(sites.well).result()["joined"].version == version + 1
            raise WarehouseUnavailable("The answer was lost.", where=name)
        return version

    monkeypatch.setattr(formats, "commit", made_then_failed)
    assert sites.refresh()["joined"].error is not None
    ours = view_head(sites.store, "joined", version=1)
    assert ours is not None
    for file in ours.files:
        assert len(rows_at(file.uri)) == file.rows
    sites.check("joined")


def test_a_lost_version_whose_number_others_rows_have_is_not_given(sites: Sites) -> None:
    """Between a restore that was accepted and the next flip of a fragment without views."""
    for mark in (1, 2):
        sites.sql("erp", "UPDATE other SET mark = ? WHERE id = 3", mark)
        sites.well()
    (sites.root / "other" / "_delta_log" / f"{2:020d}.json").unlink()
    time.sleep(1.1)  # times have whole seconds
    sites.sql("erp", "DELETE FROM other WHERE id > 2")  # which is refused
    report = sites.refresh("other", options=Options(accept_restored=True))["other"]
    assert report.error is not None
    assert report.error["code"] == "SHRANK"
    with pytest.raises(NotFound, match="Version 2 was lost, and the rows of version 1 have its"):
        sites.pinned().read("other")
    options = Options(accept_restored=True, allow_shrink=True)
    assert sites.refresh("other", options=options)["other"].error is None
    assert sites.pinned().read("other").count() == 3


def test_a_table_that_lost_its_version_is_named_by_a_refresh_of_another(sites: Sites) -> None:
    """Readers are given a version of it that is gone, so the component does not move."""
    sites.sql("crm", "UPDATE customer SET name = 'new' WHERE id = 1")
    sites.well()
    log = sites.root / "_driftline" / "kept" / "crm.customer" / "_delta_log"
    (log / f"{1:020d}.json").unlink()
    sites.sql("erp", "UPDATE orders SET amount = 100 WHERE id = 3")
    error = sites.refresh("orders")["orders"].error
    assert error is not None
    assert (error["code"], error["where"]) == ("WAREHOUSE", "crm.customer")
    assert "version 1 was published" in error["message"]
    assert "refresh crm.customer --accept-restored" in error["remedy"]


def test_a_view_over_a_removed_view_is_left_out(sites: Sites) -> None:
    sites.views = {"inverse": "SELECT o.id FROM orders o"}
    for amount in (100, 102, 104):
        sites.sql("erp", "UPDATE orders SET amount = ? WHERE id = 3", amount)
        assert sites.refresh("orders", without=("inverse",))["orders"].error is None
    newest = sites.newest()
    assert newest is not None
    assert newest.members["orders"].version == 3
    assert newest.members["inverse"].stale


def test_the_commands(empty: Sites, run: Run) -> None:
    sites = empty
    toml = sites.toml('[spark]\n"spark.master" = "local[1]"')
    ended = run("refresh", "--json", config=toml)
    assert (ended.code, [line["name"] for line in ended.lines][-2:]) == (0, ["joined", "inverse"])
    assert all(list(line) == REPORT for line in ended.lines)
    found = {line["name"]: line for line in command("status", "--json", config=toml).lines}
    assert found["joined"]["kind"] == "view"
    assert found["crm.customer"]["kind"] == "kept"
    assert found["joined"]["inputs"] == {"orders": 0, "crm.customer": 0}
    assert {line["visible_version"] for line in found.values()} == {0}
    verified = run("verify", "joined", "--json", config=toml)
    assert (verified.code, verified.lines[0]["proof"]) == (0, "values")
    (history,) = command("history", "joined", "--json", config=toml).lines
    assert (history["version"], history["inputs"]) == (0, {"orders": 0, "crm.customer": 0})
    planned = command("plan", "joined", "inverse", config=toml)
    assert planned.code == 0
    assert re.match(
        r"joined: view, recompute if an input moves \(expected to take .* s incrementally and .* s "
        r"recomputed\), from orders version",
        planned.out,
    )
    refused = command("receipt", "joined", config=toml)
    assert refused.code == 2
    assert "there is no receipt" in refused.err
    assert command("refresh", "--without", "nope", config=toml).code == 2
    sites.sql("erp", "UPDATE orders SET amount = 7 WHERE id = 20")
    ended = run("refresh", config=toml)
    assert ended.code == 3
    assert "error VIEW_FAILED: inverse" in ended.err
    shown = command("status", "--verbose", config=toml)
    assert "inverse stays behind its inputs: Spark cannot evaluate the view" in shown.out
    assert "inverse: the last refresh failed just now: VIEW_FAILED: inverse" in shown.out
    checked = command("status", "--check", config=toml)
    assert checked.code == 2
    assert checked.out.startswith("CRITICAL: ")
    sites.sql("erp", "UPDATE orders SET amount = 9 WHERE id = 20")
    assert run("refresh", config=toml).code == 0
    assert command("status", "--check", config=toml).code == 0
    sites.check()
    # Somebody changed a file of the view.
    table = sites.delta("joined")
    (file, *_) = table.file_uris()
    place = sites.place(file)
    rows = parquet(place).read()
    write_parquet(rows.set_column(1, "amount", pa.array([1] * len(rows), pa.int64())), place)
    ended = run("verify", "joined", config=toml)
    assert ended.code == 1
    assert "error WAREHOUSE: joined: Data file" in ended.err
    ended = run("verify", "joined", "--repair", config=toml)
    assert ended.code == 0, ended.err
    sites.check()
    assert run("verify", "joined", config=toml).code == 0


def test_gc_counts_from_the_flip(sites: Sites) -> None:
    """What a warehouse version that is kept needs stays; what none needs goes."""
    for amount in range(1, 4):
        sites.sql("erp", "UPDATE orders SET amount = ? WHERE id = 3", 90 + amount)
        sites.well()
    sites.views["inverse"] = "SELECT j.id, 1 / (j.amount - 93) AS x FROM joined j"
    assert sites.refresh("orders", options=Options(accept_schema=True))["inverse"].error is not None
    sites.sql("erp", "UPDATE orders SET amount = 200 WHERE id = 3")
    store, later = sites.store, datetime.now(UTC) + timedelta(days=400)

    def clean(now: datetime) -> int:
        found = 0
        for name in (*sites.config().fragments, *sites.views):
            is_view = name in sites.views
            garbage = unreferenced(store, name, keep_hours=24, now=now, is_view=is_view)
            found += len(garbage.places)
            for place in garbage.places:
                store.remove_file(*place)
        return found

    assert clean(datetime.now(UTC)) == 0
    newest = sites.newest()
    assert newest is not None
    for number in range(newest.number + 1):
        assert sites.pinned(number).read("joined").count() > 0
    assert clean(later) > 0
    assert clean(later) == 0
    pinned = sites.pinned()
    assert pinned.stale("inverse") is not None
    assert pinned.read("inverse").count() > 0
    made_of = newest.members["inverse"].inputs["joined"]
    assert view_head(store, "joined", version=made_of) is not None
    assert (
        read(pinned.spark, str(sites.root), "joined", made_of, storage=sites.storage).count() > 0
    ), "it was made of it"
    with pytest.raises(NotFound, match="`gc` removed its file"):
        sites.pinned(0)
    assert clean(datetime.now(UTC)) == 0, "with more hours than before"
    log = sites.root / "joined" / "_delta_log"
    move(log, log.with_name("away"))
    with pytest.raises(WarehouseUnavailable, match="log is missing"):
        clean(later)
    move(log.with_name("away"), log)
    sites.views["inverse"] = VIEWS["inverse"].replace("100 /", "100 div")
    sites.well(options=Options(accept_schema=True))
    sites.check()


def test_the_log_keeps_a_version_that_a_stale_view_was_made_of(sites: Sites) -> None:
    """However old it is; entries that nobody needs go with `gc`."""
    sites.views["inverse"] = "SELECT j.id, 1 / (j.amount - 93) AS x FROM joined j"
    for amount in (93, 94):
        sites.sql("erp", "UPDATE orders SET amount = 93 WHERE id = 9")
        sites.sql("erp", "UPDATE orders SET amount = ? WHERE id = 3", amount)
        sites.sql("crm", "UPDATE customer SET name = ? WHERE code = 'c1'", str(amount))
        failed = sites.refresh(options=Options(accept_schema=True))["inverse"]
        assert failed.error is not None
    tables = ("joined", "_driftline/kept/crm.customer", "_driftline/warehouse")
    logs = [sites.warehouse / table / "_delta_log" for table in tables]
    for log in logs:
        DeltaTable(str(log.parent)).create_checkpoint()
        for file in log.iterdir():
            os.utime(file, (0, 0))
    sites.sql("erp", "UPDATE orders SET amount = 95 WHERE id = 3")
    sites.sql("crm", "UPDATE customer SET name = 'new' WHERE code = 'c1'")
    assert sites.refresh()["inverse"].error is not None
    newest = sites.newest()
    assert newest is not None
    made_of = newest.members["inverse"].inputs["joined"]
    assert made_of == 0
    toml = sites.toml()
    ended = command("gc", "--all", "--yes", "--keep-hours", "0", config=toml)
    assert ended.code == 0, ended.err
    pinned = sites.pinned()
    assert pinned.read("inverse").count() > 0
    assert read(pinned.spark, str(sites.root), "joined", made_of, storage=sites.storage).count() > 0
    kept = [(log / f"{0:020d}.json").exists() for log in logs]
    assert kept == [True, False, False]
    sites.views["inverse"] = VIEWS["inverse"].replace("100 /", "100 div")
    sites.well(options=Options(accept_schema=True))
    sites.check()


def test_what_is_said_of_a_view_that_nothing_changed_in(sites: Sites) -> None:
    """It keeps its version, and is as fresh as what it is right for."""
    first = sites.well()["joined"]
    sites.sql("erp", "UPDATE orders SET amount = -2 WHERE id = 3")
    report = sites.well()["joined"]
    newest = sites.newest()
    assert newest is not None
    member = newest.members["joined"]
    (line,) = command("status", "joined", "--json", config=sites.toml()).lines
    assert (report.version, member.inputs) == (first.version, {"orders": 1, "crm.customer": 0})
    assert report.inputs == line["inputs"] == member.inputs
    assert report.as_of == line["as_of"] == member.as_of
    assert first.as_of is not None
    assert member.as_of > first.as_of


def test_verify_after_gc(sites: Sites, run: Run) -> None:
    """A view that nothing changed in keeps its version; what it was made of may be gone."""
    sites.sql("erp", "UPDATE orders SET amount = -9 WHERE id = 1")  # in no row of `joined`
    sites.well()
    newest = sites.newest()
    assert newest is not None
    assert newest.members["joined"].version == 0
    assert newest.members["joined"].inputs == {"orders": 1, "crm.customer": 0}
    later = datetime.now(UTC) + timedelta(days=400)
    places = unreferenced(sites.store, "orders", keep_hours=24, now=later, is_view=False).places
    assert places
    for place in places:
        sites.store.remove_file(*place)
    toml = sites.toml('[spark]\n"spark.master" = "local[1]"\n"spark.ui.enabled" = "false"')
    verified = run("verify", "joined", "--json", config=toml)
    assert (verified.code, verified.lines[0]["inputs"]) == (0, newest.members["joined"].inputs)


def test_a_fragment_that_a_changed_query_reads_no_more(sites: Sites) -> None:
    """It moves although the view is still made of it; the view stays as it is, marked."""
    sites.views["joined"] = "SELECT c.code, c.id FROM crm.customer c"
    del sites.views["inverse"]
    sites.sql("erp", "UPDATE orders SET amount = 77 WHERE id = 3")
    reports = sites.well("orders")
    assert reports["orders"].warehouse_version == 1
    pinned = sites.pinned()
    assert pinned.read("orders").where("amount = 77").count() == 1
    assert pinned.stale("joined") == "orders moved, which its query does not read any more"
    sites.well(options=Options(accept_schema=True))
    sites.check()


def test_a_pinned_warehouse_has_the_tables_of_its_version_alone(empty: Sites) -> None:
    sites = empty
    more = sites.fragment_lines.pop("other")
    sites.well()
    sites.fragment_lines["other"] = more
    sites.well()
    assert sites.pinned().read("other").count() == 40
    old = sites.pinned(0)
    for ask in (old.read, old.as_of, old.stale):
        with pytest.raises(NotFound, match="It is not in version 0 of the warehouse"):
            ask("other")


def test_after_the_last_view(sites: Sites) -> None:
    """Readers go on being given what a version of the warehouse names."""
    sites.views.clear()
    sites.sql("erp", "UPDATE orders SET amount = 1 WHERE id = 3")
    reports = sites.well()
    assert (reports["orders"].version, reports["orders"].warehouse_version) == (1, 1)
    pinned = sites.pinned()
    assert pinned.version == 1
    assert pinned.read("orders").where("amount = 1").count() == 1
    newest = sites.newest()
    assert newest is not None
    assert newest.members["orders"].version == 1
    assert "joined" not in newest.members, "it is not made of the versions beside it"
