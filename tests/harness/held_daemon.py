"""PySpark's daemon of Python workers, whose tasks stop where a test wants to kill their executor.

`"spark.python.daemon.module"` names it. The test puts a *hold* into the folder of HOLDS: a file
that names a module of `warehouse_agent.tasks` and a point of the function `run` that it gives to
tasks. The first task to get there takes the hold, writes who it is, and waits; a retry finds none.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark import daemon

from tests.harness.processes import parent

HOLDS = "DRIFTLINE_TEST_HOLDS"
HELD_S_MAX = 120.0
_TASKS = f"{os.sep}warehouse_agent{os.sep}tasks{os.sep}"


class Point(StrEnum):
    """A point of a task."""

    BEGUN = "begun"  # before it reads anything
    WRITTEN = "written"  # its files are whole, and the driver does not know


def hold(folder: Path, module: str, point: Point) -> None:
    """Let the next task stop at a point."""
    (folder / f"{module}.{point}").touch()


def wait_in(folder: Path, module: str, point: Point) -> None:
    """Take the hold, if there is one, and wait until the test releases or kills this process."""
    taken = folder / f"{module}.{point}.{os.getpid()}"
    try:
        os.rename(folder / f"{module}.{point}", taken)
    except FileNotFoundError:
        return
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the daemon's last word when its executor dies
    whole = taken.with_suffix(".whole")
    whole.write_text(json.dumps({"worker": os.getpid(), "executor": parent(os.getppid())}))
    os.replace(whole, folder / f"held.{module}.{point}")
    end = time.monotonic() + HELD_S_MAX
    while taken.exists() and time.monotonic() < end:
        time.sleep(0.02)


def _look(frame: FrameType, event: str, value: Any) -> None:
    """Profile function: find the tasks' own function, and its points."""
    code = frame.f_code
    if code.co_name != "run" or _TASKS not in code.co_filename:
        return
    module = Path(code.co_filename).stem
    if module in {"scan", "steps"}:  # they pass the rows on
        return
    folder = Path(os.environ[HOLDS])
    if event == "call":
        wait_in(folder, module, Point.BEGUN)
    elif event == "return" and value is not None:
        wait_in(folder, module, Point.WRITTEN)


def _worker(sock: socket.socket, authenticated: bool) -> int:
    sys.setprofile(_look)
    try:
        return int(_plain_worker(sock, authenticated))
    finally:
        sys.setprofile(None)


_plain_worker = daemon.worker

if __name__ == "__main__":
    daemon.worker = _worker
    with contextlib.suppress(KeyboardInterrupt):
        daemon.manager()
