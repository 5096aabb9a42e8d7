"""Register the calls with gRPC, receive their single request, and end those that fail.

For each unary call gRPC blocks a thread of the pool, without a time limit, until the request comes;
a client that opens calls and sends nothing would take every thread. So calls with one request are
registered as calls with a stream of requests, which look the same on the wire. Their handlers run
at once, take a place, and wait OPEN_S for the message.

Every error text that leaves the source passes `refusal`. A `DriftlineError` whose texts hold only
what the request named crosses as it is. Of another one, which a database, a driver or the DBA's
file wrote parts of, the client gets our own words and a reference, under which the log of this
machine has it in full (`DriftlineError.crossing`). Any other exception is an internal error: the
client gets a reference, and its text, which nobody reviewed, stays in the log.

Nothing of a call outlives it. An exception holds the frames that it passed, and so their requests
and gRPC's call; if one of these frames holds the exception, or gRPC's state of the call does, all
of it stays until the cyclic garbage collector runs, and gRPC counts the stream as open meanwhile.
So exceptions are released where they are caught (`known`, `abort`), and gRPC's own, which it keeps
with the call, become `ExchangeStopped` where they arise (`parsed`).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NoReturn, Protocol, TypeVar

import blake3
import grpc
from driftline import wire_pb2 as pb
from driftline.errors import (
    GRPC_STATUS,
    DriftlineError,
    InternalError,
    LimitExceeded,
    MalformedMessage,
)
from driftline.limits import (
    HEALTH_RPCS_MAX,
    HEALTH_RPCS_PER_CLIENT_MAX,
    LOCAL_LOG_S,
    LOCAL_REFERENCES_MAX,
    MESSAGE_PARTS_MAX,
    NAME_BYTES_MAX,
    OPEN_S,
    WATCH_RPCS_MAX,
    WATCH_RPCS_PER_CLIENT_MAX,
)
from driftline.peer_text import one_line
from driftline.wire import pieces, same_machine
from driftline.wire.message_parts import check_parts
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2

from source_agent.budgets.budget import ExchangeStopped
from source_agent.budgets.places import fixed_places
from source_agent.scan.processors import machine

SERVICES = ("", "driftline.Source")  # whose health is known
_UNKNOWN = "unknown"  # stands for every other one
# Trailing metadata of a call that failed: code and remedy as ASCII, and the whole Refused.
CODE_METADATA, REMEDY_METADATA = "driftline-code", "driftline-remedy"
REFUSED_METADATA = "driftline-refused-bin"

_M = TypeVar("_M")
_P = TypeVar("_P", bound=Message)
_log = logging.getLogger("driftline.source")


class CallHandlers(Protocol):
    """The servicer: one method for each call; requests come as a stream."""

    def Describe(
        self, requests: Iterator[pb.DescribeRequest], context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        """Answer a Describe."""

    def Activity(
        self, requests: Iterator[pb.ActivityRequest], context: grpc.ServicerContext
    ) -> pb.ActivityReply:
        """Answer an Activity."""

    def Exchange(
        self, request_iterator: Iterator[pb.Request], context: grpc.ServicerContext
    ) -> Iterator[pb.Reply]:
        """Answer an Exchange."""


def add_handlers(
    server: grpc.Server,
    servicer: CallHandlers,
    vital: health.HealthServicer,
    label_of: Callable[[grpc.ServicerContext], str],
) -> None:
    """Register the three calls and those of health; `label_of` returns the client of a call."""
    describe = grpc.stream_unary_rpc_method_handler(
        lambda requests, context: servicer.Describe(parsed(requests, pb.DescribeRequest), context),
        response_serializer=pb.DescribeReply.SerializeToString,
    )
    activity = grpc.stream_unary_rpc_method_handler(
        lambda requests, context: servicer.Activity(parsed(requests, pb.ActivityRequest), context),
        response_serializer=pb.ActivityReply.SerializeToString,
    )
    exchange = grpc.stream_stream_rpc_method_handler(
        lambda requests, context: servicer.Exchange(parsed(requests, pb.Request), context),
        response_serializer=pb.Reply.SerializeToString,
    )
    serialize = health_pb2.HealthCheckResponse.SerializeToString
    probing = _Probing(vital, label_of)
    check = grpc.stream_unary_rpc_method_handler(probing.check, response_serializer=serialize)
    watch = grpc.stream_stream_rpc_method_handler(probing.watch, response_serializer=serialize)
    source = {"Describe": describe, "Exchange": exchange, "Activity": activity}
    probes = {"Check": check, "Watch": watch}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("driftline.Source", source),
            grpc.method_handlers_generic_handler(health.SERVICE_NAME, probes),
        )
    )


def parsed(requests: Iterator[bytes], kind: type[_P]) -> Iterator[_P]:
    """Yield the messages of a call.

    gRPC would parse them as well, but it never ends a call whose request it cannot parse: after 16
    of them the connection carries no other call.

    Raises MalformedMessage for bytes that are none or too many parts, ExchangeStopped if the client
    left.
    """
    try:
        for data in requests:
            check_parts(data, kind, MESSAGE_PARTS_MAX)
            try:
                message = kind.FromString(data)
            except DecodeError:
                raise MalformedMessage(f"{len(data):,} bytes are no {kind.__name__}.") from None
            del data
            yield message
            del message
    except grpc.RpcError as error:
        release(error)
        raise ExchangeStopped from None


def one_message(requests: Iterator[_M], context: grpc.ServicerContext) -> _M:
    """Return the only request of a call; cancel the call if none comes within OPEN_S.

    Raises LimitExceeded then, MalformedMessage if the client ended the call without a request, and
    ExchangeStopped if it left.
    """
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        context.cancel()  # type: ignore[no-untyped-call]

    timer = threading.Timer(OPEN_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        for message in requests:
            return message
    except ExchangeStopped:
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    # The stream of a cancelled call ends with an error, or as if the client had ended it.
    if is_late.is_set():
        raise LimitExceeded(f"The client sent no request within {OPEN_S:g} s.")
    raise MalformedMessage("A call ended without a request.")


def neighbour(context: grpc.ServicerContext) -> int | None:
    """Return the process of a warehouse that runs on this machine, as its call says; None: it runs
    elsewhere, or does not say."""
    for key, value in context.invocation_metadata() or ():
        if key == same_machine.METADATA and isinstance(value, bytes):
            return same_machine.process_of(value, machine())
    return None


def joins_pieces(context: grpc.ServicerContext) -> bool:
    """Return True if the client of a call joins the pieces of a reply."""
    return pieces.METADATA in map(tuple, context.invocation_metadata() or ())


def abort(context: grpc.ServicerContext, error: DriftlineError, relation: str = "") -> NoReturn:
    """End a call outside an exchange by a gRPC status, with the error in trailing metadata."""
    refused = refusal(error, relation)
    release(error)
    names = (GRPC_STATUS[kind] for kind in type(error).__mro__ if kind in GRPC_STATUS)
    status = getattr(grpc.StatusCode, next(names, "INTERNAL"))
    context.set_trailing_metadata(
        (
            (CODE_METADATA, refused.code),
            (REMEDY_METADATA, refused.remedy.encode("ascii", "replace").decode()),
            (REFUSED_METADATA, refused.SerializeToString()),
        )
    )
    context.abort(status, refused.message)
    raise AssertionError("abort raises")


def known(problem: Exception) -> DriftlineError:
    """Return a DriftlineError as it is; log any other and return InternalError with a reference.

    The problem is released.
    """
    if isinstance(problem, DriftlineError):
        if problem.is_local:
            _kept.reference(problem)  # now, while it has its traceback
        release(problem)
        return problem
    reference = secrets.token_hex(4)
    _log.error("unexpected error %s", reference, exc_info=problem)
    release(problem)
    return InternalError(
        f"The source agent met an internal error; its log has it under {reference}.",
        details={"reference": reference},
    )


def release(problem: BaseException) -> None:
    """Let go of the frames that an exception, its causes and its contexts passed."""
    left, released = [problem], set[int]()
    while left:
        error = left.pop()
        if id(error) not in released:
            released.add(id(error))
            error.__traceback__ = None
            left += [e for e in (error.__cause__, error.__context__) if e is not None]


def refusal(
    error: DriftlineError, relation: str = "", description: pb.Description | None = None
) -> pb.Refused:
    """Return the error as a message; what may not leave this machine is logged instead.

    relation: that the request named, the place of an error that keeps its own to itself.
    """
    if error.is_local:
        error = error.crossing(_kept.reference(error), one_line(relation, NAME_BYTES_MAX))
    return pb.Refused(
        code=error.code,
        message=error.message,
        remedy=error.remedy,
        where=error.where,
        details=error.details,
        description=description,
    )


class _Kept:
    """Texts that stay in the log: each is logged once in LOCAL_LOG_S, under one reference.

    The reference is keyed by the process, so that a client cannot try names against it.
    """

    def __init__(self) -> None:
        self._key, self._lock = secrets.token_bytes(32), threading.Lock()
        self._logged: OrderedDict[str, float] = OrderedDict()

    def reference(self, error: DriftlineError) -> str:
        """Return the reference of an error, which the log has, with --debug and its traceback."""
        text = str(error)
        reference = blake3.blake3(text.encode(), key=self._key).hexdigest(length=4)
        now = time.monotonic()
        with self._lock:
            last = self._logged.get(reference)
            is_due = last is None or now - last >= LOCAL_LOG_S
            if is_due:
                self._logged[reference] = now
                self._logged.move_to_end(reference)
                if len(self._logged) > LOCAL_REFERENCES_MAX:
                    self._logged.popitem(last=False)
        if is_due:
            traced = error if _log.isEnabledFor(logging.DEBUG) else None
            _log.warning("refused, %s: %s", reference, text, exc_info=traced)
        return reference


_kept = _Kept()


class _Probing:
    """Answers the two calls of health. A watch holds a place and a thread while its client stays.

    The servicer keeps the name of each service that was ever watched, so it is given no name that
    a client made up.
    """

    def __init__(
        self, vital: health.HealthServicer, label_of: Callable[[grpc.ServicerContext], str]
    ) -> None:
        self._vital, self._label_of = vital, label_of
        self._checks = fixed_places("calls", HEALTH_RPCS_MAX, HEALTH_RPCS_PER_CLIENT_MAX)
        self._watches = fixed_places("watches", WATCH_RPCS_MAX, WATCH_RPCS_PER_CLIENT_MAX)

    def check(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answer a Check."""
        asked = parsed(requests, health_pb2.HealthCheckRequest)
        try:
            with self._checks.taken(self._label_of(context)):
                request = one_message(asked, context)
        except ExchangeStopped:
            return health_pb2.HealthCheckResponse()
        except DriftlineError as error:
            abort(context, error)
        reply: health_pb2.HealthCheckResponse = self._vital.Check(request, context)
        return reply

    def watch(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        """Answer a Watch: the state of a service now, and whenever it changes."""
        asked = parsed(requests, health_pb2.HealthCheckRequest)
        try:
            with self._watches.taken(self._label_of(context)):
                service = one_message(asked, context).service
                known = service if service in SERVICES else _UNKNOWN
                yield from self._vital.Watch(health_pb2.HealthCheckRequest(service=known), context)
        except ExchangeStopped:
            return
        except DriftlineError as error:
            abort(context, error)
