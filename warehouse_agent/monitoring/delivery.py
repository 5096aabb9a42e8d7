"""Deliver bytes to a program or an address, within a time; what goes wrong is one line.

No redirect is followed: a message goes where the configuration says, or nowhere. Proxies are those
of the environment (`https_proxy`, `no_proxy`), certificates those that the machine trusts
(`SSL_CERT_FILE`). An error names the host, never the address, which may be a secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import os
import select
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from driftline.peer_text import one_line
from driftline.settings.declarations import is_loopback

from warehouse_agent.config.notify import key_of
from warehouse_agent.monitoring.messages import NotDelivered
from warehouse_agent.report import release

SIGNATURE: Final = "Driftline-Signature"
ANSWER_TIMES: Final = 3  # the time limit of a piece, for a whole request and the head of its answer
_SAID_CHARACTERS_MAX: Final = 200  # of the last line of a program's stderr
_SAID_BYTES_MAX: Final = 4096
_PIPE_BYTES: Final = 64 << 10  # as much as a pipe holds
_POLL_MS: Final = 50


def to_address(
    url: str,
    body: bytes | None,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
) -> str:
    """Send a body as JSON by POST, or fetch if it is None; return the answer in words.

    Args:
        timeout_s: to connect, and for each piece that is sent or answered; ANSWER_TIMES as much for
            all of it, should the pieces be small.

    Raises:
        NotDelivered: nothing answers in time, or the answer is none of 200 to 299.
    """
    parts = urlsplit(url)
    sent = {"User-Agent": f"driftline/{release()}", **(headers or {})}
    if body is not None:
        sent["Content-Type"] = "application/json"
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({} if is_loopback(parts.hostname or "") else None),
        _NoRedirect(),
        _HttpsInTime(ssl.create_default_context()) if parts.scheme == "https" else _HttpInTime(),
    ]
    opener = urllib.request.build_opener(*handlers)
    try:
        request = urllib.request.Request(url, body, sent)  # noqa: S310 - https, as configured
        with opener.open(request, timeout=timeout_s) as answer:
            return f"{parts.hostname} answered {answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            hint = "; redirects are not followed" if 300 <= error.code < 400 else ""
            why = f"{parts.hostname} answered {error.code}{hint}"
    except urllib.error.URLError as error:
        why = f"{parts.hostname}: {_reason(error.reason, timeout_s)}"
    except (OSError, ValueError, http.client.HTTPException) as error:  # while it answered
        why = f"{parts.hostname}: {_reason(error, timeout_s)}"
    raise NotDelivered(why)


def to_program(argv: Sequence[str], body: bytes, timeout_s: float, folder: Path) -> str:
    """Run a program with a body on its standard input; return in words that it went well.

    It has a process group of its own, which is killed at the time limit. It starts in `folder`.

    Raises:
        NotDelivered: it does not start, does not end in time, or its exit code is not 0.
    """
    name = Path(argv[0]).name
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise NotDelivered(f"{name} does not start: {error.strerror}") from None
    assert process.stderr is not None
    said, process.stderr = _End(process.stderr), None
    try:
        process.communicate(body, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise NotDelivered(f"{name} did not end in {timeout_s:g} s, and was killed") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        said.stop()
    if process.returncode:
        raise NotDelivered(f"{name} ended with {process.returncode}{_last_line(said.kept)}")
    return f"{name} ended with 0"


def signature(file: Path, where: str, body: bytes, now: float) -> dict[str, str]:
    """Return the header that signs a body: HMAC-SHA256 of the time, a dot and the body.

    Raises:
        ConfigurationError: the file of the key cannot be read, or is empty.
    """
    at = str(int(now))
    made = hmac.new(key_of(file, where), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {SIGNATURE: f"t={at},v1={made}"}


class _InTime(http.client.HTTPConnection):
    """A connection that is cut at a limit, whatever the other side sends, byte by byte."""

    _cut: threading.Timer | None = None

    def connect(self) -> None:
        """Connect, and let the time run."""
        super().connect()
        assert isinstance(self.timeout, int | float)
        self._cut = threading.Timer(self.timeout * ANSWER_TIMES, _end, (self.sock,))
        self._cut.daemon = True
        self._cut.start()

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the head of the answer, in time."""
        try:
            return super().getresponse()
        finally:
            if self._cut is not None:
                self._cut.cancel()


class _TlsInTime(_InTime, http.client.HTTPSConnection):
    """The same with TLS."""


class _HttpInTime(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a request."""
        return self.do_open(_InTime, req)


class _HttpsInTime(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trusted = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a request."""
        return self.do_open(_TlsInTime, req, context=self._trusted)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes an answer that redirects for what it is."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def _reason(error: object, timeout_s: float) -> str:
    """Return why nothing was answered. A text of others may hold the address."""
    match error:
        case TimeoutError():
            return f"no answer in {timeout_s:g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {one_line(error.verify_message, 200)}"
        case OSError(strerror=str(said)):
            return one_line(said, 200)
        case _:
            return f"no answer of HTTP ({type(error).__name__})"


class _End:
    """The end of what a program writes to its standard error, which is read as it comes.

    Rejected: a temporary file, which a program that writes without end fills a disk with.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self.kept = b""
        self._pipe, self._is_over = pipe, threading.Event()
        os.set_blocking(pipe.fileno(), False)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read what is there, and no more: a child that was left behind may hold the pipe."""
        self._is_over.set()
        self._thread.join()

    def _read(self) -> None:
        ready, is_last = select.poll(), False
        with self._pipe:
            ready.register(self._pipe, select.POLLIN)
            while not is_last:
                is_last = self._is_over.is_set()
                ready.poll(0 if is_last else _POLL_MS)
                try:
                    data = os.read(self._pipe.fileno(), _PIPE_BYTES)
                except BlockingIOError:  # nothing is there now
                    continue
                is_last = is_last or not data
                self.kept = (self.kept + data)[-_SAID_BYTES_MAX:]


def _last_line(said: bytes) -> str:
    """Return the last line of an error, after a colon; empty if it has none."""
    lines = said.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f": {one_line(last.strip(), _SAID_CHARACTERS_MAX)}" if last else ""
