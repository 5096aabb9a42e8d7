"""Groups in shards, and integer keys of any span: more rows than one exchange can name, compared in
one stream and one snapshot. The limit is small here. The oracle is the owner's own connection."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import LimitExceeded
from driftline.rows.key_order import KeyBuffer, KeyOrder, key_bytes
from driftline.values.types import Column, DeclaredType, Recipe
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.sqlite.session import SqliteSession
from source_agent.methods import request_validation
from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES, Legacy, SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, expect_equal
from warehouse_agent.methods.groups import key_parts
from warehouse_agent.methods.groups import shards as shard_methods
from warehouse_agent.methods.groups.shards import Shards, clipped
from warehouse_agent.planning import allowance, candidates, group_shards, plan_inputs
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks.difference import NoDifference
from warehouse_agent.tasks.digests import RowsInKeyTiles
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


@pytest.fixture(params=["sqlite", "postgresql", *FAMILY])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = LEGACIES[request.param](request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def table() -> str:
    """Return the table that a test has, unless it names another."""
    return "near"


@pytest.fixture
def pair(
    legacy: Legacy, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    monkeypatch.setattr(group_shards, "KEYS_MAX", MOST)
    for module in (allowance, candidates, plan_inputs):
        monkeypatch.setattr(module, "GROUPED_KEYS_MAX", MOST)
    legacy.execute(f"CREATE TABLE {table} ({TABLES[table].format(**TYPES[legacy.engine])})")
    rows = [row(table, n) for n in range(ROWS) if n % 5]
    legacy.many(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    with Pair(NoSpark(), legacy, tmp_path / "pair", {table: f'table = "{table}"'}) as made:
        made.small_bytes = 64 << 20
        yield made


# On SQLite each table, on the others the one whose keys they sort as texts: the tests below have
# integers there. All pairs in the soak.
EVERY_TABLE = pytest.mark.parametrize(
    ("legacy", "table"),
    [
        pytest.param(engine, table, marks=() if is_sample else pytest.mark.soak)
        for engine in (*TYPES, "mysql")
        for table in TABLES
        for is_sample in [engine == "sqlite" or table == "named"]
    ],
    indirect=["legacy"],
)


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


@EVERY_TABLE
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


@EVERY_TABLE
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


@pytest.mark.parametrize("table", ["wide"])
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


@pytest.mark.parametrize("table", ["named"])
@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_keys_that_are_too_long_for_one_exchange(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few enough rows, whose keys have more bytes than a source holds, are compared in shards."""
    pair.refresh("named")
    pair.fragment_lines["named"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    for module in (group_shards, key_parts):
        monkeypatch.setattr(module, "NAMED_BYTES_MAX", 8000)
    monkeypatch.setattr(group_shards, "KEYS_MAX", 1 << 20)
    edit(pair.legacy, "named", 1)
    for _ in range(10):
        report = pair.refresh("named")
        assert (report.proof, report.source_scans) == ("part", 0)
        assert report.round_trips >= 3
    check(pair, "named")


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_keys_of_other_lengths_in_other_places(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes, and behind them paths: a shard of paths has fewer rows."""
    for module in (group_shards, key_parts, request_validation):
        monkeypatch.setattr(module, "NAMED_BYTES_MAX", 6000)
    pair.legacy.execute("CREATE TABLE files (path TEXT PRIMARY KEY NOT NULL, v INTEGER)")
    codes = [f"a{n:06}" for n in range(MOST * 3)]
    paths = [f"s3://bucket/archive/2024/{n:06}.parquet" for n in range(MOST * 3)]
    pair.legacy.many("INSERT INTO files VALUES (?, 0)", [(one,) for one in codes + paths])
    pair.publish("files", 'table = "files"')
    pair.refresh("files")
    pair.fragment_lines["files"] = WHOLE
    pair.legacy.execute("UPDATE files SET v = 1 WHERE path IN (?, ?)", codes[17], paths[17])
    report = pair.refresh("files")
    assert (report.proof, report.rows_updated, report.method) == ("total", 2, "group")
    expect_equal(pair.legacy.rows("files"), published(pair, "files"))


@pytest.mark.parametrize("table", ["named"])
@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
@pytest.mark.parametrize("share", [0.93, 0.97, 1.0])
def test_the_lengths_of_named_keys_count_as_their_bytes(
    pair: Pair, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source holds them, too: what it takes is never exceeded."""
    pair.refresh("named")
    pair.fragment_lines["named"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    edit(pair.legacy, "named", 1)
    assign = key_parts._assign

    def assigned(*given: Any) -> Any:
        found = assign(*given)
        for module in (key_parts, request_validation):
            monkeypatch.setattr(module, "NAMED_BYTES_MAX", int(found.key_bytes / share))
        monkeypatch.setattr(key_parts, "_assign", assign)
        return found

    monkeypatch.setattr(key_parts, "_assign", assigned)
    (report,) = pair.reports("named")
    assert report.error is None or report.error["code"] == "LIMIT", report.error


@pytest.mark.parametrize("gone", [1, ROWS - 1], ids=["first", "last"])
def test_rows_of_two_instants_are_no_snapshot(
    tmp_path: Path, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer commits while a shard is read, the first or the last (a rollback journal)."""
    monkeypatch.setattr(group_shards, "KEYS_MAX", MOST)
    for module in (allowance, candidates, plan_inputs):
        monkeypatch.setattr(module, "GROUPED_KEYS_MAX", MOST)
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=False)
    legacy.execute("CREATE TABLE near (id INTEGER PRIMARY KEY NOT NULL, v INTEGER)")
    legacy.many("INSERT INTO near VALUES (?, 0)", [(n,) for n in range(ROWS)])
    is_done = False
    read_keys = SqliteSession.read_keys

    def read(session: SqliteSession, *given: Any, **options: Any) -> Any:
        nonlocal is_done
        if not is_done:
            is_done = True
            with contextlib.closing(sqlite3.connect(tmp_path / "erp.db")) as other:
                other.execute("INSERT INTO near VALUES (?, 0)", (gone,))
                other.commit()
        return read_keys(session, *given, **options)

    with Pair(NoSpark(), legacy, tmp_path / "pair", {"near": 'table = "near"'}) as pair:
        pair.small_bytes = 64 << 20
        pair.refresh("near")
        pair.fragment_lines["near"] = WHOLE
        legacy.execute("DELETE FROM near WHERE id = ?", gone)
        legacy.execute("UPDATE near SET v = 1 WHERE id = 300")
        monkeypatch.setattr(SqliteSession, "read_keys", read)
        assert pair.error("near")["code"] == "SNAPSHOT_LOST"
        assert is_done
        pair.refresh("near")
        expect_equal(legacy.rows("near"), published(pair, "near"))
    legacy.close()


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_shard_keeps_no_more_than_what_it_replaces(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until all have been compared: memory does not grow with the table."""
    joined, kept = shard_methods._joined, list[int]()

    def noted(found: Any) -> Any:
        kept.extend(
            one.difference.embedding.span for one in found if one.difference != NoDifference()
        )
        return joined(found)

    pair.refresh("near")
    pair.fragment_lines["near"] = WHOLE
    pair.legacy.execute("DELETE FROM near WHERE id % 300 = 3")
    monkeypatch.setattr(shard_methods, "_joined", noted)
    report = pair.refresh("near")
    assert 0 < sum(kept) <= 2 * report.rows_deleted


DECIMALS = {
    "mariadb": "BIGINT UNSIGNED",
    "postgresql": "NUMERIC(20,0)",
    "sqlite": "DECIMAL(12,2)",
}
WAYS = {
    "part": 'read_at_most = 5000\nrequire = "fuzzy"',
    "shards": WHOLE,
    "tiles": f'require = "fuzzy"\nincremental = {{ rows = {MOST}, pause_s = 0.001 }}',
    "tile": 'require = "fuzzy"\nincremental = { rows = 5000, pause_s = 0.001 }',
}


def test_keys_that_are_decimals(pair: Pair) -> None:
    """Such as MariaDB's BIGINT UNSIGNED; also where there is no bound, or no key to be named."""
    type_ = DECIMALS[pair.legacy.engine]
    pair.legacy.execute(f"CREATE TABLE sums (id {type_} NOT NULL PRIMARY KEY, v INTEGER)")
    pair.legacy.many("INSERT INTO sums VALUES (?, 0)", [(n,) for n in range(1, 3 * MOST)])
    pair.publish("sums", 'table = "sums"')
    pair.refresh("sums")
    for number, (way, lines) in enumerate(WAYS.items(), 1):
        if pair.legacy.engine == "sqlite" and way.startswith("tile"):
            continue
        pair.fragment_lines["sums"] = lines
        pair.legacy.execute("UPDATE sums SET v = v + 1 WHERE id = 17")
        pair.legacy.execute("DELETE FROM sums WHERE id = ?", number)
        report = pair.refresh("sums")
        assert (report.rows_updated, report.rows_deleted) == (1, 1), way
        expect_equal(pair.legacy.rows("sums"), published(pair, "sums"))


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_instants_as_text_are_no_keys_that_can_be_looked_up(pair: Pair) -> None:
    """SQLite keeps two texts of one instant apart, and finds neither by the other."""
    pair.legacy.execute("CREATE TABLE ticks (at TEXT PRIMARY KEY NOT NULL, v INTEGER)")
    keys = [(f"2024-01-01 00:{n // 60:02}:{n % 60:02}.{n:06}",) for n in range(MOST)]
    pair.legacy.many("INSERT INTO ticks VALUES (?, 0)", keys)
    pair.publish("ticks", 'table = "ticks"\ntypes = { at = "timestamp" }')
    assert pair.refresh("ticks").rows_total == MOST
    pair.fragment_lines["ticks"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    for _ in range(3):
        pair.reports("ticks")
        snapshot = head(pair.store, "ticks")
        assert snapshot is not None
        assert snapshot.rows == MOST
    pair.fragment_lines["ticks"] = ""
    pair.legacy.execute("INSERT INTO ticks VALUES ('2024-01-01 00:00:00', 1)")
    assert pair.error("ticks")["code"] == "DUPLICATE_KEY"


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

    inside = RowsInKeyTiles(
        TEXTS, tuple(map(coded, sorted(bounds))), tuple(chosen[: len(bounds) + 1])
    )
    lower, upper = (*sorted(ends), None, None)[:2]
    found = clipped(inside, *(None if end is None else coded(end) for end in (lower, upper)))
    order, flags = KeyOrder(TEXTS), [b for pair in found for b in pair if b is not None]
    if flags:
        assert order.ascends(KeyBuffer.of_bytes([*dict.fromkeys(flags)]))
    for text in keys:
        at = sum(bound <= text for bound in bounds)
        is_wanted = chosen[at] and (lower is None or lower <= text)
        is_wanted = is_wanted and (upper is None or text < upper)
        texts = [tuple(None if b is None else b[4:].decode() for b in pair) for pair in found]
        is_in = [(a is None or a <= text) and (b is None or text < b) for a, b in texts]
        assert sum(is_in) == int(is_wanted)
