"""Notice that source.toml changed, so that limits count without a signal and without a restart.

An editor may write a file in several steps, and half of a file may be valid without its limits. So
a change counts once the file has stayed the same for SETTLE_S. The watchdog asks twice a second,
which costs one `stat`; the clock is injected. What is read again then, `catalogue` decides.

Rejected: inotify. It is one more dependency, and sees nothing on a network file system.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

SETTLE_S = 2.0


class FileWatch:
    """Tells once of every change of one file. For one thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._known = self._seen = self._signature()
        self._since = clock()

    def changed(self) -> bool:
        """Return True if the file differs from the one that was told of last, and has settled."""
        now, found = self._clock(), self._signature()
        if found != self._seen:
            self._seen, self._since = found, now
        if self._seen == self._known or now - self._since < SETTLE_S:
            return False
        self._known = self._seen
        return True

    def _signature(self) -> tuple[int, ...]:
        """Return what a write or a replacement of the file changes; empty: it cannot be seen."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
