"""A proxy before an object store that drops the conditions of requests, as some gateways do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.harness.object_stores import Bucket

_CONDITIONS = {"if-none-match", "if-match"}
_OF_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


@contextmanager
def careless(bucket: Bucket, dropped: str) -> Iterator[Bucket]:
    """Yield a bucket as it is reached by a proxy that drops one header of requests."""
    assert dropped in _CONDITIONS
    target = bucket.endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {k: v for k, v in self.headers.items() if k.lower() != dropped}
            line = http.client.HTTPConnection(target, timeout=30)
            line.request(self.command, self.path, body, headers)
            answer = line.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            for name, value in answer.getheaders():
                if name.lower() not in _OF_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            line.close()

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
