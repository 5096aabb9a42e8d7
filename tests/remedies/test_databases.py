"""Remedies for relations of PostgreSQL, MariaDB and others: with what each says, rows are read."""

from __future__ import annotations

import importlib
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
    ValueDoesNotFit,
)

from source_agent.engines.conformance.reads import Read, read, rows_of, session_of
from source_agent.engines.interface import Limits
from source_agent.engines.postgresql import waits
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Relation
from source_agent.engines.sessions import foreseen
from tests.harness.family import FAMILY
from tests.harness.legacies import OfMariaDB, OfMySQL, OfPostgreSQL, of_family
from tests.harness.pgbouncer import PgBouncer
from tests.harness.servers import PostgreSQL
from tests.remedies.told import told

Case = tuple[str, Relation, tuple[Relation, ...]]
T = Relation("t", table="t")


@pytest.fixture(scope="module")
def pg(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    made.run(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, p regproc)",
        "INSERT INTO t VALUES (1, 1.5, 'now')",
    )
    yield made
    made.close()


@pytest.fixture(scope="module", params=FAMILY)
def maria(request: pytest.FixtureRequest) -> Iterator[OfMariaDB]:
    """MariaDB, and MySQL, whose remedies are the same."""
    made = of_family(request.getfixturevalue(request.param))
    made.run(
        "CREATE TABLE t (id int PRIMARY KEY, b longblob)",
        "INSERT INTO t VALUES (1, 'a'), (7, REPEAT('x', 700000))",
    )
    yield made
    made.close()


PG: list[Case] = [
    (
        'Write it as schema.table, with "…" around a name that contains a dot.',
        replace(T, table="a.b.c.t", columns=("id",)),
        (replace(T, table="public.t", columns=("id",)),),
    ),
    (
        "Leave them out with `columns`, or publish a query: col::regprocedure, col::regoperator.",
        T,
        (
            replace(T, columns=("id", "n")),
            Relation("q", query="SELECT id, p::regprocedure AS p FROM t", key=("id",)),
        ),
    ),
    (
        "Publish a query with CAST instead.",
        replace(T, columns=("id", "n"), types=(("n", "text"),)),
        (Relation("q", query="SELECT id, CAST(n AS text) AS n FROM t", key=("id",)),),
    ),
]


@pytest.mark.parametrize("case", PG, ids=lambda case: case[0][:40])
def test_a_relation_of_postgresql(pg: OfPostgreSQL, case: Case) -> None:
    carry_out(lambda relation: _read(pg, relation), case)


MARIA: list[Case] = [
    (
        "Write it as table or database.table, with `…` around a name with a dot.",
        replace(T, table="a.b.t"),
        (T,),
    ),
    (
        "Publish a query with CAST instead.",
        replace(T, columns=("id",), types=(("id", "text"),)),
        (Relation("q", query="SELECT CAST(id AS char(9)) AS id FROM t", key=("id",)),),
    ),
]


@pytest.mark.parametrize("case", MARIA, ids=lambda case: case[0][:40])
def test_a_relation_of_mariadb(maria: OfMariaDB, case: Case) -> None:
    carry_out(lambda relation: _read(maria, relation), case)


def _read(legacy: OfPostgreSQL | OfMariaDB, relation: Relation) -> list[Read]:
    with session_of(legacy) as session:
        return read(session, relation)


def carry_out(reading: Callable[[Relation], list[Read]], case: Case) -> None:
    remedy, fault, mended = case
    with pytest.raises(DriftlineError) as caught:
        reading(fault)
    told(caught.value, remedy)
    for relation in mended:
        assert reading(relation)


@pytest.mark.mariadb_alone  # HEX of MySQL has no limit
def test_a_value_larger_than_a_packet(maria: OfMariaDB) -> None:
    large = replace(T, as_text=("b",))
    maria.run(f"SET GLOBAL max_allowed_packet = {1 << 20}")
    try:
        with pytest.raises(ValueDoesNotFit) as caught:
            _read(maria, large)
        printed = told(caught.value, "… the column out with `columns`, or the row with `where`.")
        assert _read(maria, replace(large, columns=("id",), as_text=()))
        assert _read(maria, replace(large, where="id = 1"))
    finally:
        maria.run(f"SET GLOBAL max_allowed_packet = {128 << 20}")
    assert "max_allowed_packet" in printed
    assert len(_read(maria, large)) == 2, "the third thing that it names"


def test_a_limit_of_rows_of_the_owner(maria: OfMariaDB) -> None:
    maria.run(
        "CREATE TABLE many (id int PRIMARY KEY)",
        "INSERT INTO many SELECT seq FROM seq_1_to_1000",
        "ANALYZE TABLE many",
        "SET GLOBAL max_join_size = 10",
    )
    many = Relation("many", table="many")
    try:
        with pytest.raises(DatabaseRefused) as caught:
            _read(maria, many)
        told(
            caught.value,
            "sql_big_selects is 0, and max_join_size is less than what the read examines: the"
            " owner's limit, which the agent keeps. Raise max_join_size, or set sql_big_selects = 1"
            " for the agent's login (init_connect) or the server.",
        )
        maria.run("SET GLOBAL max_join_size = 100000")
        assert _read(maria, many)
    finally:
        maria.run("SET GLOBAL max_join_size = DEFAULT")


def test_no_statement_may_be_prepared(maria: OfMariaDB) -> None:
    """MariaDB is not asked to prepare any."""
    maria.run("SET GLOBAL max_prepared_stmt_count = 0")
    try:
        if not isinstance(maria, OfMySQL):
            assert _read(maria, T)
            return
        with pytest.raises(DatabaseUnavailable) as caught:
            _read(maria, T)
        told(
            caught.value,
            "Raise max_prepared_stmt_count of the server, or find out which client closes none of"
            " its prepared statements: the agent prepares one for the columns of each relation, and"
            " closes it at once.",
        )
        maria.run("SET GLOBAL max_prepared_stmt_count = 1")
        assert _read(maria, T)
    finally:
        maria.run("SET GLOBAL max_prepared_stmt_count = DEFAULT")


def test_a_login_that_mariadb_refuses(maria: OfMariaDB) -> None:
    login = f"l{maria.database}"
    password = maria.server.create_login(login)
    published = replace(T, columns=("id",))
    maria.run(f"GRANT SELECT ON {maria.database}.t TO '{login}'@'%'")
    url = maria.server.tcp_url(login, maria.database)

    def ids(password: str, relation: Relation = published) -> list[Read]:
        with closing(connect(url, password, Limits()).open()) as session:
            return rows_of(session, session.describe(relation))

    with pytest.raises(DatabaseRefused) as caught:
        ids("not-it")
    told(caught.value, "Check the user, the password and the database's name in database.url.")
    assert ids(password)
    maria.run(f"REVOKE SELECT ON {maria.database}.t FROM '{login}'@'%'")
    maria.run("CREATE TABLE other (id int PRIMARY KEY)",
              f"GRANT SELECT ON {maria.database}.other TO '{login}'@'%'")  # fmt: skip
    with pytest.raises(DatabaseRefused) as caught:
        ids(password)
    printed = told(caught.value, "As an administrator: GRANT SELECT ON … TO the agent.")
    grant = printed.removeprefix("As an administrator: ").rstrip(".")
    maria.run(grant.replace("the agent", f"'{login}'@'%'"))
    assert ids(password)
    maria.run(f"REVOKE SELECT ON {maria.database}.t FROM '{login}'@'%'",
              f"GRANT SELECT (b) ON {maria.database}.t TO '{login}'@'%'")  # fmt: skip
    query = Relation("q", query="SELECT id FROM t", key=("id",))
    with pytest.raises(DatabaseRefused) as caught:
        ids(password, query)  # a column alone is not granted
    printed = told(caught.value, "As an administrator: GRANT SELECT ON … TO the agent.")
    grant = printed.removeprefix("As an administrator: ").rstrip(".")
    maria.run(grant.replace("the agent", f"'{login}'@'%'"))
    assert ids(password, query)
    maria.run(f"DROP USER '{login}'@'%'")


def generic(folder: Path) -> Callable[[Relation], list[Read]]:
    with closing(sqlite3.connect(folder / "g.db")) as connection:
        connection.executescript(
            "CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, n INT); INSERT INTO t VALUES (1, 2)"
        )

    def reading(relation: Relation) -> list[Read]:
        url = f"generic+sqlite:///{folder / 'g.db'}"
        with closing(connect(url, None, Limits()).open()) as session:
            return rows_of(session, session.describe(relation))

    return reading


GENERIC: list[Case] = [
    ("Remove it: all rows are compared.", replace(T, marker=Marker("n")), (T,)),
    (
        "Correct the relation in the file, or grant SELECT on what it reads.",
        Relation("q", query="SELECT id FROM nowhere", key=("id",), types=(("id", "int8"),)),
        (Relation("q", query="SELECT id FROM t", key=("id",), types=(("id", "int8"),)),),
    ),
]


@pytest.mark.parametrize("case", GENERIC, ids=lambda case: case[0][:40])
def test_a_relation_of_the_generic_engine(tmp_path: Path, case: Case) -> None:
    carry_out(generic(tmp_path), case)


def reach(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "s"))


def listen(folder: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "s"))
    server.listen()
    return server


# The remedy, what a driver does below, and what mends it.
DRIVERS: list[tuple[str, Callable[[Path], object], Callable[[Path], object]]] = [
    (
        "A text of the database is not in the encoding that it declares: correct it.",
        lambda folder: (folder / "text").read_text(encoding="utf-8"),
        lambda folder: (folder / "text").write_text("né", encoding="utf-8"),
    ),
    ("Check that the database can be reached; try again.", reach, listen),
    (
        "Install what the driver needs.",
        lambda _: importlib.import_module("needed_by_the_driver"),
        lambda folder: (folder / "needed_by_the_driver.py").touch(),
    ),
]


@pytest.mark.parametrize("case", DRIVERS, ids=lambda case: case[0][:40])
def test_what_a_driver_meets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, Callable[[Path], object], Callable[[Path], object]],
) -> None:
    """With errors as Python raises them, in the place of a driver."""
    remedy, calls, mend = case
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "text").write_bytes(b"n\xe9")
    with pytest.raises(DriftlineError) as caught, foreseen("the driver"):
        calls(tmp_path)
    told(caught.value, remedy)
    mended = mend(tmp_path)
    importlib.invalidate_caches()
    with foreseen("the driver"):
        calls(tmp_path)
    if isinstance(mended, socket.socket):
        mended.close()


def test_a_pooler_that_has_no_session(
    pg: OfPostgreSQL, pgbouncer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del pgbouncer  # it is there
    monkeypatch.setattr(waits, "ANSWER_S", 0.5)
    ids = replace(T, columns=("id",))
    with closing(PgBouncer(pg.server, "transaction", default_pool_size=1)) as pooler:
        engine = connect(pooler.url("postgres", pg.database), None, Limits(lock_s=0.5))
        engine.open().close()  # it knows now what it is
        with pooler.client("postgres", pg.database) as other, other.transaction():
            other.execute("SELECT 1")
            with pytest.raises(DriftlineError) as caught:
                engine.open()
            told(
                caught.value,
                "Try again later, or let the agent's login have a pool of its own (pool_size of"
                " PgBouncer) with as many sessions as `driftline-source grants` allows it"
                " connections.",
            )
        with closing(engine.open()) as session:
            assert read(session, ids)
    with closing(PgBouncer(pg.server, "transaction", default_pool_size=2)) as pooler:
        url = pooler.url("postgres", pg.database)
        with pooler.client("postgres", pg.database) as other, other.transaction():
            other.execute("SELECT 1")
            with closing(connect(url, None, Limits(lock_s=0.5)).open()) as session:
                assert read(session, ids)


@pytest.mark.firebird
def test_a_url_of_firebird() -> None:
    pytest.importorskip("firebird.driver")
    with pytest.raises(ConfigurationError) as caught:
        connect("firebird://user@host", None, Limits())
    told(caught.value, "Write it as firebird://user@host//path/to/file.fdb.")
    assert connect("firebird://user@host//path/to/file.fdb", None, Limits()).name == "firebird"
