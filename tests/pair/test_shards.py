"""Groups in shards, and integer keys of any span: more rows than one exchange can name, compared in
one stream and one snapshot. The limit is small here. The oracle is the owner's own connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import LimitExceeded
from driftline.key_order import KeyOrder, Keys, key_bytes
from driftline.types import Column, DeclaredType, Recipe
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.legacy import LEGACIES, Legacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, expect_equal
from warehouse_agent.methods import key_parts
from warehouse_agent.methods.shards import Shards, clipped
from warehouse_agent.planning import candidates
from warehouse_agent.planning.groups import shards
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks.digests import InKeyTiles
from warehouse_agent.tasks.scan import read_batches

ROWS, MOST = 1500, 200
WIDE = 1 << 52  # between two neighbouring keys: all span 2^62
TABLES = {
    "near": "id {int8} PRIMARY KEY NOT NULL, v INTEGER, note {text}",
    "wide": "id {int8} PRIMARY KEY NOT NULL, v INTEGER, note {text}",
    "named": "site {key} NOT NULL, id INTEGER NOT NULL, v INTEGER, PRIMARY KEY (site, id)",
}
TYPES = {
    "sqlite": {"int8": "INTEGER", "text": "TEXT", "key": "TEXT"},
    "postgresql": {"int8": "BIGINT", "text": "TEXT", "key": 'VARCHAR(20) COLLATE "C"'},
    "mariadb": {
        "int8": "BIGINT",
        "text": "VARCHAR(200)",
        "key": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    },
}
WHOLE = 'method = "group"'


def key(table: str, n: int) -> tuple[Any, ...]:
    """The key of a row, in the order of n; each third is left out, for new rows."""
    if table == "named":
        return (f"site-{n // 100:03}", n % 100)
    return (n * WIDE - (1 << 61),) if table == "wide" else (3 * n,)


def row(table: str, n: int, v: int = 0) -> tuple[Any, ...]:
    return (*key(table, n), v) if table == "named" else (*key(table, n), v, f"note {n}")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = LEGACIES[request.param](request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def pair(legacy: Legacy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    for module, name in ((shards, "KEYS_MAX"), (candidates, "GROUP_KEYS_MAX")):
        monkeypatch.setattr(module, name, MOST)
    for table, columns in TABLES.items():
        legacy.execute(f"CREATE TABLE {table} ({columns.format(**TYPES[legacy.engine])})")
        rows = [row(table, n) for n in range(ROWS) if n % 5]
        legacy.many(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    relations = {table: f'table = "{table}"' for table in TABLES}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 64 << 20
        yield made


def edit(legacy: Legacy, table: str, seed: int) -> tuple[int, int, int]:
    """Insert, update and delete in all places; return how many."""
    where = "site = ? AND id = ?" if table == "named" else "id = ?"
    known = {tuple(one[: len(key(table, 0))]) for one in legacy.rows(table)}
    new = [n for n in range(0, ROWS, 5) if n % 4 == seed and key(table, n) not in known]
    new += [ROWS + 500 * seed + n for n in range(30)]  # behind the greatest key
    sign = -1 if table == "near" else 0
    before = [(sign * (seed * 100 + n) - 1, 7, "before") for n in range(10)] if sign else []
    old = sorted(known)
    gone, changed = old[seed::40], old[seed + 3 :: 17]
    changed = [one for one in changed if one not in set(gone)]
    marks = ", ".join("?" * len(row(table, 0)))
    legacy.many(f"DELETE FROM {table} WHERE {where}", gone)
    legacy.many(f"UPDATE {table} SET v = {seed} WHERE {where}", changed)
    rows = [*(row(table, n, seed) for n in new), *before]
    legacy.many(f"INSERT INTO {table} VALUES ({marks})", rows)
    return len(rows), len(changed), len(gone)


def published(pair: Pair, table: str) -> list[tuple[Any, ...]]:
    snapshot = head(pair.store, table)
    assert snapshot is not None
    found = list[tuple[Any, ...]]()
    for file in snapshot.files:
        for batch in read_batches(file.uri, snapshot.layout.file_schema):
            columns = [batch.column(name).to_pylist() for name in snapshot.layout.data_names]
            found += list(zip(*columns, strict=True))
    return found


def check(pair: Pair, table: str) -> None:
    expect_equal(published(pair, table), pair.legacy.rows(table))


@pytest.mark.parametrize("table", TABLES)
def test_all_rows_in_shards(pair: Pair, table: str) -> None:
    """Inserts, updates and deletes everywhere; proven as one exchange is, and without a scan."""
    pair.refresh(table)
    pair.fragment_lines[table] = WHOLE
    ours = len(published(pair, table))
    for seed in (1, 2):
        counts = edit(pair.legacy, table, seed)
        report = pair.refresh(table)
        assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == counts
        assert (report.method, report.proof, report.source_scans) == ("group", "total", 0)
        assert report.consistency == "exact"
        assert report.round_trips >= ours // MOST
        check(pair, table)
    quiet = pair.refresh(table)
    assert (quiet.version, quiet.rows_changed, quiet.bytes_rewritten) == (2, 0, 0)
    assert quiet.round_trips >= ours // MOST
    pair.fragment_lines.clear()
    assert pair.refresh(table).rows_changed == 0, "a scan finds nothing more"


@pytest.mark.parametrize("table", TABLES)
def test_a_part_in_shards(pair: Pair, table: str) -> None:
    """What was compared is theirs, the rest as it was; the shards keep the budget together."""
    pair.refresh(table)
    budget = 1000
    pair.fragment_lines[table] = f'read_at_most = {budget}\nrequire = "fuzzy"'
    pair.publish(table, f'table = "{table}"\nrows_by_key = {budget}')
    before = {one[: len(key(table, 0))]: one for one in published(pair, table)}
    edit(pair.legacy, table, 1)
    theirs = {one[: len(key(table, 0))]: one for one in pair.legacy.rows(table)}
    for _ in range(30):
        report = pair.refresh(table)
        assert (report.proof, report.consistency, report.source_scans) == ("part", "fuzzy", 0)
        assert report.round_trips >= 0.6 * budget // MOST
        ours = {one[: len(key(table, 0))]: one for one in published(pair, table)}
        for place in ours.keys() | theirs.keys() | before.keys():
            assert ours.get(place) in (theirs.get(place), before.get(place)), place
        if Counter(ours.values()) == Counter(theirs.values()):
            break
    check(pair, table)


def test_a_part_of_a_wide_key_in_one_exchange(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers that span more than 2^31 name their rows themselves."""
    monkeypatch.undo()
    pair.refresh("wide")
    pair.fragment_lines["wide"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    assert edit(pair.legacy, "wide", 1)[1] > 0
    for _ in range(10):
        report = pair.refresh("wide")
        assert (report.proof, report.source_scans) == ("part", 0)
        assert report.round_trips <= 2
    check(pair, "wide")


def test_the_shards_are_of_one_snapshot(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that move from the last shard to the first between two shards are neither lost nor
    doubled: what is published is the table before the move."""
    pair.refresh("near")
    pair.fragment_lines["near"] = WHOLE
    counts = edit(pair.legacy, "near", 1)
    before = pair.legacy.rows("near")
    side, moved = Shards.side, list[int]()

    def moving(self: Shards, number: int, rows_max: int) -> Any:
        if number == 2:
            moved.append(number)
            pair.legacy.execute("UPDATE near SET id = -1000 - id WHERE id > 3000")
            pair.legacy.execute("UPDATE near SET v = 99")
        return side(self, number, rows_max)

    monkeypatch.setattr(Shards, "side", moving)
    report = pair.refresh("near")
    assert moved
    assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == counts
    expect_equal(published(pair, "near"), before)
    monkeypatch.setattr(Shards, "side", side)
    pair.refresh("near")
    check(pair, "near")


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_the_dba_limits_the_shards_of_a_comparison_together(pair: Pair) -> None:
    """Also where the warehouse does not keep to it: the source counts what its parts had."""
    pair.refresh("near")
    pair.fragment_lines["near"] = WHOLE
    pair.publish("near", 'table = "near"\nrows_by_key = 1000')
    refused = pair.error("near")
    assert refused["code"] == LimitExceeded.code
    assert "rows_by_key" in refused["message"]


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_warehouse_that_exceeds_the_limit_is_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.refresh("near")
    pair.fragment_lines["near"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    pair.publish("near", 'table = "near"\nrows_by_key = 1000')
    monkeypatch.setattr(Shards, "allowed", lambda self, number, read: 900)
    refused = pair.error("near")
    assert refused["code"] == LimitExceeded.code
    assert "were read, and this shard asks for 900" in refused["message"]


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_keys_that_are_too_long_for_one_exchange(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few enough rows, whose keys have more bytes than a source holds, are compared in shards."""
    pair.refresh("named")
    pair.fragment_lines["named"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    for module in (shards, key_parts):
        monkeypatch.setattr(module, "NAMED_BYTES_MAX", 8000)
    monkeypatch.setattr(shards, "KEYS_MAX", 1 << 20)
    edit(pair.legacy, "named", 1)
    for _ in range(10):
        report = pair.refresh("named")
        assert (report.proof, report.source_scans) == ("part", 0)
        assert report.round_trips >= 3
    check(pair, "named")


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_table_without_an_order_of_its_keys_is_refused(pair: Pair) -> None:
    pair.legacy.execute("CREATE TABLE floats (id REAL PRIMARY KEY NOT NULL, v INTEGER)")
    pair.legacy.many("INSERT INTO floats VALUES (?, 0)", [(n / 7,) for n in range(MOST + 1)])
    pair.publish("floats", 'table = "floats"')
    pair.refresh("floats")
    pair.fragment_lines["floats"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    assert "has an order that both sides compute" in pair.error("floats")["message"]


TEXTS = Recipe((Column("k", DeclaredType("text"), nullable=False),), 1)


@given(
    bounds=st.sets(st.text("abc", max_size=3), max_size=6),
    chosen=st.lists(st.booleans(), min_size=7, max_size=7),
    ends=st.sets(st.text("abc", max_size=3), max_size=2),
    keys=st.lists(st.text("abc", max_size=4), max_size=30),
)
def test_the_ranges_of_a_shard_are_those_of_the_part_that_lie_in_it(
    bounds: set[str], chosen: list[bool], ends: set[str], keys: list[str]
) -> None:
    def coded(text: str) -> bytes:
        return key_bytes((text,), TEXTS)

    inside = InKeyTiles(TEXTS, tuple(map(coded, sorted(bounds))), tuple(chosen[: len(bounds) + 1]))
    lower, upper = (*sorted(ends), None, None)[:2]
    found = clipped(inside, *(None if end is None else coded(end) for end in (lower, upper)))
    order, flags = KeyOrder(TEXTS), [b for pair in found for b in pair if b is not None]
    if flags:
        assert order.ascends(Keys.of_bytes([*dict.fromkeys(flags)]))
    for text in keys:
        at = sum(bound <= text for bound in bounds)
        is_wanted = chosen[at] and (lower is None or lower <= text)
        is_wanted = is_wanted and (upper is None or text < upper)
        texts = [tuple(None if b is None else b[4:].decode() for b in pair) for pair in found]
        is_in = [(a is None or a <= text) and (b is None or text < b) for a, b in texts]
        assert sum(is_in) == int(is_wanted)
