"""Compare what a scan sends with what the driver itself returns, for a sample of one relation.

For a server that nobody here has run. Two reads of the same rows in one snapshot:

- *published*: the engine's own reads (`read_ranges`, or by key, or `scan`), so its read
  expressions, its wire format and its encoders, decoded by the published type;
- *driver*: `SELECT column, … WHERE key = …` of the bare columns, decoded by the driver, spelled
  by `spelling`, which shares no code with the encoders.

The sample is bounded. By an index of the key: every row if there are no more than wanted, else
parts of the sample from the first key on, from the last one back, and from points between them, and
the rows with the least and the greatest values of columns that have an index. Without an index: the
first rows that the database gives, which for a view or a query may be all its work; `how` says it.

Rows are paired by their key. Where a session has no snapshot, a difference must show itself twice
with the same two values: another one is a writer's.

Not found: what both read alike, because the driver rounds it or the server's text is wrong; a value
outside the sample; a fault of one snapshot against another.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
from driftline.errors import DriftlineError
from driftline.limits import SAMPLES_MAX
from driftline.values.send_format import decode_string
from driftline.values.types import Recipe

from source_agent.engines.interface import Session
from source_agent.engines.own_values.reading import (
    KEYS_PER_READ,
    DriverKey,
    NotComparable,
    OwnValues,
)
from source_agent.engines.own_values.sampling import SampledKeys, sample
from source_agent.engines.own_values.spelling import normal, spelled
from source_agent.engines.relations.shapes import Consistency, Shape

_ROW: Final = -1  # the number of no column: the row is missing on one side
Text = str | None  # of a value; None is NULL
Row = tuple[Text, ...]  # published, in tuple order
Paired = dict[Row, tuple[list[Row], list[DriverKey]]]  # by key: what a scan sends, the driver's
Reads = tuple[Iterable[Row], Iterable[DriverKey]]


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value of one row; `published` is None for NULL, and so is `driver`."""

    key: str
    published: Text
    driver: Text


@dataclass(frozen=True, slots=True)
class ColumnReads:
    """The findings about one column.

    `equal` and `differing` are numbers of rows, NULLs among them; `nulls` is that of rows with NULL
    on both sides, which are `equal`. `samples` are the first differences. `not_compared` counts
    values by the reason why they were not.
    """

    name: str
    type: str
    equal: int = 0
    nulls: int = 0
    differing: int = 0
    samples: tuple[ValueDifference, ...] = ()
    not_compared: dict[str, int] = field(default_factory=dict)

    @property
    def is_compared(self) -> bool:
        """True if a value, or a NULL, was compared and nothing stood against it."""
        return bool(self.equal + self.differing)


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """The findings about one relation.

    `rows` were compared; `how` says which. `missing` are keys of rows that one of both reads did
    not give, with the side that lacks it; `unpaired` counts rows that could not be compared: none
    of both reads found them again, or their key is not theirs alone.
    """

    rows: int
    how: str
    columns: tuple[ColumnReads, ...]
    missing: tuple[str, ...] = ()
    unpaired: int = 0

    @property
    def differs(self) -> bool:
        """True if a value, or a row, differs."""
        return bool(self.missing) or any(column.differing for column in self.columns)

    @property
    def is_compared(self) -> bool:
        """True if there was nothing to compare, or a column was compared."""
        if any(column.is_compared for column in self.columns):
            return True
        return self.rows == 0 and not any(column.not_compared for column in self.columns)


def not_compared(shape: Shape, why: str) -> ValueComparison:
    """Return the comparison of a relation whose engine shows no values of a driver."""
    columns = [
        ColumnReads(column.name, str(column.type), not_compared={why: 0})
        for column in shape.recipe.published_order
    ]
    return ValueComparison(0, "", tuple(columns))


def compare(session: Session, own: OwnValues, shape: Shape, rows: int) -> ValueComparison:
    """Compare about `rows` rows of a described relation.

    Raises:
        ValueDoesNotFit: a value that its declared type cannot hold; as a scan does.
        DatabaseRefused, DatabaseUnavailable.
    """
    chosen = sample(own, shape, rows)
    tally = _Tally(own, shape)
    if chosen.keys is None:
        tally.add(lambda: _stored(session, own, shape, rows), session)
        return tally.comparison(chosen)
    keys = chosen.keys
    for start in range(0, len(keys), KEYS_PER_READ):
        some = keys[start : start + KEYS_PER_READ]
        tally.add(lambda some=some: _named(session, own, shape, some), session)  # type: ignore[misc]
    tally.unpaired += len(keys) - tally.rows - tally.unpaired
    return tally.comparison(chosen)


def _stored(session: Session, own: OwnValues, shape: Shape, rows: int) -> Reads:
    """Return the first rows, as the database gives them to either read."""
    own.prepare()
    batches = session.scan(shape)
    published = list(islice((row for batch in batches for row in batch), rows))
    close = getattr(batches, "close", None)
    if close is not None:  # of a generator: the rest of the scan is not wanted
        close()
    driver = own.fetch(shape, own.all_sql(shape), own.limited(rows), rows)
    return [decoded(row, shape.recipe) for row in published], driver


def _named(session: Session, own: OwnValues, shape: Shape, keys: Sequence[DriverKey]) -> Reads:
    """Return the rows with these keys."""
    if shape.recipe.integer_key:
        keys = [key for key in keys if isinstance(key[0], int)]  # else a scan refuses the row
        if not keys:
            return [], []
        at = np.array(sorted(int(key[0]) for key in keys), np.int64)
        batches = session.read_ranges(shape, at, at)
    else:
        texts = [tuple(_spelled(own, shape, n, v) or "" for n, v in enumerate(key)) for key in keys]
        batches = own.read(shape, keys, texts)
    published = [decoded(row, shape.recipe) for batch in batches for row in batch]
    return published, own.rows(shape, keys)


def decoded(row: bytes, recipe: Recipe) -> Row:
    """Return the values of row bytes (protocol, section 3) as text, by their published types."""
    values: list[Text] = []
    at = 2
    for column in recipe.columns:
        (length,) = struct.unpack_from(">i", row, at)
        at += 4
        data = row[at : at + max(length, 0)]
        try:
            values.append(None if length < 0 else decode_string(column.type, data))
        except DriftlineError:
            values.append(f"0x{data.hex()}, which is no {column.type}")
        at += max(length, 0)
    return tuple(values)


def _spelled(own: OwnValues, shape: Shape, number: int, value: Any, published: Text = None) -> Text:
    """Return a driver's value as it must be published. Raises NotComparable."""
    if value is None:
        return None
    plain = own.plain(shape, number, value, published)
    return spelled(shape.recipe.columns[number].type, plain, published)


class _Tally:
    """The findings so far."""

    def __init__(self, own: OwnValues, shape: Shape) -> None:
        self._own, self._shape = own, shape
        self._columns = shape.recipe.columns
        self._keys = shape.recipe.key_columns
        self._equal, self._nulls, self._differing = ([0] * len(self._columns) for _ in range(3))
        self._samples: list[list[ValueDifference]] = [[] for _ in self._columns]
        self._reasons: list[dict[str, int]] = [defaultdict(int) for _ in self._columns]
        self._missing: list[str] = []
        self.rows = self.unpaired = 0

    def add(self, read: Callable[[], Reads], session: Session) -> None:
        """Compare what two reads of the same rows give."""
        paired = self._paired(read())
        differences = self._differences(paired)
        if (
            differences and session.snapshot.consistency is Consistency.FUZZY
        ):  # or is it a writer's?
            again = self._differences(self._paired(read()))
            differences = {k: v for k, v in differences.items() if again.get(k) == v}
        for key, (published, driver) in paired.items():
            if (key, _ROW) in differences:
                if len(self._missing) < SAMPLES_MAX:
                    self._missing.append(f"{self._shown(key)}: {differences[key, _ROW][0]}")
                self.rows += 1
            elif len(published) == len(driver) == 1:
                self._count(key, published[0], driver[0], differences)
            else:
                self.unpaired += max(len(published), len(driver))

    def _paired(self, reads: Reads) -> Paired:
        paired: Paired = {}
        for row in reads[0]:
            key = tuple(self._normal(n, v) for n, v in enumerate(row[: self._keys]))
            paired.setdefault(key, ([], []))[0].append(row)
        for values in reads[1]:
            try:
                key = tuple(
                    _spelled(self._own, self._shape, n, v)
                    for n, v in enumerate(values[: self._keys])
                )
            except NotComparable as reason:
                key = (f"({reason})",) * self._keys
            paired.setdefault(key, ([], []))[1].append(values)
        return paired

    def _normal(self, number: int, published: Text) -> Text:
        if published is None:
            return None
        try:
            return normal(self._columns[number].type, published)
        except ValueError:  # bytes that are no value of the type
            return published

    def _differences(self, paired: Paired) -> dict[tuple[Row, int], tuple[Text, Text]]:
        """Return the values that differ, by key and column."""
        differences: dict[tuple[Row, int], tuple[Text, Text]] = {}
        for key, (published, driver) in paired.items():
            if bool(published) != bool(driver):
                lacks = (
                    "the driver does not show it" if published else "no read of Driftline's has it"
                )
                differences[key, _ROW] = (lacks, None)
            elif len(published) == len(driver) == 1:
                for number, (ours, theirs) in enumerate(zip(published[0], driver[0], strict=True)):
                    try:
                        spelt = _spelled(self._own, self._shape, number, theirs, ours)
                    except NotComparable:
                        continue
                    if spelt != self._normal(number, ours):
                        differences[key, number] = (
                            ours,
                            repr(theirs) if theirs is not None else None,
                        )
        return differences

    def _count(
        self,
        key: Row,
        published: Row,
        driver: DriverKey,
        differences: dict[tuple[Row, int], tuple[Text, Text]],
    ) -> None:
        self.rows += 1
        for number, (ours, theirs) in enumerate(zip(published, driver, strict=True)):
            if (key, number) in differences:
                self._differing[number] += 1
                if len(self._samples[number]) < SAMPLES_MAX:
                    sampled = ValueDifference(self._shown(published), *differences[key, number])
                    self._samples[number].append(sampled)
                continue
            try:
                _spelled(self._own, self._shape, number, theirs, ours)
            except NotComparable as reason:
                self._reasons[number][str(reason)] += 1
            else:
                self._equal[number] += 1
                self._nulls[number] += ours is None

    def _shown(self, row: Row) -> str:
        pairs = zip(self._columns[: self._keys], row, strict=False)
        return ", ".join(f"{c.name}={'NULL' if v is None else v}" for c, v in pairs)

    def comparison(self, chosen: SampledKeys) -> ValueComparison:
        """Return what was found, in the order of the relation's columns."""
        by_column = {
            column: ColumnReads(
                column.name,
                str(column.type),
                self._equal[number],
                self._nulls[number],
                self._differing[number],
                tuple(self._samples[number]),
                dict(self._reasons[number]),
            )
            for number, column in enumerate(self._columns)
        }
        columns = tuple(by_column[column] for column in self._shape.recipe.published_order)
        missing, unpaired = tuple(self._missing), max(self.unpaired, 0)
        return ValueComparison(self.rows, chosen.how, columns, missing, unpaired)
