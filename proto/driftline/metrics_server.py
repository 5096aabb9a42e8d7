"""A small HTTP server of one page, for Prometheus: plain text, no login, nothing can be sent to it.

Who reaches the port can read the page and do no more. One thread answers one connection after the
other: a request has REQUEST_BYTES_MAX and CONNECTION_S for everything, and after each connection
the thread rests for REST_S, so that whoever asks without end takes little of the processor and no
further memory, thread or file. Others wait meanwhile; WAITING_MAX of them, the rest is refused.

Rejected: the server of `prometheus_client`. It starts a thread for each connection, without a limit
of their number or their time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from driftline.errors import ConfigurationError, DriftlineError

CONNECTION_S: Final = 2.0  # for a request and its answer; a scraper waits for 10 s by default
REQUEST_BYTES_MAX: Final = 8 << 10
REST_S: Final = 0.05
WAITING_MAX: Final = 16
PATH: Final = "/metrics"
_END: Final = b"\r\n\r\n"
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"

_log = logging.getLogger("driftline")


def check_package(where: str) -> None:
    """Raise ConfigurationError if the package is missing that writes metrics; `where` they are
    asked for."""
    if not _is_installed("prometheus_client"):
        raise ConfigurationError(
            "Metrics need the package prometheus_client, which is not installed.",
            where=where,
            remedy="Run: pip install 'driftline[metrics]', or remove the table.",
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # it was loaded in a way that says nothing of it
        return False


class MetricsServer:
    """Serves a page at PATH until `stop`."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes | None]) -> None:
        """Listen. Raises ConfigurationError: the address cannot be used.

        Args:
            port: 0: any that is free.
            page: returns the page in the text format of Prometheus; None: there is none yet. It may
                raise DriftlineError. It is called in the thread of the server.
        """
        self._page = page
        self._is_over = threading.Event()
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.socket(family, socket.SOCK_STREAM)
            with contextlib.ExitStack() as failing:
                failing.callback(self._listener.close)
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._listener.bind(address)
                self._listener.listen(WAITING_MAX)
                failing.pop_all()
        except OSError as error:
            raise ConfigurationError(
                f"Nothing can listen on {host}:{port}: {error.strerror or error}.",
                where="metrics.listen",
                remedy="End the program that uses this port, or name another address.",
            ) from None
        self._thread = threading.Thread(target=self._serve, name="driftline-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Return the address of the page, `http://HOST:PORT/metrics`."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"

    def stop(self) -> None:
        """Listen no more; a connection that is answered may end."""
        self._is_over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._thread.join(CONNECTION_S)
        self._listener.close()

    def _serve(self) -> None:
        while not self._is_over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it is stopped, or the process has no file left
                self._is_over.wait(REST_S)
                continue
            with connection, contextlib.suppress(OSError):
                self._answer(connection, time.monotonic() + CONNECTION_S)
            self._is_over.wait(REST_S)

    def _answer(self, connection: socket.socket, until: float) -> None:
        """Answer one request. Raises OSError: the client left, or is too slow."""
        request = b""
        while _END not in request and len(request) <= REQUEST_BYTES_MAX:
            _limit(connection, until)
            if not (data := connection.recv(REQUEST_BYTES_MAX)):
                return
            request += data
        status, kind, body = self._reply(request)
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        _limit(connection, until)
        connection.sendall(head.encode() + body)  # the time limit is that of all its parts
        connection.shutdown(socket.SHUT_WR)

    def _reply(self, request: bytes) -> tuple[str, str, bytes]:
        """Return status, type and body of the answer to a request."""
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if _END not in request:
            return "431 Request Header Fields Too Large", _PLAIN, b"The request is too long.\n"
        if method != b"GET":
            return "405 Method Not Allowed", _PLAIN, b"Only GET is answered.\n"
        if path != PATH.encode():
            return "404 Not Found", _PLAIN, f"There is only {PATH}.\n".encode()
        try:
            page = self._page()
        except DriftlineError as error:
            _log.debug("no metrics", exc_info=error)
            page = None
        if page is None:
            return "503 Service Unavailable", _PLAIN, b"There are no numbers yet.\n"
        return "200 OK", _TYPE, page


def _limit(connection: socket.socket, until: float) -> None:
    """Let the next call of a socket take no longer than until then."""
    connection.settimeout(max(until - time.monotonic(), 1e-3))
