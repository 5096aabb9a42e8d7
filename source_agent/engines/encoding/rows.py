"""Row bytes from a driver's Python values, a column at a time (protocol, section 3).

A block of rows is turned into columns, each column encoded at once, and the pieces of each row
joined (`plain_values`), so that few functions are called once per value.

Invariants: a value becomes the bytes of its declared type, or the whole read fails with
`ValueDoesNotFit`, naming column, value and key; nothing is coerced silently. Blocks are small, so
memory stays flat.

Rejected: generating an encoder per shape as source text. A DBA is to trust this agent: no `exec`.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from tempfile import TemporaryFile
from typing import Any, Final

import numpy as np
from driftline.arrays import Integers
from driftline.errors import OPEN, DatabaseRefused, LimitExceeded, ValueDoesNotFit, together
from driftline.limits import REPEATED_BATCHES_MAX, ROW_BYTES_MAX
from driftline.values.send_format import string_encoder
from driftline.values.types import DeclaredType, Recipe

from source_agent.engines.encoding.plain_values import (
    NULL,
    ColumnEncoder,
    Values,
    behind_length,
    joined,
)
from source_agent.engines.interface import BATCH_BYTES, BATCH_ROWS, BATCH_S, Pulse, Rows
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Shape
from source_agent.printable import printable_row

BLOCK_ROWS = 512  # fetched and encoded at once: a sudden wide row costs at most this many of them
DOUBLE_DIGITS = 15  # decimal digits that every double holds
VALUE_SHOWN = 60  # characters of a refused value in an error

_NUMERICS: Final = [struct.Struct(f">hhHh{n}H").pack for n in range(21)]
_UNFIT = (ValueDoesNotFit, UnicodeError, struct.error, ValueError, TypeError, OverflowError)


def variable(encode: Callable[[Any], bytes]) -> ColumnEncoder:
    """Return the column encoder of a type that `encode` encodes one value at a time."""

    def column(values: Values) -> list[bytes]:
        return behind_length([None if v is None else encode(v) for v in values])

    return column


def check_utf8(values: Values) -> None:
    """Raise UnicodeError if one of these bytes objects is not UTF-8."""
    try:
        text = b"\0".join(values)  # all at once: no character spans a zero byte
    except TypeError:
        text = b"\0".join([v for v in values if v is not None])
    if not text.isascii():
        text.decode()


def from_text(type: DeclaredType, suffix: str = "") -> ColumnEncoder:
    """Return the encoder of ASCII bytes in the protocol's string form without its `suffix`."""
    encode = string_encoder(type)
    return variable(lambda v: encode(v.decode() + suffix))


def decimal_text(type: DeclaredType) -> ColumnEncoder:
    """Return the encoder of decimal numbers in ASCII bytes, with exactly `scale` decimals."""
    if (type.precision or 99) <= DOUBLE_DIGITS:
        return short_decimals(type)
    return variable(decimal_encoder(type))


def short_decimals(type: DeclaredType) -> ColumnEncoder:
    """Return the encoder of numbers with at most 15 digits: float, int, or text in bytes.

    A double holds 15 decimal digits. The number with `scale` decimals that is nearest to the double
    is the value if it reads back as the same double; else the value has more decimals.
    """
    precision, scale = type.precision or 0, type.scale or 0
    unit, encode = 10.0**scale, scaled_decimals(type)

    def column(values: Values) -> list[bytes]:
        given = np.array([0.0 if v is None else float(v) for v in values])
        with np.errstate(all="ignore"):
            scaled = np.rint(given * unit)
            if not np.all((scaled / unit == given) & (np.abs(scaled) < 10.0**precision)):
                raise ValueDoesNotFit("too many digits")
        encoded = encode(scaled.astype(np.int64))
        if None in values:
            return [NULL if v is None else d for v, d in zip(values, encoded, strict=True)]
        return encoded

    return column


def scaled_decimals(type: DeclaredType) -> Callable[[Integers], list[bytes]]:
    """Return the encoder of numbers times 10^scale, of at most 15 digits, int64 [n], at least one.

    It raises ValueDoesNotFit for one with more digits than the type has.
    """
    precision, scale = type.precision or 0, type.scale or 0
    behind = -(-scale // 4)  # base-10000 digits behind the point
    shift = 10 ** (behind * 4 - scale)

    def column(number: Integers) -> list[bytes]:
        left = np.abs(number)
        if (greatest := int(left.max())) >= 10**precision:
            raise ValueDoesNotFit("too many digits")
        left = left * shift
        total = max(behind, -(-len(str(greatest * shift)) // 4))  # digits of the longest here
        width = 2 * (6 + total)
        digits = np.zeros((len(number), 2 * total), ">i2")  # behind them, zeros to read beyond
        first = np.full(len(number), total, np.int64)  # digits before the first that is not zero
        count = np.zeros(len(number), np.int64)  # from there to the last that is not zero
        for place in range(total - 1, -1, -1):  # by a constant, which is faster than by an array
            above = left // 10_000
            digits[:, place] = digit = left - above * 10_000
            is_set = digit != 0
            first[is_set] = place
            count[is_set & (count == 0)] = place + 1
            left = above
        count -= np.where(count > 0, first, 0)
        # Length (as two int16), ndigits, weight, sign, dscale, then the digits from the first on.
        pieces = np.zeros((len(number), 6 + total), ">i2")
        pieces[:, 1] = 8 + 2 * count
        pieces[:, 2] = count
        pieces[:, 3] = np.where(number == 0, 0, total - behind - 1 - first)
        pieces[:, 4] = np.where(number < 0, 0x4000, 0)
        pieces[:, 5] = scale
        begins = np.arange(len(number)) * (2 * total) + first
        pieces[:, 6:] = digits.reshape(-1)[begins[:, None] + np.arange(total)]
        data = pieces.tobytes()
        starts = range(0, len(data), width)
        ends = (np.arange(len(number)) * width + 12 + 2 * count).tolist()
        return [data[start:end] for start, end in zip(starts, ends, strict=True)]

    return column


def decimal_encoder(type: DeclaredType) -> Callable[[bytes], bytes]:
    """Return the encoder of one numeric(p,s) with exactly s decimals, as databases write it.

    It is faster than `string_encoder`, which encodes every other form.
    """
    scale = type.scale or 0
    groups = -(-scale // 4)  # base-10000 digits behind the point
    shift = 10 ** (groups * 4 - scale)
    limit = 10 ** (type.precision or 0)
    define = string_encoder(type)

    def encode(text: bytes) -> bytes:
        digits = text.replace(b".", b"")
        is_usual = digits.lstrip(b"-").isdigit() and (
            text[-scale - 1 : -scale] == b"." if scale else digits == text
        )
        number = int(digits) if is_usual else limit
        if not -limit < number < limit:
            return define(text.decode())
        left = abs(number) * shift
        parts = []
        while left:
            left, digit = divmod(left, 10_000)
            parts.append(digit)
        weight = len(parts) - groups - 1 if parts else 0
        first = 0
        while parts and parts[first] == 0:
            first += 1
        parts = parts[first:][::-1]
        sign = 0x4000 if number < 0 else 0
        return _NUMERICS[len(parts)](len(parts), weight, sign, scale, *parts)

    return encode


def printable_value(value: object) -> str:
    """Return a raw value as text for an error: short, one line, only printable characters."""
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "x'" + value[:VALUE_SHOWN].hex() + "'"
    else:
        text = "NULL" if value is None else str(value)
    shown = text if len(text) <= VALUE_SHOWN else text[:VALUE_SHOWN] + "…"
    return shown if shown.isprintable() else ascii(shown)


class RowEncoder:
    """Encode blocks of an engine's raw rows, in tuple order, as row bytes."""

    def __init__(self, shape: Shape, encoders: Iterable[ColumnEncoder]) -> None:
        self._shape = shape
        self._name = shape.relation.name
        self._encoders = tuple(encoders)
        self._has_null = [False] * len(self._encoders)

    def __call__(self, block: Sequence[tuple[Any, ...]]) -> Rows:
        """Return the row bytes of a block of at least one row; columns behind ours are ignored.

        Raises:
            ValueDoesNotFit: a value its declared type cannot hold.
            LimitExceeded: a row above ROW_BYTES_MAX.
        """
        return self.of_columns(list(zip(*block, strict=True))[: len(self._encoders)])

    def of_columns(self, columns: Sequence[Values]) -> Rows:
        """Return the row bytes of at least one row, given by its columns. Raises as a call does."""
        try:
            rows = joined(columns, self._encoders, self._has_null)
        except _UNFIT:
            rows = self._one_by_one(columns)
        if (size := max(map(len, rows))) > ROW_BYTES_MAX:
            place = list(map(len, rows)).index(size)
            raise _too_large(self._shape, self._key(columns, place), size)
        return rows

    def _one_by_one(self, columns: Sequence[Values]) -> Rows:
        """Encode a block with a value that did not fit.

        A NULL is noted for the next blocks. Other values are refused, in one error that names every
        column that has one.
        """
        refused = []
        for number, values in enumerate(columns):
            try:
                self._encoders[number](values)
            except _UNFIT as error:
                refused.append(self._explain(number, columns, error))
            self._has_null[number] |= any(v is None for v in values)
        if refused:
            names = [error.where.removeprefix(f"{self._name}.") for error in refused]
            raise together(refused, where=self._name, remedy=_as_text(names)) from None
        return joined(columns, self._encoders, self._has_null)

    def _explain(
        self, number: int, columns: Sequence[Values], reason: Exception
    ) -> ValueDoesNotFit:
        column = self._shape.recipe.columns[number]
        row = next((i for i, v in enumerate(columns[number]) if not self._fits(number, v)), None)
        if row is None:
            raise reason
        value, key = columns[number][row], self._key(columns, row)
        kind = _STORED.get(type(value), "")
        return ValueDoesNotFit(
            f"The value {printable_value(value)!r}{kind} is not one of the type {column.type}, "
            f"in the row with key {key}.",
            remedy=_as_text([column.name]),
            where=f"{self._name}.{column.name}",
            details={"value": printable_value(value), "key": key},
        )

    def _fits(self, number: int, value: Any) -> bool:
        try:
            self._encoders[number]((value,))
        except _UNFIT:
            return False
        return True

    def _key(self, columns: Sequence[Values], row: int) -> str:
        return ", ".join(printable_value(c[row]) for c in columns[: self._shape.recipe.key_columns])


def row_encoder(
    shape: Shape, encoders: Mapping[str, Callable[[DeclaredType], ColumnEncoder]]
) -> RowEncoder:
    """Return the row encoder of a shape; `encoders` make a column's encoder, by its form."""
    forms = zip(plan_of(shape).forms, shape.recipe.columns, strict=True)
    return RowEncoder(shape, [encoders[form](column.type) for form, column in forms])


def _as_text(names: Sequence[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    which = "them" if len(names) > 1 else "it"
    return f"Set as_text = [{listed}] in source.toml, or publish a query that casts {which}."


_STORED = {bytearray: " (TEXT)", int: " (INTEGER)", float: " (REAL)"}  # SQLite's storage classes


def check_size(shape: Shape, rows: Rows) -> None:
    """Raise LimitExceeded if one of these rows, at least one, is larger than ROW_BYTES_MAX."""
    row = max(rows, key=len)
    if len(row) > ROW_BYTES_MAX:
        raise _too_large(shape, printable_row(row, shape.recipe), len(row))


def _too_large(shape: Shape, key: str, size: int) -> LimitExceeded:
    return LimitExceeded(
        f"The row with key {key} has {size:,} bytes, more than {ROW_BYTES_MAX:,}.",
        remedy="Leave its largest column out with `columns`, or the row with `where`.",
        where=shape.relation.name,
    )


def timely(
    source: Iterator[tuple[Any, ...]], pulse: Pulse
) -> Callable[[int], Sequence[tuple[Any, ...]]]:
    """Return a `fetchmany` over rows that beats the pulse and returns after BATCH_S at the latest.

    A row that takes longer is waited for.
    """

    def fetch(count: int) -> Sequence[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        append = rows.append
        ends_at = time.monotonic() + BATCH_S
        for row in islice(source, count):
            append(row)
            pulse.at = now = time.monotonic()
            if now > ends_at:
                break
        return rows

    return fetch


def batches(
    fetch: Callable[[int], Sequence[tuple[Any, ...]]],
    encode: Callable[[Any], Rows],
    *,
    block_rows: int = BLOCK_ROWS,
) -> Iterator[Rows]:
    """Yield batches of about BATCH_ROWS rows, BATCH_BYTES or BATCH_S, whichever is reached first.

    Args:
        fetch: a cursor's `fetchmany`, or a function like it.
        encode: makes row bytes of a block.
        block_rows: the most rows that are fetched at once.
    """
    rows: Rows = []
    size = 0
    step = 16
    ends_at = time.monotonic() + BATCH_S
    while block := fetch(min(step, BATCH_ROWS - len(rows))):
        encoded = encode(block)
        added = sum(map(len, encoded))
        rows += encoded
        size += added
        step = max(1, min(block_rows, BATCH_BYTES // 4 // (added // len(block) + 1)))
        if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS or time.monotonic() > ends_at:
            yield rows
            rows, size = [], 0
            ends_at = time.monotonic() + BATCH_S
    if rows:
        yield rows


def _ending(batches: Iterator[Rows], shape: Shape) -> Iterator[Rows]:
    """Yield batches; keep one row, and refuse a read that gives it again and again.

    The kept row is replaced when the number of batches has doubled (Brent's cycle detection).
    """
    kept, met, ends_at = b"", 0, 1
    for count, batch in enumerate(batches, 1):
        met += kept in batch
        if met > REPEATED_BATCHES_MAX:
            how = f"in more than {REPEATED_BATCHES_MAX} batches"
            raise never_ending(kept, shape, shape.recipe, how)
        if count == ends_at:
            kept, met, ends_at = batch[-1], 0, 2 * ends_at
        yield batch


def never_ending(row: bytes, shape: Shape, recipe: Recipe, how: str) -> DatabaseRefused:
    """Return the error of a read that gives the same row again and again.

    recipe: of the row; how: the row came again.
    """
    return DatabaseRefused(
        f"A read of one relation gave the row with key {printable_row(row, recipe)} {how}, so it"
        " might never end: the table or an index of it is damaged, or its key is not unique.",
        where=shape.relation.name,
        remedy="Ask the DBA to check the table and its indexes at the source (SQLite: PRAGMA"
        " integrity_check; MariaDB: CHECK TABLE; PostgreSQL: amcheck), and that the key is unique.",
        abroad=OPEN,
    )


def spooled(
    batches: Iterator[Rows], shape: Shape, *, then: Callable[[], object] = lambda: None
) -> Iterator[Rows]:
    """Yield the same batches after all of them have been read into a temporary file.

    For engines whose readers block writers: the database is released at its own speed, however
    slow the caller is. `then` releases it; it is called before the first batch is yielded.

    Raises:
        DatabaseRefused: the same row comes again and again, as from a damaged index: the reader,
            which notices that (`scan.reader`), has no batch before the read ends.
    """
    with TemporaryFile() as file:
        sizes = []
        for batch in _ending(batches, shape):
            lengths = array("q", map(len, batch))
            file.write(lengths.tobytes())
            file.writelines(batch)
            sizes.append(len(batch))
        then()
        file.seek(0)
        for count in sizes:
            lengths = array("q")
            lengths.frombytes(file.read(count * lengths.itemsize))
            yield [file.read(length) for length in lengths]
