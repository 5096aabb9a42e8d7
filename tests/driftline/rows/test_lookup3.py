"""PostgreSQL's hash of bytes, many at once, against the reference; and rows hashed with it."""

from __future__ import annotations

import numpy as np
import pytest
from driftline.rows.columns import gather
from driftline.rows.fingerprints import chained, database_seed, fingerprints, hasher, row_key
from driftline.rows.lookup3 import FEW, hash_spans, hash_words
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import fingerprints as reference_fingerprints
from tests.reference import lookup3 as reference
from tests.reference.rows import Row, row_bytes
from tests.samples import rows as row_samples

KEY = bytes(range(32))
STABLE = (2774111557510386099, 829215257688997015)

# From PostgreSQL 18: SELECT hashbyteaextended(value, seed), signed.
KNOWN = [
    (b"", 0, -6939563903564495251),
    (b"", 42, 6158832220375811857),
    (b"abc", 42, 4423357919252764502),
    (b"abcdefghijkl", -1, -3669402583748189229),
    (b"abcdefghijklmnopqrstuvwxyz", 0x0123456789ABCDEF, -5165364063940768195),
]


def spans(values: list[bytes], seeds: list[int]) -> list[int]:
    lengths = np.array([len(v) for v in values], np.int64)
    buffer = np.frombuffer(b"?" + b"".join(values), np.uint8)
    starts = 1 + np.cumsum(lengths) - lengths
    return hash_spans(buffer, starts, lengths, np.array(seeds, np.uint64)).tolist()


@pytest.mark.parametrize(("value", "seed", "expected"), KNOWN)
def test_known_hashes(value: bytes, seed: int, expected: int) -> None:
    mask = (1 << 64) - 1
    assert spans([value], [seed & mask]) == [expected & mask]
    assert reference.hash_bytes(value, seed & mask) == expected & mask


@given(st.lists(st.tuples(st.binary(max_size=80), row_samples.U64), max_size=20))
def test_spans_hash_as_the_reference_says(pairs: list[tuple[bytes, int]]) -> None:
    values, seeds = [v for v, _ in pairs], [s for _, s in pairs]
    assert spans(values, seeds) == [reference.hash_bytes(v, s) for v, s in pairs]
    words = np.array([len(v) << 20 for v in values], np.uint32)
    hashed = hash_words(words, np.array(seeds, np.uint64)).tolist()
    plain = [w.to_bytes(4, "little") for w in words.tolist()]
    assert hashed == [reference.hash_bytes(w, s) for w, s in zip(plain, seeds, strict=True)]


@given(
    st.lists(st.tuples(st.binary(max_size=30), row_samples.U64), max_size=20),
    st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=30), row_samples.U64), max_size=20),
)
def test_few_long_spans_hash_as_many_do(
    short: list[tuple[bytes, int]], long: list[tuple[int, bytes, int]]
) -> None:
    """Arrays and plain numbers take turns: spans of many lengths, more and fewer than FEW."""
    pairs = short + [(value * times, seed) for times, value, seed in long]
    values, seeds = [v for v, _ in pairs], [s for _, s in pairs]
    found = spans(values, seeds)
    assert found == [reference.hash_bytes(v, s) for v, s in pairs]
    assert found == [h for v, s in pairs for h in spans([v], [s])]
    many = [spans([v] * (FEW + 1), [s] * (FEW + 1)) for v, s in pairs]
    assert many == [[h] * (FEW + 1) for h in found]


@given(row_samples.tables(), row_samples.KEYS)
def test_rows_hash_as_the_reference_says(table: tuple[Recipe, list[Row]], key: bytes) -> None:
    drawn, rows = table
    recipe = Recipe(drawn.columns, drawn.key_columns, fingerprint_version=2)
    hi, lo = fingerprints(key, recipe)([row_bytes(row) for row in rows])
    row_key = reference_fingerprints.row_key(key, row_samples.types_of(recipe), 2)
    seed = int.from_bytes(row_key[:8], "little")
    assert seed == database_seed(key, recipe) & (1 << 64) - 1
    assert hi.tolist() == [reference.row_hash(row, seed) for row in rows]
    assert not lo.any()


def test_the_format_stands() -> None:
    """If this changes, every fragment of this kind would be found to differ: see test_golden."""
    columns = tuple(Column(t, parse_type(t)) for t in ("int8", "text", "numeric(15,2)", "date"))
    recipe = Recipe(columns, 1, fingerprint_version=2)
    rows = [
        row_bytes([bytes([n]) * 8, None if n % 3 else b"a" * n, b"12", None]) for n in range(99)
    ]
    hi, _ = fingerprints(KEY, recipe)(rows)
    assert (int(hi[0]), int(hi.sum())) == STABLE


def test_a_null_is_no_empty_value_wherever_it_stands() -> None:
    values: list[Row] = [[None if i == n else b"" for i in range(64)] for n in range(65)]
    hashes = chained(gather([row_bytes(row) for row in values]), 64, 7)
    assert len(set(hashes.tolist())) == 65
    assert hashes.tolist() == [reference.row_hash(row, 7) for row in values]


def test_each_kind_has_a_key_of_its_own() -> None:
    column = Column("a", parse_type("int8"))
    agent, database = Recipe((column,), 1), Recipe((column,), 1, fingerprint_version=2)
    assert agent.id != database.id
    assert row_key(KEY, agent) != row_key(KEY, database)
    row = [row_bytes([bytes(8)])]
    mine, theirs = fingerprints(KEY, agent)(row), hasher(row_key(KEY, agent))(row)
    assert [lane.tolist() for lane in mine] == [lane.tolist() for lane in theirs]
