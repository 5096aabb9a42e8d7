"""How large the pieces of a stream's replies may be, by how fast its line took the earlier ones.

A warehouse gives up a line on which no message ends for NO_PROGRESS_S, so on a slow line pieces
must be small; on a fast one each costs the threads of both sides a turn. They begin small, and grow
while the line is known to carry the next one in PIECE_S_MAX. No I/O.

How long a piece took to be sent says little: gRPC, the relay and the system take a megabyte at once
and hold it ahead of the line. What was sent in a while, less LINE_HELD_BYTES_MAX, has left them, so
it is a lower bound of what the line carried. A source that has little to send proves as little, and
stays with small pieces.

Rejected: the rate that TCP reports. A tunnel or a proxy hides the line from it.
"""

from __future__ import annotations

from driftline.limits import (
    LINE_HELD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PIECE_BYTES_MIN,
    PIECE_S_MAX,
)

WINDOW_S = 20.0  # after which earlier pieces no longer count


class PieceSize:
    """The size of the next piece of a stream."""

    def __init__(self, now: float) -> None:
        self.bytes_max = PIECE_BYTES_MIN
        self._since, self._bytes = now, 0

    def note(self, size: int, took_s: float, now: float) -> None:
        """Note that a message of `size` bytes was handed over at `now`, seconds of a monotonic
        clock, after it had to wait for `took_s`."""
        self._bytes += size
        elapsed_s = max(now - self._since, 1e-3)
        carried = max(self._bytes - LINE_HELD_BYTES_MAX, 0)
        known = max(int(carried / elapsed_s * PIECE_S_MAX), PIECE_BYTES_MIN)
        is_over = elapsed_s >= WINDOW_S
        if took_s > PIECE_S_MAX and self.bytes_max > PIECE_BYTES_MIN:
            self.bytes_max = max(self.bytes_max // 2, PIECE_BYTES_MIN)
            is_over = True
        elif known > self.bytes_max:
            self.bytes_max = min(known, 2 * self.bytes_max, MESSAGE_BYTES_MAX)
        elif is_over:
            self.bytes_max = known
        if is_over:
            self._since, self._bytes = now, 0
