"""A TCP relay between the two agents that misbehaves on command.

It listens on a free loopback port and forwards every connection to a target. Told to, it cuts after
so many bytes of one direction, flips a bit, ends every connection at one byte, refuses, or swallows
what it is sent while the connection stays open (a black hole). Bytes are counted in both directions
as they are handed on, whatever the connection.

Invariants: bytes are forwarded unchanged and in order, or not at all, but for the one bit that
`flip_after` was asked for; a cut takes effect exactly after the byte asked for, resets every
connection there is, and happens once, so that whoever comes back gets through. No pytest here.
"""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator

_CHUNK_BYTES = 1 << 14
_POLL_S = 0.05
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST, what waits is dropped


class Ending(enum.Enum):
    """How the relay ends a connection: with FIN or with RST."""

    FIN = "fin"
    RST = "rst"


class Relay:
    """Forwards to `target` (`host:port`). A context manager.

    `up_bytes` went from the client to the target, `down_bytes` came back.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.up_bytes = self.down_bytes = self.connections = self.cuts = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._refusing = self._swallowing = False
        self._cut_up: int | None = None
        self._cut_down: int | None = None
        self._then: Callable[[], object] = lambda: None
        self._reset_then = True
        self._flip_down: int | None = None
        self._each: tuple[int, Ending] | None = None
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def total_bytes(self) -> int:
        return self.up_bytes + self.down_bytes

    def cut_after(
        self,
        *,
        up: int | None = None,
        down: int | None = None,
        then: Callable[[], object] = lambda: None,
        reset: bool = True,
    ) -> None:
        """Once so many more bytes went in a direction call `then` and reset everything.

        Without `reset` the line stays; `then` was the fault.
        """
        with self._lock:
            self._cut_up = None if up is None else self.up_bytes + up
            self._cut_down = None if down is None else self.down_bytes + down
            self._then, self._reset_then = then, reset

    def flip_after(self, *, down: int) -> None:
        """Flip the lowest bit of the byte behind so many more bytes to the client, once."""
        with self._lock:
            self._flip_down = self.down_bytes + down

    def end_each(self, *, down: int, ending: Ending) -> None:
        """End every later connection once it has handed `down` bytes to the client, until `heal`.

        With 0 it ends where the client has sent its first bytes, which are handed on.
        """
        with self._lock:
            self._each = down, ending

    def refuse(self) -> None:
        """Reset what there is and everybody who comes, until `heal`."""
        with self._lock:
            self._refusing = True
        self._reset_all()

    def swallow(self) -> None:
        """Take everything and hand on nothing, until `heal`; neither end is told."""
        with self._lock:
            self._swallowing = True

    def heal(self) -> None:
        """As at the beginning. Connections that lost bytes are reset: they cannot go on."""
        with self._lock:
            lost = self._swallowing
            self._refusing = self._swallowing = False
            self._cut_up = self._cut_down = self._flip_down = self._each = None
        if lost:
            self._reset_all()

    def close(self) -> None:
        self._closing.set()
        self._reset_all()
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Threads: one accepts, one for each connection.

    def _accept(self) -> None:
        while not self._closing.is_set():
            if not select.select([self._listener], [], [], _POLL_S)[0]:
                continue
            client, _ = self._listener.accept()
            with self._lock:
                refusing = self._refusing
                self.connections += 1
            if refusing:
                _reset(client)
                continue
            try:
                target = socket.create_connection(self._target, 5)
            except OSError:
                _reset(client)
                continue
            for end in (client, target):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.add((client, target))
            thread = threading.Thread(target=self._pump, args=(client, target), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pump(self, client: socket.socket, target: socket.socket) -> None:
        """Both directions, until either ends."""
        other = {client: target, target: client}
        with self._lock:
            left, ending = self._each or (None, Ending.FIN)
        with contextlib.suppress(OSError, ValueError):  # ValueError: of a socket that was reset
            while not self._closing.is_set():
                for end in select.select([client, target], [], [], _POLL_S)[0]:
                    data = end.recv(_CHUNK_BYTES)
                    if not data:
                        raise ConnectionResetError
                    if left is not None and end is target:
                        data, left = data[:left], left - len(data[:left])
                    if data:
                        self._forward(data, other[end], up=end is client)
                    if left == 0:
                        self._end(client, ending)
                        raise ConnectionResetError
        with self._lock:
            self._pairs.discard((client, target))
        client.close()
        target.close()

    def _forward(self, data: bytes, to: socket.socket, *, up: bool) -> None:
        with self._lock:
            if self._swallowing:
                return
            limit = self._cut_up if up else self._cut_down
            before = self.up_bytes if up else self.down_bytes
            is_cut = limit is not None and before + len(data) >= limit
            if is_cut and limit is not None:
                data = data[: limit - before] if self._reset_then else data
                self._cut_up = self._cut_down = None
                self.cuts += 1
            flip = self._flip_down
            if not up and flip is not None and self.down_bytes + len(data) > flip:
                changed = bytearray(data)
                changed[flip - self.down_bytes] ^= 1
                data, self._flip_down = bytes(changed), None
                self.cuts += 1
            if up:
                self.up_bytes += len(data)
            else:
                self.down_bytes += len(data)
        to.sendall(data)
        if is_cut:
            self._then()
            if self._reset_then:
                self._reset_all()
                raise ConnectionResetError

    def _end(self, client: socket.socket, ending: Ending) -> None:
        self.cuts += 1
        if ending is Ending.RST:
            _reset(client)
            return
        client.shutdown(socket.SHUT_WR)
        client.settimeout(5)
        while client.recv(_CHUNK_BYTES):  # else what the client still sends would cause an RST
            pass

    def _reset_all(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                _reset(end)


@contextlib.contextmanager
def unanswered() -> Iterator[str]:
    """An address as behind a firewall: a listener whose queue is full answers no SYN."""
    with socket.socket() as full, contextlib.ExitStack() as up:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(2):
            waiting = up.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # Unlike close, it wakes the thread that reads here.
        end.shutdown(socket.SHUT_RD)
    end.close()
