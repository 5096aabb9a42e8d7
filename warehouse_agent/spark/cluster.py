"""The executors of a cluster: an end to the wait for them, and a check of what tasks need there.

Spark itself waits without end, for its first executors and again when all of them were lost: a job
then stands still, and only Spark's log says why. `watch` cancels such jobs.

Driver and executors share the folder of the warehouse and run the same code. `check` looks for both
before a source is asked, since rows that arrived would wait in a place that no task can read. Its
task is pickled by value and imports what it needs itself, so it also runs where our package is not.

A local master has neither problem. Spark Connect does not tell how many executors there are, so
nothing is watched there, and the check runs a few tasks, wherever Spark places them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa
from driftline.errors import ConfigurationError, DriftlineError, SparkLost

from warehouse_agent.spark.executors import Batches, Task, cause, driver_errors, failures, marked
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.store import PRIVATE, Store

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PYTHON = "Python"
DRIFTLINE = "driftline"
PACKAGES = (DRIFTLINE, "pyarrow", "numpy", "pandas", "blake3", "zstandard")  # that tasks import
OF_BUCKETS = ("obstore",)  # and where the warehouse lies in one
_START_S = 30.0  # in which the driver itself starts, on a slow machine
_POLL_S = 0.5
_JOBS_MAX = 3  # of a check: executors register one after the other
_TASKS = 8  # of a check, if the number of executors is not known
_STOPPED = "stopped SparkContext"
_DRIVER = "driver"  # name of the driver's file in the folder of a check
_ENOUGH = (
    "Ask for what the cluster has free (`spark.executor.memory`, `spark.executor.cores`, "
    "`spark.cores.max`), let the workers reach this machine (`spark.driver.host`), or wait longer: "
    "`executors_wait_s` in [warehouse]."
)
_log = logging.getLogger("driftline")
_checked: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()  # roots of warehouses
_checking = threading.Lock()


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor as a task of ours found it.

    Attributes:
        host: its name for itself.
        folder: its own working folder, which tells it from others of its host.
        versions: of Python and PACKAGES by name; empty for what is not there.
        problem: why our code does not run there, or does not reach the warehouse; empty: it does.
        remedy: what to do, if the problem says it.
    """

    host: str
    folder: str
    versions: dict[str, str]
    problem: str
    remedy: str = ""


def is_local_master(master: str) -> bool:
    """Return True if a master runs its tasks in the driver's own JVM."""
    return master == "local" or master.startswith("local[")


@contextlib.contextmanager
def limited_start(master: str, wait_s: float) -> Iterator[None]:
    """End Spark's Java process if its session is not there when a master had `wait_s` seconds.

    The driver's own start has _START_S more.

    Raises:
        ConfigurationError: it was ended.
    """
    from pyspark import SparkContext

    ready, ended = threading.Event(), threading.Event()

    def end() -> None:
        while (gateway := SparkContext._gateway) is None:
            if ready.wait(_POLL_S):
                return
        jvm = getattr(gateway, "proc", None)
        if jvm is not None and not ready.wait(_START_S + wait_s):
            ended.set()
            jvm.kill()

    threading.Thread(target=end, name="driftline-start", daemon=True).start()
    try:
        yield
    except Exception as error:
        if not ended.is_set() and _STOPPED not in str(error):  # Spark itself gives up after 60 s
            raise
        raise ConfigurationError(
            f"Spark's master {master} does not answer.",
            where="[spark]",
            remedy="Is it up, and reachable from here? `spark.master` names it. It was waited for "
            f"up to {wait_s:g} s, the `executors_wait_s` of [warehouse].",
        ) from error
    finally:
        ready.set()


def watch(spark: SparkSession, wait_s: float) -> None:
    """Cancel, from a thread, the jobs of a session that has no executor for `wait_s` seconds.

    The jobs end with a typed error: ConfigurationError if there was never an executor, else
    SparkLost. A session without a cluster, or of Spark Connect, is left alone.
    """
    context = _context(spark)
    if context is None or is_local_master(context.master or ""):
        return
    threading.Thread(
        target=_watch, args=(context, wait_s), name="driftline-executors", daemon=True
    ).start()


def _watch(context: SparkContext, wait_s: float) -> None:
    tracker, since, were_any = context.statusTracker(), None, False
    has_failed = False  # then later jobs do not wait again
    try:
        while True:
            jobs, count, now = tracker.getActiveJobsIds(), _count(context), time.monotonic()
            if count:
                since, were_any, has_failed = None, True, False
            elif not jobs:
                since = None
            else:
                since = now if since is None else since
                if has_failed or now - since >= wait_s:
                    has_failed = True
                    reason = marked(_missing(context.master or "", wait_s, were_any=were_any))
                    for job in jobs:
                        context._jsc.sc().cancelJob(job, reason)
            time.sleep(_POLL_S)
    except Exception:  # py4j's and Python's own, once the session or its JVM is gone
        _log.debug("the executors are not watched any more", exc_info=True)


def _missing(master: str, wait_s: float, *, were_any: bool) -> DriftlineError:
    """Return the error of a job that had no executor for too long."""
    if were_any:
        return SparkLost(
            f"All executors of {master} were lost, and none came back within {wait_s:g} s.",
            remedy="Run the command again when the cluster is well; what arrived is kept.",
        )
    return ConfigurationError(
        f"Spark's master {master} gave no executor within {wait_s:g} s.",
        where="[spark]",
        remedy=_ENOUGH,
    )


def check(spark: SparkSession, store: Store) -> None:
    """Check, once a session, that executors of a cluster reach the warehouse and have our code.

    Raises:
        ConfigurationError: one does not, and which; or no executor came in time (`watch`).
        SparkLost, WarehouseUnavailable: as of `probe`.
    """
    context = _context(spark)
    if context is not None and is_local_master(context.master or ""):
        return
    with _checking:
        if store.root in _checked.setdefault(spark, set()):
            return
        here = versions(store)[DRIFTLINE]
        for executor in probe(spark, store):
            refuse_unfit(executor, store)
            if (there := executor.versions[DRIFTLINE]) != here:
                raise ConfigurationError(
                    f"The executor on {executor.host} has driftline {there or 'not installed'}, "
                    f"and the driver {here or 'not installed'}.",
                    where="[spark]",
                    remedy="Install the same release on both; `driftline doctor` compares them.",
                )
        _checked[spark].add(store.root)


def refuse_unfit(executor: Executor, store: Store) -> None:
    """Raise ConfigurationError if an executor has not our code, or does not reach the warehouse."""
    if not executor.problem:
        return
    if executor.problem.startswith("No module named"):
        raise ConfigurationError(
            f"Driftline does not run on the executor on {executor.host}: {executor.problem}.",
            where="[spark]",
            remedy="Install driftline[warehouse] there, with [object-stores] if the warehouse lies "
            "in a bucket; or name a Python that has them: `spark.pyspark.python`.",
        )
    raise ConfigurationError(
        f"The executor on {executor.host} does not reach {store.root}: {executor.problem}",
        where="warehouse.path",
        remedy=executor.remedy
        or "Driver and executors need one folder: a file system that all of them mount at this "
        "path, or an object store.",
    )


def probe(spark: SparkSession, store: Store) -> list[Executor]:
    """Run a task on each executor, which tries all that tasks do in the warehouse's folder.

    Spark gives each idle executor one task of a job before it gives one of them two. A later job
    finds executors that registered meanwhile.

    Raises:
        ConfigurationError: tasks in Python do not run; or no executor came in time (`watch`).
        SparkLost: a process of Spark ended.
        WarehouseUnavailable: the driver cannot write to the warehouse.
    """
    place = (PRIVATE, "executors", uuid.uuid4().hex)
    context, word = _context(spark), uuid.uuid4().hex
    executors: dict[tuple[str, str], Executor] = {}
    try:
        store.write(word.encode(), *place, _DRIVER)
        for _ in range(_JOBS_MAX):
            tasks = _TASKS if context is None else max(1, _count(context))
            for executor in _run(spark, _probe(store, place, word), tasks):
                executors[executor.host, executor.folder] = executor
            if context is None or len(executors) >= _count(context):
                break
    finally:
        store.remove(*place)
    return sorted(executors.values(), key=lambda executor: (executor.host, executor.folder))


def _run(spark: SparkSession, task: Task, tasks: int) -> list[Executor]:
    try:
        with driver_errors():
            rows = spark.range(tasks, numPartitions=tasks).mapInArrow(task, "told string").collect()
    except failures() as error:
        raise ConfigurationError(
            f"Spark runs no task in Python: {cause(error)}",
            where="[spark]",
            remedy="Its executors need the driver's version of Python, with pyarrow and pandas: "
            "`spark.pyspark.python`.",
        ) from error
    return [Executor(**json.loads(row[0])) for row in rows]


def _probe(store: Store, place: Sequence[str], word: str) -> Task:
    """Return a task that reads the driver's file in a folder, tries the folder, and says where it
    ran.

    It refers to none of our modules, so that it is pickled by value, and needs none to begin. It
    learns how a bucket is reached, as all tasks do, and finds the credentials itself.
    """
    read_versions = _version_reader(store)
    driver, root, folder = _DRIVER, store.root, store.uri(*place)
    settings = known.settings_of(root)
    way = (settings.endpoint, settings.region, settings.profile)
    file = None if settings.credentials_file is None else str(settings.credentials_file)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        import json
        import os
        import socket
        import uuid

        import pyarrow as pa

        for _ in batches:
            pass
        problem = remedy = ""
        try:
            from pathlib import Path

            from warehouse_agent.config import StorageSettings
            from warehouse_agent.storage.backends import known
            from warehouse_agent.storage.place_trial import try_folder
            from warehouse_agent.storage.store import read_at

            known.learn({root: StorageSettings(*way, None if file is None else Path(file))})
            if read_at(f"{folder}/{driver}").decode() != word:
                problem = "it reads another file than the driver wrote."
            else:
                try_folder(f"{folder}/{uuid.uuid4().hex}")
        except ModuleNotFoundError as error:
            problem = str(error)
        except Exception as error:
            problem = getattr(error, "message", "") or str(error) or type(error).__name__
            remedy = getattr(error, "remedy", "") if "://" in root else ""
        told = {
            "host": socket.gethostname(),
            "folder": os.environ.get("SPARK_EXECUTOR_DIRS", ""),
            "versions": read_versions(),
            "problem": problem,
            "remedy": remedy,
        }
        yield pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})

    return run


def versions(store: Store) -> dict[str, str]:
    """Return the versions of Python and of the packages that tasks on a warehouse import, in this
    process; empty for what is not there."""
    return _version_reader(store)()


def _version_reader(store: Store) -> Callable[[], dict[str, str]]:
    """Return the function that reads versions; like the task, it is pickled by value."""
    packages, python = PACKAGES if store.is_local else PACKAGES + OF_BUCKETS, PYTHON

    def read() -> dict[str, str]:
        import importlib.metadata
        import platform

        installed = {python: platform.python_version()}
        for name in packages:
            try:
                installed[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                installed[name] = ""
        return installed

    return read


def processors(spark: SparkSession) -> int | None:
    """Return how many tasks of a session run at once, of the executors that have registered.

    None: not known. Spark Connect does not tell, and executors may come when there are tasks.
    """
    context = _context(spark)
    if context is None or _has_passing_executors(context):
        return None
    return context.defaultParallelism


def _has_passing_executors(context: SparkContext) -> bool:
    """Return True if Spark asks for executors as it needs them, and gives them back."""
    return str(context.getConf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true"


def _context(spark: SparkSession) -> SparkContext | None:
    """Return the context of a session; None for Spark Connect, which has none."""
    return getattr(spark, "_sc", None)


def _count(context: SparkContext) -> int:
    """Return the number of executors that are registered; the driver is listed beside them."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1
