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
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from driftline.peer_text import one_line
from driftline.settings.declarations import is_loopback

from warehouse_agent.config.notify import key_of
from warehouse_agent.monitoring.messages import NotDelivered
from warehouse_agent.report import release

SIGNATURE: Final = "Driftline-Signature"
_SAID_CHARACTERS_MAX: Final = 200  # of the last line of a program's stderr
_SAID_BYTES_MAX: Final = 4096


def to_address(
    url: str,
    body: bytes | None,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
) -> str:
    """Send a body as JSON by POST, or fetch if it is None; return the answer in words.

    Args:
        timeout_s: for each of the steps: to connect, to send, to answer.

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
    ]
    if parts.scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
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
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise NotDelivered(f"{name} does not start: {error.strerror}") from None
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
        if process.returncode:
            raise NotDelivered(f"{name} ended with {process.returncode}{_last_line(said)}")
    return f"{name} ended with 0"


def signature(file: Path, where: str, body: bytes, now: float) -> dict[str, str]:
    """Return the header that signs a body: HMAC-SHA256 of the time, a dot and the body.

    Raises:
        ConfigurationError: the file of the key cannot be read, or is empty.
    """
    at = str(int(now))
    made = hmac.new(key_of(file, where), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {SIGNATURE: f"t={at},v1={made}"}


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


def _last_line(said: Any) -> str:
    """Return the last line of a file of an error, after a colon; empty if it has none."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(size - _SAID_BYTES_MAX, 0))
    lines = said.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f": {one_line(last.strip(), _SAID_CHARACTERS_MAX)}" if last else ""
