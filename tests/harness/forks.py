"""Commands of both agents as processes that begin with all modules imported: one process forks.

A sweep kills hundreds of processes, and would spend most of its time on imports. The process that
forks has no thread of Python, runs no command itself, and speaks JSON lines over its pipes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests import ROOT
from tests.harness.pair import environment
from tests.harness.servers import dying_with_parent

WAREHOUSE, SOURCE = "warehouse_agent.cli.main", "source_agent.cli.main"


class Forks:
    """Starts commands and waits for them. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            cwd=ROOT,
            text=True,
        )

    def start(self, program: str, *words: str, log: Path, **more: str) -> int:
        """Start the command of an agent; return its process id. `more`: its environment."""
        return self._ask({"program": program, "words": words, "log": str(log), "more": more})

    def wait(self, pid: int) -> int:
        """Wait until a command ends; return its exit code, or minus the signal that killed it."""
        return self._ask({"wait": pid})

    def run(self, program: str, *words: str, log: Path, **more: str) -> int:
        """Run a command to its end; return its exit code."""
        return self.wait(self.start(program, *words, log=log, **more))

    def _ask(self, order: dict[str, Any]) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return int(stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    """Obey orders until there are no more; the children end with this process."""
    import warehouse_agent.cli.commands
    import warehouse_agent.refresh.tiled
    import warehouse_agent.runs.batch  # noqa: F401 - what a refresh of few rows imports
    from source_agent.cli import main as _source  # noqa: F401
    from source_agent.engines import mariadb, postgresql, sqlite  # noqa: F401
    from source_agent.server import service  # noqa: F401
    from warehouse_agent.cli import main as _warehouse  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        if (pid := order.get("wait")) is not None:
            answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        elif not (answer := os.fork()):
            _become(order["program"], order["words"], Path(order["log"]), order["more"])
        print(answer, flush=True)


def _become(program: str, words: Sequence[str], log: Path, more: dict[str, str]) -> None:
    """Be the command, in the child; never return."""
    from driftline import failpoints

    code = 1
    try:
        dying_with_parent()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(out, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(more)
        failpoints.arm(os.environ.get(failpoints.VARIABLE))
        sys.argv = [program, *words]
        sys.modules[program].main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
