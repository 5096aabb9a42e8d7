"""The source changes under a refresh: its columns, its table, its rows, its server, the clock.

Each time: what is published is the table of one moment, or the version before; the error says what
to do; and the next refresh converges. The databases are real ones. What ends a session or a
statement is in `tests/conditions`, dead servers are in `test_dead_databases`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from driftline.columns import gather

from tests.fixtures.clock import Daily
from tests.harness.legacy import LEGACIES, Legacy, PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, expect_equal
from tests.harness.servers import PostgreSQL
from tests.harness.standby import Standby
from warehouse_agent.refresh.job import Options

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.mariadb]

ROWS = 600
TOTAL = 100 * ROWS  # of `amount`, which transfers keep
DDL = "id INTEGER PRIMARY KEY NOT NULL, amount INTEGER, note VARCHAR(100)"
ENGINES = ("postgresql", "mariadb", "sqlite")
EVERYTHING = Options(accept_schema=True, allow_shrink=True)
WAIT_S_MAX = 60.0

OTHER = (f"CREATE TABLE other ({DDL})", "INSERT INTO other SELECT id + 5, 100, 'other' FROM t")
SWAP = (*OTHER, "ALTER TABLE t RENAME TO old", "ALTER TABLE other RENAME TO t")
PARTITIONED = (
    f"CREATE TABLE other ({DDL}) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF other FOR VALUES FROM (-10) TO (300)",
    "CREATE TABLE high PARTITION OF other FOR VALUES FROM (300) TO (10000)",
    "INSERT INTO other SELECT id + 5, 100, 'other' FROM t",
    "ALTER TABLE t RENAME TO old",
    "ALTER TABLE other RENAME TO t",
    "GRANT SELECT ON t TO PUBLIC",
)
# What happens in the middle of the scan, and the code of the next refresh; None: it goes well.
CHANGES: list[tuple[str, str, Sequence[str], str | None]] = [
    *((e, "add", ["ALTER TABLE t ADD COLUMN more INTEGER"], "RECIPE") for e in ENGINES),
    *((e, "drop", ["ALTER TABLE t DROP COLUMN note"], "RECIPE") for e in ENGINES),
    *((e, "rename", ["ALTER TABLE t RENAME COLUMN note TO word"], "RECIPE") for e in ENGINES),
    ("postgresql", "widen", ["ALTER TABLE t ALTER COLUMN amount TYPE bigint"], "RECIPE"),
    ("postgresql", "narrow", ["ALTER TABLE t ALTER COLUMN amount TYPE smallint"], "RECIPE"),
    ("postgresql", "key", ["ALTER TABLE t ALTER COLUMN id TYPE varchar(20)"], "RECIPE"),
    ("mariadb", "widen", ["ALTER TABLE t MODIFY amount BIGINT"], "RECIPE"),
    ("mariadb", "narrow", ["ALTER TABLE t MODIFY amount SMALLINT"], "RECIPE"),
    ("mariadb", "key", ["ALTER TABLE t MODIFY id VARCHAR(20)"], "RECIPE"),
    *((e, "emptied", ["DELETE FROM t"], "SHRANK") for e in ENGINES),
    *((e, "truncated", ["TRUNCATE TABLE t"], "SHRANK") for e in ("postgresql", "mariadb")),
    *((e, "swapped", SWAP, None) for e in ENGINES),
    ("postgresql", "partitioned", PARTITIONED, None),
    ("mariadb", "partitioned", ["ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 4"], None),
]


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """A table that is loaded, and changed since."""
    legacy = LEGACIES[request.param](request, tmp_path)
    with closing(legacy), loaded(legacy, tmp_path) as made:
        yield made


@contextmanager
def loaded(legacy: Legacy, folder: Path) -> Iterator[Pair]:
    legacy.execute(f"CREATE TABLE t ({DDL})")
    legacy.many("INSERT INTO t VALUES (?, ?, ?)", [(i, 100, f"note {i}") for i in range(ROWS)])
    with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as made:
        made.small_bytes = 256 << 20
        made.fragment_lines["t"] = 'method = "sketch"'
        made.refresh("t")
        legacy.execute("UPDATE t SET note = 'edited' WHERE id < 50")
        yield made


def published(pair: Pair) -> list[tuple[Any, ...]]:
    """What a reader without Driftline sees."""
    table = DeltaTable(str(pair.warehouse / "t")).to_pyarrow_table()
    names = [name for name in table.column_names if not name.startswith("_driftline")]
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def check(pair: Pair) -> None:
    expect_equal(published(pair), pair.legacy.rows("t"))


def owner(legacy: Legacy) -> Callable[[str], object]:
    """Return what executes a statement in another thread than this one."""
    if legacy.engine != "sqlite":
        return legacy.execute

    def execute(sql: str) -> None:
        path = legacy.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=WAIT_S_MAX)) as connection:
            connection.execute(sql)
            connection.commit()

    return execute


@contextmanager
def in_mid_scan(action: Callable[[], object]) -> Iterator[None]:
    """Let something begin at the source when the next scan has rows; wait for its end."""
    begun = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)

    def gathering(rows: Any) -> Any:
        if not begun.is_set():
            begun.set()
            thread.start()  # it may wait for the lock of the session that reads
        return gather(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("source_agent.scan.reader.gather", gathering)
        yield
    assert begun.is_set()
    thread.join(WAIT_S_MAX)
    assert not thread.is_alive()
    assert not failed, failed


@pytest.mark.parametrize(
    ("pair", "statements", "code"),
    [pytest.param(e, sql, code, id=f"{e}-{what}") for e, what, sql, code in CHANGES],
    indirect=["pair"],
)
def test_the_table_changes_in_mid_scan(
    pair: Pair, statements: Sequence[str], code: str | None
) -> None:
    execute = owner(pair.legacy)
    versions = {0: published(pair), 1: pair.legacy.rows("t")}
    with in_mid_scan(lambda: [execute(sql) for sql in statements]):
        (report,) = pair.reports("t", options=Options(allow_shrink=True))
    version = pair.version("t")
    assert version is not None
    expect_equal(published(pair), versions[version])
    if report.error is not None:
        assert version == 0
        assert report.error["code"] in {"RECIPE", "SNAPSHOT_LOST"}, report.error
        assert report.error["remedy"], report.error
    else:
        assert version == 1
    if code is not None:
        error = pair.error("t")
        assert error["code"] == code, error
        assert "driftline refresh t --a" in error["remedy"], error
    pair.refresh("t", options=EVERYTHING)
    check(pair)


@pytest.mark.parametrize("pair", ["mariadb"], indirect=True)
def test_the_collation_of_the_key_changes(pair: Pair) -> None:
    """Keys are compared by their bytes: another collation is no other table, or it is refused."""
    execute = pair.legacy.execute
    execute("CREATE TABLE n (id VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, note VARCHAR(100))")
    execute("INSERT INTO n SELECT CONCAT('k', id), note FROM t")
    pair.publish("n", 'table = "n"')
    pair.refresh("n")
    before = pair.version("n")
    execute("ALTER TABLE n MODIFY id VARCHAR(20) COLLATE utf8mb4_general_ci")
    execute("UPDATE n SET id = 'K7' WHERE id = 'k7'")
    (report,) = pair.reports("n")
    if report.error is not None:
        assert report.error["code"] == "RECIPE", report.error
        assert pair.version("n") == before
        pair.refresh("n", options=EVERYTHING)
    table = DeltaTable(str(pair.warehouse / "n")).to_pyarrow_table()
    rows = list(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))
    expect_equal(rows, pair.legacy.rows("n"))


@pytest.mark.parametrize("pair", ENGINES, indirect=True)
def test_rows_change_all_the_time(pair: Pair) -> None:
    """Transfers of an amount between two rows, some 1,000 changes a second and more: each version
    has the amounts of one moment, and when it is quiet, a refresh makes them equal."""
    ended, moved, execute = threading.Event(), Counter[str](), owner(pair.legacy)

    def transfer() -> None:
        at = 0
        while not ended.is_set():
            at = (at + 7) % (ROWS - 101)
            # One statement, so one transaction: 100 rows give, 100 others take.
            execute(
                f"UPDATE t SET amount = amount + CASE WHEN id < {at + 50} THEN -3 ELSE 3 END"
                f" WHERE id >= {at} AND id < {at + 100}"
            )
            moved["rows"] += 100
            ended.wait(0.05)

    began = time.monotonic()
    writer = threading.Thread(target=transfer)
    writer.start()
    try:
        for _ in range(4):
            with in_mid_scan(partial(_await_more, moved)):
                pair.refresh("t")
            rows = published(pair)
            assert len(rows) == ROWS
            assert sum(row[1] for row in rows) == TOTAL
    finally:
        ended.set()
        writer.join(WAIT_S_MAX)
    assert moved["rows"] > 0
    print(f"{moved['rows'] / (time.monotonic() - began):,.0f} changes a second")
    pair.refresh("t")
    check(pair)


def _await_more(moved: Counter[str]) -> None:
    """Wait until more rows were changed than now."""
    before, deadline = moved["rows"], time.monotonic() + WAIT_S_MAX
    while moved["rows"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_fail_over_to_a_standby(tmp_path: Path) -> None:
    """The primary dies in mid-scan; its standby, which lacks the last changes, takes its place."""
    with PostgreSQL() as primary:
        legacy = PostgresLegacy(primary)
        with loaded(legacy, tmp_path) as pair, Standby(primary) as standby:
            legacy.reconnect()  # the primary was restarted while its data were copied
            pair.restart()
            pair.refresh("t")
            legacy.execute("UPDATE t SET note = 'lost with the primary' WHERE id > 500")
            with in_mid_scan(primary.crash):
                (report,) = pair.reports("t")
            if report.error is not None:  # else the scan had all its rows
                found = report.error["code"], report.error["safe_to_retry"]
                assert found == ("DATABASE_UNAVAILABLE", True), report.error
            error = pair.error("t")
            assert error["code"] == "DATABASE_UNAVAILABLE", error
            with standby.superuser(legacy.database) as promoted:
                promoted.execute("SELECT pg_promote()")
                legacy.url = standby.tcp_url(legacy.login, legacy.database)
                pair.restart()
                pair.refresh("t")
                expect_equal(published(pair), promoted.execute("SELECT * FROM t").fetchall())


@pytest.mark.parametrize("pair", ["sqlite"], indirect=True)
def test_the_clock_is_stepped(pair: Pair, daily_clock: type[Daily]) -> None:
    """Between refreshes and in the middle of one, by a year, forth and back: what is published is
    decided by rows alone."""
    for number, days in enumerate((0, 365, -365, 1, 0), start=1):
        daily_clock.days = days
        pair.legacy.execute("UPDATE t SET note = ? WHERE id % 9 = 0", f"day {days}")
        with in_mid_scan(partial(setattr, daily_clock, "days", -days)):
            report = pair.refresh("t")
        assert report.version == number
        check(pair)
