"""The order of keys, which both sides compute alike (protocol, section 4, "Order").

A relation whose key is not one integer is cut into tiles between keys. Both sides must agree on
which of two keys is less, for every key that can exist. So a key has an order only if each of its
columns has one of a few types; a database may still sort a column otherwise, such as text by the
rules of a language. Only the source knows that, and refuses the relation by name.

Columns are compared one after the other: numbers, dates and instants by value, UUIDs, texts and
byte strings by their bytes; a prefix is less than what it begins. Keys are compared by *sort keys*:
bytes of one width whose order as bytes is that of the keys, so numpy compares many at once.

A range of keys is half-open: `lower` belongs to it, `upper` does not. Whatever total order a
database sorts by, ranges that follow each other miss no row, because every row lies between two
neighbouring bounds. So a source that refuses each row outside of the range by *this* order also
reads none twice, and a database that sorts otherwise than it says is noticed.

Rejected: sort keys in the protocol instead of string forms. A source has to bind values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from driftline.arrays import I32, Bytes, Integers
from driftline.errors import MalformedMessage, ValueDoesNotFit
from driftline.limits import KEY_BYTES_MAX
from driftline.rows.columns import Block, integers_at, spans_at
from driftline.values.send_format import decode_string, string_encoder
from driftline.values.types import Column, DeclaredType, Recipe

FEATURE: Final = "between"  # in `DescribeReply.features` and `Open.features`
SORTED_BYTES: Final = 4 << 20  # of sort keys that are made at once

_SIGNED: Final = frozenset(("int2", "int4", "int8", "date", "timestamp", "timestamptz"))
_AS_BYTES: Final = frozenset(("text", "bytea"))
_LENGTH_BYTES: Final = 4  # behind a padded value: "a" is less than "a\0"
_NEGATIVE, _NAN = 0x4000, 0xC000  # signs of numeric
_HEADER_BYTES: Final = 8  # of numeric: number of digits, weight, sign, scale

Key = tuple[str, ...]  # the string form of each key column


def unordered(recipe: Recipe) -> Column | None:
    """Return the first key column whose declared type has no order; None if the key has one."""
    return next((c for c in recipe.key if not _has_order(c.type)), None)


def _has_order(type: DeclaredType) -> bool:
    if type.kind == "numeric":
        return type.precision is not None
    return type.kind in _SIGNED or type.kind in _AS_BYTES or type.kind == "uuid"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `lower` on and before `upper`; None is no bound."""

    lower: Key | None = None
    upper: Key | None = None


@dataclass(frozen=True, slots=True)
class KeyBuffer:
    """Keys as bytes; `starts`, int64 [n], are the offsets in `buffer` at which each begins."""

    buffer: Bytes
    starts: Integers

    @classmethod
    def of_rows(cls, block: Block) -> Self:
        """Return the keys of row bytes."""
        return cls(block.buffer, block.starts[:-1] + 2)

    @classmethod
    def of_bytes(cls, keys: Sequence[bytes]) -> Self:
        """Return keys from the bytes of each."""
        sizes = np.fromiter(map(len, keys), np.int64, len(keys))
        return cls(np.frombuffer(b"".join(keys), np.uint8), np.cumsum(sizes) - sizes)

    def __len__(self) -> int:
        return len(self.starts)


def key_bytes(key: Sequence[str], recipe: Recipe) -> bytes:
    """Return the bytes of a key from the string forms of its columns.

    Raises MalformedMessage: another number of columns, a value that is not of its column's type, or
    more than KEY_BYTES_MAX.
    """
    if len(key) != recipe.key_columns:
        raise MalformedMessage("A bound has another number of columns than the key.")
    parts = []
    for text, column in zip(key, recipe.key, strict=True):
        try:
            value = string_encoder(column.type)(text)
        except ValueDoesNotFit as error:
            raise MalformedMessage(f"A bound is no key: {error.message}") from None
        parts += [len(value).to_bytes(4, "big"), value]
    joined = b"".join(parts)
    if len(joined) > KEY_BYTES_MAX:
        raise MalformedMessage(f"A bound has more than {KEY_BYTES_MAX} bytes.")
    return joined


def key_text(key: bytes, recipe: Recipe) -> Key:
    """Return the string forms of a key's columns; raise MalformedMessage if it is no key."""
    texts, at = [], 0
    for column in recipe.key:
        length = int.from_bytes(key[at : at + 4], "big", signed=True)
        try:
            texts.append(decode_string(column.type, key[at + 4 : at + 4 + max(length, 0)]))
        except ValueDoesNotFit as error:
            raise MalformedMessage(f"A key is none: {error.message}") from None
        at += 4 + max(length, 0)
    if at != len(key):
        raise MalformedMessage("The bytes of a key have another length than its columns.")
    return tuple(texts)


class KeyOrder:
    """Compare keys of one recipe, whose key has an order."""

    def __init__(self, recipe: Recipe) -> None:
        assert unordered(recipe) is None, "the key has no order"
        self._types = [column.type for column in recipe.key]

    def ranks(self, keys: KeyBuffer, bounds: KeyBuffer) -> Integers:
        """Return the number of bounds, which ascend, that are not above each key, int64 [n].

        Raises MalformedMessage: a key has a NULL, or a value of another width than its type.
        """
        widths = self._widths(keys, bounds)
        at = np.concatenate([*self._sort_keys(bounds, widths)])
        parts = [np.searchsorted(at, some, "right") for some in self._sort_keys(keys, widths)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def sorted(self, keys: KeyBuffer) -> Integers:
        """Return the places of the keys in ascending order, int64 [n]. Raises as `ranks`."""
        pieces = [*self._sort_keys(keys, self._widths(keys))]
        return np.argsort(np.concatenate(pieces), kind="stable").astype(np.int64)

    def ascends(self, keys: KeyBuffer) -> bool:
        """Return True if each key is greater than the one before. Raises as `ranks`."""
        sort_keys = np.concatenate([*self._sort_keys(keys, self._widths(keys))])
        return bool((sort_keys[:-1] < sort_keys[1:]).all())

    def _widths(self, *many: KeyBuffer) -> list[int]:
        """Return the bytes of each column in sort keys that compare all of these keys."""
        lengths = [[span[1] for span in self._spans(keys)] for keys in many if len(keys)]
        widths = []
        for number, type in enumerate(self._types):
            if type.kind in _AS_BYTES:
                longest = max((int(of[number].max()) for of in lengths), default=0)
                widths.append(longest + _LENGTH_BYTES)
            elif type.kind == "numeric":
                widths.append(3 + 2 * _groups(type))
            else:
                widths.append(type.width or 0)
        return widths

    def _spans(self, keys: KeyBuffer) -> list[tuple[Integers, I32]]:
        spans = spans_at(keys.buffer, keys.starts, len(self._types))
        for type, (_, lengths) in zip(self._types, spans, strict=True):
            fits = lengths >= 0 if type.width is None else lengths == type.width
            if not fits.all():
                raise MalformedMessage(f"A key has a value that is not of the type {type}.")
        return spans

    def _sort_keys(self, keys: KeyBuffer, widths: list[int]) -> Iterator[np.ndarray]:
        """Yield the sort keys of these keys in pieces, each an array of bytes of one width."""
        total = sum(widths)
        padding = np.zeros(max(widths) + _HEADER_BYTES, np.uint8)
        padded = KeyBuffer(np.concatenate([keys.buffer, padding]), keys.starts)
        step = max(SORTED_BYTES // total, 1)
        for first in range(0, max(len(keys), 1), step):
            some = KeyBuffer(padded.buffer, padded.starts[first : first + step])
            made = np.empty((len(some), total), np.uint8)
            at = 0
            for type, width, span in zip(self._types, widths, self._spans(some), strict=True):
                made[:, at : at + width] = _column(type, some.buffer, *span, width)
                at += width
            yield made.view(f"S{total}").reshape(-1)


def _column(type: DeclaredType, buffer: Bytes, starts: Integers, lengths: I32, width: int) -> Bytes:
    """Return the sort keys of one column, uint8 [n, width]; the buffer is longer by `width`."""
    if type.kind == "numeric":
        return _numeric(buffer, starts, width)
    if type.kind in _AS_BYTES:
        body = width - _LENGTH_BYTES
        values = _values(buffer, starts, body)
        values[np.arange(body) >= lengths[:, None]] = 0
        return np.concatenate([values, lengths.astype(">u4").view(np.uint8).reshape(-1, 4)], axis=1)
    values = _values(buffer, starts, width)
    if type.kind in _SIGNED:
        values[:, 0] ^= 0x80
    return values


def _values(buffer: Bytes, starts: Integers, width: int) -> Bytes:
    if not width:
        return np.zeros((len(starts), 0), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(buffer, width)[starts]


def _groups(type: DeclaredType) -> int:
    """Return the most base-10000 digits of a numeric(p,s)."""
    precision, scale = type.precision or 0, type.scale or 0
    return -(-scale // 4) + -(-(precision - scale) // 4)


def _numeric(buffer: Bytes, starts: Integers, width: int) -> Bytes:
    """Return class (0 negative, 1 zero, 2 positive, 3 NaN), then weight and digits; of negative
    numbers their complement."""
    digits, weight, sign = (
        integers_at(buffer, starts + 2 * i, 2).astype(np.int64) for i in (0, 1, 2)
    )
    sign &= 0xFFFF
    is_negative = (sign == _NEGATIVE) & (digits > 0)
    made = np.zeros((len(starts), width), np.uint8)
    made[:, 0] = np.select([sign == _NAN, digits == 0, is_negative], [3, 1, 0], 2)
    is_number = made[:, 0] % 2 == 0
    words = np.zeros((len(starts), width // 2), ">u2")
    words[:, 0] = np.where(is_number, weight + 0x8000, 0)
    for group in range(words.shape[1] - 1):
        is_there = is_number & (group < digits)
        at = np.where(is_there, starts + _HEADER_BYTES + 2 * group, starts)
        words[:, 1 + group] = np.where(is_there, integers_at(buffer, at, 2), 0)
    made[:, 1:] = words.view(np.uint8).reshape(len(starts), width - 1)
    made[is_negative, 1:] ^= 0xFF
    return made
