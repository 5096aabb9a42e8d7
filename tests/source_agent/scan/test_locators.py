"""Where rows lie is kept for all rows of a scan or for none, and within one limit."""

from __future__ import annotations

import tracemalloc
from struct import pack

import numpy as np
import pytest
from driftline.arrays import U32, Positions
from driftline.rows.columns import Block, gather
from driftline.rows.digests import Digest
from driftline.rows.key_order import key_bytes, key_text
from driftline.values.types import Column, DeclaredType, Recipe
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.relations.shapes import Plan, Relation, Shape
from source_agent.scan.accumulators import HashedRows
from source_agent.scan.locators import (
    BATCH_OVERHEAD_BYTES,
    KeptLocators,
    LocatorMemory,
    MemoryShare,
    among,
)
from source_agent.scan.reader import ReadAgain, keys_of

RECIPE = Recipe((Column("k", DeclaredType("text"), ordinal=0),), 1)
SHAPE = Shape(
    Relation("t", table="t"), RECIPE, True, False, 0, False, plan=Plan("t", locators=("rowid",))
)
U64S = st.integers(0, 2**64 - 1)


def label(positions: Positions) -> U32:
    return (positions % 7).astype(np.uint32)


def batch(first: int, locators: list[int] | Block | None) -> HashedRows:
    count = 3 if locators is None else len(locators)
    at = np.arange(first, first + count, dtype=np.int64)
    places = np.array(locators, np.uint64) if isinstance(locators, list) else locators
    return HashedRows(at, at.view(np.uint64), Digest(count, 0), places)


def kept(most: int) -> tuple[KeptLocators, LocatorMemory]:
    memory = LocatorMemory(lambda: most)
    return KeptLocators(ReadAgain(SHAPE), label, MemoryShare(memory)), memory


@given(st.lists(st.lists(U64S | st.integers(0, 99), max_size=9), max_size=9), st.integers(0, 6))
def test_the_locators_of_wanted_labels_are_returned(given: list[list[int]], wanted: int) -> None:
    """Near and far locators, of batches of any size, against the plainest way."""
    found, memory = kept(1 << 30)
    first, expected = 0, list[int]()
    for locators in given:
        found.add(batch(first, locators))
        expected += [at for i, at in enumerate(locators) if (first + i) % 7 == wanted]
        first += len(locators)
    chosen = found.chosen(lambda labels: labels == wanted, 99)
    assert isinstance(chosen, np.ndarray)
    assert chosen.dtype == np.uint64
    assert chosen.tolist() == sorted(expected)
    found.drop()
    assert memory.taken == 0


@given(st.lists(st.lists(st.binary(max_size=9), max_size=9), max_size=9), st.integers(0, 6))
def test_the_keys_of_wanted_labels_are_returned(given: list[list[bytes]], wanted: int) -> None:
    found, memory = kept(1 << 30)
    first, expected = 0, list[bytes]()
    for keys in given:
        found.add(batch(first, gather(keys)))
        expected += [key for i, key in enumerate(keys) if (first + i) % 7 == wanted]
        first += len(keys)
    chosen = found.chosen(lambda labels: labels == wanted, 99)
    assert chosen is not None
    assert len(chosen) == len(expected)
    assert not expected or (isinstance(chosen, Block) and chosen.rows() == expected)
    found.drop()
    assert memory.taken == 0


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@given(st.lists(st.tuples(TEXTS, st.integers(-9, 9), st.none() | st.binary(max_size=9))))
def test_the_keys_of_rows(rows: list[tuple[str, int, bytes | None]]) -> None:
    """Their bytes are those by which rows are looked up."""
    types = (DeclaredType("text"), DeclaredType("int4"), DeclaredType("bytea"))
    recipe = Recipe(tuple(Column(str(i), one, ordinal=i) for i, one in enumerate(types)), 2)
    keys = [key_bytes((a, str(b)), recipe) for a, b, _ in rows]
    sizes = [pack(">i", -1) if c is None else pack(">i", len(c)) + c for _, _, c in rows]
    block = gather([pack(">H", 3) + key + c for key, c in zip(keys, sizes, strict=True)])
    found = keys_of(block, 2).rows()
    assert found == keys
    assert [key_text(key, recipe) for key in found] == [(a, str(b)) for a, b, _ in rows]


def test_more_than_are_read_again_are_not_listed() -> None:
    """A warehouse may name all rows: their list would take as much memory again, twice."""
    found, _ = kept(1 << 30)
    for first in range(0, 60_000, 6000):
        found.add(batch(first, list(range(first, first + 6000))))
    chosen = found.chosen(lambda labels: labels < 7, 60_000)
    assert chosen is not None
    assert len(chosen) == 60_000
    tracemalloc.start()
    try:
        assert found.chosen(lambda labels: labels < 7, 6001) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60_000 * 8 / 2


def test_pickled_rows_keep_their_locators() -> None:
    """They come from another process so."""
    made, arguments = batch(5, [9, 2**63, 1]).__reduce__()
    again = made(*arguments)  # type: ignore[operator, misc]
    assert again.locators.tolist() == [9, 2**63, 1]
    assert HashedRows.from_bytes(*batch(5, None).__reduce__()[1]).locators is None  # type: ignore[misc]


def test_a_row_without_a_locator_drops_all() -> None:
    found, memory = kept(1 << 30)
    found.add(batch(0, [1, 2]))
    assert memory.taken > 0
    found.add(batch(2, None))
    assert (found.again, found.chosen(lambda labels: labels == 0, 99)) == (None, None)
    assert memory.taken == 0
    found.add(batch(5, [3]))
    assert memory.taken == 0


def test_beyond_the_limit_nothing_is_kept() -> None:
    """What is near takes 8 bytes a row, and the whole is given back."""
    rows = list(range(1000))
    one = 8 * len(rows) + BATCH_OVERHEAD_BYTES
    found, memory = kept(2 * one)
    found.add(batch(0, rows))
    assert memory.taken == one
    found.add(batch(1000, rows))
    assert memory.taken == 2 * one
    found.add(batch(2000, [1]))
    assert (found.again, memory.taken) == (None, 0)


def test_streams_share_the_limit() -> None:
    """Two scans keep what fits together; a changed limit counts at once."""
    most = [2000]
    memory = LocatorMemory(lambda: most[0])
    one, other = MemoryShare(memory), MemoryShare(memory)
    assert one.take(1500)
    assert not other.take(600)
    assert not other.holds(501)
    assert other.take(500)
    one.release()
    assert memory.taken == 500
    most[0] = 400
    assert not one.take(1)
    other.release()
    other.release()
    assert memory.taken == 0


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_labels_among_others(count: int) -> None:
    random = np.random.default_rng(1)
    labels = np.unique(random.integers(0, 2**32, count, dtype=np.uint32))
    asked = np.concatenate([labels, random.integers(0, 2**32, 9000, dtype=np.uint32)])
    assert among(labels)(asked).tolist() == np.isin(asked, labels).tolist()
