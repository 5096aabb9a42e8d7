"""The line to a source agent: one channel, bounded waits, every byte counted.

Thin: it moves messages and turns gRPC's failures into ours; the conversation is `exchange.py`. A
stream's replies are read by a thread of their own, so that a peer which falls silent is given up
after NO_PROGRESS_S, and its heartbeats keep a long scan alive. Keep-alive settings are those
measured ones: without `ping_timeout_ms` a half-open line takes a minute to notice.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from types import TracebackType
from typing import cast

import grpc
from driftline import wire_pb2 as pb
from driftline.errors import (
    GRPC_STATUS,
    ConfigurationError,
    DriftlineError,
    InternalError,
    MalformedMessage,
    NotNow,
    SourceUnreachable,
    Unauthenticated,
    from_code,
)
from driftline.limits import (
    CONTROL_S,
    NO_PROGRESS_S,
    RECEIVE_BYTES_MAX_WAREHOUSE,
)
from driftline.negotiation import Agreement, agree, is_negotiable
from driftline.settings import read_secret
from driftline.wire_pb2_grpc import SourceStub

from warehouse_agent.configure import Source
from warehouse_agent.meter import Meter

_OPTIONS = [
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX_WAREHOUSE),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
]
REFUSED_METADATA = "driftline-refused-bin"  # trailing metadata of a Describe that failed
_FRAMING_BYTES = 5  # gRPC's own prefix of a message
_REPLIES_HELD = 4  # of up to 1 MiB: flow control reaches the source behind them

Reply = pb.Reply | Exception | None


class Link:
    """A channel to one source. Use as a context manager."""

    def __init__(self, source: Source) -> None:
        self.source = source
        options: list[tuple[str, object]] = list(_OPTIONS)
        if source.insecure:
            self._channel = grpc.insecure_channel(source.address, options)
        else:
            if source.server_name:
                options.append(("grpc.ssl_target_name_override", source.server_name))
            ca, certificate, key = certificates(source)
            credentials = grpc.ssl_channel_credentials(ca, key, certificate)
            self._channel = grpc.secure_channel(source.address, credentials, options)
        self._stub: SourceStub = SourceStub(self._channel)  # type: ignore[no-untyped-call]
        self._agreed: Agreement | None = None

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def round_trip_s(self) -> float | None:
        """A round trip of the line: how long a TCP connection takes that is closed at once. None
        where none is made."""
        host, port = host_and_port(self.source)
        began = time.monotonic()
        try:
            with socket.create_connection((host, port), CONTROL_S):
                return time.monotonic() - began
        except OSError:
            return None

    def describe(self, relation: str) -> pb.DescribeReply:
        """The description of a relation; of an empty name, the names of all.

        Fields of a newer source are ignored; what it speaks is noted for `agreed`.

        Raises:
            DriftlineError: the source refused, nothing answers, or no protocol is common.
        """
        protocol = (self._agreed or Agreement()).protocol
        request = pb.DescribeRequest(protocol=protocol, relation=relation)
        try:
            reply: pb.DescribeReply = self._stub.Describe(request, timeout=CONTROL_S)
        except grpc.RpcError as error:
            raise self._meaning(error, relation) from None
        self._agreed = agree(reply.protocols, reply.features)
        return reply

    def agreed(self) -> Agreement:
        """Return what both sides speak. The source is asked once, and only if there is a choice.

        Raises:
            DriftlineError: as `describe`.
        """
        if self._agreed is None and is_negotiable():
            self.describe("")
        return self._agreed or Agreement()

    def stream(self) -> Stream:
        """A new exchange."""
        return Stream(self, self._stub)

    def _meaning(self, error: grpc.RpcError, where: str) -> DriftlineError:
        """What a gRPC failure means to the user."""
        call = cast("grpc.Call", error)
        code, text = call.code(), call.details() or ""
        for key, value in call.trailing_metadata() or ():
            if key == REFUSED_METADATA and isinstance(value, bytes):
                return refusal(pb.Refused.FromString(value))
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return diagnose(self.source) or SourceUnreachable(
                f"The line to {self.source.address} was lost ({text or code.name.lower()}).",
                where=f"source {self.source.name}",
                remedy="Run the command again; what arrived is kept.",
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in text:
            # gRPC's own refusal, or a proxy's: too much at once, which passes.
            return NotNow(f"The source is busy: {text}", where=where)
        for known, status in GRPC_STATUS.items():
            if status == code.name:
                return known(text, where=where)
        return InternalError(f"The source agent failed: {text}", where=where)


def refusal(refused: pb.Refused) -> DriftlineError:
    """The error that the source refused with."""
    return from_code(
        refused.code,
        refused.message,
        remedy=refused.remedy,
        where=refused.where,
        details=dict(refused.details),
    )


class Stream:
    """One exchange: send requests, receive replies. Use as a context manager."""

    def __init__(self, link: Link, stub: SourceStub) -> None:
        self._link = link
        self._requests: queue.SimpleQueue[pb.Request | None] = queue.SimpleQueue()
        self._replies: queue.Queue[Reply] = queue.Queue(_REPLIES_HELD)
        self._closed = threading.Event()
        self.bytes_sent = self.bytes_received = 0
        self._meter = Meter()
        self._call = stub.Exchange(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, name="driftline-replies", daemon=True)
        self._reader.start()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._requests.put(None)
        if error is None and not self._closed.is_set():
            self._drain()
        self.abandon()

    def abandon(self) -> None:
        """It is lost or out of step: nothing that may still be on its way is waited for."""
        self._closed.set()
        self._call.cancel()

    @property
    def agreed(self) -> Agreement:
        """What both sides speak: `Link.agreed`."""
        return self._link.agreed()

    def send(self, request: pb.Request) -> None:
        self.bytes_sent += request.ByteSize() + _FRAMING_BYTES
        self._requests.put(request)

    def receive(self) -> pb.Reply:
        """The next reply.

        Raises:
            SourceUnreachable: the line is lost, or silent for NO_PROGRESS_S.
        """
        try:
            reply = self._replies.get(timeout=NO_PROGRESS_S)
        except queue.Empty:
            raise SourceUnreachable(
                f"{self._link.source.address} has been silent for {NO_PROGRESS_S:.0f} s.",
                where=f"source {self._link.source.name}",
                remedy="Run the command again; what arrived is kept.",
            ) from None
        if isinstance(reply, grpc.RpcError):
            raise self._link._meaning(reply, f"source {self._link.source.name}")
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            raise MalformedMessage("The source ended the exchange in the middle of a relation.")
        self.bytes_received += reply.ByteSize() + _FRAMING_BYTES
        self._meter.hear(reply, time.monotonic())
        return reply

    @property
    def bytes_per_s(self) -> float | None:
        """How fast rows came, where there were enough to tell."""
        return self._meter.bytes_per_s

    def _read(self) -> None:
        try:
            for reply in self._call:
                self._hand_over(reply)
            self._hand_over(None)
        except Exception as error:
            self._hand_over(error)

    def _hand_over(self, reply: Reply) -> None:
        while not self._closed.is_set():
            try:
                self._replies.put(reply, timeout=0.5)
            except queue.Full:
                continue
            return

    def _drain(self) -> None:
        """Wait for the source to close its side, so that its audit line is written."""
        for reply in iter(self._next_or_none, None):
            if isinstance(reply, Exception):
                return

    def _next_or_none(self) -> Reply:
        try:
            return self._replies.get(timeout=CONTROL_S)
        except queue.Empty:
            return None


def certificates(source: Source) -> tuple[bytes, bytes, bytes]:
    """The authority, our certificate and our key, in PEM.

    Raises:
        ConfigurationError: a file cannot be read, or others can read the key.
    """
    read = []
    files = (("ca", source.ca), ("certificate", source.certificate), ("key", source.key))
    for setting, path in files:
        assert path is not None
        try:
            data, exposed = read_secret(path)
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error.strerror}.",
                where=f"sources.{source.name}.{setting}",
                remedy="`driftline-source enroll` makes certificates for both sides.",
            ) from None
        if exposed and setting == "key":
            raise ConfigurationError(
                f"The key {path} {exposed}.",
                where=f"sources.{source.name}.{setting}",
                remedy=f"Run: chmod 600 {path}",
            )
        read.append(data)
    return read[0], read[1], read[2]


def diagnose(source: Source) -> DriftlineError | None:
    """Why nothing answers, from a plain TCP connection and a TLS handshake; None: it would now.

    gRPC reports a refused certificate as a retryable "Socket closed".
    """
    where = f"source {source.name}"
    host, port = host_and_port(source)
    try:
        with socket.create_connection((host, port), CONTROL_S) as plain:
            return _handshake(source, host, plain)
    except ssl.SSLError as error:
        return Unauthenticated(
            f"TLS with {source.address} failed: {error.reason or error}.",
            where=where,
            remedy="Check `ca`, `certificate` and `key` (issued by the source's `client_ca`), "
            "the name in the source's certificate and the dates.",
        )
    except TimeoutError:
        reason = "does not answer in time"
    except OSError as error:
        reason = error.strerror or str(error)
    return SourceUnreachable(
        f"Nothing answers at {source.address}: {reason}.",
        where=where,
        remedy="Check the address, the firewall and that `driftline-source serve` runs.",
    )


def host_and_port(source: Source) -> tuple[str, int]:
    """The host, without brackets, and the port of a source's address."""
    name, _, port = source.address.rpartition(":")
    return name.strip("[]"), int(port)


def _handshake(source: Source, host: str, plain: socket.socket) -> DriftlineError | None:
    if source.insecure:
        return None
    certificates(source)
    context = ssl.create_default_context(cafile=str(source.ca))
    context.load_cert_chain(str(source.certificate), str(source.key))
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(plain, server_hostname=source.server_name or host) as secure:
        # TLS 1.3 refuses a client only after its handshake: wait for the server's first record.
        # gRPC servers say nothing and close the line.
        if secure.recv(1):
            return None
    return Unauthenticated(
        f"{source.address} ended the line when it had seen our certificate.",
        where=f"source {source.name}",
        remedy="Check that `certificate` was issued by the source's `client_ca` and its dates.",
    )
