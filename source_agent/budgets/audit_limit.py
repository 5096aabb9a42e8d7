"""Limit by how much one client can make the audit grow, without I/O.

A refusal costs a client nothing, so a certificate that may have nothing could write gigabytes an
hour. Each client has a ration of bytes, which is renewed over an hour, and another one for lines of
requests that read rows: refusals leave out no reading. What is left out is counted, and the count
becomes a line.

Thread-safe; the clock is injected.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

# A ration is spent at once and renewed once in an hour, and there are two: 10 MB an hour.
RATION_BYTES = 2_500_000  # 8,000 lines: those of thousands of fragments, in one refresh
RENEWED_S = 3600.0
LEFT_OUT_EVERY_S = 60.0  # between two lines that say how many were left out


@dataclass(slots=True)
class _Ration:
    left: float
    at: float

    def renew(self, now: float) -> None:
        gained = (now - self.at) * RATION_BYTES / RENEWED_S
        self.left, self.at = min(self.left + gained, RATION_BYTES), now


class AuditLimit:
    """The rations of all clients."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rations: dict[tuple[str, bool], _Ration] = {}
        self._left_out: Counter[str] = Counter()
        self._counted_at: dict[str, float] = {}  # when a client's count began

    def admits(self, client: str, size: int, *, read_rows: bool) -> bool:
        """Return True if a line of `size` bytes may be written; else count it."""
        with self._lock:
            now = self._clock()
            ration = self._rations.setdefault((client, read_rows), _Ration(RATION_BYTES, now))
            ration.renew(now)
            if ration.left >= size:
                ration.left -= size
                return True
            self._left_out[client] += 1
            self._counted_at.setdefault(client, now)
            return False

    def left_out(self, *, at_once: bool = False) -> dict[str, int]:
        """Return the lines left out of each client, once in LEFT_OUT_EVERY_S, and begin anew."""
        with self._lock:
            now = self._clock()
            due = [
                client
                for client, began in self._counted_at.items()
                if at_once or now - began >= LEFT_OUT_EVERY_S
            ]
            for client in due:
                del self._counted_at[client]
            for key, ration in list(self._rations.items()):  # clients that are long gone
                if now - ration.at >= RENEWED_S:
                    del self._rations[key]
            return {client: self._left_out.pop(client) for client in due}
