"""Reads of an engine for its tests: sessions, row bytes as text, and a table to read."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any

import numpy as np
from driftline.rows.key_order import Key, KeyRange
from driftline.values.send_format import decode_string

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.interface import Engine, MarkerReads, Rows, Session, Split
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Relation, Shape

ITEMS = """CREATE TABLE "items" (
    "label" VARCHAR(40), "id" BIGINT NOT NULL PRIMARY KEY, "name" VARCHAR(100),
    "amount" DECIMAL(12,2))"""
ALL_KEYS = np.array([-(2**63), 8], np.int64), np.array([7, 2**63 - 1], np.int64)
Read = list[str | None]


def engine_of(legacy: Legacy, **budgets: float) -> Engine:
    """Return the engine of a database; `budgets` are fields of `Limits`."""
    return legacy.connect(**budgets)


def session_of(legacy: Legacy, **budgets: float) -> AbstractContextManager[Any]:
    """Open a session that is closed at the end of the block."""
    return closing(engine_of(legacy, **budgets).open())


def decoded(row: bytes, shape: Shape) -> Read:
    """Return the values of a row's bytes in tuple order, in the protocol's string form."""
    (count,) = struct.unpack_from(">h", row)
    assert count == len(shape.recipe.columns)
    values: Read = []
    place = 2
    for column in shape.recipe.columns:
        (length,) = struct.unpack_from(">i", row, place)
        place += 4
        if length < 0:
            values.append(None)
        else:
            values.append(decode_string(column.type, row[place : place + length]))
            place += length
    assert place == len(row)
    return values


def markers_of(session: Session) -> MarkerReads:
    """Return the reads by markers of a session that has them."""
    markers = session.capabilities.markers
    assert markers is not None, "the engine reads by markers"
    return markers


def key_hashes(session: Session, shape: Shape, seed: int) -> tuple[int, int] | None:
    """Return the database's hashes of all keys, as a comparison asks for them; None: there are
    none."""
    hash_keys = session.capabilities.hash_keys
    return hash_keys(shape, seed) if hash_keys and plan_of(shape).key_hash else None


def split_of(session: Session, shape: Shape, *, rows_max: int | None = None) -> Split | None:
    """Return the scan of a relation in parts; None: one session reads it all."""
    split = session.capabilities.split
    return None if split is None else split(shape, rows_max=rows_max)


def rows_between(
    session: Session, shape: Shape, within: KeyRange, *, rows_max: int | None = None
) -> Iterator[Rows]:
    """Return the rows of a range of keys, of a session that reads them."""
    read = session.capabilities.read_between
    assert read is not None, "the engine reads ranges of the whole key"
    return read(shape, within, rows_max=rows_max)


def rows_by_keys(
    session: Session, shape: Shape, keys: Sequence[Key], *, rows_max: int | None = None
) -> Iterator[Rows]:
    """Return the rows with these keys, of a session that looks them up."""
    read = session.capabilities.read_keys
    assert read is not None, "the engine looks up keys"
    return read(shape, keys, rows_max=rows_max)


def flat(batches: Iterator[Rows]) -> Rows:
    """Return the rows of all batches."""
    return [row for batch in batches for row in batch]


def rows_of(session: Session, shape: Shape) -> list[Read]:
    """Return the rows of a scan as text."""
    return [decoded(row, shape) for row in flat(session.scan(shape))]


def read(session: Session, relation: Relation) -> list[Read]:
    """Describe a relation and scan it; return its rows as text."""
    return rows_of(session, session.describe(relation))


def filled(legacy: Legacy, count: int = 1000) -> list[Read]:
    """Make a table of items. Return its rows in tuple order, as text."""
    rows: list[tuple[Any, ...]] = [
        (None if i % 7 == 0 else f"l{i}", i * 3, f"näme {i}", f"{i * 0.25 - 17:.2f}")
        for i in range(count)
    ]
    legacy.run(legacy.sql(ITEMS))
    if rows:
        legacy.insert("items", [(*row[:3], legacy.number(row[3])) for row in rows])
    return [[str(i), label, name, amount] for label, i, name, amount in rows]


def multiset(rows: list[Read]) -> Counter[tuple[str | None, ...]]:
    """Return how often each row occurs."""
    return Counter(map(tuple, rows))
