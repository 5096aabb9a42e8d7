"""Firebird: SIGINT and SIGTERM stay with the agent.

With the first attachment of a process, also one that fails, the client library puts its own handler
in their place, which ends every connection of the process before the agent hears of the signal. An
agent that is asked to end gives its exchanges time first, so what was there is put back.

Rejected: `signal.signal`, which only the main thread may call; sessions open in others.
"""

from __future__ import annotations

import ctypes
import signal
from typing import Final, TypeAlias

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)
_ACTION_BYTES: Final = 1024  # more than a `struct sigaction` of any system has

Actions: TypeAlias = "tuple[ctypes.Array[ctypes.c_char], ...]"


def actions() -> Actions:
    """Return what this process does on its signals, as sigaction(2) tells it."""
    found = tuple(ctypes.create_string_buffer(_ACTION_BYTES) for _ in _NUMBERS)
    for number, action in zip(_NUMBERS, found, strict=True):
        ctypes.CDLL(None).sigaction(int(number), None, action)
    return found


def put_back(before: Actions) -> None:
    """Let the process do what it did before; a thread of any kind may call this."""
    for number, action in zip(_NUMBERS, before, strict=True):
        ctypes.CDLL(None).sigaction(int(number), action, None)
