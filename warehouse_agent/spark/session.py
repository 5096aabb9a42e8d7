"""The Spark session of the command line, and the settings that correctness depends on.

A job that brings its own session calls `prepare` on it. Timestamps are written as microseconds
(only Spark can read years 1 and 9999 as INT96), the time zone is UTC, and Python workers use the
interpreter that `spark.pyspark.python` names, or the environment, or else that of the driver.
"""

from __future__ import annotations

import atexit
import copy
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import InitVar, dataclass, field
from functools import partial
from importlib.resources import files
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, NoReturn

from driftline.errors import ConfigurationError, DriftlineError

from warehouse_agent.config import EXECUTORS_WAIT_S, WarehouseConfig
from warehouse_agent.spark.cluster import is_local_master, limited_start, watch
from warehouse_agent.spark.executors import cause, jvm_lost, meaning
from warehouse_agent.spark.foreign_output import diverted_bytes, quiet_pyspark, reason
from warehouse_agent.spark.java import ensure_java
from warehouse_agent.spark.machine import machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The page of warehouse.toml lists these and the two below (docs/generate).
ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
DEFAULTS = {
    "spark.app.name": "driftline",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.parquet.compression.codec": "zstd",
}
# Nobody else talks to a driver whose tasks run in its own JVM, and its ports ask for no password:
# by default it listens on the machine's address.
LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_INTERPRETERS = {
    "PYSPARK_PYTHON": "spark.pyspark.python",
    "PYSPARK_DRIVER_PYTHON": "spark.pyspark.driver.python",
}

TASKS_OF_CLUSTER = 8  # at once, where the settings do not say

_GATEWAY, _SUBMIT_ARGUMENTS = "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"  # of PySpark

STOP_S_MAX = 1.0  # for a start that is given up at the exit of the process
_AWS_SECRETS = {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
_WITHOUT_SIGINT = ("/bin/sh", "-c", "trap '' INT; exec \"$@\"", "spark")


def start(
    settings: dict[str, str],
    wait_s: float = EXECUTORS_WAIT_S,
    was_killed: Callable[[], bool] = lambda: False,
) -> SparkSession:
    """Start a session with the `[spark]` settings of the configuration, and defaults.

    On a cluster, its master has `wait_s` seconds to answer, and jobs of the session are cancelled
    when it has no executor for as long (`cluster.limited_start`, `cluster.watch`). `was_killed`
    returns True if a signal ended the JVM, which PySpark does not tell from a wrong setting.

    Raises:
        ConfigurationError: no Java, or Spark does not start with these settings.
        SparkLost: its JVM ended meanwhile.
    """
    from pyspark.sql import SparkSession

    if "spark.remote" not in settings:
        ensure_java()
    quiet_pyspark()
    choose_interpreters(settings)
    if "spark.remote" in settings:
        chosen = {**settings, **ALWAYS}
    else:
        log = files("warehouse_agent") / "log4j2.properties"
        quiet = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file://{log}"}
        loopback = LOCAL_DEFAULTS if is_local(settings) else {}
        chosen = {**DEFAULTS, **loopback, **quiet, **settings, **ALWAYS}
    written, master = diverted_bytes(), chosen.get("spark.master", "")
    try:
        with (
            nullcontext() if is_local(settings) else limited_start(master, wait_s),
            _given_unseen(chosen) as left,
        ):
            builder = SparkSession.builder
            for key, value in left.items():
                builder = builder.config(key, value)
            spark = _beside_a_caller(chosen) or pin(builder.getOrCreate())
    except DriftlineError:  # of a master that does not answer, whose JVM we killed
        raise
    except Exception as error:  # py4j, PySpark and Spark Connect have no common base class
        raise (jvm_lost() if was_killed() else _did_not_start(error, written)) from error
    watch(spark, wait_s)
    return spark


@contextmanager
def _given_unseen(settings: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Give settings to the JVM that PySpark starts within, in a file that others cannot read; yield
    those that PySpark is to be given.

    PySpark would write each into the command of the JVM, which everybody on the machine can list,
    and they may hold keys of an object store.
    """
    from pyspark import SparkContext

    if "spark.remote" in settings or _GATEWAY in os.environ or SparkContext._gateway is not None:
        yield settings  # no JVM is started
        return
    before = os.environ.get(_SUBMIT_ARGUMENTS)
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".properties") as file:
        file.writelines(f"{_property(key)}={_property(value)}\n" for key, value in settings.items())
        file.flush()
        ours = shlex.join(["--properties-file", file.name, "--load-spark-defaults"])
        os.environ[_SUBMIT_ARGUMENTS] = f"{ours} {before or 'pyspark-shell'}"
        try:
            yield {}
        finally:
            os.environ.pop(_SUBMIT_ARGUMENTS)
            if before is not None:
                os.environ[_SUBMIT_ARGUMENTS] = before


def _property(text: str) -> str:
    """Return a key or a value as Java's files of properties have it."""
    return re.sub(r"[\\\s=:#!]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _beside_a_caller(settings: Mapping[str, str]) -> SparkSession | None:
    """Return a session of our own in the JVM of a program that has one; None: it has none.

    The builder would return the program's session, with our settings, such as the time zone, set on
    it. Settings of the JVM itself stay as they are.
    """
    from pyspark.sql import SparkSession

    theirs = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    if theirs is None or "spark.remote" in settings or theirs.sparkContext._jsc is None:
        return None
    own = theirs.newSession()
    for key, value in settings.items():
        if own.conf.isModifiable(key):
            own.conf.set(key, value)
    return pin(own)


def is_local(settings: Mapping[str, str]) -> bool:
    """Return True if a session with these settings runs its tasks on this machine."""
    master = settings.get("spark.master", DEFAULTS["spark.master"])
    return "spark.remote" not in settings and is_local_master(master)


def tasks_of(session: SparkSession | DeferredSession) -> int:
    """Return how many tasks run at once in a session, as far as its settings say."""
    if isinstance(session, DeferredSession):
        return tasks_at_once(session.settings)
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context; py4j: the JVM has just gone
        return TASKS_OF_CLUSTER


def tasks_at_once(settings: Mapping[str, str]) -> int:
    """Return how many tasks a session with these settings runs at once; a guess for a cluster whose
    settings do not limit it."""
    if is_local(settings):
        master = settings.get("spark.master", DEFAULTS["spark.master"])
        threads = re.match(r"local\[(\d+)", master)
        return int(threads[1]) if threads else 1 if master == "local" else machine().cores
    most, instances = (settings.get(f"spark.{k}", "") for k in ("cores.max", "executor.instances"))
    cores = settings.get("spark.executor.cores", "1")
    if most.isdecimal():
        return int(most)
    if instances.isdecimal() and cores.isdecimal():
        return int(instances) * int(cores)
    return TASKS_OF_CLUSTER


def choose_interpreters(settings: Mapping[str, str]) -> None:
    """Set the environment from which PySpark takes its interpreters: of tasks, and of the driver.

    Only spark-submit reads the settings itself. The default is this interpreter.
    """
    for variable, key in _INTERPRETERS.items():
        os.environ[variable] = settings.get(key) or os.environ.get(variable) or sys.executable


def _did_not_start(error: Exception, written: int) -> DriftlineError:
    """Return why Spark did not start; `written` bytes were diverted from stderr before."""
    from pyspark.errors import PySparkRuntimeError

    remedy = "Correct the settings in [spark]; --debug shows all that it wrote."
    if isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED":
        why = reason(written).rstrip(".") or "it says why above"
        return ConfigurationError(
            f"Spark's Java process did not start: {why}.", where="[spark]", remedy=remedy
        )
    if (known := meaning(error)) is not None:
        return known
    why = cause(error).rstrip(".")
    return ConfigurationError(f"Spark does not start: {why}.", where="[spark]", remedy=remedy)


def prepare(spark: SparkSession) -> SparkSession:
    """Return a session beside a program's own, with what correctness depends on; the program's
    keeps its settings, such as its time zone. Both share the JVM, its executors and its cache."""
    return pin(spark.newSession())


def pin(spark: SparkSession) -> SparkSession:
    """Set on a session of our own what correctness depends on; return it."""
    for key, value in ALWAYS.items():
        spark.conf.set(key, value)
    return spark


@dataclass
class DeferredSession:
    """A session that starts when it is expected or first used, and again if it has ended.

    It starts in a thread of its own, so that other work goes on meanwhile. Threads share it. `get`
    raises the error of a start in every thread that needs the session; only a start whose JVM was
    lost is tried again.
    """

    settings: Mapping[str, str] = field(repr=False)  # they may hold keys
    session: InitVar[SparkSession | None] = None
    wait_s: float = EXECUTORS_WAIT_S
    _start: _Start | None = field(default=None, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self, session: SparkSession | None) -> None:
        if session is not None:
            self._start = _Start()
            self._start.session.set_result(session)

    @classmethod
    def of(cls, config: WarehouseConfig) -> DeferredSession:
        """Return the session that a configuration describes."""
        return cls(config.spark, wait_s=config.executors_wait_s)

    @property
    def is_local(self) -> bool:
        """Return True if the session's tasks run on this machine."""
        return is_local(self.settings)

    def start_left_s(self, start_s: float) -> float:
        """Return the seconds until the session is there, if a start takes `start_s`; 0 for a
        cluster, whose start nobody can predict."""
        with self._lock:
            begun = self._start
            if not self.is_local:
                return 0.0
            if begun is None or begun.is_over():
                return start_s
            if begun.session.done():  # if it failed, a step has no reason to go there
                return 0.0 if begun.session.exception() is None else start_s
            return max(start_s - begun.took_s, 0.0)

    def begin(self) -> None:
        """Begin to start the session, if this was not done; do not wait for it.

        Raises:
            ConfigurationError: there is no Java, or the start has failed already.
        """
        begun = self._begun()
        if begun.session.done():
            begun.result()

    def get(self) -> SparkSession:
        """Return the session; wait until it has started.

        Raises:
            ConfigurationError: there is no Java, or as of `start`.
            SparkLost: as of `start`.
        """
        begun = self._begun()
        session = begun.result()
        if threading.current_thread() is threading.main_thread():
            begun.end_when_interrupted()
        return session

    def is_current(self, session: SparkSession) -> bool:
        """Return True if `get` returned this session last, and its JVM runs."""
        with self._lock:
            begun = self._start
            if begun is None or not begun.session.done() or begun.is_over():
                return False
            return begun.session.exception() is None and begun.session.result() is session

    def _begun(self) -> _Start:
        with self._lock:
            if self._start is None or self._start.is_over():
                if "spark.remote" not in self.settings:
                    ensure_java()
                begun = _Start()
                begun.begin(self.settings, self.wait_s)
                self._start = begun
            return self._start


class _Start:
    """The start of a session in a thread that ends with the process, and the JVM that it began."""

    def __init__(self) -> None:
        self.session: Future[SparkSession] = Future()
        self._thread: threading.Thread | None = None
        self._java: subprocess.Popen[bytes] | None = None
        self._is_abandoned = False
        self._lock = threading.Lock()
        self._began = time.monotonic()

    @property
    def took_s(self) -> float:
        """Return the seconds since it was begun."""
        return time.monotonic() - self._began

    def begin(self, settings: Mapping[str, str], wait_s: float) -> None:
        """Start a session with these settings in a new thread; `wait_s` as of `start`."""

        def run() -> None:
            try:
                from pyspark import java_gateway

                _forget_ended()
                java_gateway.Popen = partial(self._popen, is_local=is_local(settings))  # type: ignore[assignment, attr-defined]
                self.session.set_result(start(dict(settings), wait_s, self._was_killed))
            except BaseException as problem:
                self.session.set_exception(problem)

        self._thread = threading.Thread(target=run, name="driftline-spark", daemon=True)
        atexit.register(self._abandon)
        self._thread.start()

    def _was_killed(self) -> bool:
        """Return True if a signal ended the JVM."""
        return self._java is not None and (self._java.poll() or 0) < 0

    def result(self) -> SparkSession:
        """Wait for the session. Raise the error of the start, an instance for each caller."""
        try:
            return self.session.result()
        except DriftlineError as error:
            own = copy.copy(error)
            own.details = dict(error.details)
            raise own from error.__cause__

    def is_over(self) -> bool:
        """Return True if another start is due: the session or JVM of this one has ended."""
        if not self.session.done():
            return False
        error = self.session.exception()
        if error is None:
            return _has_ended()
        return isinstance(error, DriftlineError) and error.is_retryable

    def end_when_interrupted(self) -> None:
        """End the JVM on Ctrl-C, so that the main thread does not wait for a job of Spark.

        PySpark would set a handler that cancels its jobs, but only if the main thread starts it.
        """
        handler: Any = signal.getsignal(signal.SIGINT)
        is_ours = isinstance(getattr(handler, "__self__", None), _Start)
        if self._java is not None and (is_ours or handler is signal.default_int_handler):
            signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, *_: object) -> NoReturn:
        if self._java is not None:
            self._java.terminate()
        raise KeyboardInterrupt

    def _popen(
        self, command: Sequence[str], *, is_local: bool, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start PySpark's JVM, which ignores Ctrl-C.

        On a cluster it does not inherit secrets of AWS: Spark copies them into Hadoop's settings,
        and sends these to the executors. In a local session, tasks are its children, and use them.

        PySpark would have Python code do so between fork and exec, which may hang where other
        threads run.
        """
        options.pop("preexec_fn", None)
        if not is_local:
            given = options.get("env") or os.environ
            options["env"] = {k: v for k, v in given.items() if k not in _AWS_SECRETS}
        with self._lock:
            if self._is_abandoned:
                raise InterruptedError("the command has ended")
            self._java = subprocess.Popen([*_WITHOUT_SIGINT, *command], **options)
            return self._java

    def _abandon(self) -> None:
        """End a start that nobody waits for any more, at the exit of the process."""
        with self._lock:
            self._is_abandoned = True
        if self._java is not None and self._thread is not None and not self.session.done():
            self._java.terminate()
            self._thread.join(STOP_S_MAX)  # it removes its temporary files


def _forget_ended() -> None:
    """Clear references of PySpark to a session that has ended, and to a JVM that is gone."""
    if _has_ended():
        _forget()


def _has_ended() -> bool:
    """Return True if PySpark's JVM is gone, or its context was stopped, as a cluster may do."""
    from pyspark import SparkContext

    if _jvm_is_gone():
        return True
    context = SparkContext._active_spark_context
    try:
        return context is not None and (context._jsc is None or context._jsc.sc().isStopped())
    except Exception:  # of py4j: the JVM has just gone
        return True


def _forget() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if _jvm_is_gone():
        SparkContext._gateway = None
        SparkContext._jvm = None
    elif (context := SparkContext._active_spark_context) is not None:
        with suppress(Exception):  # it is stopped in the JVM already
            context.stop()
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _jvm_is_gone() -> bool:
    from pyspark import SparkContext

    jvm = getattr(SparkContext._gateway, "proc", None)
    return jvm is not None and jvm.poll() is not None
