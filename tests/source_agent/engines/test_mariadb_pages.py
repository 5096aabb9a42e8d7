"""MariaDB tables without snapshots: reads in pages lose no row, for all key types and collations.

A page ends at a key, and the next one begins with `>`: that is right only where ORDER BY and `>`
agree. The server itself says what is in a table (COUNT(*), and one SELECT of everything).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import Any, cast

import pytest

from source_agent.engines.interface import Limits
from source_agent.engines.mysql_family import session as mariadb
from source_agent.engines.registry import connect
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Relation
from tests.harness.family import FAMILY
from tests.harness.legacies import KINDS, OfMariaDB, OfMySQL
from tests.harness.mysql_server import MySQL

WORDS = ["".join(w) for n in range(4) for w in product("\t aB", repeat=n)]
UNIQUE_WORDS = ["", "\t", "a", "a\t", "a b", "a\tb", "a!", "b", "b\t", "za", "zä", "é", "ß", "ss"]
NUMBERS = [str(n) for n in range(-40, 40, 3)]
DATES = [f"20{y}-{m:02}-01" for y in (19, 20, 24) for m in range(1, 13)]


@pytest.fixture(scope="module", params=FAMILY)
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OfMariaDB]:
    made = KINDS[request.param](request, tmp_path_factory.getbasetemp())
    assert isinstance(made, OfMariaDB)
    yield made
    made.close()


@pytest.fixture
def maria(database: OfMariaDB) -> Iterator[OfMariaDB]:
    yield database
    database.run("DROP TABLE t")


def text(kind: str, collation: str) -> str:
    charset, _, _ = collation.partition("_")
    return f"{kind}(9) CHARACTER SET {charset} COLLATE {collation}"


def uca(name: str) -> str:
    return f"(9) CHARACTER SET utf8mb4 COLLATE {name}"


# Type of the key column, its values, and whether the table may be read in pages.
KEYS: list[tuple[str, list[str], bool]] = [
    ("ENUM('z','a','M','b')", ["z", "a", "M", "b"], False),
    ("SET('z','a','m')", ["", "z", "a", "m", "z,a", "a,m", "z,a,m"], False),
    *(
        (text(kind, name), WORDS, False)
        for kind in ("char", "varchar")
        for name in ("latin1_nopad_bin", "utf8mb4_general_nopad_ci", "utf8mb4_nopad_bin")
    ),
    ("char" + uca("uca1400_nopad_ai_ci"), WORDS, False),
    ("varchar" + uca("uca1400_nopad_as_cs"), WORDS, False),
    *(
        (text(kind, name), WORDS, True)
        for kind in ("char", "varchar")
        for name in ("latin1_swedish_ci", "utf8mb4_bin", "utf8mb4_unicode_520_ci", "latin1_bin")
    ),
    ("char" + uca("uca1400_ai_ci"), WORDS, True),
    ("varchar(9) CHARACTER SET utf16 COLLATE utf16_general_ci", WORDS, True),
    ("int", NUMBERS, True),
    ("bigint unsigned", ["0", "1", "9223372036854775808", "18446744073709551615"], True),
    ("decimal(12,3)", NUMBERS, True),
    ("date", DATES, True),
    ("datetime(3)", [f"{d} 12:30:00.125" for d in DATES], True),
    ("timestamp", DATES, False),
    ("float", NUMBERS, False),
    ("double", NUMBERS, False),
    ("bit(9)", ["1", "2", "3"], False),
    ("year", ["1970", "2024", "0"], False),
    ("time", ["-01:00:00", "01:00:00", "-100:00:00", "00:00:00"], False),
    ("uuid", [f"{n:08x}-0000-1000-8000-{99 - n:012x}" for n in range(40)], False),
]


ALONE = pytest.mark.mariadb_alone


def alone(text: str) -> list[pytest.MarkDecorator]:
    """Return the mark of what MySQL has not."""
    has_not = any(word in text for word in ("nopad", "uca1400", "uuid"))
    return [ALONE] if has_not else []


@pytest.mark.parametrize(
    ("key", "values", "is_paged"), [pytest.param(*k, id=k[0], marks=alone(k[0])) for k in KEYS]
)
def test_a_table_without_snapshots_is_read_whole(
    key: str,
    values: list[str],
    is_paged: bool,
    maria: OfMariaDB,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maria.run(f"CREATE TABLE t (k {key} NOT NULL, id int, PRIMARY KEY (k, id)) ENGINE = MyISAM")
    is_bits = key.startswith("bit")
    maria.insert("t", [(int(v) if is_bits else v, i) for i, v in enumerate(values * 3)])
    check_whole(maria, is_paged, monkeypatch)


@pytest.mark.parametrize(
    ("engine", "table", "is_paged"),
    [
        ("MyISAM", "k varchar(20) NOT NULL, id int, UNIQUE (k)", True),
        pytest.param("Aria", "k varchar(20) NOT NULL, id int, UNIQUE (k)", True, marks=ALONE),
        ("MyISAM", "k varchar(20) NOT NULL, id int, UNIQUE (k(9))", False),
        ("MyISAM", "k text NOT NULL, id int, UNIQUE (k(9))", False),
        # A hash, as the next two; MySQL has none.
        pytest.param("MyISAM", "k text NOT NULL, id int, UNIQUE (k)", False, marks=ALONE),
        pytest.param("MyISAM", "k varchar(2000) NOT NULL, id int, UNIQUE (k)", False, marks=ALONE),
        ("MEMORY", "k varchar(20) NOT NULL, id int, UNIQUE (k)", False),
    ],
)
def test_only_ordered_indexes_over_whole_columns_page(
    engine: str,
    table: str,
    is_paged: bool,
    maria: OfMariaDB,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maria.run(f"CREATE TABLE t ({table}) ENGINE = {engine} COLLATE utf8mb4_bin")
    maria.insert("t", [(word, i) for i, word in enumerate(UNIQUE_WORDS)])
    check_whole(maria, is_paged, monkeypatch, key=("k",))


@pytest.mark.parametrize("kind", ["char", "varchar"])
@pytest.mark.parametrize(
    "collation", ["utf8mb4_0900_bin", "utf8mb4_0900_ai_ci", "utf8mb4_de_pb_0900_as_cs"]
)
def test_collations_of_mysql_do_not_pad(
    mysql: MySQL, monkeypatch: pytest.MonkeyPatch, kind: str, collation: str
) -> None:
    with closing(OfMySQL(mysql)) as legacy:
        key = text(kind, collation)
        legacy.run(f"CREATE TABLE t (k {key} NOT NULL, id int, PRIMARY KEY (k, id)) ENGINE=MyISAM")
        legacy.insert("t", [(word, i) for i, word in enumerate(WORDS * 3)])
        check_whole(legacy, False, monkeypatch)


def check_whole(
    maria: OfMariaDB,
    is_paged: bool,
    monkeypatch: pytest.MonkeyPatch,
    *,
    key: tuple[str, ...] = ("k", "id"),
) -> None:
    monkeypatch.setattr(mariadb, "PAGE_ROWS", 7)
    with closing(connect(maria.url, None, Limits()).open()) as session:
        shape = session.describe(Relation("t", table="t", key=key))
        rows = [row for batch in session.scan(shape) for row in batch]
        # No order: what is in no page would be missing from an ordered read as well.
        found = session.describe(Relation("q", query="SELECT * FROM t", key=key))
        expected = [row for batch in session.scan(found) for row in batch]
    with maria.server.admin(maria.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM t")
        ((count,),) = cursor.fetchall()
    assert len(rows) == len(expected) == count
    assert Counter(rows) == Counter(expected)
    assert bool(plan_of(shape).pages) is is_paged


def test_nothing_is_asked_of_the_server_while_spooled_rows_are_sent(maria: OfMariaDB) -> None:
    """A slow reader leaves the session idle, and the server ends it: all rows still come."""
    maria.run("CREATE TABLE t (k double NOT NULL, PRIMARY KEY (k)) ENGINE = MyISAM")
    maria.insert("t", [(n,) for n in range(50_000)])
    with closing(connect(maria.url, None, Limits()).open()) as session:
        shape = session.describe(Relation("t", table="t", key=("k",)))
        batches = session.scan(shape)
        rows = len(next(batches))
        ((own,),) = cast(Any, session).ask("SELECT CONNECTION_ID()")
        maria.run(f"KILL {own}")
        rows += sum(len(batch) for batch in batches)
    assert not plan_of(shape).pages
    assert rows == 50_000
