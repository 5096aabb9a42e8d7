"""The page for Prometheus: one thread, whatever clients send, and however slowly."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from driftline import metrics_server
from driftline.errors import ConfigurationError, WarehouseUnavailable
from driftline.metrics_server import REQUEST_BYTES_MAX, MetricsServer

PAGE = "rows 3\nä 1\n".encode() * 100_000


class Page:
    """A page that a test changes; an error is raised."""

    body: bytes | WarehouseUnavailable | None = PAGE

    def __call__(self) -> bytes | None:
        if isinstance(self.body, WarehouseUnavailable):
            raise self.body
        return self.body


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def server(page: Page, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 0.5)
    monkeypatch.setattr(metrics_server, "REST_S", 0.01)
    made = MetricsServer("127.0.0.1", 0, page)
    yield made
    made.stop()


def connected(server: MetricsServer) -> socket.socket:
    url = urlsplit(server.address)
    return socket.create_connection((url.hostname, url.port), timeout=60)


def answer(server: MetricsServer, request: bytes) -> bytes:
    """Return all that a request is answered."""
    with connected(server) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_a_page_is_served_whole(server: MetricsServer) -> None:
    for _ in range(3):
        with urllib.request.urlopen(server.address, timeout=60) as response:
            assert response.read() == PAGE
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_without_numbers_it_says_so(server: MetricsServer, page: Page) -> None:
    for page.body in (None, WarehouseUnavailable("the disk is gone")):
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(server.address, timeout=60)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../x HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\x00\xa5\r\n\r\n", 405),
        (b"\r\n\r\n", 405),
        (b"GET /metrics?name[]=x HTTP/1.0\r\nAccept: */*\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\n" + b"A" * REQUEST_BYTES_MAX, 431),
    ],
)
def test_other_requests(server: MetricsServer, request_: bytes, status: int) -> None:
    assert answer(server, request_).startswith(f"HTTP/1.1 {status} ".encode())


def test_who_is_silent_or_slow_is_left_and_no_thread_is_started(server: MetricsServer) -> None:
    threads = threading.active_count()
    with ExitStack() as open_, connected(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")  # and reads nothing
        for _ in range(3):
            open_.enter_context(connected(server))  # sends nothing
        dripping = open_.enter_context(connected(server))
        dripping.sendall(b"GET ")
        assert threading.active_count() == threads
        assert answer(server, b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert threading.active_count() == threads


def test_who_asks_without_end_is_answered_so_often(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "REST_S", 0.1)
    began = time.monotonic()
    for _ in range(6):
        answer(server, b"GET / HTTP/1.1\r\n\r\n")
    assert time.monotonic() - began >= 4 * 0.1


def test_a_port_that_is_taken(server: MetricsServer) -> None:
    port = urlsplit(server.address).port
    assert port is not None
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: Address already in use"):
        MetricsServer("127.0.0.1", port, lambda: b"")
    server.stop()
    MetricsServer("127.0.0.1", port, lambda: b"").stop()


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(ConfigurationError, match=r"metrics\.invalid:1: "):
        MetricsServer("metrics.invalid", 1, lambda: b"")
