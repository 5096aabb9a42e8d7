"""A warehouse of an older commit: read, refresh, resume and collect garbage over what it wrote.

`golden/warehouse` holds one that commit 7806bd7 left behind: histories, an exchange that was cut in
the middle of a frame, a pass in tiles that was interrupted, a mark, a part, noted damage, a table
that was restored, views, a kept relation, row security. `golden/warehouse/make.py` says how it was
made. Expected rows are those that the source had when each version was published.

The agents are driven as users drive them: by `python -m`, in this process for the sake of the warm
Spark session, and by `warehouse_agent.read` and `changes`. So no test here knows a module of them.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sqlite3
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable
from driftline.errors import NotFound
from pyspark.sql import SparkSession

from tests.harness import forks
from tests.harness.connect_proxy import ConnectProxy
from tests.harness.forks import SOURCE
from tests.harness.pair import SourceProcess, environment, expect_equal, plain
from tests.harness.servers import PostgreSQL
from warehouse_agent import changes, read

FIXTURE = Path(__file__).resolve().parents[1] / "golden" / "warehouse"
EXPECTED = FIXTURE / "expected"
HOST = "erp.invalid"
NEWEST = {"orders": 3, "customers": 2, "stock": 1, "parcels": 0}
# What readers of the other tables are given. `bays` is ahead of its view, `labels` is damaged.
GIVEN = {
    "ledger": 1, "kinds": 1, "sites": 1, "loads": 1, "bays": 1, "docks": 2, "visits": 2,
    "cargo": 1, "open_bays": 1, "ratios": 1,
}  # fmt: skip
VIEWS = ("cargo", "open_bays", "ratios")
TILES, TILES_DONE = 6, 3
LEFT_AT = datetime(2024, 3, 10, 23, tzinfo=UTC).timestamp()  # as `make.py` says
LONG = 200  # characters; of longer texts the digest is kept
BYTES_MAX = 1_700_000  # a tenth of it in git
# Put together here, so that this file passes the test of the tree.
MACHINE = (b"/" + b"work" + b"/", b"/tmp/", b"/home/", b"/root/")
OF_A_TABLE = ("id", "createdTime")  # of Delta's metadata, that differ from table to table
OF_A_DAY = {"as_of", "checked_at", "published_at", "clock", "report", "marking"}  # of a version

Rows = list[tuple[Any, ...]]
Run = Callable[..., list[dict[str, Any]]]
SINCE = {
    "row_hours",
    "site_joins",
    "total",
    "adopted",
    "other",
    "damaged",
    "failed",
    "state",
    "alarms",
    "tried_at",
    "late_s",
    "late_after_s",
    "recovered",
    "last_s",
    "held_back_s",
    "requests",
    "put_off_until",
    "places_why",
    "places_expected",
    "totals",
    "staged",
    "staged_rows",
    "staged_listed",
    "staged_bytes_kept",
    "not_null_checked",
    "nullable",
    "run",
    "schema_changes",
    "refreshed_at",
    "started_at",
    "release",
    "source",
    "source_release",
    "copy_bytes",
    "changed",
    "schema",
    "requests_expected",
    "part_expected",
    "wrong_since",
}  # keys of JSON lines and of a commit that are younger than the fixture


def told(value: Any) -> Any:
    """A value as the fixture has it, hashable; numbers by their exact value."""
    if isinstance(value, dict):  # of the fixture
        return tuple(sorted(value.items()))
    if isinstance(value, bytes | bytearray):
        return (("hex", value.hex()),)
    if isinstance(value, str) and len(value) > LONG:
        digest = sha256(value.encode()).hexdigest()
        return (("characters", len(value)), ("sha256", digest))
    return plain(value)


def told_rows(rows: Sequence[Sequence[Any]]) -> Rows:
    return [tuple(map(told, row)) for row in rows]


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def expected_rows(name: str, version: int) -> Rows:
    return told_rows(lines_of(EXPECTED / "rows" / f"{name}-{version}.jsonl"))


def published_rows(name: str, version: int) -> Rows:
    """The rows of a version; those of the version before where only policies changed."""
    return expected_rows(name, version if (name, version) != ("visits", 2) else 1)


def keys(value: Any) -> Any:
    """The keys of a JSON value, in their order; of a list those of its first item."""
    if isinstance(value, dict):
        return [(key, keys(inner)) for key, inner in value.items() if key not in SINCE]
    return [keys(value[0])] if isinstance(value, list) and value else None


@dataclass(frozen=True)
class Old:
    """The fixture, unpacked into a folder where it is worked on."""

    folder: Path
    spark: SparkSession

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def private(self) -> Path:
        return self.warehouse / "_driftline"

    def execute(self, *statements: str) -> None:
        """Edit the source."""
        with closing(sqlite3.connect(self.folder / "erp.db")) as connection:
            connection.executescript(";\n".join(statements))

    def source_rows(self, name: str, query: str | None = None) -> Rows:
        with closing(sqlite3.connect(self.folder / "erp.db")) as connection:
            return told_rows(connection.execute(query or f"SELECT * FROM {name}").fetchall())

    def published(self, name: str, version: int | None = None) -> Rows:
        return told_rows(read(self.spark, self.warehouse, name, version).collect())

    def check(self, name: str) -> None:
        """Published == source, row for row."""
        expect_equal(self.published(name), self.source_rows(name))

    def check_feed(self, name: str, since: int, before: Rows, after: Rows) -> None:
        """The feed of the version after `since` leads from these rows to those."""
        feed = changes(self.spark, self.warehouse, name, since=since, upto=since + 1).collect()
        assert {row[0] for row in feed} == {since + 1}
        found = Counter((row[1], tuple(map(told, row[2:]))) for row in feed)
        assert found == difference(name, before, after)

    def audited(self, name: str) -> list[dict[str, Any]]:
        """The DBA's lines about rows of a relation that were read."""
        audit = lines_of(self.folder / "audit.jsonl")
        return [x for x in audit if x["relation"] == name and x["outcome"] != "described"]

    def meta(self, name: str, version: int) -> dict[str, Any]:
        """What a commit says of its version to Driftline."""
        return metadata(self.warehouse / name, version)


def metadata(table: Path, version: int) -> dict[str, Any]:
    for action in lines_of(table / "_delta_log" / f"{version:020d}.json"):
        if "commitInfo" in action:
            found: dict[str, Any] = json.loads(action["commitInfo"]["driftline"])
            return found
    raise AssertionError(f"no commitInfo in version {version} of {table}")


def difference(name: str, before: Rows, after: Rows) -> Counter[tuple[str, tuple[Any, ...]]]:
    """The change feed between two states of a table, by key."""
    width = 2 if name == "customers" else 1
    old, new = ({row[:width]: row for row in rows} for rows in (before, after))
    found: Counter[tuple[str, tuple[Any, ...]]] = Counter()
    for key in old.keys() | new.keys():
        if key not in new:
            found["delete", old[key]] += 1
        elif key not in old:
            found["insert", new[key]] += 1
        elif old[key] != new[key]:
            found["update_before", old[key]] += 1
            found["update_after", new[key]] += 1
    return found


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of today: those of the fixture's time would have expired."""
    folder = tmp_path_factory.mktemp("enrolled") / "certs"
    words = ["enroll", "--directory", str(folder), "--source-name", HOST]
    assert forks.run([*SOURCE, *words], env=environment()).returncode == 0
    return folder


@pytest.fixture
def old(spark: SparkSession, certs: Path, tmp_path: Path) -> Old:
    """A copy of the fixture, its files of the time when it was left, and the source built anew."""
    for name in ("warehouse", "warehouse.toml"):
        place = FIXTURE / name
        (shutil.copytree if place.is_dir() else shutil.copy)(place, tmp_path / name)
    for path in (tmp_path / "warehouse").rglob("*"):
        os.utime(path, (LEFT_AT, LEFT_AT))
    shutil.copytree(certs, tmp_path / "certs")
    made = Old(tmp_path, spark)
    made.execute(*(f.read_text(encoding="utf-8") for f in sorted(FIXTURE.glob("source/*.sql"))))
    return made


@pytest.fixture
def run(
    spark: SparkSession,  # noqa: ARG001 - the warm session that the command finds
    old: Old,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """`python -m warehouse_agent.cli`; it finds the warm session, and must end with `code`, if
    one is named."""

    def run(*words: str, code: int | None = 0) -> list[dict[str, Any]]:
        config = str(old.folder / "warehouse.toml")
        monkeypatch.setattr(sys, "argv", ["driftline", "--config", config, *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("warehouse_agent.cli", run_name="__main__")
        said = capsys.readouterr()
        assert code is None or (ended.value.code or 0) == code, said
        return [json.loads(line) for line in said.out.splitlines()] if "--json" in words else []

    return run


@pytest.fixture
def source(old: Old, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The source agent, under the name by which the notes know it."""
    text = (FIXTURE / "source.toml").read_text()
    file = old.folder / "source.toml"
    file.write_text(text.replace("sqlite:///", f"sqlite:///{old.folder}/"))
    with through_a_proxy(file, monkeypatch):
        yield


@contextmanager
def through_a_proxy(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve a source behind a proxy that leads every name to it."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with (
        SourceProcess(config, is_forked=True) as agent,
        ConnectProxy(int(agent.address.split(":")[1])) as proxy,
    ):
        monkeypatch.setenv("https_proxy", proxy.url)
        yield


def staged_rows(old: Old) -> int:
    """Rows in the one frame that arrived before the line was cut, by its header."""
    (file,) = (old.private / "staging" / "parcels").glob("*/*.frames")
    return int.from_bytes(file.read_bytes()[8:12], "little")  # behind the frame's length


# The fixture


def test_the_fixture_is_small_and_of_no_machine() -> None:
    files = [path for path in FIXTURE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < BYTES_MAX
    for path in files:
        if "__pycache__" not in path.parts and path.suffix != ".py":
            assert not [word for word in MACHINE if word in path.read_bytes()], path


# Read


@pytest.mark.parametrize("name", NEWEST)
def test_every_version_reads_as_it_was_published(old: Old, name: str) -> None:
    for version in range(NEWEST[name] + 1):
        expect_equal(old.published(name, version), expected_rows(name, version))
    expect_equal(old.published(name), expected_rows(name, NEWEST[name]))
    with pytest.raises(NotFound, match=f"no version {NEWEST[name] + 1}"):
        read(old.spark, old.warehouse, name, NEWEST[name] + 1)


@pytest.mark.parametrize("name", ["orders", "customers", "stock"])
def test_changes_lead_from_version_to_version(old: Old, name: str) -> None:
    for since in range(NEWEST[name]):
        old.check_feed(name, since, expected_rows(name, since), expected_rows(name, since + 1))
    whole = changes(old.spark, old.warehouse, name, since=0).collect()
    assert {row[0] for row in whole} == set(range(1, NEWEST[name] + 1))


def test_status_and_history_say_what_they_said(run: Run) -> None:
    """Also the order of their keys."""
    assert in_order(run("status", "--json")) == in_order(lines_of(EXPECTED / "status.jsonl"))
    for name in (*NEWEST, *GIVEN, "prices", "labels"):
        found = run("history", name, "--json")
        assert in_order(found) == in_order(lines_of(EXPECTED / f"history-{name}.jsonl"))


def in_order(values: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(without_younger(one)) for one in values]


def test_verify_finds_every_row_as_it_was(run: Run) -> None:
    every = {**NEWEST, **GIVEN}
    for report in run("verify", *every.keys() - {"bays"}, "--json"):
        version = every[report["name"]]
        rows = len(published_rows(report["name"], version))
        assert (report["error"], report["proof"]) == (None, "values")
        assert (report["version"], report["rows_total"]) == (version, rows)


@pytest.mark.parametrize("name", GIVEN)
def test_versions_of_every_kind_read_as_they_were_published(old: Old, name: str) -> None:
    """By a marker, with other columns, with row security, of a view."""
    expect_equal(old.published(name), published_rows(name, GIVEN[name]))
    expect_equal(old.published(name, 0), expected_rows(name, 0))


def test_a_restored_table_reads_as_it_was_published(old: Old) -> None:
    """Its newest version is damaged, and those that were published again have the rows of one."""
    for version in range(3):
        expect_equal(old.published("labels", version), expected_rows("labels", 0))
    with pytest.raises(NotFound, match="restored"):
        changes(old.spark, old.warehouse, "labels", since=0)


# Refresh


@pytest.mark.usefixtures("source")
def test_refresh_goes_on_from_its_history(old: Old, run: Run) -> None:
    """New changes are found at little cost, from what earlier refreshes left behind."""
    old.execute(
        "UPDATE orders SET status = 11 WHERE id % 60 = 3",
        "DELETE FROM orders WHERE id IN (9, 9001)",
        "INSERT INTO orders SELECT 2, 'D00001', 7, 0.25, 7.75, placed, 1, x'', 'new' FROM orders"
        " WHERE id = 6",
        "UPDATE customers SET name = 'eleventh day' WHERE code LIKE 'Z%1'",
        "DELETE FROM customers WHERE code = 'K000' AND region = 9",
    )
    reports = run("refresh", "orders", "customers", "--json")
    for report in reports:
        name = report["name"]
        before, after = expected_rows(name, NEWEST[name]), old.source_rows(name)
        counts = Counter(op for op, _ in difference(name, before, after).elements())
        found = [report[f"rows_{what}"] for what in ("inserted", "updated", "deleted")]
        assert found == [counts[op] for op in ("insert", "update_after", "delete")]
        assert (report["error"], report["proof"], report["attempts"]) == (None, "total", 1)
        assert report["method"] == ("sketch" if name == "orders" else "group")
        assert report["round_trips"] <= 3
        assert report["source_scans"] == 1
        low, median, high = report["changes_expected"]
        assert 0 <= low <= median <= high
        assert report["bytes_received"] < 4000
        assert report["version"] == NEWEST[name] + 1
        old.check(name)
        old.check_feed(name, NEWEST[name], before, after)
    again = run("refresh", "orders", "customers", "--json")
    assert [(x["version"], x["rows_updated"], x["round_trips"]) for x in again] == [
        (NEWEST[x["name"]] + 1, 0, 1) for x in again
    ]
    check_what_was_written(old, reports)


def check_what_was_written(old: Old, reports: list[dict[str, Any]]) -> None:
    """Reports, lines of runs, notes and commits have the keys that those of the fixture have."""
    for report in reports:
        name = report["name"]
        runs = lines_of(old.private / "runs" / f"{name}.jsonl")
        known = lines_of(FIXTURE / "warehouse" / "_driftline" / "runs" / f"{name}.jsonl")
        assert runs[: len(known) + 1] == [*known, report]
        published = [run for run in known if run["version"] != run["previous_version"]]
        assert keys(report) == keys(published[-1])
        place = Path("_driftline", "fragments", f"{name}.json")
        noted, before = (json.loads((w / place).read_text()) for w in (old.warehouse, old_one()))
        assert noted.keys() - {"groups"} == before.keys()
        newest, first = old.meta(name, report["version"]), old.meta(name, NEWEST[name])
        assert keys(newest) == keys(first)
        layouts = [without_younger(body["layout"]) for body in (newest, first)]
        assert layouts[0] == layouts[1]


def old_one() -> Path:
    return FIXTURE / "warehouse"


@pytest.mark.usefixtures("source")
def test_refresh_goes_on_from_what_is_noted(old: Old, run: Run) -> None:
    """A mark, which is of another file here; damage; columns; a part; failures."""
    noted = {name: notes(old_one(), name) for name in ("ledger", "labels", "prices")}
    assert noted["ledger"]["mark"]["mark"]
    assert noted["labels"]["damaged"]["files"]
    found = {one["name"]: one for one in run("status", "--json")}
    assert found["prices"]["part"]["rows_left"] == noted["prices"]["part"]["rows_left"] > 0
    assert found["ledger"]["audit"]["at"] == noted["ledger"]["mark"]["audit"]["at"]
    old.execute(
        "UPDATE ledger SET amount = 7 WHERE id = 3",
        "UPDATE kinds SET weight = NULL WHERE id = 2",
        "UPDATE customers SET name = 'after two failures' WHERE code = 'K000'",
    )
    names = ("ledger", "labels", "kinds", "customers", "prices")
    reports = {one["name"]: one for one in run("refresh", *names, "--json")}
    assert {one["error"] for one in reports.values()} == {None}
    assert reports["ledger"]["marker"]["used"] is False
    assert reports["ledger"]["marker"]["why"]
    assert reports["labels"]["repaired_files"] == 1
    assert reports["kinds"]["schema_changed"] is False
    for name in names[:-1]:
        old.check(name)
    assert reports["prices"]["proof"] == "part"
    for _ in range(3):
        run("refresh", "prices", "--json")
    old.check("prices")
    assert not notes(old.warehouse, "labels").get("damaged")
    assert {one["proof"] for one in run("verify", *names, "--json")} == {"values"}


@pytest.mark.usefixtures("source")
def test_views_go_on(old: Old, run: Run) -> None:
    """One that is maintained, one whose input is ahead of it, one that was stale."""
    statuses = {one["name"]: one for one in run("status", "--json")}
    assert statuses["bays"]["ahead"]["rows"] == 3
    assert "Division by zero" in statuses["ratios"]["stale"]
    old.execute(
        "UPDATE loads SET tons = 11 WHERE id = 4",
        "UPDATE trucks SET plate = 'new' WHERE id = 6",
        "UPDATE docks SET width = 4 WHERE id = 2",
    )
    is_same = spark_of(old_one() / "cargo") == pyspark.__version__.rpartition(".")[0]
    more = () if is_same else ("--accept-schema",)  # another Spark may evaluate differently
    reports = {one["name"]: one for one in run("refresh", *VIEWS, *more, "--json")}
    assert {one["error"] for one in reports.values()} == {None}
    for name in VIEWS:
        expect_equal(old.published(name), old.source_rows(name, query_of(name)))
        assert reports[name]["version"] == GIVEN[name] + 1
    for name in ("sites", "loads", "bays", "docks"):
        old.check(name)
    if is_same:
        assert reports["cargo"]["method"] == "incremental"
        old.check_feed("cargo", 1, expected_rows("cargo", 1), old.published("cargo"))
    assert not [one for one in run("status", "--json") if one["stale"] or one["ahead"]]


def test_row_security_is_known(
    old: Old, run: Run, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relation with the policies that the notes have is refreshed; with others it is refused."""
    login = f"visitor{len(os.listdir(old.folder))}"
    postgresql.create_login(login)
    database = postgresql.create_database(login)
    with postgresql.superuser(database) as connection:
        for script in sorted((FIXTURE / "postgresql").glob("*.sql")):
            connection.execute(script.read_text())
        connection.execute(f"GRANT SELECT ON visits TO {login}")
        connection.execute("UPDATE visits SET note = 'eleventh day' WHERE id = 6")
        file = old.folder / "postgresql.toml"
        text = (FIXTURE / "postgresql.toml").read_text()
        file.write_text(text.replace("DATABASE", postgresql.url(login, database)))
        with through_a_proxy(file, monkeypatch):
            (report,) = run("refresh", "visits", "--json")
            assert (report["version"], report["rows_updated"], report["error"]) == (3, 1, None)
            theirs = connection.execute("SELECT * FROM visits WHERE region < 3").fetchall()
            expect_equal(old.published("visits"), theirs)
            connection.execute("ALTER POLICY regions ON visits USING (region < 2)")
            (report,) = run("refresh", "visits", "--json", code=None)
            assert report["error"]["code"] == "RECIPE"
    postgresql.drop_database(database)


def notes(warehouse: Path, name: str) -> dict[str, Any]:
    """The notes of a fragment."""
    place = warehouse / "_driftline" / "fragments" / f"{name}.json"
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def query_of(view: str) -> str:
    """The query of a view, for SQLite."""
    config = tomllib.loads((FIXTURE / "warehouse.toml").read_text())
    query: str = config["views"][view]["query"]
    return query.replace("erp.", "")


def spark_of(view: Path) -> str:
    """The Spark by which a view was computed."""
    found: str = metadata(view, 1)["layout"]["recipe"]["spark"]
    return found


# Resume


@pytest.mark.usefixtures("source")
def test_a_cut_exchange_is_resumed(old: Old, run: Run) -> None:
    """What arrived before the line was cut is used, and not sent again."""
    before, after = expected_rows("parcels", 0), old.source_rows("parcels")
    changed = sum(op == "update_after" for op, _ in difference("parcels", before, after))
    arrived = staged_rows(old)
    assert 0 < arrived < changed
    (report,) = run("refresh", "parcels", "--json")
    assert (report["version"], report["error"], report["method"]) == (1, None, "sketch")
    assert (report["rows_updated"], report["rows_deleted"]) == (changed, 1)
    (line,) = old.audited("parcels")
    assert line["rows_shipped"] == changed - arrived
    old.check("parcels")
    old.check_feed("parcels", 0, before, after)
    assert not (old.private / "staging" / "parcels").exists()


@pytest.mark.usefixtures("source")
def test_an_unfinished_pass_goes_on(old: Old, run: Run) -> None:
    """Behind the finished tiles, which are not read again: what changed in one of them since is
    found by the next pass."""
    (planned,) = run("plan", "stock", "--json")
    assert (planned["tiles"], planned["tiles_done"]) == (TILES, TILES_DONE)
    before, as_it_was = expected_rows("stock", 1), old.source_rows("stock")
    old.execute("UPDATE stock SET pieces = 777 WHERE id = 0")
    (report,) = run("refresh", "stock", "--json")
    assert (report["version"], report["error"], report["method"]) == (2, None, "range")
    assert (report["tiles"], report["tiles_done"]) == (TILES, TILES)
    assert (report["resumed_at"], report["consistency"]) == (TILES_DONE, "fuzzy")
    lines = old.audited("stock")
    assert len(lines) == TILES - TILES_DONE
    read_now = sum(line["rows_read"] for line in lines)
    assert read_now == report["source_rows_read"]
    assert len(as_it_was) / 3 < read_now < len(as_it_was) * 2 / 3
    expect_equal(old.published("stock"), as_it_was)
    old.check_feed("stock", 1, before, as_it_was)
    (report,) = run("refresh", "stock", "--json")
    assert (report["version"], report["resumed_at"], report["rows_updated"]) == (3, 0, 1)
    old.check("stock")


# Garbage


@pytest.mark.usefixtures("source")
def test_gc_keeps_what_is_needed(old: Old, run: Run) -> None:
    """Older versions go, and nothing that the newest, an exchange or a pass needs: all of it is
    refreshed and verified afterwards."""
    said = run("gc", "--all", "--keep-hours", "0", "--json")
    assert in_order(said) == in_order(lines_of(EXPECTED / "gc.jsonl"))
    assert run("gc", "--all", "--json") == said, "all versions were replaced long ago"
    before = files_in(old.warehouse)
    removed = run("gc", "--all", "--yes", "--json")
    assert [(x["name"], x["removed"]) for x in removed] == [(x["name"], True) for x in said]
    gone = before - files_in(old.warehouse)
    assert len(gone) >= max(x["files"] for x in removed)
    for name, newest in NEWEST.items():
        needed = set(DeltaTable(old.warehouse / name).file_uris())
        of_tables = {str(path) for path in (old.warehouse / name).rglob("data-*/*.parquet")}
        assert of_tables == needed
        feeds = {path.name for path in old.private.glob(f"changes/{name}/*")}
        assert feeds == ({f"_version={newest}"} if newest else set())
        expect_equal(old.published(name), expected_rows(name, newest))
    for name, given in GIVEN.items():
        expect_equal(old.published(name), published_rows(name, given))
    with pytest.raises(NotFound, match="change feed"):
        changes(old.spark, old.warehouse, "orders", since=0)
    assert not [path for path in gone if "staging" in path.parts or "keys" in path.parts]
    old.execute("UPDATE orders SET note = 'after gc' WHERE id = 600 - 6")
    reports = {report["name"]: report for report in run("refresh", *NEWEST, "--json")}
    assert {name: report["version"] for name, report in reports.items()} == {
        "orders": 4, "customers": 3, "stock": 2, "parcels": 1,
    }  # fmt: skip
    assert (reports["customers"]["rows_updated"], reports["customers"]["error"]) == (0, None)
    for name in NEWEST:  # in a version without a file, where nothing had changed
        assert_undeclared(old.warehouse / name)
    assert reports["stock"]["resumed_at"] == TILES_DONE
    for name in NEWEST:
        old.check(name)
    assert {report["proof"] for report in run("verify", *NEWEST, "--json")} == {"values"}


def files_in(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


# To the letter


@pytest.mark.usefixtures("source")
def test_json_keys(old: Old, run: Run) -> None:
    """Of every command that prints JSON, of the audit and of a receipt."""
    expected = json.loads((EXPECTED / "keys.json").read_text())
    assert run("verify", "orders", "--json")[0].keys() - SINCE == expected["verify"].keys() - SINCE
    found = {
        "gc": run("gc", "--all", "--json")[0],
        "plan": {line["name"]: line for line in run("plan", *expected["plan"], "--json")},
        "doctor": run("doctor", "--json", code=None)[0],  # this source has no visits
    }
    receipt = old.folder / "receipt.json"
    run("receipt", "orders", "--output", str(receipt))
    found["receipt"] = json.loads(receipt.read_text())
    found["audit"] = lines_of(old.folder / "audit.jsonl")[-1]
    for what, value in found.items():
        assert keys(value) == keys(expected[what]), what


@pytest.mark.usefixtures("source")
def test_a_first_load_writes_what_it_wrote(old: Old, run: Run) -> None:
    """Delta's protocol and metadata, what commits say, and the names below `_driftline/`."""
    shutil.rmtree(old.warehouse)
    (old.folder / "erp.db").unlink()
    old.execute((FIXTURE / "source" / "1-load.sql").read_text(encoding="utf-8"))
    reports = run("refresh", *NEWEST, "ledger", "prices", "--json")
    assert {report["version"] for report in reports} == {0}
    for report in reports:
        name = report["name"]
        log = Path(name, "_delta_log", f"{0:020d}.json")
        ours, theirs = (described(w / log) for w in (old.warehouse, old_one()))
        theirs = [without_bookkeeping(action) for action in theirs]
        assert [declaring_null(action) for action in ours] == theirs
        assert_undeclared(old.warehouse / name)
        said, before = old.meta(name, 0), metadata(old_one() / name, 0)
        assert keys(said) == keys(before)
        for key in said.keys() - OF_A_DAY - SINCE:
            assert without_younger(said[key]) == without_younger(before[key]), (name, key)
        runs = lines_of(old_one() / "_driftline" / "runs" / f"{name}.jsonl")
        assert keys(report) == keys(runs[0])
    now, then = (
        {path.name for path in (w / "_driftline").iterdir()} for w in (old.warehouse, old_one())
    )
    assert {"fragments", "keys", "locks", "runs", "schedule", "sources"} <= now
    assert now <= then | {"commands"}


def without_bookkeeping(action: dict[str, Any]) -> dict[str, Any]:
    """An action of a table, whose metadata does not declare our columns any more."""
    if "metaData" not in action:
        return action
    schema = json.loads(action["metaData"]["schemaString"])
    own = [field for field in schema["fields"] if not field["name"].startswith("_driftline_")]
    assert len(own) < len(schema["fields"]), "as the release of the fixture declared them"
    text = json.dumps(schema | {"fields": own}, separators=(",", ":"))
    return {"metaData": action["metaData"] | {"schemaString": text}}


def declaring_null(action: dict[str, Any]) -> dict[str, Any]:
    """An action of a table as one that declares no column NOT NULL has it."""
    if "protocol" in action:
        protocol = dict(action["protocol"])
        if "invariants" in protocol.get("writerFeatures", []):
            protocol["writerFeatures"] = [
                f for f in protocol["writerFeatures"] if f != "invariants"
            ]
        return {"protocol": protocol}
    if "metaData" not in action:
        return action
    schema = json.loads(action["metaData"]["schemaString"])
    assert not all(field["nullable"] for field in schema["fields"]), "the key is NOT NULL"
    for field in schema["fields"]:
        field["nullable"] = True
    text = json.dumps(schema, separators=(",", ":"))
    return {"metaData": action["metaData"] | {"schemaString": text}}


def without_younger(value: Any) -> Any:
    """A JSON value without the keys that are younger than the fixture."""
    if isinstance(value, dict):
        return {key: without_younger(inner) for key, inner in value.items() if key not in SINCE}
    return [without_younger(inner) for inner in value] if isinstance(value, list) else value


def assert_undeclared(table: Path) -> None:
    names = [field.name for field in DeltaTable(table).schema().fields]
    assert not [name for name in names if name.startswith("_driftline_")]
    assert names


def described(log: Path) -> list[dict[str, Any]]:
    """Protocol and metadata of a table, but for what tells it from others."""
    actions = [x for x in lines_of(log) if x.keys() & {"protocol", "metaData", "txn"}]
    for action in actions:
        for key in OF_A_TABLE:
            action.get("metaData", {}).pop(key, None)
        action.get("txn", {}).pop("lastUpdated", None)
    return sorted(actions, key=sorted)
