"""How fast a line carries rows, from the times at which their frames came. Pure.

The time between two frames says something about the line only if the second one was waiting to be
sent, while one relation's rows come without a break. While a source looks for rows, or waits as its
DBA asks, the line is idle: a source with nothing to send for HEARTBEAT_S says `Progress`, and then
nothing of that burst counts. Shorter waits cannot be told from a slow line. A source that holds its
reads back says so before the next frame: the time until then does not count, what came before does.
"""

from __future__ import annotations

from driftline import wire_pb2 as pb
from driftline.limits import NO_ADVANCE_S

METERED_BYTES_MIN = 256 << 10  # of rows; fewer bytes say nothing about a line


class ThroughputMeter:
    """Add up bursts of frames that came one after the other, with nothing else between them."""

    def __init__(self) -> None:
        self._bytes, self._seconds = 0, 0.0
        self._burst_bytes, self._burst_seconds = 0, 0.0
        self._last_at: float | None = None  # time of the last frame of the current burst
        self._held_back_s = 0.0  # that the source has said, of this relation

    def add(self, reply: pb.Reply, now: float) -> None:
        """Add a reply that came at `now`, seconds of a monotonic clock."""
        kind = reply.WhichOneof("message")
        if kind == "rows":
            if self._last_at is not None:
                self._burst_bytes += len(reply.rows.frame)
                self._burst_seconds += now - self._last_at
            self._last_at = now
            return
        is_news = kind == "progress" and reply.progress.held_back_s > self._held_back_s
        self._held_back_s = reply.progress.held_back_s if kind == "progress" else 0.0
        if kind != "progress" or is_news:
            self._bytes += self._burst_bytes
            self._seconds += self._burst_seconds
        self._burst_bytes, self._burst_seconds, self._last_at = 0, 0.0, None

    @property
    def bytes_per_s(self) -> float | None:
        """Return the rate of all bursts; None if too few bytes came."""
        if self._bytes < METERED_BYTES_MIN or self._seconds <= 0:
            return None
        return self._bytes / self._seconds


class ProgressCheck:
    """Tell a source that works from one that only says so: Progress must count more rows."""

    def __init__(self, now: float) -> None:
        self._at, self._rows = now, 0

    def accepts(self, reply: pb.Reply, now: float) -> bool:
        """Return True if the source advanced in the NO_ADVANCE_S before `now`, in seconds."""
        is_progress = reply.WhichOneof("message") == "progress"
        if not is_progress or reply.progress.rows > self._rows:
            self._at = now
            self._rows = reply.progress.rows if is_progress else 0
        return now - self._at <= NO_ADVANCE_S
