"""A proxy before an object store that spoils what passes, as networks, gateways and stores do.

A fault is chosen for each request. What is lost is lost after the store did it: the client sees a
connection that ends.
"""

from __future__ import annotations

import enum
import http.client
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.harness.counted_requests import operation_of
from tests.harness.object_stores import Bucket

_CONDITIONS = {"if-none-match", "if-match"}
_OF_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}
_ERROR = "<Error><Code>{}</Code><Message>of the test</Message></Error>"
_LISTED = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>")


class Fault(enum.Enum):
    """What happens to a request; `value`: the status and code that answer it, without the store."""

    BUSY = (503, "SlowDown")
    EXPIRED = (400, "ExpiredToken")
    RESET = None  # the connection ends before the store is asked
    LOST = "lost"  # the store is asked, and its answer lost


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: what it does, the path `/BUCKET/KEY`, and its number, from 0."""

    method: str
    operation: str
    path: str
    number: int
    is_conditional: bool


Choose = Callable[[Asked], Fault | None]


@contextmanager
def proxied(
    bucket: Bucket,
    choose: Choose = lambda _: None,
    *,
    dropped: str = "",
    hidden: set[str] | None = None,
) -> Iterator[Bucket]:
    """Yield a bucket as it is reached by a proxy.

    dropped: a header that is dropped. hidden: keys that lists do not have.
    """
    target, guard, count = (
        bucket.endpoint.removeprefix("http://"),
        threading.Lock(),
        iter(range(1 << 62)),
    )

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            operation, path = operation_of(self.command, self.path)
            conditions = {name.lower() for name in self.headers} & _CONDITIONS
            with guard:
                asked = Asked(self.command, operation, path, next(count), bool(conditions))
                fault = choose(asked)
            if fault is Fault.RESET:
                self.close_connection = True
                return
            if fault is not None and fault is not Fault.LOST:
                status, code = fault.value
                self._answer(status, [], _ERROR.format(code).encode())
                return
            headers = {k: v for k, v in self.headers.items() if k.lower() != dropped}
            with closing(http.client.HTTPConnection(target, timeout=30)) as line:
                line.request(self.command, self.path, body, headers)
                answer = line.getresponse()
                data, status = answer.read(), answer.status
            if fault is Fault.LOST:
                self.close_connection = True
                return
            if hidden and operation == "list":
                data = _LISTED.sub(_shown(hidden), data)
            self._answer(status, answer.getheaders(), data)

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response(status)
            given = {name.lower(): value for name, value in headers}
            length = given.get("content-length") if self.command == "HEAD" else None
            for name, value in headers:
                if name.lower() not in _OF_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield replace(bucket, endpoint=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()


def _shown(hidden: set[str]) -> Callable[[re.Match[bytes]], bytes]:
    def shown(entry: re.Match[bytes]) -> bytes:
        key = _KEY.search(entry[0])
        return b"" if key is not None and key[1].decode() in hidden else entry[0]

    return shown


def careless(bucket: Bucket, dropped: str) -> AbstractContextManager[Bucket]:
    """Return a proxy that drops one condition of requests."""
    assert dropped in _CONDITIONS
    return proxied(bucket, dropped=dropped)
