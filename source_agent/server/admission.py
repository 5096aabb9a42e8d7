"""Decide which TCP connections stay open, without I/O.

A connection is pending until its first call, which TLS allows only to a verified client; then it is
established. Pending connections are unproven, so there are few: a new one is always accepted, and
another is closed for it, first those that have sent nothing, of the address with the most, the
oldest first. So silent connections never keep out a client that sends its handshake at once.
Established connections are limited for each client; those beyond its limit stay pending.
Thread-safe; the time is a parameter.

Rejected: refusing new connections while the table is full. Whoever fills it would exclude others.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter
from dataclasses import dataclass

PENDING_MAX = 128  # each takes 70 KB in gRPC once its handshake has begun: 9 MB
PENDING_PER_ADDRESS_MAX = 64  # many clients may come through one forwarding host
CONNECTIONS_MAX = 256  # three file descriptors each: within the usual limit of 1,024
CONNECTIONS_PER_CLIENT_MAX = 16
FIRST_BYTES_S = 5.0  # the first packet of TLS comes from the client; enough to resend it once
HELLO_BYTES_MAX = 5 + (1 << 14)  # one TLS record
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, section 3.4


@dataclass(slots=True, eq=False)
class Connection:
    """A TCP connection. `origin` (`origin_of`) is the address that it counts for."""

    origin: str
    since: float
    has_spoken: bool = False
    client: str | None = None  # once established


class ConnectionTable:
    """All open connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[Connection, None] = {}  # in order of arrival
        self._origins: Counter[str] = Counter()
        self._clients: Counter[str] = Counter()

    def arrive(self, connection: Connection) -> Connection | None:
        """Add it; return the connection to close for it, possibly itself, or None."""
        with self._lock:
            closing: Connection | None = None
            if self._origins[connection.origin] >= PENDING_PER_ADDRESS_MAX:
                closing = self._least(connection.origin)
            elif self._is_full():
                closing = self._least() or connection
            self._pending[connection] = None
            self._origins[connection.origin] += 1
            if closing is not None:
                self._remove(closing)
            return closing

    def shed(self) -> Connection | None:
        """Remove and return the pending connection to close first, or None."""
        with self._lock:
            closing = self._least()
            if closing is not None:
                self._remove(closing)
            return closing

    def establish(self, connection: Connection, client: str) -> None:
        """Note that a call of this client arrived over it."""
        with self._lock:
            is_full = self._clients[client] >= CONNECTIONS_PER_CLIENT_MAX
            if connection in self._pending and not is_full:
                self._remove(connection)
                connection.client = client
                self._clients[client] += 1

    def leave(self, connection: Connection) -> None:
        """Remove a connection that was closed."""
        with self._lock:
            self._remove(connection)

    def silent(self, now: float) -> list[Connection]:
        """Return the connections whose first bytes are overdue."""
        with self._lock:
            return [c for c in self._pending if not c.has_spoken and now - c.since >= FIRST_BYTES_S]

    @property
    def count(self) -> int:
        """Number of open connections."""
        with self._lock:
            return len(self._pending) + self._clients.total()

    def _is_full(self) -> bool:
        pending = len(self._pending)
        return pending >= PENDING_MAX or pending + self._clients.total() >= CONNECTIONS_MAX

    def _least(self, origin: str | None = None) -> Connection | None:
        """Return the connection to close first, of this origin or of all."""
        among = (c for c in self._pending if origin is None or c.origin == origin)
        # `min` returns the first of equals, which is the oldest.
        return min(among, key=lambda c: (c.has_spoken, -self._origins[c.origin]), default=None)

    def _remove(self, connection: Connection) -> None:
        if connection in self._pending:
            del self._pending[connection]
            self._origins -= Counter([connection.origin])
        elif connection.client is not None:
            self._clients -= Counter([connection.client])
            connection.client = None


def origin_of(host: str) -> str:
    """Return the address that a host counts for: IPv4 itself, IPv6 by the /64 of one customer."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))


def has_begun(said: bytearray, *, is_tls: bool) -> bool | None:
    """Return True if the first message of a handshake is complete; None if it is another."""
    if not is_tls:
        if not _PREFACE.startswith(said[: len(_PREFACE)]):
            return None
        return len(said) >= len(_PREFACE)
    # RFC 8446, section 5.1: type 22 (handshake), version 3.x, length; 4.1.2: type 1.
    for place, value in ((0, 22), (1, 3), (5, 1)):
        if len(said) > place and said[place] != value:
            return None
    length = int.from_bytes(said[3:5]) if len(said) >= 5 else 0
    if len(said) >= 5 and not 0 < length <= HELLO_BYTES_MAX - 5:
        return None
    return len(said) > 5 and len(said) >= 5 + length
