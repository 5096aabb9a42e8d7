"""What MySQL alone has, promises or refuses; the rest runs on it as on MariaDB."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest
from driftline import errors
from sqlalchemy.engine import make_url

from source_agent.engines.conformance.reads import flat, read, rows_by_keys
from source_agent.engines.interface import Engine, Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfMySQL, of_family
from tests.harness.mysql_server import MySQL
from tests.harness.servers import FamilyServer, MariaDB
from tests.remedies.told import told

T, SEEN = Relation("t", table="t"), Relation("seen", table="seen")


@pytest.fixture
def my(mysql: MySQL) -> Iterator[OfMySQL]:
    legacy = OfMySQL(mysql)
    yield legacy
    legacy.close()


def as_login(my: OfMySQL, *grants: str, attributes: str = "") -> tuple[str, Engine]:
    """Return a new account with these rights, and the engine that uses it."""
    login = my.database
    password = my.server.create_login(login, attributes=attributes)  # type: ignore[call-arg]
    my.run("CREATE TABLE IF NOT EXISTS seen (id int)", f"GRANT SELECT ON seen TO {login}")
    my.run(*(f"GRANT {rights} TO {login}" for rights in grants))
    return login, connect(my.server.tcp_url(login, my.database), password, Limits())


@pytest.mark.parametrize("named", ["mysql", "mariadb"])
def test_a_server_is_opened_by_what_it_is(mariadb: FamilyServer, my: OfMySQL, named: str) -> None:
    other = of_family(mariadb)
    for legacy, is_mariadb in ((my, False), (other, isinstance(mariadb, MariaDB))):
        legacy.run("CREATE TABLE t (id int PRIMARY KEY, f double)", "INSERT INTO t VALUES (1, 0.1)")
        url = make_url(legacy.url).set(drivername=named).render_as_string(hide_password=False)
        engine = connect(url, None, Limits())
        assert engine.name == named  # until it was opened
        with closing(engine.open()) as session:
            assert engine.name == ("mariadb" if is_mariadb else "mysql")
            assert session.server.release.startswith("MariaDB 1" if is_mariadb else "MySQL 9")
            shape = session.describe(T)
            assert read(session, T) == [["1", "0.1"]]
        issued = "\n".join(engine.templates([shape]))
        assert ("SET SESSION max_statement_time" in issued) == is_mariadb
        assert ("SET SESSION max_execution_time" in issued) != is_mariadb
    other.close()


def test_numbers_are_read_with_all_digits_whatever_reads_them(my: OfMySQL) -> None:
    """The server cuts the text of an expression to 22 characters: these have more."""
    draw = random.Random(7)
    found = (struct.unpack("<d", draw.randbytes(8))[0] for _ in range(4_000))
    values = [-0.0, 5e-324, -1.4285714285714285e-301, -1.7976931348623155e308]
    values += [value for value in found if math.isfinite(value)]
    singles = [struct.unpack("<f", struct.pack("<f", value % 1e30))[0] for value in values]
    my.run("CREATE TABLE t (id int PRIMARY KEY, d double, f float)")
    rows = ", ".join(
        f"({place}, '{d!r}', {f!r})"
        for place, (d, f) in enumerate(zip(values, singles, strict=True))
    )
    my.run(f"INSERT INTO t VALUES {rows}")
    queries = (
        "SELECT DISTINCT id, d, f FROM t",
        "SELECT id, d, f FROM t UNION ALL SELECT id, d, f FROM t WHERE id < 0",
        "SELECT id, d, f FROM t ORDER BY ABS(id) LIMIT 100000",
        "SELECT id, MAX(d) AS d, MIN(f) AS f FROM t GROUP BY id",
    )
    relations = [T, Relation("s", table="t", as_text=("d", "f"))]
    for query in queries:
        relations += [
            Relation("q", query=query, key=("id",)),
            Relation("r", query=query, key=("id",), as_text=("d", "f")),
        ]
    with closing(my.connect().open()) as session:
        for relation in relations:
            for place, d, f in read(session, relation):
                assert d is not None
                assert f is not None
                assert struct.pack("<d", float(d)) == struct.pack("<d", values[int(place or 0)])
                assert struct.pack("<f", float(f)) == struct.pack("<f", singles[int(place or 0)])


def test_least_rights_are_enough_and_no_account_of_others_is_needed(my: OfMySQL) -> None:
    my.run("CREATE TABLE t (id int PRIMARY KEY, f double)", "INSERT INTO t VALUES (1, 0.1)")
    login, engine = as_login(my, "SELECT ON t")
    with closing(engine.open()) as session:
        assert read(session, T) == [["1", "0.1"]]
    assert [p.what for p in engine.privileges([T, SEEN]) if p.excess] == []
    assert "MAX_STATEMENT_TIME" not in engine.grants([T], login="agent", connections=6)
    script = engine.grants([T], login="agent2", connections=6)
    assert my.granted(script, "agent2")
    my.drop_login("agent2")
    my.drop_login(login)


def test_rights_by_roles_and_proxies_are_told(my: OfMySQL) -> None:
    login, engine = as_login(my)
    roles = [f"{login}_{n}" for n in ("super", "writer", "inner")]
    my.run(
        f"CREATE ROLE {roles[0]}, {roles[1]}@localhost, {roles[2]}",
        f"GRANT SUPER, BACKUP_ADMIN ON *.* TO {roles[0]}",
        f"GRANT INSERT ON {my.database}.* TO {roles[1]}@localhost",
        f"GRANT FILE ON *.* TO {roles[2]}",
        f"GRANT {roles[2]} TO {roles[0]}",
        f"GRANT {roles[0]} TO {login} WITH ADMIN OPTION",
        f"GRANT {roles[1]}@localhost TO {login}",
        f"GRANT PROXY ON root@localhost TO {login}",
    )
    told = [p.what for p in engine.privileges([SEEN]) if p.excess]
    assert set(told) == {
        f"SUPER on everything, by role {roles[0]}",
        f"FILE on everything, by role {roles[0]}",
        f"BACKUP_ADMIN on everything, by role {roles[0]}",
        f"INSERT on every table of {my.database}, by role {roles[1]}@localhost",
        f"may grant membership of role {roles[0]}",
        "PROXY on account root@localhost",
    }
    my.drop_login(login)
    my.run(f"DROP ROLE {roles[0]}, {roles[1]}@localhost, {roles[2]}")


@pytest.mark.parametrize(("attributes", "number"), [("ACCOUNT LOCK", 3118), ("REQUIRE X509", 1045)])
def test_a_login_that_may_not_log_in_is_refused(my: OfMySQL, attributes: str, number: int) -> None:
    login, engine = as_login(my, attributes=attributes)
    with pytest.raises(errors.DatabaseRefused, match=r"MySQL at .* refused the login") as caught:
        engine.open()
    assert isinstance(caught.value.__cause__, pymysql.Error)
    assert caught.value.__cause__.args[0] == number
    my.drop_login(login)


def test_a_login_that_needs_tls_says_so(my: OfMySQL) -> None:
    my.run("SET GLOBAL require_secure_transport = ON")
    try:
        login = my.database
        password = my.server.create_login(login)
        url = f"{my.server.tcp_url(login, my.database)}?ssl_disabled=1"
        with pytest.raises(errors.DatabaseRefused, match=r"(?i)secure transport"):
            connect(url, password, Limits()).open()
        my.drop_login(login)
    finally:
        my.run("SET GLOBAL require_secure_transport = OFF")


def test_a_package_that_a_login_needs_is_named(
    my: OfMySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver tells when it is needed: without TLS, for an account that has not logged in."""
    login = my.database
    password = my.server.create_login(login)
    my.run(f"GRANT SELECT ON *.* TO {login}")
    url = f"{my.server.tcp_url(login, my.database)}?ssl_disabled=1"
    with monkeypatch.context() as patched:
        patched.setattr("pymysql._auth._have_cryptography", False)
        with pytest.raises(errors.ConfigurationError, match="cryptography") as caught:
            connect(url, password, Limits()).open()
    told(caught.value, "pip install 'driftline[mysql]', or connect with TLS (`ssl_ca` in the URL).")
    connect(url, password, Limits()).open().close()
    my.drop_login(login)


def test_a_plan_is_read_whatever_form_the_server_writes(my: OfMySQL) -> None:
    my.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "SET GLOBAL explain_format = 'TREE'")
    try:
        engine = my.connect()
        with closing(engine.open()) as session:
            shape = session.describe(T)
        assert "t: ALL" in engine.scan_cost(shape)
    finally:
        my.run("SET GLOBAL explain_format = DEFAULT")


def test_a_plan_that_would_run_a_query_is_not_shown(my: OfMySQL) -> None:
    """As the page of `check` says; a table's plan is shown."""
    my.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE VIEW seen AS SELECT * FROM t")
    engine, query = my.connect(), Relation("q", query="SELECT id, v FROM t", key=("id",))
    with closing(engine.open()) as session:
        for relation in (Relation("seen", table="seen", key=("id",)), query):
            shape = session.describe(relation)
            assert "the server does not show how it is read" in engine.scan_cost(shape)
        assert "t: ALL" in engine.scan_cost(session.describe(T))


def test_types_that_mysql_alone_has(my: OfMySQL) -> None:
    my.run(
        "CREATE TABLE t (id int PRIMARY KEY, e VECTOR(2), j json, hidden int INVISIBLE,"
        " KEY f ((lower(hidden))), UNIQUE KEY g ((id + 1)),"
        " KEY m ((CAST(j->'$.x' AS UNSIGNED ARRAY))))",
        "INSERT INTO t (id, e, j, hidden) VALUES"
        " (1, STRING_TO_VECTOR('[1,2]'), JSON_OBJECT('x', JSON_ARRAY(1), 'd', 1.50), 7)",
    )
    row = ["1", "0000803f00000040", '{"d": 1.50, "x": [1]}', "7"]
    with closing(my.connect().open()) as session:
        assert read(session, T) == [row]
        query = Relation("q", query="SELECT id, e, j, hidden FROM t", key=("id",))
        assert read(session, query) == [row]


def test_a_generated_key_is_a_key(my: OfMySQL) -> None:
    my.run(
        "SET sql_generate_invisible_primary_key = ON",
        "CREATE TABLE t (a int)",
        "INSERT INTO t VALUES (7), (7)",
        "SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF",
    )
    try:
        with closing(my.connect().open()) as session:
            assert session.describe(T).vouched
            assert sorted(read(session, T)) == [["1", "7"], ["2", "7"]]
    finally:
        my.run("SET GLOBAL show_gipk_in_create_table_and_information_schema = DEFAULT")


@pytest.mark.parametrize(
    "definition", ["char(3) COLLATE utf8mb4_0900_bin", "varchar(3) COLLATE utf8mb4_0900_ai_ci"]
)
def test_a_table_without_snapshots_is_read_whole_under_newer_collations(
    my: OfMySQL, definition: str
) -> None:
    my.run(f"CREATE TABLE t (k {definition} PRIMARY KEY) ENGINE = MyISAM")
    rows = [[a + b + c] for a in "ab\u00df" for b in "xyz" for c in "%1~"]
    my.insert("t", rows)
    with closing(my.connect().open()) as session:
        shape = session.describe(T)
        found = read(session, T)
    assert len({tuple(row) for row in found}) == len(found) == len(rows)
    assert shape.notes


def test_an_invisible_index_promises_no_tiles(my: OfMySQL) -> None:
    """The server refuses to be told to use it (error 1176); it ensures uniqueness all the same."""
    my.run(
        "CREATE TABLE t (id int PRIMARY KEY, k varchar(9) COLLATE utf8mb4_bin NOT NULL,"
        " UNIQUE KEY uk (k))",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    )
    relation = Relation("t", table="t", key=("k",))
    with closing(my.connect().open()) as session:
        shape = session.describe(relation)
        assert not shape.not_by_key
        assert len(flat(rows_by_keys(session, shape, [("a",)]))) == 1
    my.run("ALTER TABLE t ALTER INDEX uk INVISIBLE")
    with closing(my.connect().open()) as session:
        shape = session.describe(relation)
        assert shape.vouched
        assert "no index" in shape.unordered
        assert sorted(read(session, relation)) == [["a", "1"], ["b", "2"]]


def test_values_in_json_that_have_the_text_of_a_string(my: OfMySQL) -> None:
    """As types.md says: the text is what is published."""
    my.run(
        "CREATE TABLE t (id int PRIMARY KEY, j json)",
        "INSERT INTO t VALUES (1, JSON_ARRAY(DATE '2020-01-02')), (2, '[\"2020-01-02\"]')",
    )
    kinds = Relation("q", query="SELECT id, j, JSON_TYPE(j->'$[0]') AS k FROM t", key=("id",))
    with closing(my.connect().open()) as session:
        assert [row[1] for row in read(session, T)] == ['["2020-01-02"]'] * 2
        assert sorted(str(row[2]) for row in read(session, kinds)) == ["DATE", "STRING"]


def test_check_tells_that_the_owner_limits_the_rows_that_a_read_examines(my: OfMySQL) -> None:
    my.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "SET GLOBAL sql_big_selects = OFF")
    try:
        engine = my.connect()
        with closing(engine.open()) as session:
            assert "sql_big_selects is 0" in engine.scan_cost(session.describe(T))
    finally:
        my.run("SET GLOBAL sql_big_selects = DEFAULT")
