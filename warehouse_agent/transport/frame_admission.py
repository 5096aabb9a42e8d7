"""Admit the frames of an exchange: check each as it comes, before it is staged.

The head of a frame says its rows, columns, salt and unpacked size; that is compared with what was
asked, without unpacking. The digest is verified when the frame is decoded. Rows are limited by the
source's verdict, which counts them. Before a verdict no number of the source is reliable, so bytes
are limited by the room for staging: the engineer's setting, or half of what is free on the disk.

Rejected: a limit by the source's estimate of its rows. It refused honest tables for good, and a
source that lies about its rows lies about its estimate as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from driftline.errors import LimitExceeded, MalformedMessage
from driftline.limits import FRAME_ROWS_MAX
from driftline.rows import frames
from driftline.rows.digests import Digest, Salt
from driftline.values.types import Recipe

# Rows of ranges that we lack come at once, and all rows may follow (too many row hashes). A table
# without snapshots may grow before a second scan; the source refuses that at the end of the scan.
ANNOUNCED_FACTOR: Final = 2.2


@dataclass(frozen=True, slots=True)
class StagingRoom:
    """Room for the staged frames of a fragment.

    Attributes:
        most: bytes that may be staged.
        staged: bytes that were there before this exchange.
        is_set: True if `staging_at_most` sets `most`, False if free space does.
    """

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
    """Count the rows and bytes of one exchange, and refuse those beyond its limits.

    `rows` came so far. `is_overrun`: the exchange ended because too much came, so what it staged is
    of no use; `is_full`: because there is no room for more, though for what it staged.
    """

    def __init__(self, recipe: Recipe, salt: Salt, *, room: StagingRoom | None = None) -> None:
        """Begin with no rows; `room` is None if nothing limits staging, as on an object store."""
        self._recipe, self._salt, self._room = recipe, salt, room
        self.rows = self._bytes = 0
        self._announced: int | None = None
        self.is_overrun = self.is_full = False

    def again(self) -> FrameAdmission:
        """Return one for another exchange about the relation, with less room by what came."""
        room = self._room and replace(self._room, staged=self._room.staged + self._bytes)
        return FrameAdmission(self._recipe, self._salt, room=room)

    def announce(self, rows: int) -> None:
        """Note that the source counted `rows` in its verdict."""
        self._announced = rows

    def admit(self, frame: bytes) -> Digest:
        """Count a frame; return the digest that it declares of its rows.

        Raises:
            FrameDamaged: it is no frame, or its sizes are wrong.
            MalformedMessage: it has other columns, is of another exchange, or is one too many.
            LimitExceeded: there is no room for it.
        """
        head = frames.head(frame)
        columns = len(self._recipe.columns)
        if head.columns != columns:
            raise MalformedMessage(
                f"A frame of {head.columns} columns came for a relation of {columns}."
            )
        if head.salt != self._salt:
            raise MalformedMessage("A frame of another exchange came.")
        self.rows += head.digest.count
        self._bytes += len(frame)
        self.is_overrun = True  # unless no limit is exceeded
        if self._announced is not None:
            most = int(self._announced * ANNOUNCED_FACTOR) + FRAME_ROWS_MAX
            if self.rows > most:
                raise MalformedMessage(
                    f"The source counted {self._announced:,} rows and has sent {self.rows:,}.",
                    remedy="Check what runs at the source's address; nothing was published.",
                )
        if self._room is not None:
            self.is_full = True
            self._room.refuse_overrun(self._bytes)
        self.is_overrun = self.is_full = False
        return head.digest
