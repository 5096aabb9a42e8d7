"""What an exchange may ship: each frame is looked at as it comes, before it is staged.

A frame says how many rows of how many columns it holds, under which salt, and how large it is
unpacked; that is compared with what was asked, without unpacking it. Its digest is verified when it
is decoded. Rows are counted, and may not be more than follows from what the source announced: its
verdict counts them; before one there is only an estimate, of catalogues, which may be wrong by
orders of magnitude and is taken as no more than that. Where even that is missing, the free space of
the warehouse's disk is the limit (`Store.refuse_full`).

Rejected: a limit in bytes. Nothing that is announced tells how wide rows are.
"""

from __future__ import annotations

from typing import Final

from driftline import frames
from driftline.digests import Digest, Salt
from driftline.errors import LimitExceeded, MalformedMessage
from driftline.limits import FRAME_ROWS_MAX
from driftline.types import Recipe

# Ranges that we lack are shipped at once, and everything may follow (too many row hashes). Between
# its verdict and a second scan a table without snapshots may grow, which the source refuses at the
# end of the scan.
ANNOUNCED_FACTOR: Final = 2.2
# Planners guess a thousand rows of a function and one of a condition. Both have to be passed.
ESTIMATE_FACTOR: Final = 10_000
ESTIMATED_ROWS_MIN: Final = 1 << 24


class Admission:
    """Counts the rows of one exchange and refuses those beyond what it may ship."""

    def __init__(self, recipe: Recipe, salt: Salt, *, rows_expected: int, rows_ours: int) -> None:
        """`rows_expected`: the source's estimate, 0 where there is none."""
        self._columns, self._salt = len(recipe.columns), salt
        self._rows = 0
        self._announced: int | None = None
        self._estimated = max(rows_expected, rows_ours) if rows_expected > 0 else None
        # The exchange is broken off because too many rows came: what was staged is of no use.
        self.is_overrun = False

    def announce(self, rows: int) -> None:
        """The source has counted its rows."""
        self._announced = rows

    def admit(self, frame: bytes) -> Digest:
        """Return the digest that the frame declares, of the rows that it holds.

        Raises:
            FrameDamaged: it is no frame, or lies about its sizes.
            MalformedMessage: it is of other columns or another exchange, or one too many.
            LimitExceeded: the estimate that it goes beyond must be wrong by far.
        """
        head = frames.head(frame)
        if head.columns != self._columns:
            raise MalformedMessage(
                f"A frame of {head.columns} columns came for a relation of {self._columns}."
            )
        if head.salt != self._salt:
            raise MalformedMessage("A frame of another exchange came.")
        self._rows += head.digest.count
        self._refuse_overrun()
        return head.digest

    def _refuse_overrun(self) -> None:
        if self._announced is not None:
            most = int(self._announced * ANNOUNCED_FACTOR) + FRAME_ROWS_MAX
            if self._rows > most:
                self.is_overrun = True
                raise MalformedMessage(
                    f"The source counted {self._announced:,} rows and has sent {self._rows:,}.",
                    remedy="Check what runs at the source's address; nothing was published.",
                )
        elif self._estimated is not None:
            most = max(self._estimated * ESTIMATE_FACTOR, ESTIMATED_ROWS_MIN)
            if self._rows > most:
                self.is_overrun = True
                raise LimitExceeded(
                    f"The source has sent {self._rows:,} rows of a relation that it expects to have"
                    f" about {self._estimated:,}.",
                    remedy="Have the source's statistics renewed (ANALYZE), then run it again.",
                )
