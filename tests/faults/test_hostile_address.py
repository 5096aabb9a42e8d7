"""What listens at a source's address and has no certificate, or has one and answers for a source.

What it does before a message and beside messages: the rest is in tests/warehouse_agent/transport.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, SourceUnreachable

from source_agent.enrolment import enroll
from tests.harness.raw_server import served
from warehouse_agent.config import Source
from warehouse_agent.transport import channel, handshake
from warehouse_agent.transport.channel import SourceChannel

LIMIT_S = 0.5
FORGED = "a\norders: equal to its source\x1b[2J\r\u202e" + "x" * 5000
# A record of TLS 1.2 with the beginning of a ServerHello, whose other bytes come one by one.
BEGUN = b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb"


@contextlib.contextmanager
def dripping() -> Iterator[int]:
    """A server whose handshake never ends, although bytes come all the time; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_ending = threading.Event()

        def drip(line: socket.socket) -> None:
            with line, contextlib.suppress(OSError):
                line.sendall(BEGUN)
                while not is_ending.wait(LIMIT_S / 10):
                    line.sendall(b"\0")

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            is_ending.set()
            server.shutdown(socket.SHUT_RDWR)


def test_a_handshake_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever stands at the address holds a command for hours, with a byte now and then."""
    monkeypatch.setattr(handshake, "CONTROL_S", LIMIT_S)
    monkeypatch.setattr(channel, "CONTROL_S", LIMIT_S)
    enroll(tmp_path, source_names=["localhost"], warehouse_name="lake")
    ca, certificate, key = (tmp_path / f for f in ("ca.pem", "warehouse.pem", "warehouse.key"))
    began = time.monotonic()
    with dripping() as port:
        source = Source("erp", f"localhost:{port}", ca=ca, certificate=certificate, key=key)
        with (
            SourceChannel(source) as link,
            pytest.raises(SourceUnreachable, match="does not answer in time"),
        ):
            link.describe("")
    assert time.monotonic() - began < 20 * LIMIT_S


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_the_words_of_a_status_are_one_line(code: grpc.StatusCode) -> None:
    """gRPC carries a text with each status, of a call and of a stream, and any server sets it."""

    def refuse(_: object, context: grpc.ServicerContext) -> bytes:
        context.abort(code, FORGED)

    calls = {
        "Describe": grpc.unary_unary_rpc_method_handler(refuse),
        "Exchange": grpc.stream_stream_rpc_method_handler(refuse),
    }
    with served(calls) as source, SourceChannel(source) as link:
        with pytest.raises(DriftlineError) as of_call:
            link.describe("orders")
        with link.stream() as stream:
            stream.send(pb.Request(open=pb.Open()))
            with pytest.raises(DriftlineError) as of_stream:
                stream.receive()
            stream.abandon()
    for caught in (of_call, of_stream):
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1500
