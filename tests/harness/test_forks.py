"""Forked commands are processes of their own, which begin and end as any process of Python."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driftline.failpoints import VARIABLE

from tests.harness.forks import SOURCE, WAREHOUSE, Fork, run
from tests.harness.pair import environment
from warehouse_agent.failpoints import WarehouseFailpoint

pytestmark = [pytest.mark.slow, pytest.mark.starts]

SAYS_AND_SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
USES_A_FORK = """
import time
from tests.harness.forks import Fork
print(Fork(["-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


def code(text: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(["-c", text, *words], env=environment(**variables))


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(75)", 75, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("raise SystemExit(3)", 3, ""),
        ("import os; os._exit(4)", 4, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_exit_codes(text: str, expected: int, said: str) -> None:
    """As of a process that does not fork."""
    real = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    forked = code(text)
    for done in (real, forked):
        assert (done.returncode, done.stdout, done.stderr) == (expected, "", said)


def test_an_error_is_a_traceback_and_the_interpreter_ends() -> None:
    done = code(
        "import atexit, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('in a thread'))).start()\n"
        "print('begins')\n"
        "1 / 0\n"
    )
    assert (done.returncode, done.stdout) == (1, "begins\nin a thread\nat exit\n")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("\nZeroDivisionError: division by zero\n")


def test_its_words_folder_environment_and_stdin_are_its_own(tmp_path: Path) -> None:
    text = "import os, sys; print(sys.argv, os.getcwd(), dict(os.environ), sys.stdin.read())"
    only = {"ONLY": "ä\udcff"}
    done = run(["-c", text, "a b"], cwd=tmp_path, env=only, input="Wörter\n")
    expected = f"{['-c', 'a b']} {tmp_path} {only} Wörter\n\n"
    assert (done.stdout, done.stderr) == (expected, "")
    assert run(["-c", text]).stdout.endswith("} \n"), "stdin is empty"


def test_each_begins_as_the_others_did() -> None:
    """Nothing that one sets is there in the next one."""
    text = (
        "import os, random, signal, sys, warehouse_agent\n"
        "print(hasattr(warehouse_agent, 'left'), 'LEFT' in os.environ, os.umask(0))\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, os.getsid(0) == os.getpid())\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])\n"
        "print(random.random())\n"
        "warehouse_agent.left = os.environ['LEFT'] = 'x'\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    )
    mask = os.umask(0)
    os.umask(mask)
    found = [code(text).stdout.splitlines() for _ in range(2)]
    expected = [f"False False {mask}", "True", "True True", "[0, 1, 2]"]
    assert [lines[:-1] for lines in found] == [expected, expected]
    assert found[0][-1] != found[1][-1], "both draw the same numbers"


def test_output_to_a_file_and_to_pipes(tmp_path: Path) -> None:
    text = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    with (tmp_path / "log").open("w") as log:
        done = run(["-c", text], stdout=log, stderr=subprocess.STDOUT)
        assert done.stdout is None
    assert (tmp_path / "log").read_text() == "out\nerr\n"
    done = run(["-c", text])
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_modules_run_as_main() -> None:
    for program, name in ((WAREHOUSE, "driftline"), (SOURCE, "driftline-source")):
        done = run([*program, "--version"], env=environment())
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{name} ")
        assert run([*program, "nonsense"], env=environment()).returncode == 2


def test_a_failpoint_of_its_environment_is_armed() -> None:
    point = WarehouseFailpoint.COMMITTED
    text = f"from warehouse_agent import failpoints as f; f.WarehouseFailpoint.{point.name}.reach()"
    armed = {VARIABLE: f"{point.value}:kill"}
    assert code(text, **armed).returncode == -signal.SIGKILL
    assert code(text).returncode == 0


def test_signals_while_it_runs() -> None:
    for number, expected in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)):
        with Fork(["-c", SAYS_AND_SLEEPS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
            assert one.stdout is not None
            assert int(one.stdout.readline()) == one.pid
            assert one.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                one.wait(0.01)
            one.send_signal(number)
            _, said = one.communicate(timeout=60)
            assert one.returncode == one.poll() == one.wait() == expected
            assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
            one.kill()  # nobody


def test_what_does_not_end_in_time_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run(["-c", "import time; time.sleep(600)"], timeout=0.2)


def test_all_end_with_the_process_that_uses_them() -> None:
    words = [sys.executable, "-c", USES_A_FORK]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment()) as user:
        assert user.stdout is not None
        over = os.pidfd_open(int(user.stdout.readline()))
        assert not select.select([over], [], [], 0)[0]
        user.kill()
    assert select.select([over], [], [], 60)[0]
    os.close(over)
