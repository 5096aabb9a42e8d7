"""Refreshes of keys that no index finds: one scan, whatever is done beside it; or two, and equal.

PostgreSQL, with real statements between the scan and the rows that are read again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from source_agent.engines.postgresql import split
from source_agent.scan.batches import Batches, Locators
from source_agent.scan.reader import ReadAgain, Reader
from tests.harness.legacy import Legacy, PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import UNBRAKED, Pair, expect_equal
from tests.harness.servers import PostgreSQL
from warehouse_agent.report import Report

ROWS = 6000
# Nothing that compresses away: else a full copy costs less than to say what changed.
NOTE = f"note text DEFAULT {' || '.join(['md5(random()::text)'] * 3)}"
TABLES = {
    "composite": (f"CREATE TABLE lines (a int, b text, v int, {NOTE}, PRIMARY KEY (b, a))",),
    "partitions": (
        f"""CREATE TABLE lines (a int, b text, v int, {NOTE}, PRIMARY KEY (b, a))
        PARTITION BY HASH (a)""",
        "CREATE TABLE p0 PARTITION OF lines FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE p1 PARTITION OF lines FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    ),
    "children": (
        f"CREATE TABLE lines (a int NOT NULL, b text NOT NULL, v int, {NOTE})",
        "CREATE TABLE child () INHERITS (lines)",
        "INSERT INTO child SELECT n % 5, 'c' || n, n FROM generate_series(1, 900) n",
    ),
}


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[Legacy]:
    made = PostgresLegacy(postgresql)
    yield made
    made.close()


@contextmanager
def running(legacy: Legacy, folder: Path, kind: str, limits: str = "") -> Iterator[Pair]:
    """A pair with a loaded table of one kind."""
    for statement in TABLES[kind]:
        legacy.execute(statement)
    legacy.execute(f"INSERT INTO lines SELECT n % 5, 'b' || n, n FROM generate_series(1, {ROWS}) n")
    legacy.execute("ANALYZE lines")
    relation = {"lines": 'table = "lines"\nkey = ["b", "a"]'}
    with Pair(NoSpark(), legacy, folder, relation, f"{UNBRAKED}\n{limits}") as made:
        made.small_bytes = 1 << 30
        made.refresh("lines")
        made.check("lines")
        yield made


def edit(legacy: Legacy, seed: int) -> None:
    """Update, delete and insert some rows, by a share that is drawn."""
    one_of = random.Random(seed).choice([3000, 300, 40, 12])
    which = f"abs(hashtext(b || {seed})) % {one_of}"
    legacy.execute(f"UPDATE lines SET v = {seed} WHERE {which} = 1")
    legacy.execute(f"DELETE FROM lines WHERE {which} = 2 AND {seed} % 2 = 0")
    legacy.execute(f"INSERT INTO lines VALUES (1, 's{seed}', 1), (2, 's{seed}', 2)")


def refreshed(pair: Pair) -> Report:
    """One refresh, equal to the source."""
    report = pair.refresh("lines")
    pair.check("lines")
    return report


@pytest.mark.parametrize("kind", TABLES)
def test_random_edits_are_found_by_one_scan(legacy: Legacy, tmp_path: Path, kind: str) -> None:
    with running(legacy, tmp_path / "pair", kind) as pair:
        for seed in range(6):
            edit(legacy, seed)
            report = refreshed(pair)
            assert (report.method, report.source_scans) == ("sketch", 1)
            rows = len(legacy.rows("lines"))
            assert rows < report.source_rows_read <= rows + 1500
            modelled = report.modelled
            assert modelled is not None  # before the first, no refresh found rows so
            assert modelled["source_scans"] == (1 if seed else 2)
            if seed:
                assert report.source_rows_read == pytest.approx(modelled["source_rows"], 0.05)
        same = refreshed(pair)
        assert (same.rows_changed, same.source_rows_read) == (0, len(legacy.rows("lines")))


@pytest.mark.parametrize("most", [0, 20_000])
def test_too_little_memory_costs_a_second_scan(legacy: Legacy, tmp_path: Path, most: int) -> None:
    """Of all rows; or of the keys, where those of the rows that changed fit."""
    with running(legacy, tmp_path / "pair", "composite", f"memory_at_most = {most}") as pair:
        for seed in range(2):
            which = f"abs(hashtext(b || {seed})) % 300"
            legacy.execute(f"UPDATE lines SET v = -1 WHERE {which} = 1")
            legacy.execute(f"DELETE FROM lines WHERE {which} = 2")
            report = refreshed(pair)
            assert report.source_scans == 2
            again = report.source_rows_read - 2 * len(legacy.rows("lines"))
            assert again == 0 if most == 0 else 0 < again < 200


def test_more_than_a_quarter_costs_a_second_scan(legacy: Legacy, tmp_path: Path) -> None:
    with running(legacy, tmp_path / "pair", "composite") as pair:
        legacy.execute("UPDATE lines SET v = -1 WHERE abs(hashtext(b)) % 100 < 30")
        report = refreshed(pair)
        assert (report.method, report.source_scans) == ("sketch", 2)


def test_a_view_is_read_by_a_second_scan(legacy: Legacy, tmp_path: Path) -> None:
    with running(legacy, tmp_path / "pair", "composite") as pair:
        legacy.execute("CREATE VIEW seen AS SELECT * FROM lines")
        pair.publish("lines", 'table = "seen"\nkey = ["b", "a"]')
        edit(legacy, 1)
        assert refreshed(pair).source_scans == 2


def beside(monkeypatch: pytest.MonkeyPatch, done: Callable[[], None]) -> list[int]:
    """Do something between the scan and the rows that are read again; return their numbers."""
    read = Reader.at
    numbers: list[int] = []

    def wrapped(self: Reader, again: ReadAgain, locators: Locators) -> Batches:
        done()
        numbers.append(len(locators))
        return read(self, again, locators)

    monkeypatch.setattr(Reader, "at", wrapped)
    return numbers


@pytest.mark.parametrize("readers", [1, 2])
def test_updates_and_vacuum_beside_a_refresh(
    legacy: Legacy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    """What was in the snapshot is published; what came since comes with the next refresh."""
    monkeypatch.setattr(split, "BLOCKS_MIN", 0)
    monkeypatch.setattr(split, "PART_BLOCKS", 4)

    def written() -> None:
        for value in (1, 2, 3):
            legacy.execute(f"UPDATE lines SET v = v + {value}")
            legacy.execute("VACUUM (FREEZE) lines")
        legacy.execute("DELETE FROM lines WHERE a = 4")
        legacy.execute("VACUUM lines")

    with running(legacy, tmp_path / "pair", "composite", f"readers = {readers}") as pair:
        legacy.execute("UPDATE lines SET v = -1 WHERE abs(hashtext(b)) % 50 = 1")
        before = legacy.rows("lines")
        with monkeypatch.context() as patch:
            numbers = beside(patch, written)
            report = pair.refresh("lines")
        assert len(numbers) == 1
        assert numbers[0] > 0
        assert report.source_scans == 1
        expect_equal(pair.published("lines"), before)
        refreshed(pair)
