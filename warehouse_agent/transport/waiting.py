"""Wait for a source: send the requests of a comparison, and hand it the replies that concern it.

A comparison is a generator (`Requests`) that knows no wire. It yields a request to be sent. To
receive a reply, it yields nothing, or what collects the keys of rows that come meanwhile. All that
is the same in each exchange is here: rows are admitted and kept, progress is shown, messages and
seconds are counted. Tests run a comparison by hand, or over a `Wire` without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from time import monotonic
from typing import Protocol, TypeVar

from driftline import wire_pb2 as pb
from driftline.errors import SourceUnreachable
from driftline.limits import EXCHANGE_S_MAX
from driftline.rows.digests import Digest
from driftline.wire.negotiation import Agreement

from warehouse_agent.transport.frame_admission import FrameAdmission
from warehouse_agent.transport.reply_validation import refusal


class Wire(Protocol):
    """Transport for one exchange: `channel.Stream`, or a queue in tests."""

    @property
    def agreed(self) -> Agreement:
        """Return the protocol and the features that both sides support."""

    def send(self, request: pb.Request) -> None:
        """Send a request."""

    def receive(self) -> pb.Reply:
        """Return the next reply."""


class Collector(Protocol):
    """Notes something of the rows that come."""

    def take(self, frame: bytes) -> None:
        """Add the rows of a frame. Raises FrameDamaged: it is not kept."""


T = TypeVar("T")
# Yields a request to be sent; or None or a collector, to be sent the next reply.
Requests = Generator[pb.Request | Collector | None, pb.Reply, T]


class Waiting:
    """The exchanges about one relation over a wire.

    `ended` is True once the source has ended the relation, so that the next may follow in the
    stream. `came` is the digest of the rows that came, `frame_bytes` their size, `answered_s` the
    seconds from the first opening to the first reply other than progress.
    """

    def __init__(
        self,
        wire: Wire,
        admission: FrameAdmission,
        *,
        keep: Callable[[bytes], None],
        progress: Callable[[pb.Progress], None],
        rows_expected: int = 0,
    ) -> None:
        """keep: stages a frame; rows_expected: for progress only."""
        self.admission, self.ended = admission, False
        self.came, self.frame_bytes, self.round_trips, self.answered_s = Digest(), 0, 0, 0.0
        self._wire, self._keep, self._progress = wire, keep, progress
        self._shipping = pb.Progress(phase="ship", rows_expected=rows_expected)
        self._relation, self._opened_at, self._has_sent = "", 0.0, False

    def run(self, requests: Requests[T]) -> T:
        """Run a comparison to its end; return what it returns.

        Raises:
            SourceUnreachable: an exchange has lasted for EXCHANGE_S_MAX.
            DriftlineError: whatever the source refused with, or a broken line, message or frame.
        """
        reply: pb.Reply | None = None
        with closing(requests):
            while True:
                try:
                    step = next(requests) if reply is None else requests.send(reply)
                except StopIteration as end:
                    found: T = end.value
                    return found
                reply = None
                if isinstance(step, pb.Request):
                    self._send(step)
                else:
                    reply = self._receive(step)

    def _send(self, request: pb.Request) -> None:
        if request.HasField("open"):
            if self._opened_at:
                assert self.ended, "an exchange ends before the next one begins"
                self.admission = self.admission.again()
            self._relation, self._opened_at, self.ended = request.open.relation, monotonic(), False
        self._has_sent = True
        self._wire.send(request)

    def _receive(self, collector: Collector | None) -> pb.Reply:
        """Return the next reply that is neither progress nor rows; handle those here."""
        self.round_trips += self._has_sent
        self._has_sent = False
        while True:
            reply = self._wire.receive()
            if monotonic() - self._opened_at > EXCHANGE_S_MAX:
                raise SourceUnreachable(
                    f"The source has not ended after {EXCHANGE_S_MAX / 3600:,.0f} h.",
                    where=self._relation,
                    remedy="Check what runs at the source's address; nothing was published.",
                )
            kind = reply.WhichOneof("message")
            if kind == "progress":
                self._say(reply.progress)
                continue
            self.answered_s = self.answered_s or monotonic() - self._opened_at
            if kind == "rows":
                self._take(reply.rows.frame, collector)
            elif kind == "refused":
                self.ended = True
                raise refusal(reply.refused)
            else:
                if kind == "verdict":
                    self.admission.announce(reply.verdict.count)
                self.ended = kind == "finished"
                return reply

    def _say(self, said: pb.Progress) -> None:
        """Pass on what the source says; while rows come, their number counts."""
        is_news = said.held_back_s > self._shipping.held_back_s
        self._shipping.held_back_s = said.held_back_s
        self._progress(self._shipping if is_news and self._shipping.rows else said)

    def _take(self, frame: bytes, collector: Collector | None) -> None:
        declared = self.admission.admit(frame)
        self.frame_bytes += len(frame)
        if collector is not None:
            collector.take(frame)
        self._keep(frame)
        self.came += declared
        self._shipping.rows = self.admission.rows
        self._progress(self._shipping)
