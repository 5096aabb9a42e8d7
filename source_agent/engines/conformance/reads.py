"""Reads of an engine for its tests: sessions, row bytes as text, and a table to read."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import numpy as np
from driftline.values.send_format import decode_string

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.interface import Engine, Rows, Session
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
