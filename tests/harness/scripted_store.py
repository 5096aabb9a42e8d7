"""A server of S3's protocol that answers every request alike, as AWS would in a state that no
server of the registries has: a clock that is wrong, a bucket in another region."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def scripted_store(status: int, code: str = "", message: str = "") -> Iterator[str]:
    """Yield the endpoint of a server that answers with a status, and a code and message if any."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
