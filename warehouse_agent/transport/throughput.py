"""How fast a line carries rows, from when their frames came.

What lies between two frames tells of the line only where the next one was waiting to be sent, while
one relation's rows are shipped without a break. Where a source looks for rows, or waits as its DBA
asks, the line is idle: a source that has had nothing to send for HEARTBEAT_S says `Progress`, and
then nothing of that run counts. Shorter waits are not told from a slow line. Pure.
"""

from __future__ import annotations

from driftline import wire_pb2 as pb
from driftline.limits import NO_ADVANCE_S

METERED_BYTES_MIN = 256 << 10  # of rows; less tells nothing of a line


class Meter:
    """Adds up runs of frames that came one after the other, with nothing else between them."""

    def __init__(self) -> None:
        self._bytes, self._seconds = 0, 0.0
        self._run_bytes, self._run_seconds = 0, 0.0
        self._last_at: float | None = None  # of the run that goes on

    def hear(self, reply: pb.Reply, now: float) -> None:
        """A reply came; `now` in seconds of a clock that only goes forward."""
        kind = reply.WhichOneof("message")
        if kind == "rows":
            if self._last_at is not None:
                self._run_bytes += len(reply.rows.frame)
                self._run_seconds += now - self._last_at
            self._last_at = now
            return
        if kind != "progress":
            self._bytes += self._run_bytes
            self._seconds += self._run_seconds
        self._run_bytes, self._run_seconds, self._last_at = 0, 0.0, None

    @property
    def bytes_per_s(self) -> float | None:
        """None where too few came to tell."""
        if self._bytes < METERED_BYTES_MIN or self._seconds <= 0:
            return None
        return self._bytes / self._seconds


class Advance:
    """Tells a source that works from one that only says so: Progress must mean rows."""

    def __init__(self, now: float) -> None:
        self._at, self._rows = now, 0

    def hear(self, reply: pb.Reply, now: float) -> bool:
        """Return whether the source is still believed; `now` in seconds of a monotonic clock."""
        is_progress = reply.WhichOneof("message") == "progress"
        if not is_progress or reply.progress.rows > self._rows:
            self._at = now
            self._rows = reply.progress.rows if is_progress else 0
        return now - self._at <= NO_ADVANCE_S
