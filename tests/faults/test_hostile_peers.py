"""Peers with a certificate of the right authority that are not what they should be.

What else a client cannot do is in tests/source_agent/server, what else a source cannot do in
tests/warehouse_agent/transport; docs/threat-model.md names them all.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline import wire_pb2_grpc
from driftline.errors import DriftlineError, Unauthenticated
from driftline.wire_pb2_grpc import SourceStub

from source_agent.enrolment import enroll
from source_agent.server.service import start
from tests.harness.agents import channel, configuration, make_orders
from tests.harness.rogue import answering

MESSAGE_BYTES = 128 << 20  # unpacked, more than either side takes; packed, it is 128 kB


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    enroll(folder, source_names=["localhost", "127.0.0.1"], warehouse_name="lake")
    return folder


@pytest.fixture
def port(tmp_path: Path, certs: Path) -> Iterator[int]:
    """Of a source agent."""
    make_orders(tmp_path / "erp.db", [(1, "one")])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=certs))
    yield server.port
    server.stop()


def pair(certs: Path, who: str) -> list[bytes]:
    """Authority, key and certificate."""
    return [(certs / name).read_bytes() for name in ("ca.pem", f"{who}.key", f"{who}.pem")]


class _Answers(wire_pb2_grpc.SourceServicer):
    def __init__(self, name: Callable[[], str]) -> None:
        self._name = name

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        context.set_compression(grpc.Compression.Gzip)
        return pb.DescribeReply(relations=[self._name()])


# Certificates.
def test_the_certificate_of_a_source_asks_no_source(certs: Path, port: int) -> None:
    credentials = grpc.ssl_channel_credentials(*pair(certs, "source"))
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as over:
        with pytest.raises(grpc.RpcError) as caught:
            SourceStub(over).Describe(pb.DescribeRequest(protocol=1), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with channel(port, certs) as over:  # that of the warehouse does
        reply = SourceStub(over).Describe(pb.DescribeRequest(protocol=1), timeout=10)
    assert list(reply.relations) == ["orders"]


def test_the_certificate_of_a_warehouse_is_believed_by_no_warehouse(certs: Path) -> None:
    with (
        answering(certs, _Answers(lambda: "orders"), "warehouse") as link,
        pytest.raises(Unauthenticated, match="purpose"),
    ):
        link.describe("")
    with answering(certs, _Answers(lambda: "orders")) as link:
        assert list(link.describe("").relations) == ["orders"]


@pytest.mark.parametrize("version", ["TLSv1_1", "TLSv1_2", "TLSv1_3"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_tls_is_1_2_or_later(certs: Path, port: int, version: str) -> None:
    chosen = ssl.TLSVersion[version]
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(certs / "ca.pem")
    client.load_cert_chain(certs / "warehouse.pem", certs / "warehouse.key")
    client.set_alpn_protocols(["h2"])
    client.set_ciphers("ALL:@SECLEVEL=0")  # what OpenSSL would refuse by itself
    client.minimum_version = client.maximum_version = chosen

    def shake() -> str | None:
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            client.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
        ):
            return wrapped.version()

    if chosen < ssl.TLSVersion.TLSv1_2:
        with pytest.raises(OSError, match=r"EOF|SSL|reset"):
            shake()
    else:
        assert shake() == version.replace("_", ".")


# Messages that are small on the line and large in memory.
@pytest.mark.slow
def test_a_request_that_unpacks_to_much_is_refused(certs: Path, port: int) -> None:
    request = pb.DescribeRequest(protocol=1, relation="x" * MESSAGE_BYTES)
    credentials = grpc.ssl_channel_credentials(*pair(certs, "warehouse"))
    options = [("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(
        f"127.0.0.1:{port}", credentials, options, compression=grpc.Compression.Gzip
    ) as over:
        stub = SourceStub(over)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Describe(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in (caught.value.details() or "")
        assert stub.Describe(pb.DescribeRequest(protocol=1), timeout=10).relations


@pytest.mark.slow
def test_a_reply_that_unpacks_to_much_is_refused(certs: Path) -> None:
    with (
        answering(certs, _Answers(lambda: "x" * MESSAGE_BYTES)) as link,
        pytest.raises(DriftlineError, match="larger than max"),
    ):
        link.describe("")
