"""A thread that looks at regular times at what no other thread can look at.

The thread of an RPC that sends is held up in gRPC while its client takes nothing, for as long as
the client likes; whoever shall notice must not be that thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

WATCH_S = 0.5  # between two looks

_log = logging.getLogger("driftline.source")


class Watchdog:
    """Calls `look` every WATCH_S until it is closed. `look` should not block."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """No look begins after this."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_S):
            try:
                self._look()
            except Exception:
                _log.exception("the watchdog made a mistake, and goes on")
