"""Fingerprints against the reference, and what they must depend on."""

from __future__ import annotations

import numpy as np
from driftline.rows import fingerprints
from driftline.values.types import Recipe
from hypothesis import given

from tests.reference import fingerprints as reference
from tests.reference import rows as reference_rows
from tests.reference.rows import Row
from tests.samples.rows import KEYS, recipe, tables, types_of

Table = tuple[Recipe, list[Row]]


@given(tables(), KEYS)
def test_fingerprints_are_those_of_the_reference(table: Table, key: bytes) -> None:
    recipe, rows = table
    row_key = fingerprints.row_key(key, recipe)
    assert row_key == reference.row_key(key, types_of(recipe))
    encoded = [reference_rows.row_bytes(row) for row in rows]
    hi, lo = fingerprints.hasher(row_key)(encoded)
    found = zip(hi.view(np.int64).tolist(), lo.view(np.int64).tolist(), strict=True)
    expected = [reference.lanes(reference.fingerprint(row, row_key)) for row in encoded]
    assert list(found) == expected


def test_a_hasher_may_be_used_again_and_takes_views() -> None:
    fingerprint = fingerprints.hasher(bytes(32))
    first = fingerprint([b"a", memoryview(b"xby")[1:2]])
    again = fingerprint(iter([b"b", b"a"]))
    assert first[0].tolist() == again[0].tolist()[::-1]
    assert first[1].tolist() == again[1].tolist()[::-1]


def test_no_rows() -> None:
    hi, lo = fingerprints.hasher(bytes(32))([])
    assert (hi.tolist(), lo.tolist()) == ([], [])


def test_the_row_key_depends_on_the_fragment_and_on_the_types_in_order_alone() -> None:
    key = bytes(range(32))
    made = fingerprints.row_key(key, recipe(["int8", "text"]))
    others = [
        fingerprints.row_key(key[::-1], recipe(["int8", "text"])),
        fingerprints.row_key(key, recipe(["text", "int8"])),
        fingerprints.row_key(key, recipe(["int8"])),
        fingerprints.row_key(key, recipe(["int8", "jsonb"])),
    ]
    assert len({made, *others}) == 5
    assert made == fingerprints.row_key(key, recipe(["int8", "text"], 2))
