"""Prices of a row: its compressed bytes on the line, learned from earlier exchanges.

Rows compress against each other, so there are three prices: of one of few rows, of one of many, and
of one of all. Changed rows never price a copy of all, because few rows, or a purge that ships none,
would make it seem expensive or free. Pure: what was learnt is kept in a fragment's notes.

A wrong price must not prevent its own correction. If changed rows seem expensive, refreshes copy
all; so each copy draws the price of changed rows towards its own. If a copy seems expensive, none
is made; so a price from a lower level of zstd (of a load) or from fewer rows than there are now is
reduced as far as was ever measured, and one from fewer rows than came since is at most theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from warehouse_agent.planning.network import LOAD_LEVEL, METERED_LEVEL, REFRESH_LEVEL

FEW = 64  # rows, which cost more each, because there is little to compress them against
FEW_KEPT = 0.9  # of the weight of earlier prices of few rows, at each further refresh
FRAME_BYTES = 120  # of a frame of few rows, beside the rows
COLUMN_BYTES_UNKNOWN = 8.0  # of one value, before any row was shipped
# The bytes of a copy by its level of zstd, over those at level 3. Frames of all rows of TPC-H's
# orders and lineitem, runways and football results took 0.87 to 0.96 at 12, 0.79 to 0.89 at 19.
LEVELS = {LOAD_LEVEL: 1.0, REFRESH_LEVEL: 0.87, METERED_LEVEL: 0.79}
# One of n rows costs n^-0.1 up to here: 1.58, 1.44, 1.27, 1.15 and 1 times for 100, 300, 1,000,
# 3,000 and 10,000 of the same orders, lineitem within 2 % of that.
MANY, CROWD = 10_000, 0.1


@dataclass(frozen=True, slots=True)
class LearntPrices:
    """Prices that earlier exchanges told; None: not told yet.

    Attributes:
        row_bytes: of one of many changed rows, `row_count` of them.
        few_bytes: of exchanges of few rows, `few_rows` in all, earlier ones with less weight.
        copied_row_bytes: of one in a copy of `copied_rows`, at the zstd level `copied_level`.
    """

    row_bytes: float | None = None
    row_count: float | None = None
    few_bytes: float | None = None
    few_rows: float | None = None
    copied_row_bytes: float | None = None
    copied_rows: float | None = None
    copied_level: float | None = None


@dataclass(frozen=True, slots=True)
class Prices:
    """Bytes of one of many changed rows, of one of the first FEW, and of one in a copy of all, as
    learned from a copy of `copied_rows`. If no row was ever shipped they are `guessed`, and not
    shown to people."""

    row: float
    few: float
    copied: float
    copied_rows: float = MANY
    guessed: bool = False

    def changes(self, rows: float) -> float:
        """Return the bytes of `rows` changed rows."""
        few = min(rows, FEW)
        return few * self.few + (rows - few) * self.row

    def changes_at_worst(self, rows: float) -> float:
        """Return the same if a changed row costs at least what one in a copy does."""
        return max(self.changes(rows), rows * self.copied)

    def copy(self, rows: int) -> float:
        """Return the bytes of a copy of `rows` rows."""
        grown = min(rows, MANY) / min(self.copied_rows, MANY)
        return rows * self.copied / math.pow(max(grown, 1.0), CROWD)


def from_notes(learnt: LearntPrices, columns: int, *, level: int) -> Prices:
    """Return the learned prices for a zstd `level`; derive or guess what was not learned."""
    few, few_rows = learnt.few_bytes or 0.0, learnt.few_rows
    copied, row = learnt.copied_row_bytes, learnt.row_bytes
    each = few / few_rows if few_rows else None
    known = row or copied or each
    row = known or COLUMN_BYTES_UNKNOWN * columns
    each, guessed = row if each is None else each, not known
    if copied is None:
        return Prices(row, each, row, guessed=guessed)
    before = learnt.copied_level or LOAD_LEVEL
    copied *= LEVELS[level] / LEVELS.get(int(before), 1.0)
    rows, since = learnt.copied_rows or MANY, learnt.row_count or 0.0
    if row < copied and since >= rows:
        copied, rows = row, since
    return Prices(row, each, copied, rows)


def new_notes(
    learnt: LearntPrices,
    *,
    frame_bytes: int,
    shipped: int,
    changed: int,
    is_copy: bool,
    level: int,
) -> LearntPrices:
    """Return what is learnt after an exchange: the price of many rows or of a copy, or a mean for
    few rows that forgets earlier ones and counts deleted rows, although they take no bytes."""
    each, few, rows = frame_bytes / max(shipped, 1), learnt.few_bytes, learnt.few_rows
    if shipped > FEW and not is_copy:
        return replace(learnt, row_bytes=each, row_count=shipped)
    if shipped > FEW:
        drawn = learnt
        if learnt.row_bytes:
            row = math.sqrt(learnt.row_bytes * each)
            drawn = replace(drawn, row_bytes=row, row_count=None)
        if few and rows:
            drawn = replace(drawn, few_bytes=math.sqrt(few * rows * each))
        return replace(drawn, copied_row_bytes=each, copied_rows=shipped, copied_level=level)
    changed = max(changed, shipped)
    if is_copy or not 0 < changed <= FEW:
        return learnt
    few, rows = few or 0.0, rows or 0.0
    return replace(
        learnt,
        few_bytes=FEW_KEPT * few + max(frame_bytes - FRAME_BYTES, 0),
        few_rows=FEW_KEPT * rows + changed,
    )
