"""Settings of a MariaDB server, its options and `init_connect`, on which what is read may depend.

The session has values of its own for all of them, so what is read does not change with the owner's.
Each is tried at three values that change what a plain client sees of the same expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import pymysql
import pytest
from driftline.errors import DatabaseRefused

from source_agent.engines.conformance.reads import Read, read, session_of
from source_agent.engines.mysql_family import settings
from source_agent.engines.relations.shapes import Relation
from tests.harness.family import FAMILY
from tests.harness.legacies import KINDS, OfMariaDB, of_family
from tests.harness.mysql_server import MySQL, own_server
from tests.harness.servers import FamilyServer

pytestmark = pytest.mark.mariadb

# Three values of each.
SETTINGS: dict[str, tuple[str, str, str]] = {
    "sql_mode": (
        "PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION",
        "ANSI_QUOTES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,TIME_ROUND_FRACTIONAL",
        "ORACLE,EMPTY_STRING_IS_NULL,IGNORE_SPACE,REAL_AS_FLOAT",
    ),
    "old_mode": ("", "ZERO_DATE_TIME_CAST", "UTF8_IS_UTF8MB3,ZERO_DATE_TIME_CAST"),
    "time_zone": ("+05:30", "-03:30", "+13:00"),
    "lc_time_names": ("de_DE", "ja_JP", "ru_RU"),
    "div_precision_increment": ("0", "2", "30"),
    "group_concat_max_len": ("4", "7", "9"),
    "default_week_format": ("1", "3", "6"),
    "default_regex_flags": ("DOTALL", "EXTENDED", "DOTALL,MULTILINE"),
    "standard_compliant_cte": ("OFF", "ON", "OFF"),
    "sql_auto_is_null": ("ON", "OFF", "ON"),
    "sql_select_limit": ("0", "1", "2"),
    "max_sort_length": ("64", "65", "1024"),
    "max_error_count": ("0", "1", "64"),
    "sql_notes": ("ON", "OFF", "ON"),
    "character_set_client": ("latin1", "cp1251", "utf8mb3"),
    "character_set_results": ("latin1", "cp1251", "utf8mb3"),
    "collation_connection": ("latin1_german2_ci", "utf8mb4_bin", "cp1251_general_cs"),
    "system_versioning_asof": (
        "2001-01-01 00:00:00", "2037-01-01 00:00:00", "2001-01-02 00:00:00",
    ),
    "character_set_collations": (
        "utf8mb4=utf8mb4_bin", "utf8mb4=uca1400_ai_ci,latin1=latin1_bin", "",
    ),
    "block_encryption_mode": ("aes-256-ecb", "aes-192-ecb", "aes-128-ecb"),
    "tx_isolation": ("READ-UNCOMMITTED", "READ-COMMITTED", "SERIALIZABLE"),
    "completion_type": ("CHAIN", "RELEASE", "NO_CHAIN"),
    "autocommit": ("OFF", "ON", "OFF"),
    "lc_messages": ("de_DE", "fr_FR", "ja_JP"),
    "timestamp": ("1", "1000000000", "2000000000"),
}  # fmt: skip
OF_MYSQL: dict[str, tuple[str, str, str]] = SETTINGS | {
    "sql_mode": (
        "PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION",
        "ANSI_QUOTES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,TIME_TRUNCATE_FRACTIONAL",
        "ANSI,IGNORE_SPACE,REAL_AS_FLOAT,ALLOW_INVALID_DATES",
    ),
    "transaction_isolation": SETTINGS["tx_isolation"],
    "explain_format": ("JSON", "TRADITIONAL", "TREE"),
    "information_schema_stats_expiry": ("0", "1", "86400"),
    "show_gipk_in_create_table_and_information_schema": ("OFF", "ON", "OFF"),
    "windowing_use_high_precision": ("OFF", "ON", "OFF"),
    "default_collation_for_utf8mb4": (
        "utf8mb4_general_ci", "utf8mb4_0900_ai_ci", "utf8mb4_general_ci",
    ),
}  # fmt: skip
# In MySQL a session that has no other rights than SELECT may not set them.
OF_ADMINISTRATORS = {"max_error_count", "default_collation_for_utf8mb4"}
Place = Callable[[FamilyServer, Mapping[str, str]], AbstractContextManager[None]]
TYPED = {
    "a": ("char(5)", "'é'"),
    "b": ("varchar(9)", "'a\\\\b'"),
    "c": ("text", "'x\ny'"),
    "d": ("timestamp(3) NULL", "'2024-01-01 23:30:00.125'"),
    "e": ("datetime", "'2024-12-30 01:02:03'"),
    "f": ("date", "'2024-12-30'"),
    "g": ("time(2)", "'-00:00:01.25'"),
    "h": ("decimal(9,3)", "1.100"),
    "i": ("double", "0.30000000000000004"),
    "j": ("float", "1.1"),
    "k": ("int unsigned", "3"),
    "l": ("enum('é', 'b')", "'é'"),
    "m": ("set('a', 'é')", "'a,é'"),
    "n": ("char(5) CHARACTER SET latin1", "'é'"),
    "o": ("varbinary(9)", "x'00ff5c27'"),
    "p": ("bit(9)", "b'101'"),
    "q": ("year", "2024"),
    "r": ("json", """'{"é": 1}'"""),
    "s": ("char(3) AS (a) VIRTUAL", None),
    "t": ("varchar(30) AS (FROM_UNIXTIME(id)) VIRTUAL", None),
    "u": ("varchar(30) AS (DATE_FORMAT(f, '%M')) VIRTUAL", None),
    "w": ("varchar(30) AS (id / 3) VIRTUAL", None),
}
# What a view or a query of an owner may compute, each by one of the settings.
EXPRESSIONS = (
    "CONCAT('<', a, '>')",
    "'a\\\\b'",
    "CAST(k - 2 AS CHAR)",
    '"b"',
    "1 || 0",
    "NOT id BETWEEN -1 AND 1",
    "CAST(CAST('2024-01-01 10:11:12.9' AS DATETIME) AS CHAR)",
    "COALESCE(NULLIF('', 'x'), 'null')",
    "CAST(CAST(g AS DATETIME) AS CHAR)",
    "CAST(d AS CHAR)",
    "DATE_FORMAT(d, '%H %M %W')",
    "CAST(FROM_UNIXTIME(id) AS CHAR)",
    "CAST(UNIX_TIMESTAMP(e) AS CHAR)",
    "CAST(id / 3 AS CHAR)",
    "(SELECT GROUP_CONCAT(x.id + 100 ORDER BY x.id) FROM items x)",
    "WEEK(f)",
    "c RLIKE '^x.y$'",
    "'xy' RLIKE 'x y'",
    "(SELECT COUNT(*) FROM items x WHERE x.nr IS NULL)",
    "(SELECT GROUP_CONCAT(x.id ORDER BY x.b DESC, x.id) FROM items x)",
    "'ä' = 'A'",
    "HEX('é')",
    "CHARSET('a')",
    "COLLATION('a')",
    "COLLATION(CONVERT(b USING utf8mb4))",
    "CONVERT(n USING utf8mb4) = _utf8mb4'É'",
    "CAST(YEAR(NOW()) < 2020 OR YEAR(NOW()) > 2030 AS CHAR)",
    "(SELECT COUNT(*) FROM kept)",
    "HEX(AES_ENCRYPT(b, 'k'))",
    "(WITH RECURSIVE w AS (SELECT 1 n UNION SELECT n + 1 FROM w WHERE n < 3) SELECT SUM(n) FROM w)",
)
CONDITIONS = (
    "a = 'é' AND NOT b = 'ab' AND CONCAT(a, '.') = 'é.'",
    "NOT id BETWEEN -1 AND 0 AND CAST(d AS CHAR) < '2024-01-01 23:45' AND id / 3 <> 0",
    "b = 'a\\\\b' AND WEEK(f) = 52 AND 1 || 0",
)
ROWS = 3
VERSIONED = {"mariadb": "WITH SYSTEM VERSIONING", "mysql": ""}
FORMS = ", ".join(f"{text} AS x{n}" for n, text in enumerate(EXPRESSIONS))
QUERY = f"SELECT id, {FORMS} FROM items"
RELATIONS = (
    Relation("items", table="items"),
    Relation("v", table="v", key=("id",)),
    Relation("q", query=QUERY, key=("id",)),
    *(Relation(f"w{n}", table="items", where=text) for n, text in enumerate(CONDITIONS)),
)


def filled(legacy: OfMariaDB) -> None:
    columns = ", ".join(f"{name} {type}" for name, (type, _) in TYPED.items())
    stored = {name: value for name, (_, value) in TYPED.items() if value is not None}
    names, values = ", ".join(stored), ", ".join(stored.values())
    legacy.server.create_login(legacy.database)
    legacy.run(
        f"GRANT SELECT ON {legacy.database}.* TO {legacy.database}",
        f"ALTER USER {legacy.database} IDENTIFIED BY ''",
        f"CREATE TABLE items (id int PRIMARY KEY, nr int NOT NULL AUTO_INCREMENT UNIQUE, {columns})"
        " CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        *(f"INSERT INTO items (id, {names}) VALUES ({n}, {values})" for n in range(1, ROWS + 1)),
        f"CREATE TABLE kept (id int PRIMARY KEY) {VERSIONED[legacy.name]}",
        "INSERT INTO kept VALUES (1)",
        f"CREATE VIEW v AS {QUERY}",
    )
    legacy.url = legacy.server.url(legacy.database, legacy.database)


def published(legacy: OfMariaDB) -> dict[str, list[Read]]:
    with session_of(legacy) as session:
        return {relation.name: sorted(read(session, relation), key=str) for relation in RELATIONS}


def plain(legacy: OfMariaDB) -> list[str]:
    """Return what a client of the owner sees of each expression: the server's settings, no more."""
    seen = []
    with (
        closing(
            pymysql.connect(
                unix_socket=str(legacy.server.socket),
                user=legacy.database,
                database=legacy.database,
                ssl_disabled=True,
            )
        ) as client,
        client.cursor() as cursor,
    ):
        cursor.execute("SET sql_select_limit = 4294967295")  # else it shows nothing else
        for sql in (f"SELECT {text} FROM items" for text in EXPRESSIONS):
            try:
                cursor.execute(sql)
                seen.append(str(cursor.fetchall()))
            except pymysql.Error as error:
                seen.append(str(error))
    return seen


@contextmanager
def of_the_server(server: FamilyServer, values: Mapping[str, str]) -> Iterator[None]:
    """Have the owner set global variables, and undo it."""
    has_no_global = {"timestamp"}
    names = [name for name in values if name not in has_no_global]
    with server.admin() as connection, connection.cursor() as cursor:
        try:
            for name in names:
                cursor.execute(f"SET GLOBAL {name} = {quoted(values[name])}")
            yield
        finally:
            for name in names:
                cursor.execute(f"SET GLOBAL {name} = DEFAULT")


@contextmanager
def of_init_connect(server: FamilyServer, values: Mapping[str, str]) -> Iterator[None]:
    """Have the owner set variables of each session, and undo it."""
    allowed = values.keys() - (OF_ADMINISTRATORS if isinstance(server, MySQL) else set())
    text = ", ".join(f"{name} = {quoted(values[name])}" for name in values if name in allowed)
    with server.admin() as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SET GLOBAL init_connect = %s", (f"SET {text}",))
            yield
        finally:
            cursor.execute("SET GLOBAL init_connect = ''")


@contextmanager
def of_options(server: FamilyServer, values: Mapping[str, str]) -> Iterator[None]:
    """Start the server again with options, as its file has them, and undo it."""
    names = {"time_zone": "default_time_zone", "tx_isolation": "transaction_isolation"}
    server.stop()
    server.options = (
        *(f"--loose-{names.get(name, name)}={value}" for name, value in values.items()),
        "--character-set-server=latin1",
        "--loose-skip-character-set-client-handshake",
        "--sysdate-is-now",
        "--loose-secure-timestamp=YES",
    )
    server.start()
    yield
    server.stop()
    server.options = ()
    server.start()


def quoted(value: str) -> str:
    return value if value.isdigit() else f"'{value}'"


def known(server: FamilyServer) -> dict[str, tuple[str, str, str]]:
    """Return the settings that this release of the server has."""
    with server.admin() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES")
        shown = {str(name) for name, _ in cursor.fetchall()}
    every = OF_MYSQL if isinstance(server, MySQL) else SETTINGS
    return {name: values for name, values in every.items() if name in shown}


@pytest.fixture(params=FAMILY)
def maria(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OfMariaDB]:
    made = KINDS[request.param](request, tmp_path)
    assert isinstance(made, OfMariaDB)
    filled(made)
    yield made
    made.close()


@pytest.mark.parametrize("place", [of_the_server, of_init_connect])
def test_settings_of_the_owner_do_not_show(maria: OfMariaDB, place: Place) -> None:
    expect_unchanged(maria, place)


@pytest.mark.parametrize("kind", FAMILY)
def test_options_of_the_server_do_not_show(kind: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(kind)  # or a skip
    with own_server(kind) as server:
        legacy = of_family(server)
        filled(legacy)
        expect_unchanged(legacy, of_options)


def expect_unchanged(legacy: OfMariaDB, place: Place) -> None:
    before, shown = published(legacy), plain(legacy)
    assert {len(rows) for rows in before.values()} == {ROWS}
    differs = set()
    for turn in range(3):
        with place(
            legacy.server, {name: values[turn] for name, values in known(legacy.server).items()}
        ):
            assert published(legacy) == before
            now = plain(legacy)
            differs |= {n for n in range(len(EXPRESSIONS)) if now[n] != shown[n]}
    assert len(differs) >= 16, "the settings do matter"


def test_each_global_variable_alone_does_not_show(maria: OfMariaDB) -> None:
    before = published(maria)
    for name, values in known(maria.server).items():
        for value in values:
            with of_the_server(maria.server, {name: value}):
                assert published(maria) == before, (name, value)


# In a function. The server undoes the first five when it ends; no value depends on the others.
UNDONE = {
    "sql_mode", "sql_auto_is_null", "sql_notes", "character_set_client", "collation_connection",
    "tx_isolation", "completion_type", "lc_messages",
    # Of MySQL: they say nothing of values.
    "transaction_isolation", "explain_format", "information_schema_stats_expiry",
    "show_gipk_in_create_table_and_information_schema",
}  # fmt: skip
NOT_ALLOWED = {"autocommit"}


def test_a_function_that_changes_a_setting_is_refused_or_undone(maria: OfMariaDB) -> None:
    maria.run(f"GRANT EXECUTE ON {maria.database}.* TO {maria.database}")
    items, odd = RELATIONS[0], Relation("odd", table="odd", key=("id",))
    with session_of(maria) as session:
        before = read(session, items)
    for name, values in known(maria.server).items():
        if name in NOT_ALLOWED:
            continue
        is_kept = isinstance(maria.server, MySQL) and name in OF_ADMINISTRATORS
        maria.run(
            "DROP FUNCTION IF EXISTS odd",
            "CREATE FUNCTION odd(x int) RETURNS int DETERMINISTIC BEGIN"
            f" SET SESSION {name} = {quoted(values[0])}; RETURN x; END",
            "CREATE OR REPLACE VIEW odd AS SELECT odd(id) AS id, d FROM items",
        )
        with session_of(maria) as session:
            if name in UNDONE:
                assert len(read(session, odd)) == ROWS
            else:
                with pytest.raises(DatabaseRefused, match=f"changed {name}"):
                    read(session, odd)
            if is_kept:  # which the agent's login may not set back
                with suppress(DatabaseRefused):
                    assert read(session, items) == before, name
                continue
            assert session.ask(settings.shown_sql(session.product))[0] == session._shown, name
            assert read(session, items) == before, name


def test_a_clock_that_is_put_on_beside_a_look_at_it_is_no_setting(maria: OfMariaDB) -> None:
    """The server's clock may be set between the two readings of one look, and of no other."""
    (items, *_), looks = RELATIONS, list[bool]()
    with session_of(maria) as session:

        def ask(sql: str, *values: object) -> list[tuple[str | None, ...]]:
            looks.append(len(looks) < away)
            session.ask(f"SET SESSION timestamp = {1_000_000_000 if looks[-1] else 'DEFAULT'}")
            return session.ask(sql, *values)

        away = 1
        settings.refuse_changed(ask, session.product, session._shown, items)
        assert looks == [True, False]
        away = 4
        with pytest.raises(DatabaseRefused, match="changed timestamp"):
            settings.refuse_changed(ask, session.product, session._shown, items)
