"""The child processes of the demonstration: started quietly, watched, and ended.

Every child leads its own session, so that Ctrl-C reaches only the demonstration, which then ends
its children in order; Linux ends them if the demonstration itself is killed. Their output goes to a
log file, whose end is shown when a child fails. Rejected: threads in one process; the two agents
must share nothing but a connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from driftline.errors import InternalError

START_S_MAX = 60.0
STOP_S_MAX = 15.0  # from the first signal to SIGKILL
_LOG_LINES = 12  # shown of a failed child's log
_PR_SET_PDEATHSIG = 1


class ChildFailed(InternalError, code=InternalError.code):
    """A child process failed."""

    def __init__(self, what: str, status: int, log: Path) -> None:
        end = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        super().__init__(
            f"`{what}` ended with status {status}.",
            where="demo",
            remedy=f"The whole log: {log}",
            details={f"log {n + 1}": line for n, line in enumerate(end)},
        )


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program like Ctrl-C, so that every child is ended."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    kept = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    is_ready: Callable[[], bool],
    stop: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    cwd: Path | None = None,
) -> Iterator[None]:
    """Run a service while the block runs.

    Args:
        is_ready: called until it returns True.
        stop: the signal that asks the service to end.
        user: the account to run it under, if we are root.

    Raises:
        ChildFailed: the service ended, or was not ready within START_S_MAX.
    """
    with log.open("ab") as out:
        child = _start(command, out, out, stop=stop, user=user, cwd=cwd)
    try:
        deadline = time.monotonic() + START_S_MAX
        while not is_ready():
            if child.poll() is not None or time.monotonic() > deadline:
                raise ChildFailed(_shown(command), child.poll() or 0, log)
            time.sleep(0.05)
        yield
    finally:
        _end(child, stop)


def answer(command: Sequence[str], *, log: Path) -> str:
    """Run a command and return what it prints. Raises ChildFailed if it fails."""
    with log.open("ab") as errors:
        child = _start(command, subprocess.PIPE, errors)
    try:
        out, _ = child.communicate()
    finally:
        _end(child, signal.SIGTERM)
    if child.returncode != 0:
        with log.open("ab") as errors:
            errors.write(out)
        raise ChildFailed(_shown(command), child.returncode, log)
    return str(out.decode())


def agent(package: str, config: Path, *words: str) -> list[str]:
    """Return a command line of `warehouse_agent` or `source_agent`, for this Python."""
    return [sys.executable, "-m", f"{package}.cli", "--config", str(config), *words]


def _start(
    command: Sequence[str],
    out: IO[bytes] | int,
    error: IO[bytes],
    *,
    stop: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            start_new_session=True,
            # One system call, and we have no threads.
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, stop),  # noqa: PLW1509
            user=user,
            cwd=cwd,
        )
    except OSError as problem:
        raise InternalError(f"{command[0]} does not start: {problem.strerror}.") from problem


def _end(child: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    """Ask the child to end, wait, then kill what is left of its session."""
    if child.poll() is None:
        child.send_signal(stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S_MAX)
    # Spark's JVM cleans up after its Python has ended: give it time.
    deadline = time.monotonic() + STOP_S_MAX
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(child.pid, 0)
            time.sleep(0.05)
            child.poll()
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _shown(command: Sequence[str]) -> str:
    shown = " ".join(command).removeprefix(f"{sys.executable} -m ")
    return shown.replace("warehouse_agent.cli", "driftline").replace(
        "source_agent.cli", "driftline-source"
    )
