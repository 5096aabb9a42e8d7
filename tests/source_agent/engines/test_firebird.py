"""Firebird passes the conformance suite, and is loaded and refreshed through both agents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    ValueDoesNotFit,
)

from source_agent.engines.conformance.reads import decoded, flat, read, session_of
from source_agent.engines.conformance.suite import *  # noqa: F403 - collected, with this `legacy`
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness import server_versions
from tests.harness.absent import absent, could_be_installed
from tests.harness.firebird_server import FirebirdServer
from tests.harness.pair import Pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    server = request.getfixturevalue("firebird")  # before the driver is imported
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path, server)
    yield made
    made.close()


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"none\.fdb"):
        connect(f"firebird:///{tmp_path}/none.fdb", None, Limits()).open()
    with pytest.raises(ConfigurationError, match="names no database"):
        connect("firebird://u@h", None, Limits())


@pytest.mark.parametrize("rule", ["NOT NULL PRIMARY KEY", ""])
def test_the_least_bigint_and_negative_keys_are_found(legacy: Any, rule: str) -> None:
    """An index of Firebird has -2**63 in a wrong place, and misses keys from there on."""
    keys = [-(2**63), -(2**63) + 1, -(2**53) - 1, -3, -1, 0, 1, 7, 8, 2**53 + 1, 2**63 - 1]
    legacy.run(f'CREATE TABLE "t" ("id" BIGINT {rule})')
    legacy.insert("t", [(key,) for key in keys])
    if not rule:
        legacy.run('CREATE INDEX "by_id" ON "t" ("id")')
    with session_of(legacy) as session:
        shape = session.describe(Relation("t", table="t", key=("id",)))

        def keys_of(rows: list[bytes]) -> list[int]:
            return [int(decoded(row, shape)[0] or 0) for row in rows]

        def found(*ranges: tuple[int, int]) -> list[int]:
            bounds = np.array(ranges, np.int64)
            return sorted(keys_of(flat(session.read_ranges(shape, bounds[:, 0], bounds[:, 1]))))

        for first in keys:
            for last in keys:
                if first <= last:
                    assert found((first, last)) == [k for k in keys if first <= k <= last]
        assert found((keys[0], -1), (0, keys[-1])) == keys
        assert keys_of(flat(session.scan(shape, ordered=True))) == keys


def test_text_of_no_character_set_is_refused_by_name(legacy: Any) -> None:
    legacy.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY,'
        ' "v" BLOB SUB_TYPE TEXT CHARACTER SET NONE)',
        "INSERT INTO \"t\" VALUES (7, CAST(x'c328' AS BLOB))",
    )
    with session_of(legacy) as session:
        with pytest.raises(ValueDoesNotFit, match=r"t\.v.*c328"):
            read(session, Relation("t", table="t"))
        assert read(session, Relation("t", table="t", as_text=("v",))) == [["7", "c328"]]


@pytest.mark.parametrize("as_text", [("v",), ()])
def test_an_array_is_refused_by_name(legacy: Any, as_text: tuple[str, ...]) -> None:
    legacy.run('CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" INTEGER[3])')
    with session_of(legacy) as session:
        with pytest.raises(ConfigurationError, match=r't\.v.*is an array.*"v"\[1\]'):
            session.describe(Relation("t", table="t", as_text=as_text))
        query = 'SELECT "id", "v"[1] AS "first" FROM "t"'
        assert read(session, Relation("q", query=query, key=("id",))) == []


def test_a_role_that_a_read_changes_is_refused(legacy: Any) -> None:
    """The role is what CURRENT_ROLE shows, and decides what may be read."""
    legacy.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY)',
        'INSERT INTO "t" VALUES (1)',
        "CREATE ROLE READS",
        "GRANT READS TO SYSDBA",
        "CREATE FUNCTION SETS RETURNS VARCHAR(63) AS BEGIN EXECUTE STATEMENT 'SET ROLE READS';"
        " RETURN CURRENT_ROLE; END",
        'ALTER TABLE "t" ADD "role" COMPUTED BY (SETS())',
    )
    with session_of(legacy) as session, pytest.raises(DatabaseRefused, match="changed ROLE"):
        read(session, Relation("t", table="t"))


def test_types_of_a_query_tell_bytes_and_padding(legacy: Any) -> None:
    legacy.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "b" CHAR(2) CHARACTER SET OCTETS,'
        ' "c" CHAR(3), "p" DECIMAL(12,2))',
        "INSERT INTO \"t\" VALUES (1, x'ff', 'é', 1.5)",
    )
    relation = Relation("q", query='SELECT "id", "b", "c", "p" FROM "t"', key=("id",))
    with session_of(legacy) as session:
        types = [str(column.type) for column in session.describe(relation).recipe.columns]
        assert types == ["int4", "bytea", "text", "numeric(19,2)"]
        assert read(session, relation) == [["1", "ff00", "é  ", "1.50"]]


def firebird_4() -> Path:
    """Return the folder of a server of 4.0."""
    try:
        return server_versions.obtain("firebird", "4")
    except server_versions.NotToBeHad as error:
        absent("FIREBIRD 4", str(error), is_required_in_ci=could_be_installed())


@pytest.mark.soak
@pytest.mark.parametrize("settings", ["", "DataTypeCompatibility = 3.0\n"])
def test_an_old_client_library_is_named(tmp_path: Path, settings: str) -> None:
    """Firebird 3.0's library asks a server of 4.0 for a type that it does not know."""
    from tests.harness.legacy_firebird import OfFirebird

    if server_versions.chosen("firebird") not in {None, "3"}:
        pytest.skip("a newer library is loaded")
    with (
        FirebirdServer(firebird_4(), settings) as server,
        closing(OfFirebird(tmp_path, server)) as legacy,
    ):
        legacy.run(
            'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" NUMERIC(20,2), "f" FLOAT)',
            'INSERT INTO "t" VALUES (1, 123456789012345678.99, 0.5)',
        )
        sums = 'SELECT "id", SUM("v") AS "v" FROM "t" GROUP BY "id"'
        cast = 'SELECT "id", CAST("v" AS VARCHAR(40)) AS "v" FROM "t"'
        with session_of(legacy) as session:
            for relation in (Relation("t", table="t"), Relation("t", query=sums, key=("id",))):
                with pytest.raises(ConfigurationError, match=r"client library .* 3\.0"):
                    session.describe(relation)
            known = Relation("t", table="t", columns=("id", "f"))
            assert read(session, known) == [["1", "0.5"]]
            told = Relation("t", query=cast, key=("id",))
            assert read(session, told) == [["1", "123456789012345678.99"]]


@pytest.mark.soak
def test_a_limit_of_the_server_is_named(tmp_path: Path) -> None:
    from tests.harness.legacy_firebird import OfFirebird

    query = 'SELECT COUNT(*) AS "n" FROM RDB$FIELDS a, RDB$FIELDS b, RDB$FIELDS c, RDB$FIELDS d'
    busy = Relation("q", query=query, key=("n",))
    with (
        FirebirdServer(firebird_4(), "StatementTimeout = 1\n") as server,
        closing(OfFirebird(tmp_path, server)) as legacy,
        session_of(legacy) as session,
    ):
        with pytest.raises(DatabaseRefused, match="longer than the database") as refused:
            read(session, busy)
        assert "StatementTimeout of the server" in refused.value.remedy
        less = Relation("q", query='SELECT COUNT(*) AS "n" FROM RDB$DATABASE', key=("n",))
        assert read(session, less) == [["1"]]


@pytest.mark.spark
def test_a_table_is_loaded_and_refreshed(spark: SparkSession, legacy: Any, tmp_path: Path) -> None:
    """Both agents, against what the owner reads."""
    legacy.run(
        'CREATE TABLE "orders" ("id" BIGINT NOT NULL PRIMARY KEY, "price" DECIMAL(12,2),'
        ' "note" VARCHAR(40), "code" CHAR(4), "day" DATE)'
    )
    legacy.insert(
        "orders",
        [(i * 3, Decimal(f"{i}.25"), f"nöte {i}", f"c{i % 7}", date(2024, 1, 1 + i % 28))
         for i in range(2000)],
    )  # fmt: skip
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        loaded = pair.refresh()
        assert (loaded.version, loaded.rows_total) == (0, 2000)
        pair.check("orders")
        legacy.execute('UPDATE "orders" SET "note" = ? WHERE "id" < ?', "changed ", 30)
        legacy.execute('UPDATE "orders" SET "price" = "price" + 0.01 WHERE "id" = ?', 300)
        legacy.execute('DELETE FROM "orders" WHERE "id" >= ?', 5970)
        legacy.execute('INSERT INTO "orders" VALUES (?, ?, ?, ?, ?)', -1, None, "", None, None)
        refreshed = pair.refresh()
        changed = (refreshed.rows_inserted, refreshed.rows_updated, refreshed.rows_deleted)
        assert (refreshed.version, changed) == (1, (1, 11, 10))
        pair.check("orders")
        assert pair.refresh().version == 1
