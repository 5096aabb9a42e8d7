"""A source agent behind a server that changes what it says: live gRPC, and a valid conversation
but for what a test changes in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from driftline import wire_pb2 as pb
from driftline import wire_pb2_grpc

from tests.harness.pair import Pair

# Returns what is said in place of a reply: of Describe and Activity exactly one.
Changes = Callable[[Any], Iterable[Any]]


class RelayedSource(wire_pb2_grpc.SourceServicer):
    """Passes each request on to a source agent, and on its replies what `changes` makes of them.

    `answered` counts the replies by the name of their message.
    """

    def __init__(self, stub: wire_pb2_grpc.SourceStub) -> None:
        self._stub = stub
        self.changes: Changes = lambda reply: [reply]

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        (said,) = self.changes(self._asked(self._stub.Describe, request, context))
        return said

    def Activity(
        self, request: pb.ActivityRequest, context: grpc.ServicerContext
    ) -> pb.ActivityReply:
        (said,) = self.changes(self._asked(self._stub.Activity, request, context))
        return said

    def Exchange(
        self, request_iterator: Iterator[pb.Request], context: grpc.ServicerContext
    ) -> Iterator[pb.Reply]:
        call = self._stub.Exchange(request_iterator)
        context.add_callback(call.cancel)
        try:
            for reply in call:
                yield from self.changes(reply)
        except grpc.RpcError:
            context.cancel()

    @staticmethod
    def _asked(ask: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return ask(request, timeout=30)
        except grpc.RpcError as error:
            call: Any = error
            context.set_trailing_metadata(call.trailing_metadata())
            context.abort(call.code(), call.details())


@contextmanager
def relayed(pair: Pair) -> Iterator[RelayedSource]:
    """Put a server before the source agent of a pair, whose warehouse asks it from now on."""
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", -1)])
    with grpc.insecure_channel(pair.address) as behind:
        source = RelayedSource(wire_pb2_grpc.SourceStub(behind))
        wire_pb2_grpc.add_SourceServicer_to_server(source, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        pair.source_lines = f'address = "127.0.0.1:{port}"\ninsecure = true'
        try:
            yield source
        finally:
            server.stop(0).wait()
