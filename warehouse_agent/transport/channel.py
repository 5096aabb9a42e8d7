"""The line to a source agent: one channel, bounded waits, every byte counted.

It moves messages and turns gRPC's failures into ours; the methods know what they mean.
A thread reads a call's replies, so that a peer that falls silent is given up after NO_PROGRESS_S
and its heartbeats keep a long scan alive. The keep-alive settings are measured: without
`ping_timeout_ms` it takes a minute to notice a half-open line.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol, Self, cast

import grpc
from driftline import wire_pb2 as pb
from driftline.errors import (
    GRPC_STATUS,
    DriftlineError,
    InternalError,
    LimitExceeded,
    MalformedMessage,
    NotNow,
    SourceUnreachable,
    VersionMismatch,
)
from driftline.limits import (
    CONTROL_S,
    FOLLOWING_RELATIONS_MAX,
    NO_ADVANCE_S,
    NO_PROGRESS_S,
    RECEIVE_BYTES_MAX_WAREHOUSE,
    REFERENCES_MAX,
)
from driftline.peer_text import one_line
from driftline.reconciliation import named_keys
from driftline.relations.activity import Activity, UnknownActivity
from driftline.relations.activity_messages import from_message
from driftline.wire import pieces
from driftline.wire.negotiation import (
    FOLLOWING,
    REFERRING,
    WHERE_NAMED,
    Agreement,
    agree,
    is_negotiable,
)
from driftline.wire_pb2_grpc import SourceStub
from google.protobuf.message import DecodeError

from warehouse_agent.config import Source
from warehouse_agent.planning.allowance import Allowance
from warehouse_agent.transport.bounded_replies import BoundedReplies, unwrap
from warehouse_agent.transport.certificates import certificates
from warehouse_agent.transport.handshake import diagnose, process_claim, proxy_between
from warehouse_agent.transport.reply_validation import (
    LINE_CHARACTERS_MAX,
    check_activities,
    check_description,
    check_reply,
    refusal,
)
from warehouse_agent.transport.throughput import ProgressCheck, ThroughputMeter

_OPTIONS = [
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX_WAREHOUSE),
    # A ping is sent if nothing comes, which means that no row is in its way. A peer that stops
    # leaves bytes on the line, silence is counted from the last of them, and 10 s more are needed
    # to say why: in all less than 30 s. A source allows pings every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 6_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    # gRPC would measure the line by pings, whose answers wait behind rows: on a slow line for
    # longer than a ping may. So the window is fixed: 320 Mbit/s at 100 ms.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
]
REFUSED_METADATA = "driftline-refused-bin"  # trailing metadata of a Describe that failed
_HEALTH = "/grpc.health.v1.Health/Check"  # an empty request asks for the health of all
_ROUND_TRIPS = 3  # timed at once: the first may have to connect
_FRAMING_BYTES = 5  # gRPC's own prefix of a message
# Statuses that the gRPC library gives when a connection breaks; an answer of the source agent has
# its own error in the trailing metadata.
_OF_THE_LINE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
}
_OF_THE_HANDLER = ("Exception calling application", "Exception iterating responses")
_STATUS_OF_CALL: dict[str, type[DriftlineError]] = {
    **{status: kind for kind, status in reversed(GRPC_STATUS.items())},
    "UNIMPLEMENTED": VersionMismatch,
    "RESOURCE_EXHAUSTED": LimitExceeded,
}
_OLDER = UnknownActivity("the source is older than this question")
# Of replies that came while a file of frames is written. gRPC drops what it holds when a line
# breaks, so what lies here is not lost; flow control reaches the source behind it.
_HELD_BYTES = 8 << 20

Reply = pb.Reply | Exception | None


class SourceChannel:
    """A channel to one source, a context manager. Relations can be described beside a stream.

    `bytes_sent` and `bytes_received` count the messages of its streams, of which one is open at a
    time; descriptions are not counted.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._channel = self._opened()
        bounded = BoundedReplies(self._channel)
        self._stub: SourceStub = SourceStub(bounded)  # type: ignore[no-untyped-call]
        self._agreed: Agreement | None = None
        self.agent = ""  # the source's name and release, once it was asked
        self._relations: frozenset[str] | None = None
        self._allowances: dict[str, Allowance] = {}
        self.features: frozenset[str] = frozenset()  # of the source, as it named them last
        self._describing = threading.Lock()  # the source makes one description at a time for us
        self._stream: Stream | None = None  # the newest
        self._is_closed = False
        self._called_at = time.monotonic()  # when the newest call ended
        self.bytes_sent = self.bytes_received = 0

    def _opened(self) -> grpc.Channel:
        """Return a new channel to the source. Raise ConfigurationError: certificates."""
        source, options = self.source, list[tuple[str, object]](_OPTIONS)
        if source.insecure:
            return grpc.insecure_channel(source.address, options)
        if source.server_name:
            options.append(("grpc.ssl_target_name_override", source.server_name))
        ca, certificate, key = certificates(source)
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.secure_channel(source.address, credentials, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; calls that wait end with an error."""
        self._is_closed = True
        self._channel.close()

    @property
    def rested_s(self) -> float:
        """Return the seconds since the last call; 0 while a stream is open."""
        if self._stream is not None and not self._stream.is_abandoned:
            return 0.0
        return time.monotonic() - self._called_at

    def relations(self) -> frozenset[str]:
        """Return the names of the relations that the source serves to us; ask once.

        Raises:
            DriftlineError: as `describe`.
        """
        if self._relations is None:
            reply = self.describe("")
            self._allowances = allowances(reply)
            self._relations = frozenset(reply.relations)
        return self._relations

    def allowance(self, relation: str) -> Allowance | None:
        """Return what may be read of a relation, as the source said with its names (`relations`).

        None if it was not asked, is older, or does not serve the relation.
        """
        return self._allowances.get(relation)

    def round_trip_s(self) -> float | None:
        """Return the seconds that the source takes to answer a call that it need not think about;
        None if it does not answer. Of a few calls, the fastest.

        A TCP connection is answered by the next tunnel or balancer.
        """
        call = self._channel.unary_unary(_HEALTH, bytes, bytes)
        took = list[float]()
        with contextlib.suppress(grpc.RpcError):
            for _ in range(_ROUND_TRIPS):
                began = time.monotonic()
                call(b"", timeout=CONTROL_S)
                took.append(time.monotonic() - began)
        return min(took, default=None)

    def describe(self, relation: str, beside: Sequence[str] = ()) -> pb.DescribeReply:
        """Return the description of a relation; for an empty name, the names of all relations.

        beside: other relations by whose rows its own may be chosen; left out if the source is older
        than that.

        Fields of a newer source are ignored; its protocols are kept for `agreed`. Beside a stream
        the answer may wait for rows that are on the line already, as long as a stream may wait.

        Raises:
            DriftlineError: the source refused, nothing answers, or no protocol is common.
        """
        protocol = (self._agreed or Agreement()).protocol
        if beside:
            self.relations()  # with what the source can
        named = beside[:REFERENCES_MAX] if REFERRING in self.features else ()
        request = pb.DescribeRequest(protocol=protocol, relation=relation, beside=named)
        with self._describing:
            is_beside = self._stream is not None and not self._stream.is_abandoned
            wait_s = NO_PROGRESS_S if is_beside else CONTROL_S
            try:
                reply: pb.DescribeReply = unwrap(self._stub.Describe(request, timeout=wait_s))
            except grpc.RpcError as error:
                raise self._meaning(error, relation) from None
            finally:
                self._called_at = time.monotonic()
        check_description(reply)
        self.features = frozenset(reply.features)
        # A feature that an exchange cannot do without is asked for by that exchange alone.
        self.agent = reply.agent
        self._agreed = agree(reply.protocols, reply.features, our_features=WHERE_NAMED)
        return reply

    def activity(self, relations: Sequence[str]) -> dict[str, Activity]:
        """Return what the source says, without a scan, of the changes of relations, by name.

        Nothing is known if the source is older than the question. Waits as `describe` does.

        Raises:
            DriftlineError: the source refused, or nothing answers.
        """
        request = pb.ActivityRequest(
            protocol=(self._agreed or Agreement()).protocol, relations=relations
        )
        with self._describing:
            is_beside = self._stream is not None and not self._stream.is_abandoned
            try:
                wait_s = NO_PROGRESS_S if is_beside else CONTROL_S
                reply: pb.ActivityReply = unwrap(self._stub.Activity(request, timeout=wait_s))
            except grpc.RpcError as error:
                if cast("grpc.Call", error).code() is grpc.StatusCode.UNIMPLEMENTED:
                    return dict.fromkeys(relations, _OLDER)
                raise self._meaning(error, f"source {self.source.name}") from None
            finally:
                self._called_at = time.monotonic()
        check_activities(reply, len(relations))
        return dict(zip(relations, map(from_message, reply.activities), strict=True))

    def agreed(self) -> Agreement:
        """Return protocol and features that both agents know; ask the source once, if needed. No
        exchange needs the features: none is known of a source that was not asked.

        Raises:
            DriftlineError: as `describe`.
        """
        if self._agreed is None and is_negotiable():
            self.describe("")
        return self._agreed or Agreement()

    def has(self, feature: str) -> bool:
        """Return True if the source named a feature; ask it once, if it named none yet. Raises as
        `describe`."""
        if self._agreed is None:
            self.relations()
        return feature in self.features

    def stream(self, relations: Iterable[str] = ()) -> Stream:
        """Begin a new exchange, about these relations one after the other."""
        self._stream = Stream(self, self._begun(), relations)
        return self._stream

    def _begun(self) -> Call:
        """Begin an Exchange call."""
        return ExchangeCall(self._stub)

    def _diagnosed(self) -> DriftlineError | None:
        """Return what a new connection finds wrong with the source; None: nothing."""
        return None if self._is_closed else diagnose(self.source)

    def _meaning(self, error: grpc.RpcError, where: str) -> DriftlineError:
        """Return what a gRPC failure means to the user."""
        call = cast("grpc.Call", error)
        code, text = call.code(), one_line(call.details() or "", LINE_CHARACTERS_MAX)
        for key, value in call.trailing_metadata() or ():
            if key == REFUSED_METADATA and isinstance(value, bytes):
                with contextlib.suppress(DecodeError):  # then the status alone counts
                    return refusal(pb.Refused.FromString(value))
        if code in _OF_THE_LINE and not text.startswith(_OF_THE_HANDLER):
            proxy = proxy_between(self.source)
            address = self.source.address + (f" through the proxy {proxy}" if proxy else "")
            return self._diagnosed() or SourceUnreachable(
                _lost(address, code, text),
                where=f"source {self.source.name}",
                remedy="Run the command again; what arrived is kept.",
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in text:
            return NotNow(
                f"All places of the source agent are taken ({text}).",
                where=f"source {self.source.name}",
                remedy="Run the command again later.",
            )
        if kind := _STATUS_OF_CALL.get(code.name):
            return kind(text, where=where)
        return InternalError(f"The source agent failed: {text}", where=where)


def allowances(reply: pb.DescribeReply) -> dict[str, Allowance]:
    """Return what may be read of each relation that a reply names; empty for an older source."""
    return {
        name: Allowance(
            said.scan,
            datetime.fromisoformat(said.begins) if said.begins else None,
            said.rows_by_key or None,
            bool(said.ends),
            named_keys.FEATURE in reply.features,
        )
        for name, said in zip(reply.relations, reply.allowances, strict=False)
    }


def _lost(address: str, code: grpc.StatusCode, text: str) -> str:
    """Return what happened to the line, without gRPC's own words where the case is known."""
    if "TSI_DATA_CORRUPTED" in text or "TSI_PROTOCOL_FAILURE" in text:
        state = "was damaged: TLS found a byte that is not what was sent"
    elif "handshake" in text.lower():
        state = "was cut off in the TLS handshake"
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"Connected to {address}, but the source agent did not answer in time."
    else:
        state = f"was lost ({text or code.name.lower()})"
    return f"The line to {address} {state}."


class StreamEnded(SourceUnreachable, code=SourceUnreachable.code, is_retryable=True):
    """The source ended the stream behind one relation and before it answered about the next."""


def _ended(where: str) -> StreamEnded:
    return StreamEnded(
        "The source ended the stream between two relations.",
        where=where,
        remedy="Run the command again; what arrived is kept.",
    )


class Call(Protocol):
    """One Exchange call, without the meaning of its messages: gRPC's, or a simulated one."""

    @property
    def is_cancelled(self) -> bool:
        """Return True after `cancel`."""

    def put(self, request: pb.Request | None) -> None:
        """Send a request; None ends our side."""

    def take(self, timeout_s: float) -> Reply:
        """Return the next reply, None after the last one, or the error that ended the call.

        Raises:
            queue.Empty: nothing came in time.
        """

    def cancel(self) -> None:
        """End the call at once, from any thread."""


class _Held(queue.Queue[Reply]):
    """Replies up to so many bytes, and one more."""

    def _init(self, maxsize: int) -> None:  # noqa: ARG002
        self._held: deque[tuple[Reply, int]] = deque()
        self._bytes = 0

    def _qsize(self) -> int:
        return self._bytes

    def _put(self, item: Reply) -> None:
        size = 1 + (item.ByteSize() if isinstance(item, pb.Reply) else 0)
        self._held.append((item, size))
        self._bytes += size

    def _get(self) -> Reply:
        item, size = self._held.popleft()
        self._bytes -= size
        return item


class ExchangeCall:
    """A call of gRPC; a thread reads its replies."""

    def __init__(self, stub: SourceStub) -> None:
        self._requests: queue.SimpleQueue[pb.Request | None] = queue.SimpleQueue()
        self._replies = _Held(_HELD_BYTES)
        self._cancelled = threading.Event()
        said = (*process_claim(), pieces.METADATA)
        self._call = stub.Exchange(iter(self._requests.get, None), metadata=said)
        threading.Thread(target=self._read, name="driftline-replies", daemon=True).start()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def put(self, request: pb.Request | None) -> None:
        self._requests.put(request)

    def take(self, timeout_s: float) -> Reply:
        return self._replies.get(timeout=timeout_s)

    def cancel(self) -> None:
        self._cancelled.set()
        self._call.cancel()

    def _read(self) -> None:
        try:
            for reply in self._call:
                self._hand_over(reply)
            self._hand_over(None)
        except Exception as error:
            self._hand_over(error)

    def _hand_over(self, reply: Reply) -> None:
        while not self._cancelled.is_set():
            try:
                self._replies.put(reply, timeout=0.5)
            except queue.Full:
                continue
            return


class Stream:
    """One exchange: send requests, receive replies; a context manager."""

    def __init__(self, link: SourceChannel, call: Call, relations: Iterable[str] = ()) -> None:
        self._link, self._call = link, call
        self._relations = tuple(dict.fromkeys(relations))
        self._meter, self._joined = ThroughputMeter(), pieces.PieceJoiner()
        self._advance = ProgressCheck(time.monotonic())
        self._sent_at: float | None = None  # the first request, after which a snapshot begins
        self._is_behind_another = False  # nothing came about the relation, and one ended before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._call.put(None)
        if kind is None and not self.is_abandoned:
            self._drain()
        self.abandon()

    def abandon(self) -> None:
        """Close a stream that is lost or out of step, without waiting for further replies."""
        self._link._called_at = time.monotonic()
        self._call.cancel()

    @property
    def is_abandoned(self) -> bool:
        """Return True if the stream can carry no further relation."""
        return self._call.is_cancelled

    @property
    def agreed(self) -> Agreement:
        """Return protocol and features that both agents know (`SourceChannel.agreed`)."""
        return self._link.agreed()

    @property
    def bytes_carried(self) -> int:
        """Return the bytes of all messages of the link so far, in both directions."""
        return self._link.bytes_sent + self._link.bytes_received

    def send(self, request: pb.Request) -> None:
        """Send a request; the first one names the relations that are to follow in the stream.

        Raises:
            DriftlineError: the source was asked whether it takes their names, as
                `SourceChannel.describe`.
        """
        if self._sent_at is None:
            following = [name for name in self._relations if name != request.open.relation]
            if following and self._link.has(FOLLOWING):
                request.open.features.append(FOLLOWING)
                request.open.following.extend(following[:FOLLOWING_RELATIONS_MAX])
            self._sent_at = time.monotonic()
        self._link.bytes_sent += request.ByteSize() + _FRAMING_BYTES
        self._call.put(request)

    def receive(self) -> pb.Reply:
        """Return the next reply.

        Raises:
            SourceUnreachable: the line is lost, or silent for NO_PROGRESS_S; or nothing but
                Progress came for NO_ADVANCE_S, and the rows that it counts did not grow.
            StreamEnded: another stream is needed for the relation.
            MalformedMessage: the source ended the exchange too early, or sent an invalid reply.
            DriftlineError: the source refused.
        """
        address, where = self._link.source.address, f"source {self._link.source.name}"
        while (reply := self._joined.add(self._message(address, where))) is None:
            pass
        check_reply(reply)
        kind, is_behind = reply.WhichOneof("message"), self._is_behind_another
        self._is_behind_another = kind in {"finished", "refused"}
        # What it refuses about a relation has a place. This is of its stream, which it ends.
        if is_behind and reply.refused.code == LimitExceeded.code and not reply.refused.where:
            raise _ended(where)
        now = time.monotonic()
        self._meter.add(reply, now)
        if not self._advance.accepts(reply, now):
            raise SourceUnreachable(
                f"{address} reported progress for {NO_ADVANCE_S:,.0f} s but read no row.",
                where=where,
                remedy="Ask its DBA to check the database and silence_timeout_s.",
            )
        return reply

    def _message(self, address: str, where: str) -> pb.Reply:
        """Return the next message: a reply, or a piece of one. Raises as `receive`."""
        try:
            reply = self._call.take(NO_PROGRESS_S)
        except queue.Empty:
            raise SourceUnreachable(
                f"{address} has been silent for {NO_PROGRESS_S:.0f} s.",
                where=where,
                remedy="Run the command again; what arrived is kept.",
            ) from None
        if isinstance(reply, grpc.RpcError):
            raise self._link._meaning(reply, where)
        if isinstance(reply, Exception):
            raise reply
        if reply is None and self._is_behind_another:  # it waited too long for us, and refused that
            raise _ended(where)
        if reply is None:
            raise MalformedMessage("The source ended the exchange in the middle of a relation.")
        self._link.bytes_received += reply.ByteSize() + _FRAMING_BYTES
        return reply

    @property
    def snapshot_s(self) -> float:
        """Return for how many seconds the source has held a snapshot for this stream, at most."""
        return 0.0 if self._sent_at is None else time.monotonic() - self._sent_at

    @property
    def bytes_per_s(self) -> float | None:
        """Return how fast rows came, in bytes per second; None if too few came."""
        return self._meter.bytes_per_s

    def _drain(self) -> None:
        """Wait up to CONTROL_S for the source to close its side and write its audit line."""
        ends_at = time.monotonic() + CONTROL_S
        with contextlib.suppress(queue.Empty):
            while isinstance(self._call.take(CONTROL_S), pb.Reply):
                if time.monotonic() > ends_at:
                    return
