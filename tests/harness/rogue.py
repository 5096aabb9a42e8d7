"""A source that does not keep the protocol: a gRPC server over mutual TLS that says what a test
tells it, and the warehouse's own line to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
from driftline import wire_pb2 as pb
from driftline import wire_pb2_grpc

from source_agent.enrolment import enroll
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

Says = Callable[[Iterator[pb.Request]], Iterator[pb.Reply]]


class _Servicer(wire_pb2_grpc.SourceServicer):
    def __init__(self, says: Says, describes: pb.DescribeReply) -> None:
        self._says, self._describes = says, describes

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        return self._describes

    def Exchange(
        self, request_iterator: Iterator[pb.Request], context: grpc.ServicerContext
    ) -> Iterator[pb.Reply]:
        yield from self._says(request_iterator)


@contextmanager
def line_to(
    folder: Path, says: Says, describes: pb.DescribeReply | None = None
) -> Iterator[SourceChannel]:
    """The warehouse's line to a source that answers an exchange so."""
    enroll(folder, source_names=["localhost"], warehouse_name="lake")
    with answering(folder, _Servicer(says, describes or pb.DescribeReply())) as link:
        yield link


@contextmanager
def answering(
    certs: Path, servicer: wire_pb2_grpc.SourceServicer, who: str = "source"
) -> Iterator[SourceChannel]:
    """The warehouse's line to a server with the certificate of `who`, by those of `enroll`."""
    ca, certificate, key = (
        (certs / f).read_bytes() for f in ("ca.pem", f"{who}.pem", f"{who}.key")
    )
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)])
    wire_pb2_grpc.add_SourceServicer_to_server(servicer, server)
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        source = Source(
            name="erp",
            address=f"localhost:{port}",
            ca=certs / "ca.pem",
            certificate=certs / "warehouse.pem",
            key=certs / "warehouse.key",
        )
        with SourceChannel(source) as link:
            yield link
    finally:
        server.stop(0).wait()
