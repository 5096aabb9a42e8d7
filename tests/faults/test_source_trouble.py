"""The source changes under a refresh: its columns, its table, its rows, its server, the clock.

Each time: what is published is the table of one moment, or the version before; the error says what
to do; and the next refresh converges. The databases are real ones. What ends a session or a
statement is in `tests/conditions`, dead servers are in `test_dead_databases`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import SnapshotLost
from driftline.rows.columns import gather
from psycopg import errors as psycopg_errors

from tests.fixtures.clock import Daily
from tests.fixtures.databases import require_mariadb
from tests.harness.absent import absent, set_up
from tests.harness.family import FAMILY
from tests.harness.legacy import (
    LEGACIES,
    Legacy,
    MariaLegacy,
    PostgresLegacy,
    ServedLegacy,
    of_family,
)
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, expect_equal
from tests.harness.servers import PostgreSQL, PostgreSQLWithLanguages, postgresql_programs
from tests.harness.standby import Standby
from tests.harness.stepped_clock import SteppedMariaDB, SteppedPostgreSQL, faketime
from tests.harness.transfers import await_more, transferring
from warehouse_agent.refresh.job import Options

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.mariadb]

ROWS = 600
MANY_ROWS = 10_000  # of 3 KB: the server has not sent them all when the agent has the first
MOVED_ROWS, NOTE = 20_000, "x" * 100  # so that a scan has several batches
MOVED_IN_SCAN = 500  # transactions
YOUNG_S = 6.0  # PostgreSQL spares a snapshot of less than 5 s whatever its settings are
LAST_WITH_TOO_OLD = 16  # release of PostgreSQL
RATE_MIN = 1000.0  # transactions a second, on a quiet machine
RATE_MIN_ANYWHERE = 200.0  # on one that runs other tests
DDL = "id INTEGER PRIMARY KEY NOT NULL, amount INTEGER, note VARCHAR(100)"
ENGINES = ("postgresql", *FAMILY, "sqlite")
EVERYTHING = Options(accept_schema=True, allow_shrink=True)
WAIT_S_MAX = 60.0
YEAR = 365  # days
Stepped = SteppedPostgreSQL | SteppedMariaDB
STEPPED: list[type[Stepped]] = [SteppedPostgreSQL, SteppedMariaDB]
CLOCK_MARKER = 'marker = { column = "at", late = "1m" }'

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
    *((e, "widen", ["ALTER TABLE t MODIFY amount BIGINT"], "RECIPE") for e in FAMILY),
    *((e, "narrow", ["ALTER TABLE t MODIFY amount SMALLINT"], "RECIPE") for e in FAMILY),
    *((e, "key", ["ALTER TABLE t MODIFY id VARCHAR(20)"], "RECIPE") for e in FAMILY),
    *((e, "emptied", ["DELETE FROM t"], "SHRANK") for e in ENGINES),
    *((e, "truncated", ["TRUNCATE TABLE t"], "SHRANK") for e in ("postgresql", *FAMILY)),
    *((e, "swapped", SWAP, None) for e in ENGINES),
    ("postgresql", "partitioned", PARTITIONED, None),
    *(
        (e, "partitioned", ["ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 4"], None)
        for e in FAMILY
    ),
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


def published(pair: Pair, name: str = "t") -> list[tuple[Any, ...]]:
    """What a reader without Driftline sees."""
    table = pair.delta(name).to_pyarrow_table()
    names = [name for name in table.column_names if not name.startswith("_driftline")]
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def check(pair: Pair) -> None:
    expect_equal(published(pair), pair.legacy.rows("t"))


def await_no_session(legacy: ServedLegacy) -> None:
    """Wait until the database has no session of the agent's login."""
    deadline = time.monotonic() + WAIT_S_MAX
    while legacy.sessions():
        assert time.monotonic() < deadline, "a database session is left"
        time.sleep(0.02)


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
def in_mid_scan(action: Callable[[], object], *, is_awaited: bool = False) -> Iterator[None]:
    """Let something begin at the source when the next scan has rows; wait for its end.

    `is_awaited`: the scan goes on behind its end, so it must not wait for the session that reads.
    """
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
            if is_awaited:
                thread.join(WAIT_S_MAX)
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


@pytest.mark.parametrize("is_in_scan", [False, True], ids=["between", "in-mid-scan"])
@pytest.mark.parametrize("method", ["sketch", pytest.param("range", marks=pytest.mark.soak)])
@pytest.mark.parametrize("engine", [*FAMILY, "postgresql"])
def test_the_collation_of_the_key_changes(
    engine: str, method: str, is_in_scan: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Keys are compared by their bytes: another collation is no other table, or it is refused.

    In mid-scan the change waits for the lock of the session that reads.
    """
    legacy, before, after = with_collations(request, engine)
    with closing(legacy), loaded(legacy, tmp_path) as pair:
        execute = legacy.execute
        execute(f"CREATE TABLE n (id {before} PRIMARY KEY, note VARCHAR(100))")
        execute("INSERT INTO n SELECT CONCAT('k', id), note FROM t")
        execute("INSERT INTO n VALUES ('K9999', 'first by bytes')")
        least = least_key(legacy)
        alter = partial(execute, f"ALTER TABLE n {after}")
        pair.publish("n", 'table = "n"')
        pair.fragment_lines["n"] = f'method = "{method}"'
        pair.refresh("n")
        execute("UPDATE n SET note = 'before' WHERE id = 'k5'")
        if is_in_scan:
            with in_mid_scan(alter):
                pair.refresh("n")
            expect_equal(published(pair, "n"), legacy.rows("n"))
        else:
            alter()
        assert least_key(legacy) != least, "it sorts as before"
        version, rows = pair.version("n"), published(pair, "n")
        execute("UPDATE n SET id = 'K7' WHERE id = 'k7'")
        (report,) = pair.reports("n")
        if report.error is not None:
            assert report.error["code"] == "RECIPE", report.error
            assert pair.version("n") == version
            expect_equal(published(pair, "n"), rows)
            pair.refresh("n", options=EVERYTHING)
        expect_equal(published(pair, "n"), legacy.rows("n"))
        await_no_session(legacy)


def with_collations(request: pytest.FixtureRequest, engine: str) -> tuple[ServedLegacy, str, str]:
    """Return a database, the type of a text key, and the change by which it sorts differently."""
    if engine in FAMILY:
        text = "VARCHAR(20) COLLATE utf8mb4"
        made: ServedLegacy = of_family(request.getfixturevalue(engine))
        return made, f"{text}_bin", f"MODIFY id {text}_general_ci"
    made = PostgresLegacy(request.getfixturevalue("postgresql_with_languages"))
    return made, 'text COLLATE "de-x-icu"', 'ALTER COLUMN id TYPE text COLLATE "C"'


def least_key(legacy: ServedLegacy) -> str:
    """Return the first key of `n` in the database's own order."""
    legacy.execute("CREATE TABLE least AS SELECT id FROM n ORDER BY id LIMIT 1")
    ((key,),) = legacy.rows("least")
    legacy.execute("DROP TABLE least")
    return str(key)


TOO_OLD = """
CREATE FUNCTION checked(id int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF id = 250 THEN
    RAISE EXCEPTION 'snapshot too old' USING ERRCODE = '72000';
  END IF;
  RETURN '';
END $$"""


@pytest.mark.parametrize("pair", ["postgresql"], indirect=True)
def test_the_snapshot_is_too_old(pair: Pair) -> None:
    """The server ends the COPY with this error behind the first rows.

    Releases since 17 have no such error of their own: a function of the owner's raises it.
    """
    assert psycopg_errors.lookup("72000") is psycopg_errors.SnapshotTooOld
    legacy = pair.legacy
    assert isinstance(legacy, PostgresLegacy)
    execute = legacy.execute
    pair.publish(
        "t", 'query = "SELECT id, amount, note || public.checked(id) AS note FROM t"\nkey = ["id"]'
    )
    execute(TOO_OLD.replace("id = 250", "false"))
    pair.refresh("t", options=EVERYTHING)
    execute("UPDATE t SET note = 'edited later' WHERE id < 70")
    execute(TOO_OLD.replace("CREATE", "CREATE OR REPLACE"))
    before = published(pair)
    expect_too_old(pair, before)
    execute(TOO_OLD.replace("CREATE", "CREATE OR REPLACE").replace("id = 250", "false"))
    pair.refresh("t")
    check(pair)
    await_no_session(legacy)


@pytest.mark.soak  # as good as the other, and it waits
def test_the_snapshot_is_too_old_for_an_older_release(tmp_path: Path) -> None:
    """PostgreSQL up to release 16 removes rows that an old snapshot needs, if it is told to."""
    programs = postgresql_programs()
    if not programs or float(programs[-1].parent.name) > LAST_WITH_TOO_OLD:
        absent("OLD POSTGRESQL", "release 16 or older is not installed", is_required_in_ci=False)
    with PostgreSQLWithLanguages(old_snapshot_threshold="0") as server:
        legacy = PostgresLegacy(server)
        with closing(legacy), loaded(legacy, tmp_path) as pair:
            many = [(i, i, "x" * 3000) for i in range(ROWS, ROWS + MANY_ROWS)]
            legacy.execute("ALTER TABLE t ALTER COLUMN note TYPE VARCHAR(4000)")
            legacy.execute("ALTER TABLE t ALTER COLUMN note SET STORAGE PLAIN")
            legacy.many("INSERT INTO t VALUES (?, ?, ?)", many)
            pair.refresh("t", options=EVERYTHING)
            before = published(pair)

            def remove_old_rows() -> None:
                legacy.execute("UPDATE t SET amount = amount + 1")
                time.sleep(YOUNG_S)
                legacy.execute("SELECT count(*) FROM t")  # it notices which snapshots are old
                legacy.execute("VACUUM t")

            with in_mid_scan(remove_old_rows, is_awaited=True):
                expect_too_old(pair, before)
            pair.refresh("t")
            check(pair)
            await_no_session(legacy)


def expect_too_old(pair: Pair, before: list[tuple[Any, ...]]) -> None:
    """Refresh: the error is said, and nothing is published."""
    error = pair.error("t")
    assert (error["code"], error["exit_code"]) == ("SNAPSHOT_LOST", 75), error
    assert error["safe_to_retry"], error
    assert "snapshot too old" in error["message"], error
    assert error["remedy"].startswith(SnapshotLost.default_remedy), error
    expect_equal(published(pair), before)


@pytest.mark.parametrize("pair", ENGINES, indirect=True)
@pytest.mark.parametrize(
    ("refreshes", "rate_min"),
    [(2, RATE_MIN_ANYWHERE), pytest.param(60, RATE_MIN, marks=pytest.mark.soak)],
    ids=["some", "many"],
)
def test_rows_change_all_the_time(pair: Pair, refreshes: int, rate_min: float) -> None:
    """Amounts move between two rows, each time in a transaction, while rows are read: each version
    has the amounts of one moment, and when it is quiet, a refresh makes them equal.

    Each scan is held behind its first rows until more has moved. The rate is that of transactions
    while refreshes run; each changes two rows.
    """
    legacy = pair.legacy
    more = [(i, 100, NOTE) for i in range(ROWS, MOVED_ROWS)]
    legacy.many("INSERT INTO t VALUES (?, ?, ?)", more)
    pair.refresh("t")
    seconds, changes = 0.0, 0
    with transferring(legacy, MOVED_ROWS) as count:
        for _ in range(refreshes):
            began, before = time.monotonic(), count()
            moving = partial(await_more, count, MOVED_IN_SCAN, within_s=WAIT_S_MAX)
            with in_mid_scan(moving, is_awaited=True):
                pair.refresh("t")
            seconds += time.monotonic() - began
            changes += count() - before
            rows = published(pair)
            assert len(rows) == MOVED_ROWS
            assert sum(row[1] for row in rows) == 100 * MOVED_ROWS
    rate = changes / seconds
    print(f"{legacy.engine}: {rate:,.0f} transactions a second in {seconds:.1f} s of refreshes")
    assert rate >= rate_min
    pair.refresh("t")
    check(pair)


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
    """The warehouse's, between refreshes and in the middle of one, by a year, forth and back: what
    is published is decided by rows alone."""
    for number, days in enumerate((0, 365, -365, 1, 0), start=1):
        daily_clock.days = days
        pair.legacy.execute("UPDATE t SET note = ? WHERE id % 9 = 0", f"day {days}")
        with in_mid_scan(partial(setattr, daily_clock, "days", -days)):
            report = pair.refresh("t")
        assert report.version == number
        check(pair)


@pytest.fixture(scope="module", params=STEPPED)
def stepped(request: pytest.FixtureRequest) -> Iterator[Stepped]:
    set_up("faketime")
    if faketime() is None:
        absent("CLOCK OF A SERVER", "libfaketime is not installed", is_required_in_ci=False)
    if request.param is SteppedMariaDB:
        require_mariadb()
    with request.param() as server:
        yield server


@pytest.fixture
def on_stepped(stepped: Stepped, tmp_path: Path) -> Iterator[tuple[Stepped, Pair]]:
    """A server whose clock is right, and a table there."""
    stepped.step(0)
    made: ServedLegacy = (
        MariaLegacy(stepped) if isinstance(stepped, SteppedMariaDB) else PostgresLegacy(stepped)
    )
    with closing(made) as legacy:
        with loaded(legacy, tmp_path) as pair:
            yield stepped, pair
        await_no_session(legacy)


def expect_days(as_of: str | None, days: int) -> None:
    """Check that a time is so many days from now, to the hour."""
    assert as_of is not None
    off = datetime.fromisoformat(as_of) - (datetime.now(UTC) + timedelta(days=days))
    assert abs(off) < timedelta(hours=1), (as_of, days)


@pytest.mark.parametrize("method", ["sketch", "full"])
def test_the_clock_of_the_server_is_stepped(on_stepped: tuple[Stepped, Pair], method: str) -> None:
    """What is published is the table of the snapshot, whose time is what the clock said then."""
    server, pair = on_stepped
    pair.fragment_lines["t"] = f'method = "{method}"'
    for number, days in enumerate((0, YEAR, -YEAR, 1, 0), start=1):
        server.step(days)
        pair.legacy.execute("UPDATE t SET note = ? WHERE mod(id, 9) = 0", f"day {days}")
        with in_mid_scan(partial(server.step, -days)):
            report = pair.refresh("t")
        assert (report.version, report.consistency) == (number, "exact")
        expect_days(report.as_of, days)
        check(pair)


@pytest.mark.parametrize("days", [YEAR, -YEAR])
def test_the_clock_of_the_server_is_stepped_between_tiles(
    on_stepped: tuple[Stepped, Pair], days: int
) -> None:
    """Each tile has a snapshot of its own: none of the version is older than the version says."""
    server, pair = on_stepped
    pair.fragment_lines["t"] = 'method = "range"\nrequire = "fuzzy"\nincremental = { rows = 100 }'
    with in_mid_scan(partial(server.step, days), is_awaited=True):
        report = pair.refresh("t")
    assert report.tiles is not None
    assert (report.version, report.tiles_done) == (1, report.tiles)
    expect_days(report.as_of, min(days, 0))
    check(pair)
    pair.legacy.execute("UPDATE t SET note = 'again' WHERE id % 9 = 0")
    pair.refresh("t")
    check(pair)


def test_a_mark_that_the_clock_of_the_server_has_not_reached(
    on_stepped: tuple[Stepped, Pair],
) -> None:
    """A mark of a clock that was ahead is not used when the clock is right: updates would be
    missed until it gets there."""
    server, pair = on_stepped
    legacy = pair.legacy
    kind = "timestamptz" if legacy.engine == "postgresql" else "timestamp"
    legacy.execute(f"ALTER TABLE t ADD COLUMN at {kind}")
    legacy.execute("UPDATE t SET at = '2001-01-01'")
    legacy.execute("CREATE INDEX by_time ON t (at)")
    pair.publish("t", f'table = "t"\n{CLOCK_MARKER}')
    pair.fragment_lines["t"] = 'proof = "keys"\nmethod = "since"'
    update = "UPDATE t SET note = ?, at = CURRENT_TIMESTAMP WHERE mod(id, 9) = ?"
    changed = int(time.time())
    while int(time.time()) <= changed:  # MariaDB says in whole seconds when a table was changed
        time.sleep(0.05)
    pair.refresh("t", options=EVERYTHING)

    why: list[str | None] = []
    for number, (days, then) in enumerate([(0, 0), (YEAR, YEAR), (0, YEAR), (0, 0), (-YEAR, 0)]):
        server.step(days)
        legacy.execute(update, f"step {number}", number)
        with in_mid_scan(partial(server.step, then)):
            report = pair.refresh("t")
        assert report.marker is not None
        why.append(report.marker["why"])
        check(pair)
    later = "the mark is later than the database's clock, or its newest row, is now"
    changed_later = (
        "a table, a column or an expression that the relation reads was changed or replaced"
    )
    last = later if legacy.engine == "postgresql" else changed_later  # by the clock of that day
    assert why == [None, None, later, None, last]
