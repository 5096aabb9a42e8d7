"""What an exchange may ship: each frame is looked at as it comes, before it is staged.

A frame says how many rows of how many columns it holds, under which salt, and how large it is
unpacked; that is compared with what was asked, without unpacking it. Its digest is verified when it
is decoded.

Two things are counted. Rows may not be more than follows from the source's verdict, which counts
them. Before a verdict nothing that the source said bounds them: a table may have been filled since
the last refresh, and what a planner expects of a view or a function may be wrong by any factor. So
bytes may not be more than the room that staging has: what the engineer's file says, or half of what
is free on the disk. What is left of the disk is not filled to its end either (`Store.refuse_full`).

Rejected: a limit by the source's estimate of its rows. It refused honest tables for good, and a
source that lies about its rows lies about its estimate as well.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes of frames a fragment may have staged: `most`, of which `staged` were there
    before this exchange. `is_set`: by `staging_at_most`, and not by what is free on the disk."""

    most: int
    staged: int = 0
    is_set: bool = False

    def refuse_overrun(self, size: int) -> None:
        """Raise LimitExceeded if `size` bytes that came are more than there is room for."""
        if self.staged + size <= self.most:
            return
        if self.is_set:
            by, how = "`staging_at_most` of the fragment", "raise `staging_at_most`"
        else:
            by = "half of what was free on the warehouse's disk"
            how = "free space there, or set `staging_at_most` of the fragment, in bytes"
        raise LimitExceeded(
            f"The source has sent {self.staged + size:,} bytes, and {self.most:,} may be staged: "
            f"{by}.",
            remedy=f"If the relation is that large, {how}; if it is not, check what runs at the "
            "source's address. Nothing was published.",
        )


class FrameAdmission:
    """Counts what one exchange ships, and refuses what goes beyond what it may."""

    def __init__(self, recipe: Recipe, salt: Salt, *, room: Room | None = None) -> None:
        """`room`: None where nothing bounds what is staged, as on an object store."""
        self._columns, self._salt = len(recipe.columns), salt
        self._room = room
        self._rows = self._bytes = 0
        self._announced: int | None = None
        # The exchange is broken off because too much came: what was staged is of no use.
        self.is_overrun = False

    def announce(self, rows: int) -> None:
        """The source has counted its rows."""
        self._announced = rows

    def admit(self, frame: bytes) -> Digest:
        """Return the digest that the frame declares, of the rows that it holds.

        Raises:
            FrameDamaged: it is no frame, or lies about its sizes.
            MalformedMessage: it is of other columns or another exchange, or one too many.
            LimitExceeded: there is no room for it.
        """
        head = frames.head(frame)
        if head.columns != self._columns:
            raise MalformedMessage(
                f"A frame of {head.columns} columns came for a relation of {self._columns}."
            )
        if head.salt != self._salt:
            raise MalformedMessage("A frame of another exchange came.")
        self._rows += head.digest.count
        self._bytes += len(frame)
        try:
            self._refuse_overrun()
        except (MalformedMessage, LimitExceeded):
            self.is_overrun = True
            raise
        return head.digest

    def _refuse_overrun(self) -> None:
        if self._announced is not None:
            most = int(self._announced * ANNOUNCED_FACTOR) + FRAME_ROWS_MAX
            if self._rows > most:
                raise MalformedMessage(
                    f"The source counted {self._announced:,} rows and has sent {self._rows:,}.",
                    remedy="Check what runs at the source's address; nothing was published.",
                )
        if self._room is not None:
            self._room.refuse_overrun(self._bytes)
