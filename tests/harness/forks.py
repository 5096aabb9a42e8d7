"""Commands of both agents as processes that begin with all modules imported: one process forks.

Most of the time of a short command is its imports, two to three seconds of a processor. The process
that forks imports them once. It starts when it is first used, ends with the process that uses it,
has no thread of Python and runs no command itself.

`Fork` is a `subprocess.Popen`, and `run` is `subprocess.run`, of this interpreter: a command has
its own folder, environment, descriptors, arguments and session, the handlers of signals and the
end of any Python process, and arms the failpoint of its environment. Its umask, limits and priority
are those of the process that forks.

Not for tests of what is imported, of how a process starts, of variables that Python, gRPC or
OpenBLAS read when they are imported, of memory, or of another tree, installation or Python.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests import ROOT
from tests.harness.servers import dying_with_parent

WAREHOUSE, SOURCE = ("-m", "warehouse_agent.cli"), ("-m", "source_agent.cli")
ORDER_BYTES_MAX = 1 << 17  # words and environment; a socket's buffer has more
# What commands import when they run.
_OF_PACKAGES = ("pandas", "pyspark.sql.classic.dataframe")
_OF_SOURCE = (
    *("cli.main", "cli.check", "cli.init", "checks.configuration", "checks.first_configuration"),
    *("checks.grants", "checks.statements", "checks.total", "enrolment"),
    *("engines.mysql_family.engine", "engines.postgresql.session", "engines.sqlite.engine"),
    "server.service",
)
_OF_WAREHOUSE = (
    *("cli.main", "cli.commands", "cli.explain", "cli.init", "cli.plan", "cli.schedule"),
    *("cli.status", "inspection.readiness", "refresh.tiled", "runs.batch", "scheduler.loop"),
    *("spark.session", "views.inputs"),
)


class Fork(subprocess.Popen[str]):
    """The process of `python WORDS`, in a session of its own; dies with the process that forks.

    Audit hooks hear of it as of every process.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> None:
        """`words`: "-m", a module or "-c", code; then arguments. The others: as of `Popen`."""
        self._reaping = threading.Lock()
        super().__init__(
            [*map(str, words)],
            cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True,
        )  # fmt: skip

    def _execute_child(self, *arguments: Any) -> None:
        """Let the process be forked; the one step of `Popen` that is another one here."""
        words, folder, variables = arguments[0], *arguments[5:7]
        pipes = arguments[10:16]  # ends of stdin, stdout and stderr, -1 if there are none
        theirs = enumerate((pipes[0], pipes[3], pipes[5]))
        sys.audit("subprocess.Popen", sys.executable, words, folder, variables)
        order = {
            "words": words,
            "folder": str(folder or Path.cwd()),
            "variables": dict(os.environ if variables is None else variables),
        }
        files = [inherited if file == -1 else file for inherited, file in theirs]
        self.pid = _server().start(order, files)
        self._exit = os.pidfd_open(self.pid)  # it can be read when the process has ended
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def poll(self) -> int | None:
        with self._reaping:
            if self.returncode is None and self._is_over(0):
                self.returncode = os.waitstatus_to_exitcode(_server().reap(self.pid))
                os.close(self._exit)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not self._is_over(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def _is_over(self, timeout_s: float | None) -> bool:
        ends = select.poll()
        ends.register(self._exit, select.POLLIN)
        return bool(ends.poll(None if timeout_s is None else 1000 * max(timeout_s, 0)))


def run(
    words: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    stdout: int | IO[Any] | None = subprocess.PIPE,
    stderr: int | IO[Any] | None = subprocess.PIPE,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end; return how it ended, and what it wrote. stdin is empty.

    Raises:
        subprocess.TimeoutExpired: it did not end in `timeout` seconds, and was killed.
    """
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with Fork(words, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class _Server:
    """The process that forks, seen from the one that uses it."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        code = f"from tests.harness import forks; exec(forks.serve({theirs.fileno()}))"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=ROOT,
            start_new_session=True,
        )
        theirs.close()

    def start(self, order: dict[str, Any], files: list[int]) -> int:
        """Let it fork a process with these descriptors for its first three; return its id."""
        return self._ask(order, files)

    def reap(self, pid: int) -> int:
        """Return the status of a process that has ended."""
        return self._ask({"over": pid}, [])

    def _ask(self, order: dict[str, Any], files: list[int]) -> int:
        data = json.dumps(order).encode()
        assert len(data) <= ORDER_BYTES_MAX
        with self._asking:
            socket.send_fds(self._orders, [data], files)
            answer = self._orders.recv(64)
        assert answer, "the process that forks has ended"
        return int(answer)


_server = functools.cache(_Server)


def serve(number: int) -> str:
    """Obey the orders from a socket; return "" when there are no more, and in each process that is
    forked the code that it runs.

    So that code runs where `python -c` runs it, and the interpreter ends as it always does.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as both agents do, before gRPC is imported
    for package, names in (("source_agent", _OF_SOURCE), ("warehouse_agent", _OF_WAREHOUSE)):
        for name in names:
            importlib.import_module(f"{package}.{name}")
    for name in _OF_PACKAGES:
        importlib.import_module(name)
    if "DRIFTLINE_STORE" in os.environ:  # as `tests.fixtures.object_stores.gc_at_once`
        garbage = importlib.import_module("warehouse_agent.table_maintenance.garbage")
        vars(garbage)["KEEP_HOURS_MIN_REMOTE"] = 0
    gc.freeze()  # else the end of each process visits all objects of all modules, for 0.3 s
    orders = socket.socket(fileno=number)
    while True:
        data, files, _, _ = socket.recv_fds(orders, ORDER_BYTES_MAX, 3)
        if not data:
            return ""
        order = json.loads(data)
        if (pid := order.get("over")) is not None:
            answer = os.waitpid(pid, 0)[1]
        elif not (answer := os.fork()):
            orders.close()
            return _become(**order, files=files)
        for file in files:
            os.close(file)
        orders.send(str(answer).encode())


def _become(words: Sequence[str], folder: str, variables: dict[str, str], files: list[int]) -> str:
    """Give this process what it was ordered with; return the code to run."""
    from driftline import failpoints

    dying_with_parent()
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    failpoints.arm(os.environ.get(failpoints.VARIABLE))
    option, program, *arguments = words
    sys.argv = [option, *arguments]
    if option == "-c":
        return program
    return f"import runpy; runpy.run_module({program!r}, run_name='__main__', alter_sys=True)"
