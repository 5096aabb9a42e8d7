"""Receivers of messages, for tests: real HTTP servers that keep what they get, and judge it.

What a receiver makes of a message is written here anew, from the documents of those who run such
receivers: nothing is taken from the product. No pytest here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OLD_S_MAX = 300.0  # of a signature


@dataclass(frozen=True)
class Request:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """A receiver that runs. `answer`: its next status; 0: none, it hangs until it is stopped."""

    url: str
    answer: int = 200
    location: str = ""
    requests: list[Request] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def events(self) -> list[tuple[str, str]]:
        """Kinds and names of all that it was told."""
        told = [one.json["events"] for one in self.requests]
        return [(e["event"], name) for events in told for e in events for name in e["tables"]]


@contextmanager
def receiving(certificates: Path | None = None, host: str = "127.0.0.1") -> Iterator[Receiver]:
    """Run a receiver; with `certificates`, a folder with source.pem and source.key, by https."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            headers = {name.lower(): text for name, text in self.headers.items()}
            sent = Request(self.command, self.path, headers, self.rfile.read(length))
            receiver.requests.append(sent)
            if receiver.answer == 0:
                receiver.stopped.wait()
                return
            self.send_response(receiver.answer)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    scheme = "http"
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "source.pem", certificates / "source.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    receiver = Receiver(f"{scheme}://{host}:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


def is_signed(request: Request, key: bytes, now: float | None = None) -> bool:
    """Check a signature as the page of notifications says."""
    fields = dict(part.split("=", 1) for part in request.headers["driftline-signature"].split(","))
    made = hmac.new(key, f"{fields['t']}.".encode() + request.body, hashlib.sha256).hexdigest()
    is_young = abs((time.time() if now is None else now) - int(fields["t"])) < OLD_S_MAX
    return is_young and hmac.compare_digest(made, fields["v1"])


def check_slack(body: dict[str, Any]) -> str:
    """Return the text that Slack shows of a message to an incoming webhook; assert its form.

    https://docs.slack.dev/messaging/formatting-message-text: `&`, `<` and `>` are escaped, and a
    message has at most 40,000 characters. /messaging/unfurling-links-in-messages: it fetches what a
    message links to, unless it is told not to.
    """
    known = {"text", "blocks", "mrkdwn", "attachments", "unfurl_links", "unfurl_media"}
    assert body.keys() <= known
    assert body["unfurl_links"] is body["unfurl_media"] is False
    text = body["text"]
    assert isinstance(text, str)
    assert 0 < len(text) <= 40_000
    assert body["mrkdwn"] is False
    assert not re.search(r"[<>]|&(?!(amp|lt|gt);)", text), "markup"
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def check_teams(body: dict[str, Any]) -> str:
    """Return the text that Teams shows of a message to a workflow's webhook; assert its form.

    https://learn.microsoft.com/connectors/teams: a `message` with one adaptive card; Teams takes
    28 kB, and versions up to 1.5.
    """
    assert len(json.dumps(body)) <= 28_000
    assert body["type"] == "message"
    (attachment,) = body["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard"
    assert card["version"] in {"1.2", "1.3", "1.4", "1.5"}
    lines = []
    for block in card["body"]:
        assert block["type"] == "RichTextBlock"
        runs = block["inlines"]
        assert all(run["type"] == "TextRun" and run["text"] for run in runs)
        assert all(run.get("weight", "default") in {"default", "bolder", "lighter"} for run in runs)
        lines.append("".join(run["text"] for run in runs))
    return "\n".join(lines)
