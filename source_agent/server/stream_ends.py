"""The two ends of an Exchange stream: requests that come, replies that wait, and the time between.

gRPC's threads are at one side of each, the worker of the conversation at the other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from driftline import wire_pb2 as pb

from source_agent.budgets.budget import ExchangeStopped

OUTBOX_REPLIES_MAX = 4  # of about 1 MiB each


class ReplyQueue:
    """A bounded queue of replies; the worker and the RPC may both close it."""

    def __init__(self) -> None:
        self._held: deque[pb.Reply] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, reply: pb.Reply, timeout_s: float) -> bool:
        """Put a reply in; return False if there is no room in time. Raises ExchangeStopped if
        closed."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._closed or len(self._held) < OUTBOX_REPLIES_MAX, timeout_s
            )
            if self._closed:
                raise ExchangeStopped
            if room:
                self._held.append(reply)
                self._changed.notify_all()
            return room

    def take(self, timeout_s: float) -> pb.Reply | None:
        """Return the next reply, None if none comes in time. Raises ExchangeStopped if closed and
        empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._held), timeout_s)
            if self._held:
                reply = self._held.popleft()
                self._changed.notify_all()
                return reply
            if self._closed:
                raise ExchangeStopped
            return None

    def close(self) -> None:
        """Accept no more replies; those that are held may still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class ClientWaits:
    """The time for which a stream's worker has waited for its client; any thread may read it."""

    def __init__(self) -> None:
        self._before_s, self._since = 0.0, 0.0  # 0: it does not wait

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time within."""
        self._since = began = time.monotonic()
        try:
            yield
        finally:
            self._since = 0.0
            self._before_s += time.monotonic() - began

    @property
    def seconds(self) -> float:
        """All waits so far, with the one that lasts."""
        since = self._since
        return self._before_s + (time.monotonic() - since if since else 0.0)


class RequestStream:
    """The requests of a stream. Raises ExchangeStopped once the stream is to end.

    Not a generator of `Conversation`, which would keep its conversation, and be kept by it.
    """

    def __init__(
        self, requests: Iterator[pb.Request], stopping: threading.Event, waits: ClientWaits
    ) -> None:
        self._requests, self._stopping, self._waits = requests, stopping, waits
        # Since when the agent waits for the client.
        self.waiting_since: float | None = time.monotonic()

    def __iter__(self) -> Iterator[pb.Request]:
        return self

    def __next__(self) -> pb.Request:
        self.waiting_since = time.monotonic()
        with self._waits.waiting():
            request = next(self._requests)
        self.waiting_since = None
        if self._stopping.is_set():
            raise ExchangeStopped
        return request
