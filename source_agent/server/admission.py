"""Decide which TCP connections may stay, without I/O.

A connection is pending until the first call arrives over it, which happens only once TLS has
verified the client's certificate; from then on it is established. Nobody has proven anything about
a pending connection, so there are few of them: a newcomer is always taken in, and another one is
closed. Those that have sent nothing yet are closed first, of the address that has the most, the
oldest. So a client that sends its handshake at once is not driven out by any number of silent
connections.

Established connections are counted by client: what one client opens beyond its number stays
pending, and is closed as such. Thread-safe; the time is a parameter.

Rejected: refusing the newcomer while the table is full. Whoever fills it would shut out the rest.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter
from dataclasses import dataclass

PENDING_MAX = 128  # each some 70 KB in gRPC once its handshake has begun: 9 MB
PENDING_PER_ADDRESS_MAX = 64  # many clients may come through one forwarding host
CONNECTIONS_MAX = 256  # three file descriptors each: within the usual limit of 1,024
CONNECTIONS_PER_CLIENT_MAX = 16
FIRST_BYTES_S = 5.0  # a client speaks first in TLS: one packet, sent again once if it is lost
HELLO_BYTES_MAX = 5 + (1 << 14)  # one TLS record
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, section 3.4


@dataclass(slots=True, eq=False)
class Connection:
    """A connection. `origin` is the unit in which addresses are counted."""

    origin: str
    since: float
    has_spoken: bool = False
    client: str | None = None  # once established


class ConnectionTable:
    """The connections there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[Connection, None] = {}  # in order of arrival
        self._origins: Counter[str] = Counter()
        self._clients: Counter[str] = Counter()
        self._established = 0

    def arrive(self, connection: Connection) -> Connection | None:
        """Take it in; return the connection to be closed for it, possibly itself, or None."""
        with self._lock:
            gives_way: Connection | None = None
            if self._origins[connection.origin] >= PENDING_PER_ADDRESS_MAX:
                gives_way = self._least(connection.origin)
            elif self._is_full():
                gives_way = self._least() or connection
            self._pending[connection] = None
            self._origins[connection.origin] += 1
            if gives_way is not None:
                self._remove(gives_way)
            return gives_way

    def shed(self) -> Connection | None:
        """Remove and return the pending connection that is worth least; None: there is none."""
        with self._lock:
            gives_way = self._least()
            if gives_way is not None:
                self._remove(gives_way)
            return gives_way

    def establish(self, connection: Connection, client: str) -> None:
        """A call of this client arrived over it."""
        with self._lock:
            if connection not in self._pending:
                return
            if self._clients[client] >= CONNECTIONS_PER_CLIENT_MAX:
                return
            self._remove(connection)
            connection.client = client
            self._clients[client] += 1
            self._established += 1

    def leave(self, connection: Connection) -> None:
        """It was closed."""
        with self._lock:
            self._remove(connection)

    def silent(self, now: float) -> list[Connection]:
        """Return the connections that have sent too little for too long."""
        with self._lock:
            return [c for c in self._pending if not c.has_spoken and now - c.since >= FIRST_BYTES_S]

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._pending) + self._established

    def _is_full(self) -> bool:
        pending = len(self._pending)
        return pending >= PENDING_MAX or pending + self._established >= CONNECTIONS_MAX

    def _least(self, origin: str | None = None) -> Connection | None:
        """Return who is closed first: silent, of the origin with the most (or this), the oldest."""
        if origin is None:
            among = list(self._pending)
        else:
            among = [c for c in self._pending if c.origin == origin]
        if not among:
            return None
        # `min` keeps the first of equals, which is the oldest.
        return min(among, key=lambda c: (c.has_spoken, -self._origins[c.origin]))

    def _remove(self, connection: Connection) -> None:
        if connection in self._pending:
            del self._pending[connection]
            self._origins[connection.origin] -= 1
            if not self._origins[connection.origin]:
                del self._origins[connection.origin]
        elif connection.client is not None:
            self._clients[connection.client] -= 1
            if not self._clients[connection.client]:
                del self._clients[connection.client]
            connection.client = None
            self._established -= 1


def origin_of(host: str) -> str:
    """The unit in which a client's addresses are counted: IPv4 alone, IPv6 by its /64, which is
    what one customer has."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))


def has_begun(said: bytearray, *, is_tls: bool) -> bool | None:
    """Return True if a handshake's first message is whole; None if this is none."""
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
