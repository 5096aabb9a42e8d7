"""Benchmark tables and what happens to them: pure, from a seed, the same for every tool.

A table is a list of CSV lines in the order of age, oldest first, and a `ChangeSet` says which lines
go and which come. It is a value: the sites write it into each database, the floor is computed from
it, and what a tool finds is held against it. So no tool's table was changed by another path.

The mix is `benchmarks.tpch`'s: 80 % updates, 15 % inserts, 5 % deletes; a rate is the share of the
rows before. An update raises the price and gives the row the comment of another.

Where changes fall:
    scattered  every row is as likely as any other; new keys are taken from the gaps.
    clustered  nine in ten by age, about half of the newest rows, e-fold fewer per `AGE_PER_CHANGE`
               changed rows of age; one in ten anywhere. New keys come after the largest.
Age is also the order of the keys, but for UUIDs, whose changes are scattered over the keys in both
patterns. That is what a random key does, and the reason why it is a table of its own.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from driftline.arrays import Positions

from benchmarks import tpch

UPDATED, INSERTED = 0.80, 0.15  # of the changes; the rest are deleted
ANYWHERE = 0.1  # of the clustered changes
AGE_PER_CHANGE = 1.8  # so that about half of the newest rows change
CENTS_MAX = 10_000  # by which an update raises a price
Rng = np.random.Generator


class Pattern(Enum):
    SCATTERED = "scattered"
    CLUSTERED = "clustered"


@dataclass(frozen=True, slots=True)
class Table:
    """A table in both engines. The last column is the comment, quoted; no other needs quotes."""

    name: str
    tpch_name: str
    columns: int
    key: tuple[str, ...]
    key_indices: tuple[int, ...]
    price_index: int
    postgresql: str
    mariadb: str

    @property
    def has_integer_key(self) -> bool:
        return self is ORDERS

    @property
    def has_text_key(self) -> bool:
        return self is ORDERS_UUID

    def fields(self, line: bytes) -> list[bytes]:
        fields = line.rstrip(b"\n").split(b",", self.columns - 1)
        assert len(fields) == self.columns, line
        return fields

    def key_of(self, line: bytes) -> bytes:
        """The key as a CSV line."""
        fields = self.fields(line)
        return b",".join(fields[i] for i in self.key_indices) + b"\n"


_UUID = tpch.TABLES["orders"].replace("TABLE orders", "TABLE orders_uuid")
_BIGINT_KEY = "o_orderkey bigint PRIMARY KEY"
assert _BIGINT_KEY in _UUID
_UUID_POSTGRESQL = _UUID.replace(_BIGINT_KEY, "o_id uuid PRIMARY KEY")
_UUID_MARIADB = _UUID.replace(_BIGINT_KEY, "o_id char(36) CHARACTER SET ascii PRIMARY KEY")
_ORDERS, _LINEITEM = tpch.TABLES["orders"], tpch.TABLES["lineitem"]
_LINE = ("l_orderkey", "l_linenumber")
ORDERS = Table("orders", "orders", 9, ("o_orderkey",), (0,), 3, _ORDERS, _ORDERS)
LINEITEM = Table("lineitem", "lineitem", 16, _LINE, (0, 3), 5, _LINEITEM, _LINEITEM)
ORDERS_UUID = Table("orders_uuid", "orders", 9, ("o_id",), (0,), 3, _UUID_POSTGRESQL, _UUID_MARIADB)
TABLES = {table.name: table for table in (ORDERS, LINEITEM, ORDERS_UUID)}


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What happens between two refreshes. Lines end with a line feed; keys are CSV lines, too."""

    table: Table
    deleted_keys: tuple[bytes, ...]
    updated: tuple[bytes, ...]
    inserted: tuple[bytes, ...]
    rows_before: int

    @property
    def changed(self) -> int:
        return len(self.deleted_keys) + len(self.updated) + len(self.inserted)

    @property
    def rows_after(self) -> int:
        return self.rows_before + len(self.inserted) - len(self.deleted_keys)

    @property
    def rows_of_both(self) -> int:
        return self.rows_before + len(self.inserted)


def lines_of(table: Table, folder: Path, scale: float) -> list[bytes]:
    """The table as it is loaded, oldest row first, without a header."""
    file = tpch.generate(folder, scale, table.tpch_name)
    with file.open("rb") as data:
        next(data)
        lines = list(data)
    if table is not ORDERS_UUID:
        return lines
    return [_uuid_of(line.partition(b",")[0]) + b"," + line.partition(b",")[2] for line in lines]


def draw(
    table: Table, lines: Sequence[bytes], *, rate: float, pattern: Pattern, seed: int
) -> tuple[ChangeSet, list[bytes]]:
    """A change set of `rate` times the rows, and the table after it."""
    rng = np.random.default_rng(seed)
    rows = len(lines)
    changed = round(rows * rate)
    updated, inserted = round(changed * UPDATED), round(changed * INSERTED)
    touched = _choose(rows, changed - inserted, pattern, rng)
    is_deleted = np.zeros(rows, np.bool_)
    is_deleted[rng.permutation(touched)[: len(touched) - updated]] = True
    after: list[bytes | None] = list(lines)
    deleted_keys, new = [], []
    for at, other in zip(
        touched.tolist(), rng.integers(0, max(rows, 1), len(touched)), strict=True
    ):
        if is_deleted[at]:
            deleted_keys.append(table.key_of(lines[at]))
            after[at] = None
        else:
            new.append(_updated(table, lines[at], lines[other], int(rng.integers(1, CENTS_MAX))))
            after[at] = new[-1]
    come = list(_inserted(table, lines, inserted, pattern, rng))
    changes = ChangeSet(table, tuple(deleted_keys), tuple(new), tuple(come), rows)
    return changes, [line for line in after if line is not None] + come


def _choose(rows: int, chosen: int, pattern: Pattern, rng: Rng) -> Positions:
    """Places in the table, ascending. By age: weighted, without replacement, by Gumbel's largest
    (Efraimidis and Spirakis 2006, in logarithms, so that no weight is too small)."""
    anywhere = chosen if pattern is Pattern.SCATTERED else round(chosen * ANYWHERE)
    places = rng.choice(rows, anywhere, replace=False) if anywhere else np.empty(0, np.int64)
    if by_age := chosen - anywhere:
        ages = np.arange(rows - 1, -1, -1) / (AGE_PER_CHANGE * by_age)
        worth = rng.gumbel(size=rows) - ages
        worth[places] = -np.inf
        places = np.concatenate([places, np.argpartition(worth, rows - by_age)[rows - by_age :]])
    return np.sort(places)


def _updated(table: Table, line: bytes, other: bytes, cents: int) -> bytes:
    fields = table.fields(line)
    price = round(float(fields[table.price_index]) * 100) + cents
    fields[table.price_index] = b"%d.%02d" % divmod(price, 100)
    fields[-1] = table.fields(other)[-1]
    return b",".join(fields) + b"\n"


def _inserted(
    table: Table, lines: Sequence[bytes], count: int, pattern: Pattern, rng: Rng
) -> Iterator[bytes]:
    """New keys with the other columns of rows that there are."""
    if not count:
        return
    like = rng.integers(0, len(lines), count)
    for key, at in zip(_NEW_KEYS[table.name](lines, count, pattern, rng), like, strict=True):
        fields = table.fields(lines[at])
        for index, value in zip(table.key_indices, key, strict=True):
            fields[index] = value
        yield b",".join(fields) + b"\n"


def _free(lines: Sequence[bytes], count: int, pattern: Pattern, rng: Rng) -> list[int]:
    """So many first key columns that no line has."""
    present = {int(line[: line.index(b",")]) for line in lines}
    last = max(present)
    if pattern is Pattern.CLUSTERED:
        return list(range(last + 1, last + 1 + count))
    keys: list[int] = []
    while len(keys) < count:
        key = int(rng.integers(1, last + 1))
        if key not in present:
            present.add(key)
            keys.append(key)
    return keys


def _order_keys(
    lines: Sequence[bytes], count: int, pattern: Pattern, rng: Rng
) -> list[tuple[bytes, ...]]:
    return [(b"%d" % key,) for key in _free(lines, count, pattern, rng)]


def _line_keys(
    lines: Sequence[bytes], count: int, pattern: Pattern, rng: Rng
) -> list[tuple[bytes, ...]]:
    """Whole new orders, of four lines each but for the last."""
    orders = _free(lines, -(-count // 4), pattern, rng)
    return [(b"%d" % orders[i // 4], b"%d" % (i % 4 + 1)) for i in range(count)]


def _uuid_keys(
    _lines: Sequence[bytes], count: int, _pattern: Pattern, rng: Rng
) -> list[tuple[bytes, ...]]:
    return [(_uuid_of(rng.bytes(16)),) for _ in range(count)]


_KeyMaker = Callable[[Sequence[bytes], int, Pattern, Rng], list[tuple[bytes, ...]]]
_NEW_KEYS: dict[str, _KeyMaker] = {
    "orders": _order_keys,
    "lineitem": _line_keys,
    "orders_uuid": _uuid_keys,
}


def _uuid_of(text: bytes) -> bytes:
    """A random-looking version 4 UUID."""
    digest = hashlib.blake2b(text, digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4)).encode()
