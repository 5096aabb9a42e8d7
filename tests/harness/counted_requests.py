"""A proxy in front of an object store that counts requests, of whatever library and process.

Each request is a line of its log, written before the answer ends, so that the log of a command that
has ended is whole. It is a process of its own, because a caller that waits for an answer may hold
the interpreter. It passes on what it is sent byte for byte, with the `Host` that the client signed,
and can hold each request back for some milliseconds, as a distant store does.

    python -m tests.harness.counted_requests PORT TARGET_PORT LOG [DELAY_MS]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO
from urllib.parse import parse_qs, unquote, urlsplit

from tests import ROOT
from tests.harness.counted_store import Counted
from tests.harness.object_stores import Bucket, ObjectStore, answers
from tests.harness.servers import Server

_CHUNK_BYTES = 1 << 18
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)
_BODILESS = {204, 304}


@dataclass
class Requests(Counted):
    """Requests by operation and kind of place, the bytes of their bodies, and each in order."""

    up_bytes: int = 0
    down_bytes: int = 0
    places: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.requests.total()


class RequestCounter(Server):
    """The proxy, on a free port of loopback."""

    def __init__(self, of: ObjectStore, delay_ms: float = 0) -> None:
        self._of, self._delay_ms = of, delay_ms
        super().__init__("counted")

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def bucket(self) -> Bucket:
        """Make a new, empty bucket, which is reached through the proxy."""
        return replace(self._of.bucket(), endpoint=self.endpoint)

    @contextmanager
    def counted(self, bucket: Bucket) -> Iterator[Requests]:
        """Count the requests for the warehouse in a bucket; they are there when this ends."""
        log, found = self.folder / "requests", Requests(bucket.root.removeprefix("s3:/"))
        begin = log.stat().st_size if log.exists() else 0
        yield found
        with log.open(encoding="utf-8") as file:
            file.seek(begin)
            for line in file:
                operation, path, up, down = json.loads(line)
                found.add(operation, path)
                found.places.append(f"{operation} {path.removeprefix(found.root)}")
                found.up_bytes += up
                found.down_bytes += down

    def _start(self) -> None:
        words = ["-m", "tests.harness.counted_requests", str(self.port), str(self._of.port)]
        words += [str(self.folder / "requests"), str(self._delay_ms)]
        self._launch([sys.executable, *words], lambda: answers(self.endpoint), cwd=ROOT)


def operation_of(method: str, target: str) -> tuple[str, str]:
    """Return what a request does, and the path `/BUCKET/KEY` or prefix that it does it to; of a
    list the key that it begins after, if it names one."""
    url = urlsplit(target)
    asked = parse_qs(url.query, keep_blank_values=True)
    path = unquote(url.path)
    if method == "GET" and ("list-type" in asked or "prefix" in asked):
        begin = asked.get("start-after") or asked.get("prefix") or [""]
        return "list", f"{path.rstrip('/')}/{begin[0]}"
    if method == "POST" and "delete" in asked:  # of many objects, which its body names
        return "remove", path
    known = {"GET": "read", "HEAD": "head", "DELETE": "remove"}
    return known.get(method, "write"), path


class _Proxy:
    def __init__(self, target_port: int, log: TextIO, delay_s: float) -> None:
        self._port, self._log, self._delay_s = target_port, log, delay_s

    async def serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Pass on the requests of one connection, one after the other."""
        limit = 1 << 20
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            server, on = await asyncio.open_connection("127.0.0.1", self._port, limit=limit)
            with contextlib.closing(on):
                while await self._one(client, back, server, on):
                    pass
        back.close()

    async def _one(
        self,
        client: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        on: asyncio.StreamWriter,
    ) -> bool:
        """Pass on a request and its answer; return False if no other will follow."""
        head = await client.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b" ", 2)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        on.write(head)
        is_waiting = _EXPECTS.search(head) is not None  # for this, before it sends the body
        if is_waiting:
            back.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await back.drain()
        up = await _body(head, client, on)
        answer, status = b"", 100
        while status == 100:
            answer = await server.readuntil(b"\r\n\r\n")
            status = int(answer.split(b" ", 2)[1])
            if status == 100 and not is_waiting:
                back.write(answer)
        down = 0
        held = _Held(back)
        held.write(answer)
        if method != b"HEAD" and status not in _BODILESS:
            down = await _body(answer, server, held)
        operation, path = operation_of(method.decode(), target.decode())
        self._log.write(json.dumps([operation, path, up, down]) + "\n")
        self._log.flush()
        await held.release()
        return b"\r\nconnection: close" not in answer.lower()


class _Held:
    """What is written to a client, of which the last piece is held back."""

    def __init__(self, out: asyncio.StreamWriter) -> None:
        self._out, self._last = out, b""

    def write(self, data: bytes) -> None:
        self._out.write(self._last)
        self._last = data

    async def drain(self) -> None:
        await self._out.drain()

    async def release(self) -> None:
        self.write(b"")
        await self._out.drain()


async def _body(
    head: bytes, source: asyncio.StreamReader, sink: asyncio.StreamWriter | _Held
) -> int:
    """Pass on the body that a head announces; return its bytes."""
    size = 0
    if _CHUNKED.search(head):
        while True:
            line = await source.readuntil(b"\r\n")
            sink.write(line)
            count = int(line.split(b";")[0], 16)
            size += await _passed(count, source, sink)
            sink.write(await source.readexactly(2))
            if not count:
                return size
    if found := _LENGTH.search(head):
        size = await _passed(int(found[1]), source, sink)
    await sink.drain()
    return size


async def _passed(
    count: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter | _Held
) -> int:
    left = count
    while left:
        data = await source.read(min(left, _CHUNK_BYTES))
        if not data:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(data)
        sink.write(data)
        await sink.drain()
    return count


async def _main(port: int, target_port: int, log: Path, delay_ms: float) -> None:
    with log.open("a", encoding="utf-8") as file:
        proxy = _Proxy(target_port, file, delay_ms / 1000)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=1 << 20)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])))
