"""How the calls of a client are registered with gRPC, and how one that fails is ended.

gRPC takes a thread of the pool for each unary call and waits in it, without a time limit, for the
request, before the handler runs: a client that opens calls and sends nothing takes every thread.
Calls with one request are therefore registered as calls with a stream of requests, which look the
same on the wire. Their handlers run at once, take a place, and wait for the message for OPEN_S.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn, TypeVar

import grpc
from driftline import wire_pb2 as pb
from driftline import wire_pb2_grpc
from driftline.errors import GRPC_STATUS, DriftlineError, LimitExceeded, MalformedMessage
from driftline.limits import HEALTH_RPCS_MAX, HEALTH_RPCS_PER_CLIENT_MAX, OPEN_S
from grpc_health.v1 import health, health_pb2

from source_agent.budgets.places import Places, too_many
from source_agent.server.refusal import refusal

# Trailing metadata of a call that failed: code and remedy as ASCII, and the whole Refused.
CODE_METADATA, REMEDY_METADATA = "driftline-code", "driftline-remedy"
REFUSED_METADATA = "driftline-refused-bin"


_M = TypeVar("_M")


def add_handlers(
    server: grpc.Server,
    servicer: wire_pb2_grpc.SourceServicer,
    vital: health.HealthServicer,
    label_of: Callable[[grpc.ServicerContext], str],
) -> None:
    """Register the two calls and those of health; `label_of` returns the client of a call."""
    describe = grpc.stream_unary_rpc_method_handler(
        servicer.Describe, pb.DescribeRequest.FromString, pb.DescribeReply.SerializeToString
    )
    exchange = grpc.stream_stream_rpc_method_handler(
        servicer.Exchange, pb.Request.FromString, pb.Reply.SerializeToString
    )
    asked = health_pb2.HealthCheckRequest.FromString
    said = health_pb2.HealthCheckResponse.SerializeToString
    check = grpc.stream_unary_rpc_method_handler(_check(vital, label_of), asked, said)
    # It waits in the pool of health alone, where only other watches wait for it.
    watch = grpc.unary_stream_rpc_method_handler(vital.Watch, asked, said)
    source = {"Describe": describe, "Exchange": exchange}
    probes = {"Check": check, "Watch": watch}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("driftline.Source", source),
            grpc.method_handlers_generic_handler(health.SERVICE_NAME, probes),
        )
    )


def one_message(requests: Iterator[_M], context: grpc.ServicerContext) -> _M:
    """Return the message of a call that has one; the call is cancelled when it does not come.

    Raises:
        LimitExceeded: it did not come in OPEN_S. MalformedMessage: the client sent none.
        grpc.RpcError: the client left.
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
    except grpc.RpcError:
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    # gRPC ends a call that is cancelled by an error, or as if the client had sent all it would.
    if is_late.is_set():
        raise LimitExceeded(f"The client did not say in {OPEN_S:g} s what it asks.")
    raise MalformedMessage("A call came without its request.")


def abort(context: grpc.ServicerContext, error: DriftlineError) -> NoReturn:
    """End a call outside an exchange: a gRPC status, and the whole error in trailing metadata."""
    kinds = (k for k in type(error).__mro__ if k in GRPC_STATUS)
    status = getattr(grpc.StatusCode, GRPC_STATUS.get(next(kinds, type(error)), "INTERNAL"))
    context.set_trailing_metadata(
        (
            (CODE_METADATA, error.code),
            (REMEDY_METADATA, error.remedy.encode("ascii", "replace").decode()),
            (REFUSED_METADATA, refusal(error).SerializeToString()),
        )
    )
    context.abort(status, error.message)
    raise AssertionError("abort raises")


def _check(
    vital: health.HealthServicer, label_of: Callable[[grpc.ServicerContext], str]
) -> Callable[..., health_pb2.HealthCheckResponse]:
    places = Places(
        lambda: HEALTH_RPCS_MAX,
        partial(too_many, "calls"),
        of_one=lambda: HEALTH_RPCS_PER_CLIENT_MAX,
    )

    def check(
        requests: Iterator[health_pb2.HealthCheckRequest], context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        try:
            with places.taken(label_of(context)):
                request = one_message(requests, context)
        except DriftlineError as error:
            abort(context, error)
        reply: health_pb2.HealthCheckResponse = vital.Check(request, context)
        return reply

    return check
