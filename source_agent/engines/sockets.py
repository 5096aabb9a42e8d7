"""Sockets of database drivers: keep-alive, and an end that the reading thread notices.

Drivers hide their sockets; here they are reached by descriptor, which the driver still owns.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

# A server whose machine has vanished is noticed after IDLE + COUNT x INTERVAL = 25 s.
KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_COUNT: Final = 3
UNACKNOWLEDGED_MS_MAX: Final = 20_000  # TCP_USER_TIMEOUT, for data that we have sent

_OPTIONS: Final = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE_S,
    "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_S,
    "TCP_KEEPCNT": KEEPALIVE_COUNT,
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS_MAX,
}


def keep_alive(number: int) -> None:
    """Let the kernel notice that the other machine is gone, if socket and system support it."""
    with contextlib.suppress(OSError), _duplicate(number) as duplicate:
        if duplicate.family in {socket.AF_INET, socket.AF_INET6}:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _OPTIONS.items():
                if hasattr(socket, name):
                    duplicate.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def shut(number: int) -> None:
    """End a connection: a thread that waits for it reads its end."""
    with contextlib.suppress(OSError), _duplicate(number) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def port_of(number: int) -> int | None:
    """Return a connection's port at this end; None: a socket of the file system, without one."""
    with _duplicate(number) as duplicate:
        name = duplicate.getsockname()
    return int(name[1]) if isinstance(name, tuple) else None


def _duplicate(number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(number))
