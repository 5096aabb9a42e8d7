"""A scan is every row once, ranges are what a scan has there, and memory stays bounded.

The oracle is what was inserted, as text; row bytes are taken apart with the contract's own decoder.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from driftline import errors, limits

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.lacking import needs
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    ALL_KEYS,
    decoded,
    filled,
    flat,
    multiset,
    rows_of,
    session_of,
)
from source_agent.engines.interface import BATCH_ROWS
from source_agent.engines.relations.shapes import Relation

ITEMS_BY_ID: Final = Relation("items", table="items", key=("id",))


@pytest.mark.parametrize("count", [0, 1, 1000, BATCH_ROWS * 2 + 5])
def test_a_scan_is_what_was_written(legacy: Legacy, count: int) -> None:
    """Check every row, and the size of batches."""
    expected = filled(legacy, count)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS_BY_ID)
        batches = list(session.scan(shape))
        assert all(0 < len(batch) <= BATCH_ROWS for batch in batches)
        rows = [decoded(r, shape) for batch in batches for r in batch]
        assert multiset(rows) == multiset(expected)


@needs(Capability.ORDER)
def test_an_ordered_scan_has_the_order_of_keys(legacy: Legacy) -> None:
    """Check a scan by ascending integer key, of more than one batch."""
    expected = filled(legacy, BATCH_ROWS + 5)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS_BY_ID)
        in_order = [decoded(r, shape) for r in flat(session.scan(shape, ordered=True))]
    assert in_order == expected


def test_ranges_may_end_early(legacy: Legacy) -> None:
    """Check that no more rows than wanted are and that the session reads on as before."""
    filled(legacy, 5000)
    keys = np.arange(0, 15_000, 3, dtype=np.int64)
    everything = np.array([-(2**63)], np.int64), np.array([2**63 - 1], np.int64)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS_BY_ID)
        for first, last in (everything, (keys, keys)):
            all_rows = flat(session.read_ranges(shape, first, last))
            some: list[bytes] = []
            for batch in session.read_ranges(shape, first, last, rows_max=1000):
                some += batch
                if len(some) > 1000:
                    break
            assert 1000 < len(some) <= 1000 + BATCH_ROWS
            assert set(some) <= set(all_rows)
            whole = flat(session.read_ranges(shape, first, last, rows_max=len(all_rows)))
            assert sorted(whole) == sorted(all_rows)


def test_ranges_are_what_a_scan_has_there(legacy: Legacy) -> None:
    """Check many small ranges, open ends, and none."""
    expected = filled(legacy, 5000)
    first = np.concatenate(([-(2**63)], np.arange(60, 14000, 10))).astype(np.int64)
    last = first + 4
    last[0] = 30
    first, last = np.append(first, 14990), np.append(last, 2**63 - 1)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS_BY_ID)
        rows = [decoded(r, shape) for r in flat(session.read_ranges(shape, first, last))]
        assert flat(session.read_ranges(shape, first[:0], last[:0])) == []
    keys = np.array([int(row[0] or 0) for row in expected])
    at = np.searchsorted(first, keys, side="right") - 1  # ranges are ascending and do not overlap
    inside = (at >= 0) & (last[at] >= keys)
    wanted = [row for row, is_wanted in zip(expected, inside, strict=True) if is_wanted]
    assert 0 < len(wanted) < len(expected)
    assert multiset(rows) == multiset(wanted)


LOOSE: Final = {
    "table": Relation("loose", table="loose", key=("id",)),
    "where": Relation(
        "loose", table="loose", key=("id",), where='"n" > 0 AND "n" < 100 OR "n" = 100'
    ),
    "view": Relation("loose", table="seen", key=("id",)),
    "query": Relation("loose", query='SELECT "id", "n" FROM "loose" WHERE "n" > 0', key=("id",)),
}


def loose(legacy: Legacy, name: str) -> Relation:
    """Return a relation over a table whose key may be NULL."""
    relation = LOOSE[name]
    where = legacy.sql(relation.where) if relation.where else None
    query = legacy.sql(relation.query) if relation.query else None
    return Relation(relation.name, table=relation.table, query=query, key=relation.key, where=where)


@pytest.mark.parametrize("name", LOOSE)
@needs(Capability.SQL)
def test_a_row_without_a_key_comes_with_the_first_range(legacy: Legacy, name: str) -> None:
    """Check that the caller gets it, to refuse it as after a scan."""
    relation = loose(legacy, name)
    if name == "query" and Capability.QUERIES in legacy.lacks:
        return  # `test_a_query_is_a_relation` has checked that it is refused
    legacy.run(
        legacy.sql('CREATE TABLE "loose" ("id" BIGINT, "n" INT)'),
        legacy.sql('CREATE INDEX "by_id" ON "loose" ("id")'),
        legacy.sql('CREATE VIEW "seen" AS SELECT "id", "n" FROM "loose"'),
    )
    legacy.insert("loose", [(k, 5) for k in (-3, 7, 8, 9)])

    def keys(first: Any, last: Any) -> list[str | None]:
        with session_of(legacy) as session:
            shape = legacy.described(session, relation)
            assert not shape.vouched
            ids = [decoded(r, shape)[0] for r in flat(session.read_ranges(shape, first, last))]
            return sorted(ids, key=lambda k: -(10**9) if k is None else int(k))

    assert keys(*ALL_KEYS) == ["-3", "7", "8", "9"]
    legacy.insert("loose", [(None, -1)])
    filtered = relation.query is not None or relation.where is not None
    assert keys(*ALL_KEYS).count(None) == (0 if filtered else 1)
    legacy.insert("loose", [(None, 5), (None, 6)])
    assert keys(*ALL_KEYS).count(None) == 1
    assert keys(*(end[:1] for end in ALL_KEYS)).count(None) == 1
    assert keys(*(end[1:] for end in ALL_KEYS)) == ["8", "9"]


@needs(Capability.PLANS)
def test_a_missing_key_is_looked_for_by_index(legacy: Legacy) -> None:
    """Check the database's own plan."""
    legacy.run(
        legacy.sql('CREATE TABLE "loose" ("id" BIGINT, "n" INT)'),
        legacy.sql('CREATE INDEX "by_id" ON "loose" ("id")'),
    )
    legacy.insert("loose", [(k, k % 7) for k in range(20_000)])
    legacy.analyze("loose")
    with session_of(legacy) as session:
        plans = legacy.index_plans(session, legacy.described(session, LOOSE["table"]))
    assert plans
    assert all("by_id" in plan for plan in plans), plans


def test_wide_rows_come_in_small_batches(legacy: Legacy) -> None:
    """Check the bytes of a batch, of rows of a megabyte."""
    legacy.run(
        legacy.sql(f'CREATE TABLE "wide" ("id" INT NOT NULL PRIMARY KEY, "b" {legacy.blob})')
    )
    legacy.insert("wide", [(i, b"x" * 1_000_000) for i in range(24)])
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("wide", table="wide", key=("id",)))
        sizes = [sum(map(len, batch)) for batch in session.scan(shape)]
    assert sum(sizes) > 24_000_000
    assert max(sizes) < 17_000_000


def test_a_row_above_the_limit_is_refused(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check LimitExceeded, and that it names the key."""
    legacy.run(legacy.sql('CREATE TABLE "wide" ("id" INT NOT NULL PRIMARY KEY, "a" VARCHAR(5000))'))
    legacy.insert("wide", [(1, "x"), (77, "y" * 3000)])
    for module in legacy.row_limits:
        monkeypatch.setattr(module, "ROW_BYTES_MAX", 2000)
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("wide", table="wide", key=("id",)))
        with pytest.raises(errors.LimitExceeded) as caught:
            flat(session.scan(shape))
    assert "77" in str(caught.value) or not legacy.names_wide_rows
    assert limits.ROW_BYTES_MAX == 64 << 20


def test_a_scan_may_be_abandoned(legacy: Legacy) -> None:
    """Check that the session reads on after a scan that was closed, or only forgotten."""
    filled(legacy, BATCH_ROWS * 3)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS_BY_ID)
        batches = session.scan(shape)
        next(batches)
        if hasattr(batches, "close"):
            batches.close()
        assert len(flat(session.scan(shape))) == BATCH_ROWS * 3
        unfinished = session.scan(shape)
        next(unfinished)


def test_null_keys_and_duplicates_are_passed_on(legacy: Legacy) -> None:
    """Check that a scan hides nothing that the caller has to refuse."""
    legacy.run(legacy.sql('CREATE TABLE "loose" ("k" INT, "v" VARCHAR(9))'))
    legacy.insert("loose", [(None, "a"), (None, "b"), (1, "c"), (1, "c"), (-5, "")])
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("loose", table="loose", key=("k",)))
        rows = rows_of(session, shape)
    assert not shape.vouched
    assert not shape.indexed
    assert multiset(rows) == multiset(
        [[None, "a"], [None, "b"], ["1", "c"], ["1", "c"], ["-5", ""]]
    )


@needs(Capability.KEYS)
def test_composite_text_keys(legacy: Legacy) -> None:
    """Check a key of text and a number, in the order of the constraint."""
    legacy.run(
        legacy.sql(
            f'CREATE TABLE "pairs" ("v" INT, "b" INT NOT NULL, "a" {legacy.text_key} NOT NULL,'
            ' PRIMARY KEY ("a", "b"))'
        )
    )
    keys = [("1", 11), ("11", 1), ("", 0), ("a b ", 1), ("É", 1), ("😀", -1), ("E\u0301", 1)]
    legacy.insert("pairs", [(i, b, a) for i, (a, b) in enumerate(keys)])
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("pairs", table="pairs"))
        rows = rows_of(session, shape)
    assert [c.name for c in shape.recipe.key] == ["a", "b"]
    assert shape.vouched
    assert not shape.recipe.integer_key
    assert multiset(rows) == multiset([[a, str(b), str(i)] for i, (a, b) in enumerate(keys)])
