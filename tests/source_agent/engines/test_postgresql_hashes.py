"""Hashes that a real PostgreSQL makes of rows, against ours from the same rows' bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import ConfigurationError, DatabaseRefused, NullKey, ValueDoesNotFit
from driftline.rows.digests import Salt, mix
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES, database_seed, fingerprints
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from source_agent.checks.configuration import check
from source_agent.config.file import load as load_file
from source_agent.engines.interface import Ask, Limits, Rows, Session
from source_agent.engines.postgresql import hashes as postgresql_hashes
from source_agent.engines.postgresql.session import PostgresqlSession
from source_agent.engines.postgresql.sql import copy_of
from source_agent.engines.registry import connect
from source_agent.engines.relations.select import ReadColumn
from source_agent.engines.relations.shapes import Fingerprint, Relation, Shape
from source_agent.scan.reader import ReadCounts, Reader
from tests.harness.absent import needs_release
from tests.harness.legacies import OfMariaDB, OfPostgreSQL, OfSQLite
from tests.harness.servers import MariaDB, PostgreSQL
from tests.harness.source_commands import source_command
from tests.reference import values as reference
from tests.reference.rows import Row, row_bytes
from tests.samples import values as value_samples

KEY = bytes(range(FRAGMENT_KEY_BYTES))
SALT = Salt(3, 4)
RELATION = Relation("t", table="t", fingerprint=Fingerprint.DATABASE)
TYPES = value_samples.TYPES
FORMS = ("hashbyteaextended", "before 18", "not UTF-8")


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    yield made
    made.close()


def open_session(legacy: OfPostgreSQL) -> Session:
    return connect(legacy.url, None, Limits()).open()


def _has_hash_of_bytes(session: Session) -> bool:
    """Return True on PostgreSQL 18 or later; an older server has one form, and it is used."""
    ((found,),) = session.ask(  # type: ignore[attr-defined]
        "SELECT to_regprocedure('pg_catalog.hashbyteaextended(bytea,bigint)') IS NOT NULL"
    )
    return bool(found)


def described(session: Session, form: str = FORMS[0]) -> Shape:
    """The relation, hashed as other servers have to."""
    shape = session.describe(RELATION)
    if form == FORMS[0] or not _has_hash_of_bytes(session):
        return shape
    plan = shape.plan
    assert plan is not None
    columns = shape.recipe.columns
    found = [
        ReadColumn(c.name, c.type, read, sent, c.nullable)
        for c, read, sent in zip(columns, plan.reads, plan.forms, strict=True)
    ]
    how = postgresql_hashes.BYTES_BEFORE_18 if form == FORMS[1] else postgresql_hashes.BYTES
    made = postgresql_hashes.expression(found, form=how, is_utf8=form != FORMS[2])
    assert made != plan.row_hash
    return replace(shape, plan=replace(plan, row_hash=made))


def reader(session: Session, shape: Shape) -> Reader:
    return Reader(session, shape, fragment_key=KEY, salt=SALT, tally=ReadCounts())


def both(session: Session, shape: Shape) -> tuple[dict[int, int], dict[int, int]]:
    """Position to row hash: the database's, and ours from the rows."""
    theirs: dict[int, int] = {}
    ours: dict[int, int] = {}
    reads = reader(session, shape)
    for batch in reads.scan_hashes():
        assert len(batch.block.starts) == len(batch.positions) + 1
        theirs |= dict(zip(batch.positions.tolist(), batch.mixed.m0.tolist(), strict=True))
    for batch in reads.scan():
        ours |= dict(zip(batch.positions.tolist(), batch.mixed.m0.tolist(), strict=True))
        expected = mix(SALT, *fingerprints(KEY, shape.recipe)(batch.block.rows())).m0
        assert (batch.mixed.m0 == expected).all()
    assert reads.tally.scans == 2
    return theirs, ours


def load(legacy: OfPostgreSQL, rows: Sequence[Row]) -> None:
    """Rows as they are, by COPY in binary."""
    data = b"".join(row_bytes(row) for row in rows)
    with legacy.server.superuser(legacy.database) as connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE t")
        with cursor.copy("COPY t FROM STDIN (FORMAT binary)") as sink:
            sink.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + data + b"\xff\xff")


def storable(type: str) -> st.SearchStrategy[bytes]:
    """Bytes that PostgreSQL takes: `any_bytes` within the engine's own bounds."""
    if type == "jsonb":
        return st.sampled_from([reference.encode(type, t) for t in value_samples.CHOSEN[type]])
    if type == "text":
        return value_samples.any_bytes(type).filter(lambda b: b"\0" not in b)
    bounds = {"date": (">i", -2_400_000, 2_100_000_000)}
    bounds |= dict.fromkeys(("timestamp", "timestamptz"), (">q", -2 * 10**17, 9 * 10**18))
    if type in bounds:
        form, least, most = bounds[type]
        random = st.integers(least, most).map(lambda n: struct.pack(form, n))
        return random | st.sampled_from(["infinity", "-infinity"]).map(
            lambda text: reference.encode(type, text)
        )
    return value_samples.any_bytes(type)


VALUES = st.tuples(*(st.none() | storable(type) for type in TYPES)).map(list)


@pytest.mark.parametrize("form", FORMS)
def test_every_type_hashes_alike(legacy: OfPostgreSQL, form: str) -> None:
    columns = ", ".join(f"c{i} {type}" for i, type in enumerate(TYPES))
    legacy.run(f"CREATE TABLE t (k int8 PRIMARY KEY, {columns})")

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(st.lists(VALUES, min_size=1, max_size=8))
    def check(drawn: list[Row]) -> None:
        rows = [[struct.pack(">q", number), *row] for number, row in enumerate(drawn)]
        load(legacy, rows)
        with closing(open_session(legacy)) as session:
            theirs, ours = both(session, described(session, form))
        assert len(theirs) == len(rows)
        assert theirs == ours

    check()


@pytest.mark.parametrize("type", TYPES)
def test_no_two_values_of_a_type_hash_alike(legacy: OfPostgreSQL, type: str) -> None:
    """1.0 and 1.00, 1 month and 30 days, 0.0 and -0.0, 5 and -5 are equal to other hashes."""
    values = value_samples.expressions(type)
    if type == "interval" and legacy.server.release < 17:
        values = [value for value in values if "infinity" not in value]
    legacy.run(f"CREATE TABLE t (k int8 PRIMARY KEY, v {type})")
    rows = ", ".join(f"({k}, {v})" for k, v in enumerate(values))
    legacy.run(f"INSERT INTO t VALUES (-1, NULL), {rows}")
    # One key for all, so that hashes differ by the values alone.
    query = "SELECT v, 0::int8 AS k FROM t"
    relation = replace(RELATION, table=None, query=query, key=("k",))
    with closing(open_session(legacy)) as session:
        theirs, ours = both(session, session.describe(RELATION))
        assert theirs == ours
        shape = session.describe(relation)
        different = {row for batch in session.scan(shape) for row in batch}
        hashes = {
            h for batch in reader(session, shape).scan_hashes() for h in batch.mixed.m0.tolist()
        }
    assert len(hashes) == len(different) > 1


def test_what_is_read_as_text_padded_or_converted(legacy: OfPostgreSQL) -> None:
    legacy.run(
        "CREATE TYPE colour AS ENUM ('red', 'green')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN price AS numeric(9,2) CHECK (VALUE > -5)",
        "CREATE DOMAIN code AS char(4)",
        "CREATE TABLE t (k smallint PRIMARY KEY, c char(7), b bpchar, v varchar(9), n name, j json,"
        " e colour, p pair, d price, x code, m money, a int[], i inet, f float4, g float8, t text"
        ' NOT NULL, "odd ""name" text)',
        "INSERT INTO t VALUES (1, 'a', 'a ', 'a ', 'n', '{\"a\" :1}', 'green', (1, 'x'), 1.5, 'z',"
        " 12.34, '{1,NULL}', '10.0.0.1/8', '-0', '-NaN', 'ä€', 'q'),"
        " (2, ' ', '', '', 'N', '[]', 'red', (NULL, NULL), 0, '', -0.01, '{}', '::1', 'inf', -0.0,"
        " '', NULL)",
        "INSERT INTO t (k, t) VALUES (3, '')",
    )
    for form in FORMS:
        with closing(open_session(legacy)) as session:
            theirs, ours = both(session, described(session, form))
        assert theirs == ours
        assert sorted(theirs) == [1, 2, 3]


def test_a_cast_of_the_owners_is_not_used(legacy: OfPostgreSQL) -> None:
    """What COPY sends does not pass it."""
    legacy.run(
        "CREATE TYPE colour AS ENUM ('red', 'green')",
        "CREATE DOMAIN shade AS colour CHECK (VALUE IS NOT NULL)",
        "CREATE FUNCTION same(colour) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'same'$$",
        "CREATE FUNCTION same(json) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'same'$$",
        "CREATE CAST (colour AS text) WITH FUNCTION same(colour)",
        "CREATE CAST (json AS text) WITH FUNCTION same(json)",
        "CREATE TABLE t (k int PRIMARY KEY, e colour, d shade NOT NULL DEFAULT 'red', j json,"
        " v text)",
        "INSERT INTO t VALUES (1, 'red'), (2, 'green'), (3, NULL)",
        "INSERT INTO t VALUES (4, 'red', 'red', '{}'), (5, 'red', 'red', '[]')",
    )
    for form in FORMS:
        with closing(open_session(legacy)) as session:
            theirs, ours = both(session, described(session, form))
        assert theirs == ours
        assert len(theirs) == 5


def test_other_encodings_and_collations(postgresql: PostgreSQL, legacy: OfPostgreSQL) -> None:
    latin = OfPostgreSQL.__new__(OfPostgreSQL)
    latin.server, latin.database = (
        postgresql,
        postgresql.create_database("latin", encoding="LATIN1"),
    )
    latin.url = postgresql.url("postgres", "latin")
    try:
        latin.run("CREATE TABLE t (k int PRIMARY KEY, v text, c char(3))")
        latin.run("INSERT INTO t VALUES (1, 'äöü', 'é'), (2, 'a', NULL)")
        with closing(open_session(latin)) as session:
            theirs, ours = both(session, session.describe(RELATION))
        assert theirs == ours
    finally:
        latin.close()
    # This server knows no collation by which different texts are equal. None counts.
    legacy.run(
        'CREATE TABLE t (k int, v text COLLATE "POSIX", w varchar(3), PRIMARY KEY (v, k))',
        "INSERT INTO t VALUES (1, 'a', 'B'), (2, 'A', 'b')",
    )
    with closing(open_session(legacy)) as session:
        shape = session.describe(RELATION)
        theirs, ours = both(session, shape)
    assert shape.plan is not None
    assert shape.plan.row_hash.count('COLLATE pg_catalog."C"') == 2
    assert theirs == ours
    assert len(set(theirs.values())) == 2


def test_more_columns_than_one_word_of_nulls(legacy: OfPostgreSQL) -> None:
    names = [f"c{i}" for i in range(1500)]
    legacy.run(f"CREATE TABLE t (k int PRIMARY KEY, {', '.join(f'{n} bool' for n in names)})")
    legacy.run(
        "INSERT INTO t (k) VALUES (1)", "INSERT INTO t (k, c30, c31) VALUES (2, true, false)"
    )
    with closing(open_session(legacy)) as session:
        theirs, ours = both(session, session.describe(RELATION))
    assert theirs == ours


def test_what_the_hash_of_a_record_does_not_see(legacy: OfPostgreSQL) -> None:
    """Why it is not used: the header of `source_agent.engines.postgresql.hashes`."""
    total = "(SELECT sum(hash_record_extended(ROW(a, b), 1)) FROM (VALUES {}) x(a, b))"
    before, after = total.format("(1, 2), (3, 4)"), total.format("(1, 4), (3, 2)")
    blind = [
        "hash_record_extended(ROW(5.00), 1) = hash_record_extended(ROW(-5.00), 1)",
        "hash_record_extended(ROW(1::int8), 1) = hash_record_extended(ROW(4294967296), 1)",
        f"mod({before} - {after}, 2^64::numeric) = 0",
    ]
    with legacy.server.superuser(legacy.database) as connection:
        assert [connection.execute(f"SELECT {b}").fetchall() for b in blind] == [[(True,)]] * 3


def test_other_servers_are_refused_by_name() -> None:
    def asked(*answers: tuple[Any, ...]) -> Ask:
        left = iter(answers)
        return lambda sql, *values: [next(left)]

    with pytest.raises(ConfigurationError, match=r"13\.2 has no hash") as caught:
        postgresql_hashes.row_hash(asked((False, False, True, "13.2")), RELATION, [])
    assert caught.value.where == "t: fingerprint"
    with pytest.raises(ConfigurationError, match=r"16\.1 hashes differently"):
        postgresql_hashes.row_hash(asked((False, True, True, "16.1"), (1, 2, 3)), RELATION, [])


def test_other_engines_are_refused_by_name(tmp_path: Path, mariadb: MariaDB) -> None:
    maria = OfMariaDB(mariadb)
    try:
        lite = OfSQLite(tmp_path / "a.db")
        for other in (maria, lite):
            other.run("CREATE TABLE t (k INT PRIMARY KEY)")
            with (
                closing(connect(other.url, None, Limits()).open()) as session,
                pytest.raises(ConfigurationError, match="Only PostgreSQL") as caught,
            ):
                session.describe(RELATION)
            assert caught.value.where == "t: fingerprint"
    finally:
        maria.close()


# NULL where the catalogue vouches that there is none, as heirs may have it before PostgreSQL 18.
WRONGLY_VALID = "UPDATE pg_catalog.pg_constraint SET convalidated = true WHERE contype = 'n'"


def test_a_constraint_that_was_never_validated_vouches_for_nothing(legacy: OfPostgreSQL) -> None:
    needs_release(legacy.server.release, 18, "NOT NULL … NOT VALID")
    legacy.run(
        "CREATE TABLE t (k int, v int)",
        "INSERT INTO t VALUES (1, NULL), (NULL, 2)",
        "CREATE UNIQUE INDEX ON t (k)",
        *(f"ALTER TABLE t ADD NOT NULL {column} NOT VALID" for column in "kv"),
    )
    with closing(open_session(legacy)) as session:
        shape = session.describe(replace(RELATION, key=("k",)))
        assert not shape.vouched
        with pytest.raises(NullKey, match="such as k=NULL"):
            list(reader(session, shape).scan_hashes())
    legacy.run("DELETE FROM t WHERE k IS NULL", "ALTER TABLE t ALTER k SET NOT NULL")
    with closing(open_session(legacy)) as session:
        shape = session.describe(replace(RELATION, key=("k",)))
        assert shape.vouched
        theirs, ours = both(session, shape)
    assert theirs == ours
    assert len(theirs) == 1


@pytest.mark.parametrize(("type", "key"), [("int8", f"{2**35 + 1}"), ("bytea", "''")])
def test_a_hash_that_is_null_is_seen_behind_any_key(
    legacy: OfPostgreSQL, type: str, key: str
) -> None:
    """What stands where its length is looked for might be a piece of the key."""
    needs_release(legacy.server.release, 18, "NOT NULL … NOT VALID")
    legacy.run(
        f"CREATE TABLE t (k {type}, v int)",
        f"INSERT INTO t VALUES ({key}, NULL)",
        "ALTER TABLE t ADD CONSTRAINT unchecked NOT NULL v NOT VALID",
        WRONGLY_VALID,
    )
    with closing(open_session(legacy)) as session:
        reads = reader(session, session.describe(replace(RELATION, key=("k",))))
        with pytest.raises(ValueDoesNotFit, match="NOT NULL"):
            list(reads.scan_hashes())


def test_before_18_a_null_that_should_not_be_is_hashed(legacy: OfPostgreSQL) -> None:
    """The record's hash would be 0 instead of NULL, and what came before it forgotten."""
    needs_release(legacy.server.release, 18, "NOT NULL … NOT VALID")
    legacy.run(
        "CREATE TABLE t (k int PRIMARY KEY, a int, v int, w text)",
        "INSERT INTO t VALUES (1, 2, NULL, 'a'), (2, 3, NULL, 'a'), (3, 4, 5, NULL)",
        "ALTER TABLE t ADD CONSTRAINT unchecked NOT NULL v NOT VALID",
        "ALTER TABLE t ADD CONSTRAINT neither NOT NULL w NOT VALID",
        WRONGLY_VALID,
    )
    with closing(open_session(legacy)) as session:
        theirs, ours = both(session, described(session, "before 18"))
    assert theirs == ours
    assert len(set(theirs.values())) == 3


def test_a_null_where_there_should_be_none_is_refused(legacy: OfPostgreSQL) -> None:
    needs_release(legacy.server.release, 18, "NOT NULL … NOT VALID")
    legacy.run(
        "CREATE TABLE t (k int, v int)",
        "INSERT INTO t VALUES (1, NULL), (2, 3)",
        "ALTER TABLE t ADD CONSTRAINT unchecked NOT NULL v NOT VALID",
        WRONGLY_VALID,
    )
    relation = replace(RELATION, key=("k",))
    with closing(open_session(legacy)) as session:
        reads = reader(session, session.describe(relation))
        with pytest.raises(ValueDoesNotFit, match="NOT NULL"):
            list(reads.scan_hashes())
    legacy.run("UPDATE t SET k = NULL, v = 1")
    with closing(open_session(legacy)) as session:
        reads = reader(session, session.describe(relation))
        with pytest.raises(NullKey, match="such as k=NULL"):
            list(reads.scan_hashes())


def test_the_statements_are_those_of_explain(
    legacy: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy.run("CREATE TABLE t (k int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    issued: list[str] = []
    ask, copy = PostgresqlSession.ask, PostgresqlSession._copy

    def asked(self: PostgresqlSession, sql: str, *values: object) -> list[tuple[Any, ...]]:
        issued.append(sql)
        return ask(self, sql, *values)

    def copied(self: PostgresqlSession, shape: Shape, sql: str) -> Iterator[Rows]:
        issued.append(copy_of(sql))
        return copy(self, shape, sql)

    monkeypatch.setattr(PostgresqlSession, "ask", asked)
    monkeypatch.setattr(PostgresqlSession, "_copy", copied)
    engine = connect(legacy.url, None, Limits())
    with closing(engine.open()) as session:
        shape = session.describe(RELATION)
        both(session, shape)
    templates = engine.templates([shape])
    assert set(issued) <= set(templates)
    assert postgresql_hashes.SEED in issued
    assert str(database_seed(KEY, shape.recipe)) not in "\n".join(templates)


def test_what_this_login_cannot_make_is_refused_before_it_is_used(
    legacy: OfPostgreSQL, tmp_path: Path
) -> None:
    """Not in the first refresh that compares, which is the second."""
    wide = ", ".join(f"c{i} int" for i in range(800))
    legacy.run(
        f"CREATE TABLE t (k int PRIMARY KEY, {wide})",
        f"CREATE ROLE {legacy.database} LOGIN",
        f"GRANT SELECT ON t TO {legacy.database}",
        "REVOKE EXECUTE ON FUNCTION int4send(int) FROM PUBLIC",
    )
    legacy.url = legacy.server.url(legacy.database, legacy.database)
    with closing(open_session(legacy)) as session:
        with pytest.raises(ConfigurationError, match="denied for function int4send") as caught:
            session.describe(RELATION)
        assert caught.value.where == "t: fingerprint"
        assert session.describe(replace(RELATION, fingerprint=Fingerprint.AGENT))
    file = tmp_path / "source.toml"
    file.write_text(
        f'[database]\nurl = "{legacy.url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[relations.t]\ntable = "t"\n'
    )
    report = check(load_file(file), connect(legacy.url, None, Limits()))
    assert report.relations[0].error is None
    assert "int4send" in report.relations[0].fingerprint
    legacy.run(
        "GRANT EXECUTE ON FUNCTION int4send(int) TO PUBLIC",
        f"ALTER DATABASE {legacy.database} SET max_stack_depth = '100kB'",
    )
    with (
        closing(open_session(legacy)) as session,
        pytest.raises(ConfigurationError, match="stack depth"),
    ):
        session.describe(RELATION)
    legacy.run("REVOKE SELECT ON t FROM PUBLIC", f"REVOKE SELECT ON t FROM {legacy.database}")
    with (
        closing(open_session(legacy)) as session,
        pytest.raises(DatabaseRefused, match="denied for table t"),
    ):
        session.describe(RELATION)
    legacy.run(f"DROP OWNED BY {legacy.database}", f"DROP ROLE {legacy.database}")


def test_check_says_who_makes_them_and_who_could(legacy: OfPostgreSQL, tmp_path: Path) -> None:
    legacy.run("CREATE TABLE t (k int PRIMARY KEY)")
    lite = OfSQLite(tmp_path / "a.db")
    lite.run("CREATE TABLE t (k INTEGER PRIMARY KEY)")
    said = []
    for url, more in ((legacy.url, '"database"'), (legacy.url, '"agent"'), (lite.url, '"agent"')):
        file = tmp_path / "source.toml"
        file.write_text(
            f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
            f'[relations.t]\ntable = "t"\nfingerprint = {more}\n'
        )
        report = check(load_file(file), connect(url, None, Limits()))
        said.append(report.relations[0].fingerprint)
        assert f"fingerprints {said[-1]}" in source_command(file, "check", "--verbose").stdout
    assert said[0].startswith("made by the database: 64 bits")
    assert said[1] == 'made by the agent; fingerprint = "database" is possible'
    assert said[2].startswith("made by the agent. Only PostgreSQL")
