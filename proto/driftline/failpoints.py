"""Points at which a test lets a process fail: killed, stopped, with an error, or by a full disk.

An agent names its points in an enum of its own, derived from `Failpoint`, and reaches each by one
short call: `WarehouseFailpoint.COMMITTED.reach()`. The environment arms one of them for a process
and for the processes that it starts:

    DRIFTLINE_FAILPOINT=NAME:ACTION[:NTH[:FILE]]

`NTH` counts from 1, in each process. With `FILE` the point fires once among all processes: in the
one that makes the file. A call of a point that is not armed compares one global with None.

Rejected: functions replaced by a test from outside. Such a test names functions, breaks when one is
renamed, and does not reach the middle of one, nor a process that another process starts.
"""

from __future__ import annotations

import enum
import errno
import logging
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from driftline.errors import UsageError

VARIABLE = "DRIFTLINE_FAILPOINT"

_log = logging.getLogger("driftline")


class Action(enum.Enum):
    """A way to fail at an armed point."""

    KILL = "kill"
    STOP = "stop"  # until it is told to continue
    RAISE = "raise"
    DISK_FULL = "disk-full"


@dataclass(slots=True)
class _Armed:
    """The armed point: its name, what happens at which time it is reached, and the file that is
    made then; None: every process counts for itself."""

    name: str
    action: Action
    nth: int
    once: Path | None
    _times: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> _Armed:
        """Read the value of the variable. Raises ValueError."""
        name, action, *more = text.split(":", 3)
        nth = int(more[0]) if more else 1
        if nth < 1:
            raise ValueError("NTH counts from 1")
        return cls(name, Action(action), nth, Path(more[1]) if len(more) > 1 else None)

    def reach(self) -> None:
        """Count; act at the n-th time."""
        with self._lock:
            self._times += 1
            if self._times != self.nth or not self._is_first():
                return
        self._act()

    def _is_first(self) -> bool:
        if self.once is None:
            return True
        try:
            self.once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _act(self) -> None:
        if self.action is Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action is Action.STOP:
            return os.kill(os.getpid(), signal.SIGSTOP)
        if self.action is Action.DISK_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
        raise RuntimeError(f"Failpoint {self.name}.")


class Failpoint(enum.Enum):
    """The points of an agent; values are `agent.point`."""

    def reach(self) -> None:
        """Fail here if this point is armed, and this is the n-th time."""
        if _armed is not None and _armed.name == self.value:
            _armed.reach()

    @classmethod
    def check(cls) -> None:
        """Warn that a point is armed; the start of a command calls it.

        Raises:
            UsageError: the variable names no point of this agent, nor of the other one.
        """
        if not (text := os.environ.get(VARIABLE)):
            return
        agent = next(iter(cls)).value.partition(".")[0]
        is_other = text.partition(".")[0] != agent and "." in text
        if _armed is None or not (is_other or _armed.name in {point.value for point in cls}):
            raise UsageError(
                f"{VARIABLE} is {text!r}, which names no failpoint and action.",
                remedy=f"It is for tests alone: unset it, or see {__name__}.",
            )
        _log.warning("failpoint %s is armed: this process is going to fail", text)


def arm(text: str | None) -> None:
    """Set the armed point of this process, as the variable would; None or no sense: none."""
    global _armed  # noqa: PLW0603 - read at every point, and set once
    try:
        _armed = _Armed.parse(text) if text else None
    except ValueError:
        _armed = None


_armed: _Armed | None = None
arm(os.environ.get(VARIABLE))
