"""What a row costs on the line, compressed, as earlier exchanges tell.

Rows compress against each other, so there are three prices: of one of few, of one of many, of one
of all. A copy of all is never priced by changed rows: few of them, or a purge that ships nothing,
would make it seem dear or free. Pure: what was learnt is a fragment's notes (`remember`).
"""

from __future__ import annotations

from dataclasses import dataclass

FEW = 64  # rows: each of them costs more, there being little to compress it against
FEW_KEPT = 0.9  # of what is known of few rows, at each further refresh
FRAME_BYTES = 120  # of a frame of few rows, beside the rows
COLUMN_BYTES_UNKNOWN = 8.0  # of a row's column, before anything was shipped


@dataclass(frozen=True, slots=True)
class Prices:
    """Bytes of a row: one of many that changed, one of the first FEW, one of a copy of all."""

    row: float
    few: float
    copied: float

    def changes(self, rows: float) -> float:
        """Bytes of so many changed rows."""
        few = min(rows, FEW)
        return few * self.few + (rows - few) * self.row

    def copy(self, rows: int) -> float:
        """Bytes of a table of so many rows."""
        return rows * self.copied


def flat(row: float) -> Prices:
    """One price for every row."""
    return Prices(row, row, row)


def known(notes: dict[str, object], columns: int) -> Prices:
    """As in earlier exchanges; what none told is taken from what one did, or guessed."""
    rows, copied = _number(notes, "few_rows"), _number(notes, "copied_row_bytes")
    row = _number(notes, "row_bytes") or copied or COLUMN_BYTES_UNKNOWN * columns
    return Prices(row, _number(notes, "few_bytes") / rows if rows > 0 else row, copied or row)


def learnt(
    notes: dict[str, object], *, frame_bytes: int, shipped: int, changed: int, is_copy: bool
) -> dict[str, float]:
    """What an exchange tells: of many rows and of a copy the last, of few the mean, earlier ones
    forgotten. Of few also those count that are gone and take nothing."""
    if shipped > FEW:
        return {"copied_row_bytes" if is_copy else "row_bytes": frame_bytes / shipped}
    changed = max(changed, shipped)
    if is_copy or not 0 < changed <= FEW:
        return {}
    return {
        "few_bytes": FEW_KEPT * _number(notes, "few_bytes") + max(frame_bytes - FRAME_BYTES, 0),
        "few_rows": FEW_KEPT * _number(notes, "few_rows") + changed,
    }


def _number(notes: dict[str, object], name: str) -> float:
    """A note, 0 where there is none."""
    found = notes.get(name)
    return float(found) if isinstance(found, int | float) else 0.0
