"""The demonstration's child processes: started quietly, watched, and gone afterwards.

Every child leads a session of its own, so that Ctrl-C reaches only the demonstration, which then
ends its children in its own order; on Linux the kernel ends them, too, if it is killed itself.
What they say goes to a log file, whose end is shown when one fails.

Rejected: threads in one process. The point is that the two agents share nothing but a connection.
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
STOP_S_MAX = 15.0  # from asking to insisting
_LOG_LINES = 12  # of a failed child, shown
_PR_SET_PDEATHSIG = 1


class ChildFailed(InternalError, code=InternalError.code):
    """A child ended as it should not have; its exit code becomes ours."""

    default_remedy = "The log says more."

    def __init__(self, what: str, status: int, log: Path) -> None:
        said = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        super().__init__(
            f"`{what}` ended with status {status}.",
            where="demo",
            remedy=f"The whole log: {log}",
            details={f"log {n + 1}": line for n, line in enumerate(said)},
        )


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that every child is ended."""

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
    """A service for as long as the block runs.

    Args:
        is_ready: asked until it says yes.
        stop: the signal that asks it to end.
        user: the account to run it under, when we are root.

    Raises:
        ChildFailed: it ended, or was not ready within START_S_MAX.
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
    """What a command prints. Raises ChildFailed when it fails."""
    with log.open("ab") as said:
        child = _start(command, subprocess.PIPE, said)
    try:
        out, _ = child.communicate()
    finally:
        _end(child, signal.SIGTERM)
    if child.returncode != 0:
        if out:
            with log.open("ab") as said:
                said.write(out)
        raise ChildFailed(_shown(command), child.returncode, log)
    return str(out.decode())


def warehouse(config: Path, *words: str) -> list[str]:
    """The command line of the warehouse agent, in the interpreter that runs this."""
    return [sys.executable, "-m", "warehouse_agent.cli", "--config", str(config), *words]


def source(config: Path, *words: str) -> list[str]:
    """The command line of the source agent."""
    return [sys.executable, "-m", "source_agent.cli", "--config", str(config), *words]


def _start(
    command: Sequence[str],
    out: IO[bytes] | int,
    error: IO[bytes],
    *,
    stop: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    before = _die_with_parent(stop)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509 - one system call, and we have no threads
            user=user,
            cwd=cwd,
        )
    except OSError as problem:
        raise InternalError(f"{command[0]} does not start: {problem.strerror}.") from problem


def _die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)

    return ask


def _end(child: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    """Ask the child to end, then insist, then end whatever it left in its session."""
    if child.poll() is None:
        child.send_signal(stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S_MAX)
    # Spark's JVM tidies up after its Python has ended; what is still there then is ended.
    deadline = time.monotonic() + STOP_S_MAX
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(child.pid, 0)
            time.sleep(0.05)
            child.poll()
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _shown(command: Sequence[str]) -> str:
    """The command as a person would type it."""
    names = {"warehouse_agent.cli": "driftline", "source_agent.cli": "driftline-source"}
    if len(command) > 2 and command[1] == "-m":
        return " ".join([names.get(command[2], command[2]), *command[3:]])
    return " ".join(command)
