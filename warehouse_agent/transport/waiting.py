"""Wait for a source: send the requests of a comparison, and hand it the replies that concern it.

A comparison is a generator (`Requests`) that knows no wire. It yields a request to be sent. To
receive a reply, it yields None, or what takes the frames of rows that come before it. All that is
the same in each exchange is here: a reply that may not come is refused (`exchange_states`), rows
are admitted and kept, progress is shown, messages and seconds are counted. Tests run a comparison
by hand, or over a `Wire` without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic
from typing import Protocol, TypeVar

from driftline import wire_pb2 as pb
from driftline.errors import SourceUnreachable
from driftline.limits import EXCHANGE_S_MAX
from driftline.rows.digests import Digest
from driftline.wire.exchange_states import ExchangeState, StateTracker, Take
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


SHIP = "ship"  # the phase in which rows come
T = TypeVar("T")
# Yields a request to be sent; or what takes the frames that come, or None, to be sent a reply.
Requests = Generator[pb.Request | Take | None, pb.Reply, T]


class Waiting:
    """The exchanges about one relation over a wire.

    `came` is the digest of the rows that came, `frame_bytes` their size, `answered_s` the
    seconds from the first opening to the first reply other than progress, `said` the last progress
    that the source reported. `wants_all`: all rows were asked for instead of a comparison.
    """

    def __init__(
        self,
        wire: Wire,
        admission: FrameAdmission,
        *,
        keep: Callable[[bytes, bool], None],
        progress: Callable[[pb.Progress], None],
        rows_expected: int = 0,
        rows_before: int = 0,
    ) -> None:
        """keep: stages a frame, told `wants_all`; rows_expected, rows_before: for progress only, at
        the source and staged by earlier attempts at a load."""
        self.admission = admission
        self.came, self.frame_bytes, self.round_trips, self.answered_s = Digest(), 0, 0, 0.0
        self._wire, self._keep, self._progress = wire, keep, progress
        self.said = pb.Progress()
        self._rows_before = rows_before
        self._shipping = pb.Progress(phase=SHIP, rows=rows_before, rows_expected=rows_expected)
        self._relation, self._opened_at, self._has_sent = "", 0.0, False
        self._at = StateTracker()
        self.wants_all = False

    @property
    def ended(self) -> bool:
        """Return True once the source has ended the relation: the next may follow in the stream."""
        return bool(self._opened_at) and self._at.state is ExchangeState.IDLE

    def run(self, requests: Requests[T]) -> T:
        """Run a comparison to its end; return what it returns.

        Raises:
            SourceUnreachable: an exchange has lasted for EXCHANGE_S_MAX.
            DriftlineError: whatever the source refused with, or a broken line, message or frame.
        """
        if self._rows_before:
            self._progress(self._shipping)
        sending = self._at.run(requests, self._receive)
        while True:
            try:
                self._send(next(sending))
            except StopIteration as end:
                found: T = end.value
                return found

    def _send(self, request: pb.Request) -> None:
        if request.HasField("open"):
            self.admission = self.admission.again()
            self._relation, self._opened_at = request.open.relation, monotonic()
        self._has_sent = True
        self.wants_all |= request.HasField("whole")
        self._wire.send(request)

    def _receive(self, take: Take | None) -> pb.Reply:
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
                self._take(reply.rows.frame, take)
            elif kind == "refused":
                self._at.state = ExchangeState.IDLE
                raise refusal(reply.refused)
            else:
                if kind == "verdict":
                    self.admission.announce(reply.verdict.count)
                self.wants_all |= kind == "hashes_end" and reply.hashes_end.too_many
                return reply

    def _say(self, said: pb.Progress) -> None:
        """Pass on what the source says; while rows come, their number counts.

        Where a load goes on, rows that the source reads again are staged already.
        """
        self.said = said
        is_news = said.held_back_s > self._shipping.held_back_s
        self._shipping.held_back_s = said.held_back_s
        if self._rows_before and said.phase == SHIP:
            self._shipping.rows = max(self._shipping.rows, said.rows)
            is_news = True
        self._progress(self._shipping if is_news and self._shipping.rows else said)

    def _take(self, frame: bytes, take: Take | None) -> None:
        declared = self.admission.admit(frame)
        self.frame_bytes += len(frame)
        if take is not None:
            take(frame)
        self._keep(frame, self.wants_all)
        self.came += declared
        rows = self._rows_before + self.admission.rows
        self._shipping.rows = max(self._shipping.rows, rows) if self._rows_before else rows
        self._progress(self._shipping)
