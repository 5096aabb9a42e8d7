"""Choose the rows of a relation that are compared: few, cheap to find, and far apart.

Keys are those of the driver. Every statement ends by itself: it follows an index and has a limit,
or takes the first rows that come.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from driftline.reconciliation.ranges import POSITION_MAX
from driftline.values.types import INTEGER_WIDTHS

from source_agent.engines.own_values.reading import DriverKey, OwnValues
from source_agent.engines.relations.shapes import Shape

PARTS: Final = 10  # of a sample, each from another place of the key
EXTREMES: Final = 2  # rows at either end of a column that has an index
_CHARACTERS: Final = 3  # of a text, behind what the first and the last key share


@dataclass(frozen=True, slots=True)
class SampledKeys:
    """The keys of the rows; None: the first rows that the database gives. `how` says it."""

    keys: list[DriverKey] | None
    how: str


def sample(own: OwnValues, shape: Shape, rows: int) -> SampledKeys:
    """Return the sample of a relation, of about `rows` rows."""
    if not _has_index(own, shape):
        more = "; a view or a query may be computed as a whole for it"
        is_table = shape.vouched or shape.relation.files is not None
        return SampledKeys(None, own.stored + ("" if is_table else more))
    first = own.fetch(shape, own.keys_sql(shape), own.limited(rows + 1), rows + 1)
    note = f"; {own.cost}" if own.cost else ""
    if len(first) <= rows:
        return SampledKeys(_distinct(first), f"every row{note}")
    part = max(1, rows // PARTS)
    last = _last(own, shape, first, part)
    keys = [*first[: part if last else rows], *last]
    if last:
        for point in _between(first[0][0], last[0][0]):
            values = [own.bindable(point), *own.limited(part)]
            keys += own.fetch(shape, own.keys_sql(shape, begins=True), values, part)
    names = own.indexed(shape)
    for name in names:
        for down in (False, True):
            sql = own.extreme_sql(shape, name, backwards=down)
            keys += own.fetch(shape, sql, own.limited(EXTREMES), EXTREMES)
    ends = f", and both ends of {', '.join(names)}" if names else ""
    where = "from first to last key" if last else "with the least keys"
    return SampledKeys(_distinct(keys), f"{where}, by its index{ends}{note}")


def _has_index(own: OwnValues, shape: Shape) -> bool:
    if shape.recipe.integer_key:
        return shape.indexed
    return (shape.vouched or not shape.unordered) and own.can_name(shape)


def _distinct(keys: Sequence[DriverKey]) -> list[DriverKey]:
    """Return each key once, without those that no comparison finds."""
    return list(dict.fromkeys(key for key in map(tuple, keys) if None not in key))


def _last(own: OwnValues, shape: Shape, first: list[DriverKey], part: int) -> list[DriverKey]:
    """Return the last keys, the greatest first; none: the database would have to sort for it."""
    if own.reads_backwards:
        return own.fetch(shape, own.keys_sql(shape, backwards=True), own.limited(part), part)
    width = INTEGER_WIDTHS.get(shape.recipe.columns[0].type.kind)
    low = first[-1]
    if width is None or type(low[0]) is not int:
        return []
    high = min(POSITION_MAX, 2 ** (8 * width - 1) - 1)  # keys from `beyond` on do not exist
    beyond = high + 1
    while (middle := (low[0] + beyond) // 2) > low[0]:
        sql, values = own.keys_sql(shape, begins=True), [middle, *own.limited(1)]
        if keys := own.fetch(shape, sql, values, 1):
            low = keys[0]
        else:
            beyond = middle
    return [low]


def _between(low: Any, high: Any) -> Iterator[Any]:
    """Yield points between two values of the first column of a key, where its class has some."""
    steps = range(1, PARTS - 1)
    if type(low) is not type(high):
        return
    if isinstance(low, int | Decimal) and not isinstance(low, bool):
        yield from (low + (high - low) * i // (PARTS - 1) for i in steps)
    elif isinstance(low, uuid.UUID):
        yield from (uuid.UUID(int=n) for n in _between(low.int, high.int))
    elif isinstance(low, dt.date):
        yield from (low + (high - low) * i / (PARTS - 1) for i in steps)
    elif isinstance(low, str | bytes):
        yield from _texts(low, high)


def _texts(low: str | bytes, high: str | bytes) -> Iterator[str | bytes]:
    """Yield texts between two, or bytes; the database may sort them otherwise."""
    is_text = isinstance(low, str)
    a, b = ([ord(c) if isinstance(c, str) else c for c in value] for value in (low, high))
    shared = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    base = 128 if is_text else 256
    ends = []
    for value in (a, b):
        digits = [min(c, base - 1) for c in value[shared : shared + _CHARACTERS]]
        digits += [0] * (_CHARACTERS - len(digits))
        ends.append(sum(c * base**i for i, c in enumerate(reversed(digits))))
    for number in _between(*ends):
        codes = [number // base**i % base for i in reversed(range(_CHARACTERS))]
        head = a[:shared]
        if is_text:
            yield "".join(map(chr, [*head, *(max(c, 32) for c in codes)]))
        else:
            yield bytes([*head, *codes])
