"""What MariaDB and MySQL promise or refuse; the rest is in the conformance suite."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pymysql
import pytest
from driftline import errors

from source_agent.engines.conformance.reads import (
    decoded,
    engine_of,
    flat,
    markers_of,
    read,
    rows_by_keys,
    session_of,
)
from source_agent.engines.interface import Limits
from source_agent.engines.mysql_family.types import CREATED
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Consistency, Relation
from tests.harness.legacies import OfMariaDB


@pytest.mark.parametrize("key", ["id int", "id varchar(20)", "id double"])
def test_tables_without_snapshots_are_fuzzy_and_let_writers_in(maria: OfMariaDB, key: str) -> None:
    maria.run(f"CREATE TABLE m ({key} NOT NULL PRIMARY KEY, v varchar(2000)) ENGINE=MyISAM")
    maria.insert("m", [(i, "v" * 2000) for i in range(9000)])
    with session_of(maria) as session:
        assert session.snapshot.consistency.value == "exact"
        shape = session.describe(Relation("m", table="m"))
        assert shape.notes
        batches = session.scan(shape)
        rows = next(batches)
        maria.run("SET lock_wait_timeout = 1", "UPDATE m SET v = 'x' WHERE id = 1")
        rows += flat(batches)
        assert len(rows) == len({decoded(r, shape)[0] for r in rows}) == 9000
        assert session.snapshot.consistency is Consistency.FUZZY
        if shape.recipe.integer_key:
            bounds = np.array([5], np.int64), np.array([9], np.int64)
            assert len(flat(session.read_ranges(shape, *bounds))) == 5


def test_a_view_of_tables_that_the_login_may_not_see_claims_no_snapshot(maria: OfMariaDB) -> None:
    """The catalogue shows such a login no table, and none that is not InnoDB."""
    maria.run(
        "CREATE TABLE hidden (id int PRIMARY KEY, v int) ENGINE=MyISAM",
        "INSERT INTO hidden VALUES (1, 1)",
        "CREATE VIEW shown AS SELECT id, v FROM hidden",
    )
    password = maria.server.create_login(login := maria.database)
    maria.run(f"GRANT SELECT ON {maria.database}.shown TO {login}")
    engine = connect(maria.server.tcp_url(login, maria.database), password, Limits())
    with closing(engine.open()) as session:
        shape = session.describe(Relation("shown", table="shown", key=("id",)))
        assert len(flat(session.scan(shape))) == 1
        assert session.snapshot.consistency is Consistency.FUZZY
    assert shape.notes == ("read without a snapshot: tables unknown",)
    maria.drop_login(login)


SWAP = (
    "INSERT INTO staged SELECT seq, 'new' FROM seq_0_to_99",
    "RENAME TABLE t TO gone, staged TO t",
)
DROPPED = ("ALTER TABLE t DROP PARTITION p1",)


@pytest.mark.parametrize(
    "reload",
    [
        ("TRUNCATE t", "INSERT INTO t SELECT seq, 'new' FROM seq_0_to_99"),
        ("ALTER TABLE t ADD COLUMN b double DEFAULT 0.5, ALGORITHM = COPY",),
        ("CREATE TABLE other AS SELECT * FROM t", "RENAME TABLE t TO gone, other TO t"),
        ("DROP TABLE t", "CREATE TABLE t AS SELECT 1 AS k, 'a' AS a"),
        ("ALTER TABLE t TRUNCATE PARTITION p1",),
        # MySQL's catalogue does not tell: a session that was told what to read locks it before.
        pytest.param(DROPPED, marks=pytest.mark.mariadb_alone),
        pytest.param(SWAP, marks=pytest.mark.mariadb_alone),
    ],
)
def test_reads_no_table_that_was_replaced(maria: OfMariaDB, reload: tuple[str, ...]) -> None:
    """InnoDB says so itself, but of an older table under a new name, and of partitions."""
    maria.run(
        "CREATE TABLE t (k int PRIMARY KEY, a varchar(9)) PARTITION BY RANGE (k) "
        "(PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN (100))"
        if "PARTITION" in reload[0]
        else "CREATE TABLE t (k int PRIMARY KEY, a varchar(9))",
        "CREATE TABLE staged (k int PRIMARY KEY, a varchar(9))",
        "INSERT INTO t SELECT seq, 'old' FROM seq_0_to_99",
    )
    relation = Relation("t", table="t", key=("k",))
    with session_of(maria) as session:
        if reload in {SWAP, DROPPED}:  # which only the catalogue tells, and it knows seconds
            time.sleep(1.1)
        maria.run(*reload)
        with pytest.raises(errors.SnapshotLost):
            read(session, relation)
    with session_of(maria) as session:
        read(session, relation)
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            maria.run("SET lock_wait_timeout = 1", "TRUNCATE t")


@pytest.mark.parametrize("shown", [[], [(None, None)]], ids=["no table", "no time"])
def test_a_look_up_that_finds_nothing_proves_nothing(
    maria: OfMariaDB, monkeypatch: pytest.MonkeyPatch, shown: list[tuple[str | None, ...]]
) -> None:
    """A table is locked when its time is looked up; a catalogue that shows none is not believed."""
    maria.run("CREATE TABLE t (k int PRIMARY KEY)")
    with session_of(maria) as session:
        ask = session.ask

        def asked(sql: str, *values: object) -> list[tuple[str | None, ...]]:
            if sql == CREATED:
                with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
                    maria.run("SET lock_wait_timeout = 1", "RENAME TABLE t TO gone")
                return shown
            found: list[tuple[str | None, ...]] = ask(sql, *values)
            return found

        monkeypatch.setattr(session, "ask", asked)
        with pytest.raises(errors.SnapshotLost, match="was altered or replaced"):
            session.describe(Relation("t", table="t"))


@pytest.mark.parametrize("written", ["enum('', 'x')", "set('y', '')", "enum(' ', 'x')"])
def test_an_empty_member_has_the_text_of_no_member(maria: OfMariaDB, written: str) -> None:
    maria.run(
        f"CREATE TABLE t (id int PRIMARY KEY, v {written})",
        "SET sql_mode = ''",
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 0)",
        "CREATE VIEW shown AS SELECT id, v FROM t",
    )
    with session_of(maria) as session:
        for relation in (Relation("t", table="t"), Relation("s", table="shown", key=("id",))):
            with pytest.raises(errors.ConfigurationError, match="two numbers have the text"):
                session.describe(relation)
        remedy = Relation("q", query="SELECT id, CAST(v AS unsigned) AS n FROM t", key=("id",))
        assert sorted(read(session, remedy)) == [["1", "1"], ["2", "2"], ["3", "0"]]


def test_the_number_that_a_refusal_recommends_tells_all_members(maria: OfMariaDB) -> None:
    """A SET has up to 64: a double holds 53 of them."""
    members = ", ".join(["''", *(f"'m{n}'" for n in range(1, 64))])
    maria.run(
        f"CREATE TABLE t (id int PRIMARY KEY, v set({members}))",
        "INSERT INTO t VALUES (1, 'm63'), (2, 'm63,m1')",
    )
    with session_of(maria) as session:
        with pytest.raises(errors.ConfigurationError) as caught:
            session.describe(Relation("t", table="t"))
        number = re.search("selects (.+), the number", caught.value.remedy)
        assert number is not None, caught.value.remedy
        query = Relation("q", query=f"SELECT id, {number[1]} AS n FROM t", key=("id",))
        assert len({row[1] for row in read(session, query)}) == 2


def test_members_with_quotes_are_not_empty(maria: OfMariaDB) -> None:
    maria.run(
        "CREATE TABLE t (id int PRIMARY KEY, v enum('''', 'a'',''b', '(', ','))",
        "INSERT INTO t VALUES (1, ''''), (2, 'a'',''b'), (3, ',')",
    )
    with session_of(maria) as session:
        found = read(session, Relation("t", table="t"))
    assert sorted(found) == [["1", "'"], ["2", "a','b"], ["3", ","]]


def test_reads_a_table_that_was_renamed_before(maria: OfMariaDB) -> None:
    maria.run("CREATE TABLE staged (k int PRIMARY KEY)", "RENAME TABLE staged TO t")
    with session_of(maria) as session:
        assert read(session, Relation("t", table="t")) == []


def test_character_sets_that_unicode_does_not_hold(maria: OfMariaDB) -> None:
    maria.run("CREATE TABLE j (id int PRIMARY KEY, v varchar(9) CHARACTER SET cp932)")
    maria.run("INSERT INTO j VALUES (1, 'ア')")
    with session_of(maria) as session:
        with pytest.raises(errors.ConfigurationError, match="cp932"):
            session.describe(Relation("j", table="j"))
        assert read(session, Relation("j", table="j", as_text=("v",))) == [["1", "8341"]]


@pytest.mark.parametrize(
    ("charset", "text", "byte"),
    [
        pytest.param("ascii", "plain?", 0xE9, marks=pytest.mark.mariadb_alone),  # kept by no MySQL
        ("cp1250", "žluťoučký", 0x81),
        ("cp1251", "съешь", 0x98),
        ("cp1256", "نص عربي", 0x8A),
        ("cp1257", "ąčęė", 0x81),
        ("greek", "Ελληνικά", 0xA4),
        ("hebrew", "עברית", 0xBF),
    ],
)
@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
def test_a_byte_that_is_no_character_of_its_set_is_refused(
    maria: OfMariaDB, charset: str, text: str, byte: int, engine: str
) -> None:
    """The server reads each of them as `?`: a change from one to another would be missed."""
    of_set = f"CHARACTER SET {charset} COLLATE {charset}_bin NOT NULL"
    maria.run(
        f"CREATE TABLE t (k varchar(20) {of_set} PRIMARY KEY, v text {of_set}) ENGINE={engine}",
        f"INSERT INTO t VALUES ('{text}', CONCAT('{text}', '{text}'))",
    )
    relation = Relation("t", table="t")
    with session_of(maria) as session:
        assert read(session, relation) == [[text, text * 2]]
        is_sorted = not session.describe(relation).unordered
        assert is_sorted is (charset == "ascii")
    maria.run(f"INSERT INTO t VALUES ('x', CONVERT(X'{byte:02x}' USING {charset}))")
    with session_of(maria) as session:
        with pytest.raises(errors.ValueDoesNotFit, match="v"):
            read(session, relation)
        digits = read(session, Relation("t", table="t", as_text=("v",)))
        assert f"{byte:02X}" in {row[1] for row in digits}


@pytest.mark.parametrize(
    "collation",
    ["utf8mb4_nopad_bin", pytest.param("ascii_nopad_bin", marks=pytest.mark.mariadb_alone)],
)
def test_a_char_key_that_is_not_padded_is_not_read_in_tiles(
    maria: OfMariaDB, collation: str
) -> None:
    """The index has it with blanks, a comparison without: a row could be in no tile."""
    charset = collation.partition("_")[0]
    for kind, is_sorted in (("char", False), ("varchar", True)):
        of_set = f"CHARACTER SET {charset} COLLATE {collation}"
        maria.run(f"CREATE TABLE {kind}_key (k {kind}(9) {of_set} PRIMARY KEY, v int)")
        with session_of(maria) as session:
            shape = session.describe(Relation("t", table=f"{kind}_key"))
            assert bool(shape.unordered) is not is_sorted, shape.unordered


def test_doubles_keep_their_digits_in_a_temporary_table(maria: OfMariaDB) -> None:
    """In which the server keeps a text at the width that it has given the expression."""
    values = [1.2345678901234567e-10 * (1 + i / 7) * (-1) ** i for i in range(2000)]
    values += [-2.4691357802469136e-300, 5e-324, 1.7976931348623157e308, 1e15, 0.1]
    maria.run(
        "CREATE TABLE r (id int PRIMARY KEY, cust int NOT NULL, v double, w float, KEY (cust))",
        "CREATE TABLE few (cust int PRIMARY KEY)",
        "INSERT INTO few VALUES (0), (1), (2), (3)",
    )
    maria.insert("r", [(i, i % 4, v, -1e-60) for i, v in enumerate(values)])
    maria.run("ANALYZE TABLE r", "ANALYZE TABLE few")
    for as_text in ((), ("v", "w")):
        relation = Relation("r", table="r", where="cust IN (SELECT cust FROM few)", as_text=as_text)
        with session_of(maria) as session:
            shape = session.describe(relation)
            for ordered in (False, True):
                rows = [decoded(r, shape) for r in flat(session.scan(shape, ordered=ordered))]
                found = {int(row[0] or 0): str(row[2]) for row in rows}
                assert {float(row[3] or 0).hex() for row in rows} == {"-0x0.0p+0"}
                assert [float(found[i]) for i in range(len(values))] == values


@pytest.mark.mariadb_alone
def test_rows_of_the_past_are_not_read_for_those_of_now(maria: OfMariaDB) -> None:
    """As a variable of the server, or one that a stored function sets, would have it."""
    maria.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING",
        "INSERT INTO t VALUES (1, 1)",
    )
    time.sleep(1.1)
    with maria.server.admin(maria.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT NOW(6)")
        ((then,),) = cursor.fetchall()
    maria.run(
        "UPDATE t SET v = 2",
        "CREATE FUNCTION back(x int) RETURNS int READS SQL DATA "
        f"BEGIN SET SESSION system_versioning_asof = '{then}'; RETURN x; END",
        f"SET GLOBAL system_versioning_asof = '{then}'",
    )
    try:
        with session_of(maria) as session:
            assert read(session, Relation("t", table="t")) == [["1", "2"]]
    finally:
        maria.run("SET GLOBAL system_versioning_asof = DEFAULT")
    with session_of(maria) as session:
        query = Relation("q", query="SELECT id, back(id) AS v FROM t", key=("id",))
        with pytest.raises(errors.DatabaseRefused, match="system_versioning_asof"):
            read(session, query)
        assert read(session, Relation("t", table="t")) == [["1", "2"]]


def test_a_scan_that_is_abandoned_is_ended(
    maria: OfMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would read it to its end before the next statement, beyond every budget."""
    maria.run(
        "CREATE TABLE t (id int PRIMARY KEY, pad char(200))",
        "INSERT INTO t SELECT seq, 'x' FROM seq_1_to_200000",
        "CREATE TABLE u (id int PRIMARY KEY)",
    )
    with session_of(maria) as session:
        packets, connection = [0], session._connection
        read_packet = connection._read_packet

        def counted(*args: object, **more: object) -> object:
            packets[0] += 1
            return read_packet(*args, **more)

        monkeypatch.setattr(connection, "_read_packet", counted)
        for number in range(3):
            assert next(session.scan(session.describe(Relation("t", table="t"))))
            maria.run(f"INSERT INTO u VALUES ({number})")
            packets[0] = 0
            assert read(session, Relation("u", table="u")) == [], "the snapshot is the same"
            assert packets[0] < 50_000


IGNORED = {"mariadb": "IGNORED", "mysql": "INVISIBLE"}


def test_an_ignored_index_promises_no_tiles(maria: OfMariaDB) -> None:
    """The server refuses to be told to use it (error 1176); it ensures uniqueness all the same."""
    maria.run(
        "CREATE TABLE t (id int PRIMARY KEY, k varchar(9) COLLATE utf8mb4_bin NOT NULL, "
        "UNIQUE KEY uk (k))",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    )
    relation = Relation("t", table="t", key=("k",))
    with session_of(maria) as session:
        shape = session.describe(relation)
        assert not shape.not_by_key
        assert len(flat(rows_by_keys(session, shape, [("a",)]))) == 1
    maria.run(f"ALTER TABLE t ALTER INDEX uk {IGNORED[maria.name]}")
    with session_of(maria) as session:
        shape = session.describe(relation)
        assert shape.vouched
        assert "no index" in shape.unordered
        assert len(flat(session.scan(shape))) == 2


OTHERS = (
    "CREATE TABLE i (id int PRIMARY KEY, v int)",
    "CREATE TABLE log (id int PRIMARY KEY, v int) ENGINE=MyISAM",
    "INSERT INTO i VALUES (1, 1)",
    "INSERT INTO log VALUES (1, 1)",
    "CREATE VIEW of_i AS SELECT id, v FROM i",
    "CREATE VIEW upon AS SELECT id, v FROM of_i",
    "CREATE VIEW of_log AS SELECT id, v FROM log",
    "CREATE VIEW over_log AS SELECT id, v FROM of_log",
    "CREATE FUNCTION logged(x int) RETURNS int READS SQL DATA RETURN (SELECT v FROM log LIMIT 1)",
    "CREATE VIEW calls AS SELECT id, logged(id) AS v FROM i",
)


@pytest.mark.parametrize(
    ("text", "consistency"),
    [
        ("i", Consistency.EXACT),
        ("of_i", Consistency.EXACT),
        ("upon", Consistency.EXACT),
        ("i JOIN (SELECT id AS x FROM i) AS logs ON x = id", Consistency.EXACT),
        ("`log`", Consistency.FUZZY),
        ("over_log", Consistency.FUZZY),
        ("calls", Consistency.FUZZY),
        ("(SELECT id, logged(id) AS v FROM i) AS c", Consistency.FUZZY),
        ("i /* ж */", Consistency.FUZZY),
    ],
)
def test_a_query_is_read_as_its_own_tables_allow(
    maria: OfMariaDB, text: str, consistency: Consistency
) -> None:
    """A table without snapshots that the login also sees, and the query does not read, is none of
    its own. Names decide, so that a table is taken for read where it cannot be told."""
    maria.run(*OTHERS)
    query = Relation("q", query=f"SELECT id, v FROM {text}", key=("id",))
    with session_of(maria) as session:
        shape = session.describe(query)
        assert len(flat(session.scan(shape))) == 1
        assert session.snapshot.consistency is consistency


def test_a_query_of_the_servers_own_tables_has_no_snapshot(maria: OfMariaDB) -> None:
    query = "SELECT table_name AS id FROM information_schema.tables WHERE table_schema = DATABASE()"
    with session_of(maria) as session:
        flat(session.scan(session.describe(Relation("q", query=query, key=("id",)))))
        assert session.snapshot.consistency is Consistency.FUZZY


def test_a_view_is_checked_by_the_login_that_may_read_nothing_else(maria: OfMariaDB) -> None:
    """EXPLAIN is refused to it (error 1345), reading is not: `check` says so, and goes on."""
    maria.run(
        "CREATE TABLE hidden (id int PRIMARY KEY, at timestamp(6) NOT NULL, KEY (at))",
        "INSERT INTO hidden VALUES (1, '2020-01-01')",
        "CREATE VIEW shown AS SELECT id, at FROM hidden",
    )
    password = maria.server.create_login(login := maria.database)
    maria.run(f"GRANT SELECT ON {maria.database}.shown TO {login}")
    engine = connect(maria.server.tcp_url(login, maria.database), password, Limits())
    relation = Relation("shown", table="shown", key=("id",), marker=Marker("at", late_s=1))
    with closing(engine.open()) as session:
        shape = session.describe(relation)
        assert "does not show how it is read" in engine.scan_cost(shape)
        assert markers_of(session).marked_read(shape) is None
        assert len(flat(session.scan(shape))) == 1
    maria.drop_login(login)


def refusal(reading: Callable[[], object]) -> str:
    """Return the remedy for a read that the owner's limit of rows refuses; empty: it ends well."""
    try:
        reading()
    except errors.DatabaseRefused as error:
        return error.remedy if "1104" in error.message else repr(error)
    return ""


@pytest.mark.mariadb_alone  # MySQL ends no statement at its first row
@pytest.mark.parametrize("rows_max", [150, 100_000, 10_000_000])
def test_check_refuses_by_the_owners_limit_of_rows_what_a_read_refuses(
    maria: OfMariaDB, rows_max: int
) -> None:
    maria.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(90))",
        "INSERT INTO t SELECT seq, seq % 10, REPEAT('%', 80) FROM seq_1_to_1000",
        "CREATE TABLE m (id int PRIMARY KEY, v varchar(90)) ENGINE=MyISAM",
        "INSERT INTO m SELECT id, v FROM t",
        "CREATE VIEW joined AS SELECT a.id, b.id AS other FROM t a JOIN t b USING (n)",
        "ANALYZE TABLE t, m",
        f"SET GLOBAL max_join_size = {rows_max}",
    )
    relations = [
        Relation("t", table="t"),
        Relation("m", table="m"),
        Relation("joined", table="joined", key=("id", "other")),
        Relation("few", query="SELECT id, v FROM t WHERE v LIKE '%' AND id < 5", key=("id",)),
    ]
    refused = set()
    try:
        engine = engine_of(maria)
        with closing(engine.open()) as session:
            for relation in relations:
                shape = session.describe(relation)
                checked = refusal(lambda: engine.scan_cost(shape))  # noqa: B023
                assert checked == refusal(lambda: flat(session.scan(shape))), relation  # noqa: B023
                if checked:
                    assert "sql_big_selects" in checked
                    refused.add(relation.name)
    finally:
        maria.run("SET GLOBAL max_join_size = DEFAULT")
    some = {150: {"t", "joined"}, 100_000: {"joined"}, 10_000_000: set()}[rows_max]
    assert refused >= some
    assert rows_max == 150 or refused == some
