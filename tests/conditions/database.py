"""Conditions of the source's database and of the machine that it is on."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.conditions.conditions import Bench, cause
from tests.harness.family import FAMILY
from tests.harness.legacy import MariaLegacy, PostgresLegacy
from tests.harness.servers import FamilyServer, PostgreSQL
from tests.harness.standby import Standby
from tests.harness.tls_pair import TlsPair

CRASH_S_MAX = 60.0
MANY_ROWS = 20_000  # some 4 MB, which do not fit into a disk of 1 MiB
SORTED = "SELECT id, note, row_number() OVER (ORDER BY note, id) AS n FROM orders"
SLOW = 250  # the id of a row that takes a minute to read
SLOW_QUERY = {
    "postgresql": "SELECT id, note || CASE id WHEN 250 THEN pg_sleep(60)::text ELSE '' END AS note"
    " FROM orders",
    "mariadb": "SELECT id, CONCAT(note, IF(id = 250, SLEEP(60), '')) AS note FROM orders",
}


@contextlib.contextmanager
def _asleep(
    bench: Bench, legacy: PostgresLegacy | MariaLegacy, act: Callable[[], object]
) -> Iterator[TlsPair]:
    """Yield agents whose scan sleeps at row SLOW; `act` is called when it does.

    Later snapshots have no such row.
    """
    relation = {"orders": f'query = "{SLOW_QUERY[legacy.engine]}"\nkey = ["id"]'}
    ended = threading.Event()
    acted = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if legacy.is_asleep():
                legacy.execute(f"DELETE FROM orders WHERE id = {SLOW}")
                act()
                acted.set()
                return
            ended.wait(0.02)

    watcher = threading.Thread(target=watch)
    with bench.pair(legacy, relations=relation) as pair:
        watcher.start()
        try:
            yield pair
        finally:
            ended.set()
            watcher.join(60)
        assert acted.is_set()


@cause("the database is down", "DATABASE_UNAVAILABLE", 4, "cannot be reached", retried=True)
def down(bench: Bench) -> Iterator[TlsPair]:
    with bench.postgresql() as legacy:
        up = legacy.url
        legacy.url = up.replace(f":{bench.fixture('postgresql').port}/", ":9/")
        assert legacy.url != up
        with bench.pair(legacy) as pair:
            yield pair
            legacy.url = up
            pair.restart()
            bench.converge(pair)


@cause(
    "the file of an SQLite database is gone",
    "DATABASE_UNAVAILABLE",
    4,
    "does not exist",
    retried=True,
)
def no_file(bench: Bench) -> Iterator[TlsPair]:
    with bench.sqlite() as legacy, bench.pair(legacy) as pair:
        (bench.folder / "erp.db").rename(bench.folder / "elsewhere.db")
        yield pair
        (bench.folder / "elsewhere.db").rename(bench.folder / "erp.db")
        bench.converge(pair)


@cause(
    "the database refuses the password", "DATABASE_REFUSED", 1, "refused the login", retried=False
)
def wrong_password(bench: Bench) -> Iterator[TlsPair]:
    with bench.postgresql() as legacy:
        right, legacy.password = legacy.password, "not-it"
        with bench.pair(legacy) as pair:
            yield pair
            legacy.password = right
            pair.restart()
            bench.converge(pair)


@cause(
    "SELECT is not granted", "DATABASE_REFUSED", 1, "SELECT or USAGE", "Ask the DBA", retried=False
)
def not_granted(bench: Bench) -> Iterator[TlsPair]:
    with bench.postgresql() as legacy:
        legacy.execute("REVOKE SELECT ON orders FROM PUBLIC")
        legacy.execute(f"REVOKE SELECT ON orders FROM {legacy.login}")
        with bench.pair(legacy) as pair:
            yield pair
            legacy.execute(f"GRANT SELECT ON orders TO {legacy.login}")
            bench.converge(pair)


@cause("USAGE of the schema is not granted", "DATABASE_REFUSED", 1,
       "SELECT or USAGE", retried=False)  # fmt: skip
def schema_not_granted(bench: Bench) -> Iterator[TlsPair]:
    relation = {"orders": 'table = "kept.orders"\nkey = ["id"]'}
    with bench.postgresql() as legacy:
        legacy.execute("CREATE SCHEMA kept")
        legacy.execute("CREATE VIEW kept.orders AS SELECT * FROM public.orders")
        legacy.execute("GRANT SELECT ON kept.orders TO PUBLIC")
        with bench.pair(legacy, relations=relation) as pair:
            yield pair
            legacy.execute(f"GRANT USAGE ON SCHEMA kept TO {legacy.login}")
            bench.converge(pair)


@cause("a materialized view was never filled", "DATABASE_REFUSED", 1,
       "was never filled", "Ask the DBA", retried=False)  # fmt: skip
def not_filled(bench: Bench) -> Iterator[TlsPair]:
    """Before a view over it is read, too."""
    relation = {"orders": 'table = "kept"\nkey = ["id"]'}
    with bench.postgresql() as legacy:
        legacy.execute("CREATE MATERIALIZED VIEW kept AS SELECT * FROM orders WITH NO DATA")
        legacy.execute("GRANT SELECT ON kept TO PUBLIC")
        with bench.pair(legacy, relations=relation) as pair:
            yield pair
            refresh = "REFRESH MATERIALIZED VIEW kept"
            legacy.execute(refresh)
            bench.converge(pair, "kept", then=lambda: legacy.execute(refresh))


@cause("a query computes other values each time it is read", "DATABASE_REFUSED", 1,
       "Two reads of one snapshot", "random()", retried=False)  # fmt: skip
def volatile(bench: Bench) -> Iterator[TlsPair]:
    relation = {"orders": 'table = "noisy"\nkey = ["id"]'}
    view = "CREATE OR REPLACE VIEW noisy AS SELECT id, {} AS note FROM orders"
    with bench.postgresql() as legacy:
        legacy.execute(view.format("note"))
        legacy.execute("GRANT SELECT ON noisy TO PUBLIC")
        with bench.pair(legacy, relations=relation) as pair:
            pair.refresh("orders")
            legacy.execute(view.format("random()::text"))
            yield pair
            legacy.execute(view.format("note"))
            bench.converge(pair, "noisy")


@cause("an index of the table lacks rows", "PROOF", 75, "an index of its table",
       "REINDEX", retried=True)  # fmt: skip
def lacking_index(bench: Bench) -> Iterator[TlsPair]:
    """Its key is twice in the table: rows came while the catalogue said that it was not ready."""
    relation = {"orders": 'table = "kept"\nkey = ["id"]'}
    with bench.postgresql() as legacy:
        ready = (
            "UPDATE pg_index SET indisready = {0}, indisvalid = {0}"
            " WHERE indexrelid = 'kept_key'::regclass"
        )
        legacy.execute("CREATE TABLE kept AS SELECT * FROM orders")
        legacy.execute("ALTER TABLE kept ALTER id SET NOT NULL")
        legacy.execute("CREATE UNIQUE INDEX kept_key ON kept (id)")
        legacy.execute("GRANT SELECT ON kept TO PUBLIC")
        with bench.pair(legacy, relations=relation) as pair:
            pair.refresh("orders")
            legacy.execute(ready.format("false"))
            legacy.execute("INSERT INTO kept VALUES (7, 'twice')")
            legacy.execute(ready.format("true"))
            yield pair
            legacy.execute("DELETE FROM kept WHERE note = 'twice'")
            legacy.execute("REINDEX TABLE kept")
            bench.converge(pair, "kept")


@cause(
    "a session is ended by pg_terminate_backend", "DATABASE_UNAVAILABLE", 4,
    "orders", "An administrator ended the connection", retried=True,
)  # fmt: skip
def terminated(bench: Bench) -> Iterator[TlsPair]:
    with (
        bench.postgresql() as legacy,
        _asleep(bench, legacy, lambda: legacy.signal("terminate")) as pair,
    ):
        yield pair
        bench.converge(pair)


@cause(
    "a statement is cancelled by pg_cancel_backend", "DATABASE_REFUSED", 1,
    "Somebody at the source cancelled", "Ask the DBA", retried=False,
)  # fmt: skip
def cancelled(bench: Bench) -> Iterator[TlsPair]:
    with (
        bench.postgresql() as legacy,
        _asleep(bench, legacy, lambda: legacy.signal("cancel")) as pair,
    ):
        yield pair
        bench.converge(pair)


@cause(
    "a connection of MariaDB or MySQL is killed", "DATABASE_UNAVAILABLE", 4, " says",
    retried=True, engines=FAMILY,
)  # fmt: skip
def killed(bench: Bench) -> Iterator[TlsPair]:
    with bench.family() as legacy, _asleep(bench, legacy, legacy.kill_readers) as pair:
        yield pair
        bench.converge(pair)


@cause(
    "the database restarts",
    "DATABASE_UNAVAILABLE",
    4,
    "ended the connection",
    "the log of the source's agent",
    retried=True,
)
def restarted(bench: Bench) -> Iterator[TlsPair]:
    server: PostgreSQL = bench.fixture("own_postgresql")
    with bench.postgresql(server) as legacy:

        def crash() -> None:
            legacy.execute("CHECKPOINT")  # the test's server does not promise to keep a commit
            server.crash()

        yield from _restarted(bench, legacy, crash, server.start)


@cause("MariaDB or MySQL restarts", "DATABASE_UNAVAILABLE", 4, " says", retried=True,
       engines=FAMILY)  # fmt: skip
def family_restarted(bench: Bench) -> Iterator[TlsPair]:
    """Its administrator stops it in mid-scan, and starts it again."""
    server: FamilyServer = bench.fixture(f"own_{bench.engine}")
    with bench.family(server) as legacy:
        yield from _restarted(bench, legacy, server.stop, server.start)


def _restarted(
    bench: Bench,
    legacy: PostgresLegacy | MariaLegacy,
    end: Callable[[], None],
    start: Callable[[], None],
) -> Iterator[TlsPair]:
    """A server that ends in mid-scan, and is there again before the next attempt."""
    ended = threading.Event()

    def stop() -> None:
        end()
        ended.set()

    def again() -> None:
        assert ended.wait(CRASH_S_MAX)  # the error is here before the server has ended
        start()

    with _asleep(bench, legacy, stop) as pair:
        pair.between = again
        yield pair
        legacy.reconnect()
        bench.converge(pair)


@cause(
    "a standby cancels in favour of recovery", "SNAPSHOT_LOST", 75,
    "in favour of recovery", retried=True,
)  # fmt: skip
def conflict(bench: Bench) -> Iterator[TlsPair]:
    primary: PostgreSQL = bench.fixture("own_postgresql")
    with bench.postgresql(primary) as legacy, Standby(primary) as standby:
        legacy.reconnect()
        legacy.url = legacy.url.replace(f":{primary.port}/", f":{standby.port}/")

        def clean_up() -> None:
            legacy.execute("VACUUM orders")
            standby.await_conflict(legacy.database)

        legacy.watched = standby
        with _asleep(bench, legacy, clean_up) as pair:
            yield pair
            bench.converge(pair, then=standby.await_replay)


@cause("a lock is held for longer than lock_timeout_s", "DATABASE_UNAVAILABLE", 4,
       "Someone holds a lock", retried=True)  # fmt: skip
def locked(bench: Bench) -> Iterator[TlsPair]:
    with bench.postgresql() as legacy, bench.pair(legacy, database="lock_timeout_s = 0.2") as pair:
        server: PostgreSQL = bench.fixture("postgresql")
        with server.superuser(legacy.database) as owner:
            owner.autocommit = False
            owner.execute("LOCK TABLE orders")
            yield pair
            owner.rollback()
        bench.converge(pair)


@cause("a statement takes longer than statement_timeout_s", "DATABASE_REFUSED", 1,
       "statement timeout", "statement_timeout_s", retried=False)  # fmt: skip
def slow(bench: Bench) -> Iterator[TlsPair]:
    relation = {"orders": 'query = "SELECT id, pg_sleep(1)::text AS t FROM orders"\nkey = ["id"]'}
    limit = "statement_timeout_s = 0.2"
    with (
        bench.postgresql() as legacy,
        bench.pair(legacy, database=limit, relations=relation) as pair,
    ):
        yield pair
        pair.publish("orders", 'table = "orders"')
        bench.converge(pair)


@cause("the database's disk is full", "DATABASE_UNAVAILABLE", 4,
       "disk is full", "Try again later", retried=True)  # fmt: skip
def full(bench: Bench) -> Iterator[TlsPair]:
    """Its sort does not fit into the disk of its temporary files."""
    server: PostgreSQL = bench.fixture("postgresql")
    # Below the server's own folder, which its system user may enter.
    disk: Path = bench.fixture("small_disk")(1, at=server.folder / "small")
    place = disk / "temporary"
    place.mkdir()
    owner = (server.folder / "data").stat()
    shutil.chown(place, owner.st_uid, owner.st_gid)
    relation = {"orders": f'query = "{SORTED}"\nkey = ["id"]'}
    with bench.postgresql(rows=MANY_ROWS, note_bytes=200) as legacy:
        legacy.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        legacy.execute(f"GRANT CREATE ON TABLESPACE small TO {legacy.login}")
        legacy.execute(f"ALTER ROLE {legacy.login} SET temp_tablespaces = 'small'")
        legacy.execute(f"ALTER ROLE {legacy.login} SET work_mem = '64kB'")
        try:
            with bench.pair(legacy, relations=relation) as pair:
                yield pair
                legacy.execute(f"ALTER ROLE {legacy.login} RESET temp_tablespaces")
                legacy.execute(f"CREATE VIEW sorted AS {SORTED}")
                bench.converge(pair, "sorted")
        finally:
            legacy.execute(f"REVOKE ALL ON TABLESPACE small FROM {legacy.login}")
            legacy.execute("DROP TABLESPACE small")


@cause("the DBA has paused the agent", "NOT_NOW", 75, "pause", retried=True)
def paused(bench: Bench) -> Iterator[TlsPair]:
    pause = bench.folder / "pause"
    with bench.sqlite() as legacy, bench.pair(legacy, limits=f'pause_file = "{pause}"') as pair:
        pause.touch()
        yield pair
        pause.unlink()
        bench.converge(pair)


@cause("all places for scans are taken", "NOT_NOW", 75, "scans_at_once", retried=True)
def busy(bench: Bench) -> Iterator[TlsPair]:
    with (
        bench.sqlite() as legacy,
        bench.pair(legacy, limits="scans_at_once = 1") as pair,
    ):
        with pair.governor.slot(threading.Event(), "another client"):
            yield pair
        bench.converge(pair)
