"""Accept TCP connections, and relay those that begin a handshake to gRPC.

gRPC spends 70 KB on every connection that it accepts, before it knows the client, and cannot keep
places free. So it listens on a Unix socket of this process, and one thread here accepts for it.
Until a client has sent its whole ClientHello (in plain text the preface of HTTP/2) its connection
costs a socket and some bytes; `admission` bounds their number. Then bytes are relayed unread: TLS
ends in gRPC. Each connection to gRPC has a socket name of its own, by which `establish` finds the
TCP connection of a call. Other processes may reach that socket like the port, and need a client
certificate there, too.

Invariants: at most BUFFER_BYTES are held for each direction of a connection. The thread never waits
for a peer. An error of one connection ends that connection only.

Rejected: gRPC's `max_allowed_incoming_connections` (bad clients that fill it exclude good ones);
TLS in Python (it would have to tell gRPC who the client is); a process beside the agent (relaying
costs little, docs/results/tests.md).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable

from source_agent.failpoints import SourceFailpoint
from source_agent.printable import counted
from source_agent.server.admission import (
    HELLO_BYTES_MAX,
    Connection,
    ConnectionTable,
    has_begun,
    origin_of,
)

UNACKNOWLEDGED_MS_MAX = 10_000  # of bytes sent: the client, or the line to it, is gone
BUFFER_BYTES = 256 << 10  # a Unix socket takes about as much at once
ACCEPTED_AT_ONCE = 8  # before open connections get their turn, of which one may just have spoken
LINGER_S = 2.0  # for a client to take the last bytes
SHED_AT_ONCE = 8  # closed when file descriptors run out: gRPC and the database need some
EXHAUSTED_S = 0.1  # pause in accepting after that
LOG_EVERY_S = 60.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TICK_S = 0.5

_log = logging.getLogger("driftline.source")


class _Line:
    """One TCP connection (outer) and, after its first message, its connection to gRPC (inner)."""

    __slots__ = ("connection", "ends_at", "inner", "name", "outer", "to_inner", "to_outer")

    def __init__(self, outer: socket.socket, connection: Connection) -> None:
        self.outer, self.connection = outer, connection
        self.inner: socket.socket | None = None
        self.name = ""
        self.to_inner, self.to_outer = bytearray(), bytearray()
        self.ends_at: float | None = None  # gRPC has ended it: only the last bytes are sent


class Acceptor:
    """Listens at an address and relays to the socket that `backend` names."""

    def __init__(self, host: str, port: int, *, is_tls: bool, backend: Callable[[], str]) -> None:
        """Listen; `backend` names the Unix socket for the next connection. Raises OSError."""
        self._listening = _listen(host, port)
        self.port: int = self._listening[0].getsockname()[1]
        self._is_tls, self._backend = is_tls, backend
        self._admission = ConnectionTable()
        self._lines: dict[Connection, _Line] = {}
        self._names: dict[str, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._stopping = self._closing = False
        self._accept_at = self._check_at = 0.0
        self._displaced_count, self._logged_at = 0, 0.0
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)

    def start(self) -> None:
        """Accept connections."""
        for listener in self._listening:
            self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()

    def stop_listening(self) -> None:
        """Accept no new connections; keep the open ones."""
        self._stopping = True
        self._notify()

    def close(self) -> None:
        """Send the remaining bytes, for LINGER_S at most, and close everything."""
        self._stopping = self._closing = True
        self._notify()
        self._thread.join()

    def establish(self, peer: str, client: str) -> None:
        """Note that a call of this client came from this `peer()`; from any thread."""
        connection = self._names.get(peer.partition(":")[2])
        if connection is not None and connection.client is None:
            self._admission.establish(connection, client)

    def _notify(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended already
            self._waker.send(b"\0")

    def _run(self) -> None:
        closes_at: float | None = None
        while closes_at is None or (self._lines and time.monotonic() < closes_at):
            try:
                for key, events in self._selector.select(self._timeout()):
                    self._handle(key, events)
                now = time.monotonic()
                if now >= self._check_at:
                    self._check_at = now + _TICK_S
                    self._check_timers(now)
            except Exception:
                _log.exception("the acceptor met an internal error and continues")
            if self._closing and closes_at is None:
                closes_at = time.monotonic() + LINGER_S
        for line in list(self._lines.values()):
            self._end(line)
        for each in (*self._listening, self._wake, self._waker):
            each.close()
        self._selector.close()

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        line = key.data
        if line is None:
            if key.fileobj is self._wake:
                self._wake.recv(64)
                self._check_at = 0.0
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj)
            return
        if line.connection not in self._lines:
            return  # closed by an earlier event of this round
        try:
            if line.inner is None:
                self._receive_first(line)
            else:
                self._relay(line, key.fileobj is line.outer, events)
        except OSError:
            self._end(line)

    def _timeout(self) -> float:
        """Return the seconds until `_check_timers` is due."""
        if self._closing:
            return 0.05  # any line that ends may be the last
        return max(self._check_at - time.monotonic(), 0.0)

    def _check_timers(self, now: float) -> None:
        """Close what is overdue, and start or stop accepting."""
        for connection in self._admission.silent(now):
            self._end(self._lines[connection])
        for line in list(self._lines.values()):
            if line.ends_at is not None and now >= line.ends_at:
                self._end(line)
        is_open = not self._stopping and now >= self._accept_at
        for listener in self._listening:
            registered = listener.fileno() >= 0 and listener in self._selector.get_map()
            if registered and not is_open:
                self._selector.unregister(listener)
            elif is_open and not registered:
                self._selector.register(listener, selectors.EVENT_READ)
            if self._stopping:
                listener.close()
        if self._displaced_count and now - self._logged_at >= LOG_EVERY_S:
            closed = counted(self._displaced_count, "connection")
            _log.warning("%s closed to make room: unauthenticated", closed)
            self._displaced_count, self._logged_at = 0, now

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                outer, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._make_room(error)
                    return
                continue  # the client has left already
            SourceFailpoint.ACCEPTED.reach()
            outer.setblocking(False)
            outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
            connection = Connection(origin_of(address[0]), time.monotonic())
            line = self._lines[connection] = _Line(outer, connection)
            self._selector.register(outer, selectors.EVENT_READ, line)
            displaced = self._admission.arrive(connection)
            if displaced is not None:
                self._displaced_count += 1
                self._end(self._lines[displaced])

    def _make_room(self, error: OSError) -> None:
        shed = [c for c in (self._admission.shed() for _ in range(SHED_AT_ONCE)) if c is not None]
        for connection in shed:
            self._end(self._lines[connection])
        self._displaced_count += len(shed)
        if not shed:
            _log.warning("no connection can be accepted: %s", error.strerror)
        self._accept_at = time.monotonic() + EXHAUSTED_S
        self._check_at = 0.0

    def _receive_first(self, line: _Line) -> None:
        """Receive more of a client's first message; connect to gRPC once it is complete."""
        some = line.outer.recv(HELLO_BYTES_MAX)
        line.to_inner += some
        whole = has_begun(line.to_inner, is_tls=self._is_tls)
        if not some or whole is None:
            self._end(line)
        elif whole:
            name = f"driftline-{secrets.token_hex(16)}"  # nobody else can guess it
            inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                inner.setblocking(False)
                inner.bind(f"\0{name}")
                inner.connect(f"\0{self._backend()}")
            except OSError as error:
                inner.close()
                _log.warning("a connection was closed without an answer: %s", error.strerror)
                raise
            line.inner, line.name = inner, name
            line.connection.has_spoken = True
            self._names[name] = line.connection
            self._selector.register(inner, selectors.EVENT_READ, line)
            self._relay(line, False, 0)

    def _relay(self, line: _Line, is_outer: bool, events: int) -> None:
        """Read from one side, and send what is held for either."""
        inner = line.inner
        assert inner is not None
        if events & selectors.EVENT_READ and is_outer:
            some = line.outer.recv(BUFFER_BYTES)
            if not some:  # the client has left
                self._end(line)
                return
            if line.ends_at is None:
                line.to_inner += some
        elif events & selectors.EVENT_READ:
            try:
                some = inner.recv(BUFFER_BYTES)
            except ConnectionError:  # gRPC closed it before it read all bytes
                some = b""
            if not some and line.ends_at is None:
                line.ends_at = time.monotonic() + LINGER_S
            line.to_outer += some
        try:
            _send(inner, line.to_inner)
        except ConnectionError:  # gRPC closed it; its last bytes are still read
            line.to_inner.clear()
        _send(line.outer, line.to_outer)
        if line.ends_at is not None:
            line.to_inner.clear()
            if not line.to_outer:
                # Not `close`: with bytes unread it resets the connection, and the client loses the
                # last bytes, such as the reason why TLS refused it.
                line.outer.shutdown(socket.SHUT_WR)
        self._watch(line)

    def _watch(self, line: _Line) -> None:
        """Choose the events to wait for: a side is read once the other has taken its bytes."""
        inner = line.inner
        assert inner is not None
        ended = line.ends_at is not None
        sides = (
            (line.outer, not line.to_inner, bool(line.to_outer)),
            (inner, not ended and not line.to_outer, not ended and bool(line.to_inner)),
        )
        registered = self._selector.get_map()
        for side, reads, writes in sides:
            events = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * writes
            if side not in registered:
                if events:
                    self._selector.register(side, events, line)
            elif not events:
                self._selector.unregister(side)
            elif registered[side].events != events:
                self._selector.modify(side, events, line)

    def _end(self, line: _Line) -> None:
        if self._lines.pop(line.connection, None) is None:
            return
        self._names.pop(line.name, None)
        self._admission.leave(line.connection)
        for side in (line.outer, line.inner):
            if side is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(side)
                side.close()


def _send(sink: socket.socket, held: bytearray) -> None:
    """Send as much of `held` as the socket accepts now, and remove it."""
    if held:
        with contextlib.suppress(BlockingIOError):
            del held[: sink.send(held)]


def _listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets for every address of a host; a wildcard means IPv4 and IPv6, if enabled."""
    sockets: list[socket.socket] = []
    addresses = dict.fromkeys(
        (family, str(address[0]))
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    if host in {"0.0.0.0", "::"} and socket.has_dualstack_ipv6():  # noqa: S104  # the DBA's choice
        addresses = {(socket.AF_INET6, "::"): None, **addresses}
    missing: OSError | None = None
    for family, address in addresses:
        try:
            is_dual = (family, address) == (socket.AF_INET6, "::") and socket.has_dualstack_ipv6()
            made = socket.create_server((address, port), family=family, dualstack_ipv6=is_dual)
            sockets.append(made)
        except OSError as error:
            # For example a name that also means ::1, on a machine without IPv6.
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                missing = error
                continue
            for each in sockets:
                each.close()
            raise
        if is_dual:
            break
        port = sockets[0].getsockname()[1]
    if not sockets and missing is not None:
        raise missing
    for each in sockets:
        each.listen(socket.SOMAXCONN)
        each.setblocking(False)
    return sockets
