"""What a row costs on the line, compressed, as earlier exchanges tell.

Rows compress against each other, so there are three prices: of one of few, of one of many, of one
of all. A copy of all is never priced by changed rows: few of them, or a purge that ships nothing,
would make it seem dear or free. Pure: what was learnt is a fragment's notes (`remember`).

No price may keep itself alive. Rows that seem dear are copied from then on, and a copy tells
nothing of changed rows: so each draws their price towards its own. A copy that seems dear is never
made: so one that was learnt under a coarser level of zstd than a refresh uses, as a load is, or
from fewer rows than there are now, is taken to be cheaper by as much as was seen anywhere, and one
that was learnt from fewer rows than have come since costs no more than these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from warehouse_agent.planning.network import LOAD_LEVEL, METERED_LEVEL, REFRESH_LEVEL
from warehouse_agent.planning.notes import number

FEW = 64  # rows: each of them costs more, there being little to compress it against
FEW_KEPT = 0.9  # of what is known of few rows, at each further refresh
FRAME_BYTES = 120  # of a frame of few rows, beside the rows
COLUMN_BYTES_UNKNOWN = 8.0  # of a row's column, before anything was shipped
# A copy's bytes by its level of zstd. Frames of all rows of TPC-H's orders and lineitem, runways
# and football results took 0.87 to 0.96 at 12 and 0.79 to 0.89 at 19 of what they take at 3.
LEVELS = {LOAD_LEVEL: 1.0, REFRESH_LEVEL: 0.87, METERED_LEVEL: 0.79}
# One of n rows costs n^-0.1 up to here: 1.58, 1.44, 1.27, 1.15 and 1 times for 100, 300, 1,000,
# 3,000 and 10,000 of the same orders, lineitem within 2 % of that.
MANY, CROWD = 10_000, 0.1


@dataclass(frozen=True, slots=True)
class Prices:
    """Bytes of a row: one of many that changed, one of the first FEW, one of a copy of all, as a
    copy of so many rows would tell. `guessed`: no row of the table was ever shipped; what decides
    needs a number, and nobody is to be told it."""

    row: float
    few: float
    copied: float
    copied_rows: float = MANY
    guessed: bool = False

    def changes(self, rows: float) -> float:
        """Bytes of so many changed rows."""
        few = min(rows, FEW)
        return few * self.few + (rows - few) * self.row

    def changes_at_worst(self, rows: float) -> float:
        """The same, should they cost what any row does."""
        return max(self.changes(rows), rows * self.copied)

    def copy(self, rows: int) -> float:
        """Bytes of a table of so many rows."""
        grown = min(rows, MANY) / min(self.copied_rows, MANY)
        return rows * self.copied / math.pow(max(grown, 1.0), CROWD)


def known(notes: dict[str, object], columns: int, *, level: int) -> Prices:
    """As in earlier exchanges; what none told is taken from what one did, or guessed.

    Args:
        level: of zstd, that rows will travel under.
    """
    few, few_rows = number(notes, "few_bytes") or 0.0, number(notes, "few_rows")
    copied, row = number(notes, "copied_row_bytes"), number(notes, "row_bytes")
    each = few / few_rows if few_rows else None
    told = row or copied or each
    row = told or COLUMN_BYTES_UNKNOWN * columns
    each, guessed = row if each is None else each, not told
    if copied is None:
        return Prices(row, each, row, guessed=guessed)
    before = number(notes, "copied_level") or LOAD_LEVEL
    copied *= LEVELS[level] / LEVELS.get(int(before), 1.0)
    rows, since = number(notes, "copied_rows") or MANY, number(notes, "row_count") or 0.0
    if row < copied and since >= rows:
        copied, rows = row, since
    return Prices(row, each, copied, rows)


def learnt(
    notes: dict[str, object],
    *,
    frame_bytes: int,
    shipped: int,
    changed: int,
    is_copy: bool,
    level: int,
) -> dict[str, float]:
    """What an exchange tells: of many rows and of a copy the last, of few the mean, earlier ones
    forgotten. Of few also those count that are gone and take nothing."""
    each = frame_bytes / max(shipped, 1)
    if shipped > FEW and not is_copy:
        return {"row_bytes": each, "row_count": shipped}
    if shipped > FEW:
        row, few = number(notes, "row_bytes"), number(notes, "few_bytes")
        rows = number(notes, "few_rows")
        drawn = {"row_bytes": math.sqrt(row * each), "row_count": 0.0} if row else {}
        if few and rows:
            drawn["few_bytes"] = math.sqrt(few * rows * each)
        copied = {"copied_row_bytes": each, "copied_rows": shipped, "copied_level": level}
        return drawn | copied
    changed = max(changed, shipped)
    if is_copy or not 0 < changed <= FEW:
        return {}
    few, rows = number(notes, "few_bytes") or 0.0, number(notes, "few_rows") or 0.0
    return {
        "few_bytes": FEW_KEPT * few + max(frame_bytes - FRAME_BYTES, 0),
        "few_rows": FEW_KEPT * rows + changed,
    }
