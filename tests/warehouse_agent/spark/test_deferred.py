"""A session that starts beside other work: order, errors, and what is left of it at the end.

The first tests replace the start by events. The others are processes with a real JVM.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import ConfigurationError, DriftlineError, InternalError, SparkLost

from source_agent.server.service import start
from tests.harness.agents import configuration, make_orders
from tests.harness.pair import environment
from warehouse_agent.planning.step_places import written
from warehouse_agent.spark import session
from warehouse_agent.spark.executors import driver_errors, mistake
from warehouse_agent.spark.machine import machine
from warehouse_agent.spark.session import TASKS_OF_CLUSTER, DeferredSession, tasks_of
from warehouse_agent.tasks.steps import Steps

pytestmark = pytest.mark.starts

S_MAX = 30.0
END_S_MAX = 300.0


class Start:
    """The start of a session that a test lets go on; `outcomes` are returned or raised in turn."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes = list(outcomes)
        self.threads: list[str] = []
        self.has_begun, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> Any:
        self.threads.append(threading.current_thread().name)
        self.has_begun.set()
        assert self.goes_on.wait(S_MAX)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


Starting = Callable[..., Start]


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starting]:
    made: list[Start] = []

    def replace(*outcomes: object) -> Start:
        made.append(Start(*outcomes))
        monkeypatch.setattr(session, "start", made[-1])
        return made[-1]

    yield replace
    for one in made:
        one.goes_on.set()


def failed(deferred: DeferredSession) -> DriftlineError:
    with pytest.raises(DriftlineError) as caught:
        deferred.get()
    return caught.value


def test_a_start_goes_on_beside_other_work(starting: Starting) -> None:
    found = object()
    one, shared = starting(found), DeferredSession({})
    for _ in range(3):
        shared.begin()  # and nobody waits
    assert one.has_begun.wait(S_MAX)
    assert one.threads == ["driftline-spark"]
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(shared.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert got == []
    one.goes_on.set()
    for thread in threads:
        thread.join(S_MAX)
    shared.begin()
    assert [*got, shared.get()] == [found] * 5
    assert len(one.threads) == 1


def test_what_is_left_of_a_start(starting: Starting) -> None:
    one, shared = starting(object()), DeferredSession({})
    assert shared.start_left_s(60.0) == 60.0
    shared.begin()
    assert one.has_begun.wait(S_MAX)
    assert 0.0 < shared.start_left_s(60.0) <= 60.0
    assert shared.start_left_s(0.0) == 0.0, "it takes longer than was expected"
    one.goes_on.set()
    shared.get()
    assert shared.start_left_s(60.0) == 0.0
    assert DeferredSession({"spark.master": "spark://there:7077"}).start_left_s(60.0) == 0.0
    wrong, broken = starting(ConfigurationError("No such master.")), DeferredSession({})
    wrong.goes_on.set()
    failed(broken)
    assert broken.start_left_s(60.0) == 60.0, "nobody is drawn to what does not start"


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({}, machine().cores),
        ({"spark.master": "local[*]"}, machine().cores),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[5,2]"}, 5),
        ({"spark.master": "spark://h:7077"}, TASKS_OF_CLUSTER),
        ({"spark.remote": "sc://h"}, TASKS_OF_CLUSTER),
        ({"spark.master": "spark://h:7077", "spark.cores.max": "6"}, 6),
        ({"spark.master": "yarn", "spark.executor.instances": "3"}, 3),
        (
            {"spark.master": "yarn", "spark.executor.instances": "3", "spark.executor.cores": "4"},
            12,
        ),
        ({"spark.master": "yarn", "spark.executor.instances": "many"}, TASKS_OF_CLUSTER),
    ],
)
def test_how_many_tasks_run_at_once(settings: dict[str, str], tasks: int) -> None:
    assert tasks_of(DeferredSession(settings)) == tasks


def test_whoever_needs_a_session_that_does_not_start_is_told(starting: Starting) -> None:
    """Each with an error of its own, as a step adds to it; the start is not tried again."""
    one, shared = (
        starting(ConfigurationError("No such master.", where="[spark]")),
        DeferredSession({}),
    )
    steps = Steps(shared, small_bytes=1000)
    steps.expect(*written(1000))
    assert not one.threads
    steps.expect(*written(1001))
    one.goes_on.set()
    errors = [failed(shared), failed(shared)]
    with pytest.raises(ConfigurationError) as small:
        steps.spark_to_join(2000)
    with pytest.raises(ConfigurationError) as later:
        steps.expect(*written(3000))
    errors += [small.value, later.value]
    assert {str(error) for error in errors} == {str(errors[0])}
    assert len({id(error) for error in errors}) == 4
    said = [error.details.get("Spark is needed", "") for error in errors]
    assert said[:2] == ["", ""]
    assert "2,000 bytes" in said[2]
    assert "3,000 bytes" in said[3]
    assert len(one.threads) == 1


def test_a_start_whose_jvm_was_lost_is_tried_again(starting: Starting) -> None:
    found = object()
    one, shared = starting(SparkLost("It was killed."), found), DeferredSession({})
    one.goes_on.set()
    assert failed(shared).is_retryable
    assert shared.get() is found
    assert len(one.threads) == 2


def test_without_a_java_nothing_is_begun(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise ConfigurationError("There is no Java.", where="JAVA_HOME")

    monkeypatch.setattr(session, "ensure_java", absent)
    one, shared = starting(object()), DeferredSession({})
    with pytest.raises(ConfigurationError, match="no Java"):
        shared.begin()
    assert failed(shared).where == "JAVA_HOME"
    assert not one.threads


def test_a_start_without_a_thread_is_tried_again(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a session that no thread starts."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = object()
    one, shared = starting(found), DeferredSession({})
    one.goes_on.set()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            shared.begin()
    shared.begin()
    assert one.has_begun.wait(S_MAX)
    assert shared.get() is found


def test_any_failure_of_a_session_that_was_replaced_is_its_loss(starting: Starting) -> None:
    """Another thread may have noticed first, and PySpark then asserts, or knows no object."""
    first, second = object(), object()
    one, shared = starting(SparkLost("It was killed."), second), DeferredSession({}, first)  # type: ignore[arg-type]
    steps = Steps(shared)
    assert steps.spark_to_join(1) is first
    assert steps.mistake(AssertionError("of ours"), "orders").code == "INTERNAL"
    shared._start = None  # as after the end of its JVM
    one.goes_on.set()
    lost = steps.mistake(AssertionError("of PySpark"), "orders")
    assert (lost.code, lost.where, lost.is_retryable) == ("SPARK", "orders", True)
    failed(shared)
    assert steps.mistake(AssertionError(), "orders").code == "SPARK"
    assert steps.spark_to_join(1) is second
    assert isinstance(steps.mistake(AssertionError(), "orders"), InternalError)
    assert steps.mistake(ConfigurationError("no"), "orders").code == "CONFIGURATION"


def test_an_interruption_is_no_failure() -> None:
    """PySpark waits for a job in `finally`, whose error hides the interruption."""

    def wait() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionError("the job is gone")

    with pytest.raises(ConnectionError) as caught:
        wait()
    with pytest.raises(KeyboardInterrupt):
        mistake(caught.value, "orders")
    with pytest.raises(KeyboardInterrupt), driver_errors():
        wait()


def running(mark: str) -> list[str]:
    """Command lines of the processes with a mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"BESIDE={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool], says: Callable[[], object] = lambda: "") -> None:
    until = time.monotonic() + END_S_MAX
    while not condition():
        assert time.monotonic() < until, says()
        time.sleep(0.02)


KILLED = """
import time
from warehouse_agent.spark.session import DeferredSession

shared = DeferredSession({"spark.master": "local[1]", "spark.driver.memory": "1g"})
shared.begin()
first = shared._start
while first._java is None:
    time.sleep(0.01)
first._java.kill()
first.session.exception()  # waits for its end
print(shared.get().range(3).count(), shared._start is first)
"""


@pytest.mark.slow
def test_a_jvm_that_is_killed_while_it_starts_is_started_again() -> None:
    """PySpark says that Java did not start, as with a setting that it does not know."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3 False\n"), done.stderr


SILENT = """
import contextlib
from driftline.errors import ConfigurationError
from warehouse_agent.spark import cluster, session

cluster._START_S = 0.0
limited_start = session.limited_start

@contextlib.contextmanager
def reaped(*limits):
    try:
        with limited_start(*limits):
            yield
    finally:
        shared._start._java.wait()  # then its exit code is known

session.limited_start = reaped
shared = session.DeferredSession({"spark.master": "spark://127.0.0.1:9"}, wait_s=1.0)
try:
    shared.get()
except ConfigurationError as error:
    print(error.message, shared._start._java.returncode)
"""


@pytest.mark.slow
def test_a_master_that_does_not_answer_is_no_lost_jvm() -> None:
    """The start is ended by a signal, which does not hide why."""
    done = subprocess.run(
        [sys.executable, "-c", SILENT],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    says = "Spark's master spark://127.0.0.1:9 does not answer. -9\n"
    assert (done.returncode, done.stdout) == (0, says), done.stderr


UNNEEDED = """
import sys, time
from pathlib import Path
from warehouse_agent.spark.session import DeferredSession

shared = DeferredSession({"spark.master": "local[1]", "spark.driver.memory": "1g"})
shared.begin()
if sys.argv[1] == "launched":
    while shared._start._java is None:
        time.sleep(0.01)
elif sys.argv[1] == "started":
    shared.get()
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["begun", "launched", "started"])
def test_a_session_that_nobody_needed_leaves_nothing(tmp_path: Path, when: str) -> None:
    mark, folder = secrets.token_hex(8), tmp_path / "temporary"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", UNNEEDED, when],
        capture_output=True,
        text=True,
        env=environment(BESIDE=mark, TMPDIR=str(folder)),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    wait_until(lambda: not running(mark), lambda: running(mark))
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("process", ["SparkSubmit", "pyspark.daemon"])
def test_ctrl_c_while_spark_starts_or_works(tmp_path: Path, process: str) -> None:
    """The command ends, with its JVM, and says nothing else."""
    make_orders(tmp_path / "erp.db", [(i, "x") for i in range(100)])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=None))
    file, mark = tmp_path / "warehouse.toml", secrets.token_hex(8)
    file.write_text(
        f'[warehouse]\npath = "{tmp_path}/warehouse"\nsmall_bytes = 0\n'
        '[spark]\n"spark.master" = "local[1]"\n"spark.driver.memory" = "1g"\n'
        f'[sources.erp]\naddress = "127.0.0.1:{server.port}"\ninsecure = true\n'
        '[fragments.orders]\nsource = "erp"\n'
    )
    words = ["--config", str(file), "refresh", "--json"]
    try:
        command = subprocess.Popen(
            [sys.executable, "-m", "warehouse_agent.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(BESIDE=mark),
        )
        wait_until(lambda: any(process in line for line in running(mark)), lambda: running(mark))
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=END_S_MAX)
    finally:
        server.stop()
    assert (command.returncode, out) == (130, ""), err
    assert err.strip() == "Interrupted. Nothing unproven was published."
    wait_until(lambda: not running(mark), lambda: running(mark))
    assert not (tmp_path / "warehouse" / "orders" / "_delta_log").exists()


TWO = """
import json, os, signal, threading
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.tasks.steps import Steps

shared = DeferredSession({"spark.master": "local[2]", "spark.driver.memory": "1g"})
works, found = threading.Barrier(3, timeout=120), []

def work():
    from pyspark.sql import functions as F

    steps = Steps(shared)
    for _ in range(2):  # after the loss, with the next session
        spark = steps.spark_to_join(1)
        spark.range(10).count()
        works.wait()
        try:
            while True:
                spark.range(1000).withColumn("x", F.expr("id * 2") + F.lit(1)).count()
        except Exception as problem:
            found.append((type(problem).__name__, steps.mistake(problem, "orders").code))

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(2):
    works.wait()
    shared._start._java.kill()
for thread in threads:
    thread.join()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_jvm_that_dies_under_two_threads_is_lost_to_both(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [code for _, code in found] == ["SPARK"] * 4, found
