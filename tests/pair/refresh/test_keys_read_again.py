"""MariaDB and MySQL have no places of rows: what changed is read by its keys, after one scan.

Keys of each type that an index finds, by the collations that people have, with real statements
between the scan and the rows that are read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from source_agent.scan.batches import Batches, Locators
from source_agent.scan.reader import ReadAgain, Reader
from tests.harness.legacy import MariaLegacy, of_family
from tests.harness.no_spark import NoSpark
from tests.harness.pair import UNBRAKED, Pair, expect_equal
from warehouse_agent.report import Report

ROWS = 6000
# Nothing that compresses away: else a full copy costs less than to say what changed.
NOTE = "left(concat(sha2(rand(), 256), sha2(rand(), 256)), 96)"
# By kind of key: its columns, the expressions of the key of row n (0 to ROWS - 1).
KEYS = {
    "composite": ("a int NOT NULL, b bigint unsigned NOT NULL", "n % 7, 18446744073709551615 - n"),
    "uuid": ("a char(36) NOT NULL", "insert(left(sha2(n, 256), 35), 9, 0, '-')"),
    "any case": (
        "a varchar(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
        "concat(if(n % 2, 'Ärger ', 'straße '), '日本 \\\\ % '' ', n)",
    ),
    "shorter": (
        "a char(40) CHARACTER SET utf8mb4 COLLATE {default} NOT NULL",
        "concat(n, char(9), if(n % 2, 'Ä', ''), char(1))",
    ),
    "latin1": (
        "a varchar(40) CHARACTER SET latin1 COLLATE latin1_swedish_ci NOT NULL, d date NOT NULL",
        "concat('café ', n % 50, if(n % 2, char(150), '')), date '2020-01-01' + INTERVAL n DAY",
    ),
    "three bytes": (
        "a varchar(40) CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci NOT NULL",
        "concat('ключ ', n)",
    ),
    "bytes": ("a binary(16) NOT NULL", "unhex(left(sha2(n, 256), 32))"),
    "values": (
        "a decimal(12, 3) NOT NULL, b datetime(6) NOT NULL",
        "n / 8, timestamp '2020-01-01 00:00:00.000001' + INTERVAL n % 50 MICROSECOND",
    ),
}
NUMBERS = "SELECT a.i + 10 * b.i + 100 * c.i + 1000 * d.i AS n FROM t a, t b, t c, t d"


@pytest.fixture(params=["mariadb", "mysql"])
def legacy(request: pytest.FixtureRequest) -> Iterator[MariaLegacy]:
    made = of_family(request.getfixturevalue(request.param))
    yield made
    made.close()


@contextmanager
def running(legacy: MariaLegacy, folder: Path, kind: str, limits: str = "") -> Iterator[Pair]:
    """A pair with a loaded table of one kind of key."""
    columns, of_row = KEYS[kind]
    legacy.execute("SET sql_mode = ''")
    columns = columns.format(default=collation(legacy))
    names = ", ".join(one.split()[0] for one in columns.split(", ") if one[1] == " ")
    legacy.execute(
        f"CREATE TABLE items (v int, note varchar(96), {columns}, r int, PRIMARY KEY ({names}))"
    )
    legacy.execute("CREATE TABLE t (i int)")
    legacy.execute("INSERT INTO t VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)")
    insert(legacy, of_row, f"n < {ROWS}")
    with Pair(
        NoSpark(), legacy, folder, {"items": 'table = "items"'}, f"{UNBRAKED}\n{limits}"
    ) as made:
        made.small_bytes = 1 << 30
        made.refresh("items")
        made.check("items")
        yield made


def collation(legacy: MariaLegacy) -> str:
    """Return one that does not pad and tells no case, as new databases have it."""
    with legacy._connection.cursor() as cursor:
        cursor.execute("SELECT collation_name FROM information_schema.collations")
        known = {str(name) for (name,) in cursor.fetchall()}
    for name in ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_nopad_ci"):
        if name in known:
            return name
    raise AssertionError("no collation of this server leaves blanks alone")


def insert(legacy: MariaLegacy, of_row: str, which: str) -> None:
    legacy.execute(
        f"INSERT INTO items SELECT n % 90, {NOTE}, {of_row}, n FROM ({NUMBERS}) numbers"
        f" WHERE {which}"
    )


def refreshed(pair: Pair) -> Report:
    """One refresh, equal to the source."""
    report = pair.refresh("items")
    pair.check("items")
    return report


@pytest.mark.parametrize("kind", KEYS)
def test_rows_that_changed_are_read_by_their_keys(
    legacy: MariaLegacy, tmp_path: Path, kind: str
) -> None:
    with running(legacy, tmp_path / "pair", kind) as pair:
        for seed in range(3):
            legacy.execute(f"UPDATE items SET v = -{seed} WHERE r % 120 = {seed}")
            legacy.execute(f"DELETE FROM items WHERE r % 1000 = {17 + seed}")
            insert(
                legacy, KEYS[kind][1], f"n BETWEEN {ROWS + 20 * seed} AND {ROWS + 20 * seed + 9}"
            )
            report = refreshed(pair)
            assert (report.method, report.source_scans) == ("sketch", 1)
            rows = len(legacy.rows("items"))
            assert rows < report.source_rows_read <= rows + 120


def test_a_second_scan_where_it_is_cheaper_or_needed(legacy: MariaLegacy, tmp_path: Path) -> None:
    """More than a tenth of the rows, or keys that do not fit."""
    with running(legacy, tmp_path / "pair", "uuid") as pair:
        legacy.execute("UPDATE items SET v = -1 WHERE r % 100 < 14")
        assert refreshed(pair).source_scans == 2
    legacy.execute("DROP TABLE items, t")
    with running(legacy, tmp_path / "small", "uuid", "memory_at_most = 60_000") as pair:
        legacy.execute("UPDATE items SET v = -1 WHERE r % 100 = 1")
        assert refreshed(pair).source_scans == 2


def test_writers_beside_a_refresh(
    legacy: MariaLegacy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in the snapshot is published; what came since comes with the next refresh."""
    with running(legacy, tmp_path / "pair", "any case") as pair:
        legacy.execute("UPDATE items SET v = -1 WHERE r % 50 = 1")
        before = legacy.rows("items")
        read, numbers = Reader.at, list[int]()

        def written(self: Reader, again: ReadAgain, locators: Locators) -> Batches:
            legacy.execute("UPDATE items SET v = v + 1000, a = upper(a)")
            legacy.execute("DELETE FROM items WHERE r % 3 = 1")
            numbers.append(len(locators))
            return read(self, again, locators)

        with monkeypatch.context() as patch:
            patch.setattr(Reader, "at", written)
            report = pair.refresh("items")
        assert len(numbers) == 1
        assert ROWS // 50 <= numbers[0] <= ROWS // 50 + 9
        assert report.source_scans == 1
        expect_equal(pair.published("items"), before)
        refreshed(pair)
