"""Refreshes by a marker on PostgreSQL: a column that lies, and all that happens to a server.

Both agents run in this process and no step needs Spark. A column is kept by a real trigger, which
some writers get around; `xmin` meets a real wrap-around of transaction numbers, by pg_resetwal.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.harness.absent import absent
from tests.harness.legacy import PostgresLegacy
from tests.harness.servers import PostgreSQL
from tests.pair.since.rig import OLD, ROWS, XMIN, Stock, counts, used
from warehouse_agent.inspection.published_state import fragment_state

BY_TIME = '{ column = "updated_at", late = "1m" }'
TOUCH = """CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.updated_at :=
    now() + COALESCE(NULLIF(current_setting('stock.clock', true), ''), '0')::interval;
  RETURN NEW;
END $$"""
TRIGGER = """CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON stock
FOR EACH ROW EXECUTE FUNCTION touch()"""
SEGMENT_XIDS = 1 << 20  # transactions whose outcome one file of pg_xact has
NUMBERS = 1 << 32
NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[PostgresLegacy]:
    made = PostgresLegacy(postgresql)
    yield made
    made.close()


@pytest.fixture
def touched(legacy: PostgresLegacy, tmp_path: Path) -> Iterator[Stock]:
    """A table whose trigger keeps `updated_at`."""
    made = Stock(legacy, tmp_path / "pair", BY_TIME)
    legacy.execute(TOUCH)
    legacy.execute(TRIGGER)
    yield made
    made.pair.stop()


@pytest.fixture
def numbered(legacy: PostgresLegacy, tmp_path: Path) -> Iterator[Stock]:
    """A table whose changes are found by `xmin`."""
    made = Stock(legacy, tmp_path / "pair", XMIN)
    yield made
    made.pair.stop()


def write(stock: Stock, keys: list[int], rng: random.Random) -> None:
    """Update rows as an application that knows nothing of the column."""
    rows = [(rng.randrange(1000, 10**9), key) for key in keys]
    stock.legacy.many("UPDATE stock SET amount = ? WHERE id = ?", rows)


def around(stock: Stock, before: str, after: str, keys: list[int], rng: random.Random) -> None:
    stock.legacy.execute(before)
    write(stock, keys, rng)
    stock.legacy.execute(after)


GETTING_AROUND = {
    "updates-leave-it-alone": (
        "SET session_replication_role = replica",
        "RESET session_replication_role",
    ),
    "triggers-disabled": (
        "ALTER TABLE stock DISABLE TRIGGER touch",
        "ALTER TABLE stock ENABLE TRIGGER touch",
    ),
    "clock-set-back": ("SET stock.clock = '-1 day'", "RESET stock.clock"),
}


# The source cannot tell triggers that are disabled from those that a role has not.
@pytest.mark.parametrize(
    "how",
    [
        "updates-leave-it-alone",
        pytest.param("triggers-disabled", marks=pytest.mark.soak),
        "clock-set-back",
    ],
)
def test_every_row_that_a_lying_column_missed_is_named(touched: Stock, how: str) -> None:
    """Of 1,000 updates, ten get around the trigger; nothing is called total before the audit."""
    rng = random.Random(how)
    every = [i * 3 for i in range(ROWS)]
    liars = set(rng.sample(every, 10))
    honest = [key for key in every if key not in liars]
    touched.legacy.execute("UPDATE stock SET amount = 0")  # within `late`
    assert touched.refresh().proof == "total"
    # Their rows are behind the mark until they are older than `late`, as if it were later now.
    touched.legacy.execute("ALTER TABLE stock DISABLE TRIGGER touch")
    touched.legacy.execute(f"UPDATE stock SET updated_at = '{OLD}+00'")
    touched.legacy.execute("ALTER TABLE stock ENABLE TRIGGER touch")
    touched.fragment('audit = "1s"')
    touched.refresh_when_due()
    touched.fragment()
    for part in range(5):
        write(touched, rng.sample(honest, 198), rng)
        around(touched, *GETTING_AROUND[how], sorted(liars)[part * 2 : part * 2 + 2], rng)
        report = touched.refresh()
        assert (report.proof, used(report)["used"]) == ("keys", True)
        assert counts(report) == (0, 198, 0)
        assert fragment_state(touched.pair.store, "stock").proof == "keys"
    theirs = {row[0]: row[1] for row in touched.legacy.rows("stock")}
    ours = {row[0]: row[1] for row in touched.published()}
    assert {key for key in theirs if ours[key] != theirs[key]} == liars
    touched.fragment('audit = "1s"')
    audit = touched.refresh_when_due()
    assert audit.audit is not None
    assert (audit.proof, counts(audit)) == ("total", (0, 10, 0))
    assert (audit.audit["missed"], set(map(int, audit.audit["keys"]))) == (10, liars)
    assert audit.audit["changes"] == 1000
    touched.check()


def test_a_transaction_that_is_open_for_longer_than_late_is_told(
    touched: Stock, legacy: PostgresLegacy, postgresql: PostgreSQL
) -> None:
    """The login sees no other session, but the number of a transaction that is not over."""
    touched.refresh()
    with postgresql.superuser(legacy.database) as writer:
        writer.autocommit = False
        writer.execute("UPDATE stock SET amount = 77 WHERE id = 30")
        touched.update([33], 78, honest=False)  # a snapshot shows numbers up to the last commit
        first = touched.refresh()
        assert used(first)["warnings"] == []
        touched.change_mark(as_of="2026-01-01T00:00:00Z", since="2026-01-01T00:00:00Z")
        heard = touched.pair.heard()
        (warning,) = used(heard.report)["warnings"]
        assert warning.startswith("a transaction of the source has been open for ")
        assert "longer than `late` allows" in heard.out
        told = fragment_state(touched.pair.store, "stock")
        assert told.marker_warnings == [warning]
        assert warning in touched.pair.said("status", "stock")
        # It goes on: the time from which it is known to be open is kept.
        assert used(touched.refresh())["warnings"]
        writer.commit()
    over = touched.refresh()
    assert used(over)["warnings"] == []
    assert fragment_state(touched.pair.store, "stock").marker_warnings is None


def test_a_marker_whose_column_was_dropped_is_refused(touched: Stock) -> None:
    touched.refresh()
    touched.legacy.execute("DROP TRIGGER touch ON stock")
    touched.legacy.execute("ALTER TABLE stock DROP COLUMN updated_at")
    error = touched.pair.error("stock")
    assert (error["code"], error["where"]) == ("CONFIGURATION", "stock")
    assert "log of the source's agent" in error["remedy"], "it has the name of the column"


@pytest.mark.parametrize("marker", [BY_TIME, XMIN], ids=["time", "xmin"])
def test_a_mark_that_cannot_be_of_this_database_is_not_used(
    legacy: PostgresLegacy, tmp_path: Path, marker: str
) -> None:
    stock = Stock(legacy, tmp_path / "pair", marker)
    stock.refresh()
    identity = stock.last_mark()["source"]
    system, timeline, *_ = identity.split(":")
    later = "9999-12-31 00:00:00+00" if marker == BY_TIME else str(2**60)
    cases: list[tuple[dict[str, object], str]] = [
        ({"source": identity.replace(system, "7000000000000000000")}, "another database"),
        ({"source": identity.replace(f":{timeline}:", f":{int(timeline) + 1}:")}, "a fail-over"),
        ({"at": later}, "later than the database's clock"),
        ({"marker": ["version", "updated_at", None]}, "changed the marker"),
        ({"version": 99}, "another release"),
        ({"at": 5}, "damaged"),
    ]
    if marker == XMIN:
        cases.append(({"at": str(-(2**31))}, "too many transactions"))
    try:
        for i, (entries, why) in enumerate(cases):
            stock.update([30], 1000 + i, honest=False)
            stock.change_mark(**entries)
            report = stock.refresh()
            assert (report.proof, counts(report)) == ("total", (0, 1, 0)), why
            assert why in str(used(report)["why"])
        stock.check()
    finally:
        stock.pair.stop()


# xmin


def test_a_prepared_transaction_is_found_when_it_is_over(
    numbered: Stock, legacy: PostgresLegacy, postgresql: PostgreSQL
) -> None:
    numbered.refresh()
    with postgresql.superuser(legacy.database) as writer:
        writer.autocommit = False
        writer.execute("UPDATE stock SET amount = 77 WHERE id = 30")
        writer.execute("PREPARE TRANSACTION 'stock'")
        writer.autocommit = True
        try:
            numbered.update([33], 78, honest=False)
            assert counts(numbered.refresh()) == (0, 1, 0)
            numbered.update([36], 79, honest=False)
            assert counts(numbered.refresh()) == (0, 1, 0)
        finally:
            writer.execute("COMMIT PREPARED 'stock'")
    found = numbered.refresh()
    assert (found.proof, counts(found)) == ("keys", (0, 1, 0))
    numbered.check()


def test_a_partition_that_is_attached_compares_all_rows(
    legacy: PostgresLegacy, tmp_path: Path
) -> None:
    """Its rows were written long before the mark, some with keys that were published before."""
    made = Stock(legacy, tmp_path / "pair", XMIN)
    try:
        legacy.execute("CREATE TABLE other (LIKE stock INCLUDING ALL)")
        legacy.execute("INSERT INTO other SELECT * FROM stock WHERE id >= 900")
        legacy.execute("UPDATE other SET amount = 4711 WHERE id < 930")
        legacy.execute("ALTER TABLE stock RENAME TO plain")
        legacy.execute("CREATE TABLE stock (LIKE plain INCLUDING ALL) PARTITION BY RANGE (id)")
        for name, bounds in (("low", (0, 900)), ("high", (900, 10**7))):
            legacy.execute(
                f"CREATE TABLE {name} PARTITION OF stock FOR VALUES FROM ({bounds[0]})"
                f" TO ({bounds[1]})"
            )
        legacy.execute("INSERT INTO stock SELECT * FROM plain")
        made.refresh()
        made.update([30], 5, honest=False)
        assert (found := made.refresh()).proof == "keys"
        assert counts(found) == (0, 1, 0)
        legacy.execute("ALTER TABLE stock DETACH PARTITION high")
        legacy.execute(
            "ALTER TABLE stock ATTACH PARTITION other FOR VALUES FROM (900) TO (10000000)"
        )
        swapped = made.refresh()
        assert (swapped.proof, counts(swapped)) == ("total", (0, 10, 0))
        assert "another database or table" in str(used(swapped)["why"])
        made.check()
        assert made.refresh().proof == "keys"
    finally:
        made.pair.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[PostgreSQL, PostgresLegacy, Stock]]:
    """A server that a test may stop, and a table whose changes are found by `xmin`."""
    with PostgreSQL() as server:
        legacy = PostgresLegacy(server)
        made = Stock(legacy, tmp_path / "pair", XMIN)
        yield server, legacy, made
        made.pair.stop()
        legacy.close()


def next_number(server: PostgreSQL) -> int:
    with server.superuser() as connection:
        row = connection.execute("SELECT txid_current()").fetchone()
    assert row is not None
    return int(row[0])


def jump(server: PostgreSQL, legacy: PostgresLegacy, number: int) -> None:
    """Have the server go on with a transaction number, as if so many had been used."""
    with server.superuser() as owner:
        owner.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        names = [name for (name,) in owner.execute("SELECT datname FROM pg_database").fetchall()]
    for name in names:  # no row has a number that is not visible to all any more
        with server.superuser(name) as owner:
            owner.execute("VACUUM (FREEZE)")
    server.stop()
    outcomes = server.folder / "data" / "pg_xact" / f"{number % NUMBERS // SEGMENT_XIDS:04X}"
    if not outcomes.exists():
        outcomes.write_bytes(bytes(SEGMENT_XIDS // 4))
        outcomes.chmod(0o600)
        shutil.chown(outcomes, outcomes.parent.owner(), outcomes.parent.group())
    server.run_tool("pg_resetwal", "-x", str(number % NUMBERS))
    server.start()
    legacy.reconnect()


@pytest.mark.slow
def test_a_real_wrap_around_misses_no_row(own: tuple[PostgreSQL, PostgresLegacy, Stock]) -> None:
    """Rows from before and after the wrap are told apart, whichever number is greater."""
    server, legacy, stock = own
    if not server.has_tool("pg_resetwal"):
        absent("PG_RESETWAL", "this package has none", is_required_in_ci=False)
    rng = random.Random(5)
    every = [i * 3 for i in range(ROWS)]
    stock.refresh()
    for number in (1_500_000_000, 3_000_000_000, NUMBERS - 120):
        jump(server, legacy, number)
        write(stock, rng.sample(every, 5), rng)
        jumped = stock.refresh()
        assert jumped.proof == "total"  # the server was started again
        assert jumped.rows_updated == 5
        stock.check()
    before = next_number(server)
    assert NUMBERS - 200 < before % NUMBERS < NUMBERS
    wrapped = False
    for _ in range(6):
        some = rng.sample(every, 30)
        for key in some:  # a transaction each
            legacy.execute(
                "UPDATE stock SET amount = ? WHERE id = ?", rng.randrange(1000, 10**9), key
            )
        gone = rng.sample(every, 3)
        stock.delete(gone)
        every = [key for key in every if key not in gone]
        found = stock.refresh()
        assert (found.proof, used(found)["used"]) == ("keys", True)
        assert counts(found) == (0, len(set(some) - set(gone)), 3)
        # Frozen rows keep their first number, which the wrap may put behind the mark again.
        assert 30 <= used(found)["rows"] <= len(every)
        stock.check()
        wrapped |= next_number(server) % NUMBERS < 1000
    assert wrapped
    with server.superuser(legacy.database) as owner:  # frozen rows keep their numbers
        owner.execute("VACUUM (FREEZE) stock")
    stock.update([every[7]], 12, honest=False)
    assert counts(stock.refresh()) == (0, 1, 0)
    stock.check()


@pytest.mark.slow
def test_a_restored_server_compares_all_rows(own: tuple[PostgreSQL, PostgresLegacy, Stock]) -> None:
    """Numbers of transactions come again behind a cold copy, and behind a recovery."""
    server, legacy, stock = own
    stock.refresh()
    server.stop()
    data, copy = server.folder / "data", server.folder / "copy"
    subprocess.run(["cp", "-a", str(data), str(copy)], check=True)
    server.start()
    legacy.reconnect()
    for i in range(40):
        stock.update([30 + 3 * i], 100 + i, honest=False)
    stock.refresh()
    mark = stock.last_mark()
    server.stop()
    shutil.rmtree(data)
    copy.rename(data)
    server.start()
    legacy.reconnect()
    for i in range(60):  # other rows, by the same numbers, and more of them than before
        stock.update([600 + 3 * i], 500 + i, honest=False)
    again = stock.refresh()
    assert int(stock.last_mark()["at"]) > int(mark["at"]), "the mark looks older than the database"
    assert (again.proof, counts(again)) == ("total", (0, 100, 0))
    assert "before a restart" in str(used(again)["why"])
    stock.check()
    # A recovery ends on another timeline.
    timeline = stock.last_mark()["source"].split(":")[1]
    server.stop()
    (data / "recovery.signal").touch()
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write("restore_command = 'false'\n")
    server.start()
    legacy.reconnect()
    legacy.await_writable()
    stock.update([90], 7, honest=False)
    recovered = stock.refresh()
    assert (recovered.proof, counts(recovered)) == ("total", (0, 1, 0))
    legacy.execute("CHECKPOINT")
    stock.refresh()
    assert int(stock.last_mark()["source"].split(":")[1]) == int(timeline) + 1
    stock.check()
