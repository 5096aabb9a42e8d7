"""The replies of an exchange, between the thread that makes it and the RPC that sends it.

It is bounded, so a slow reader slows the scan instead of filling memory.
"""

from __future__ import annotations

import threading
from collections import deque

from driftline import wire_pb2 as pb

from source_agent.budgets.budget import Stopped

OUTBOX_REPLIES_MAX = 4  # of about 1 MiB each


class Outbox:
    """A bounded queue between the worker and the RPC that either may close."""

    def __init__(self, size: int = OUTBOX_REPLIES_MAX) -> None:
        self._size = size
        self._held: deque[pb.Reply] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, reply: pb.Reply, timeout_s: float) -> bool:
        """Put a reply in; return False if no room came in time. Raises Stopped when closed."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._closed or len(self._held) < self._size, timeout_s
            )
            if self._closed:
                raise Stopped
            if room:
                self._held.append(reply)
                self._changed.notify_all()
            return room

    def take(self, timeout_s: float) -> pb.Reply | None:
        """The next reply; None when none came in time. Raises Stopped when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._held), timeout_s)
            if self._held:
                reply = self._held.popleft()
                self._changed.notify_all()
                return reply
            if self._closed:
                raise Stopped
            return None

    def close(self) -> None:
        """No more is put in; what is held may still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
