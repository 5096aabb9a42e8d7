"""Share the fragment key with Spark's tasks; get their errors and requests back to the driver.

A task reads the fragment key from a file by its URI, never from a closure, so that it is in no
event log. A DriftlineError raised in a task would reach the driver as text inside a Java exception;
it is written as JSON in the task and raised again, typed, by `driver_errors`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from driftline.errors import (
    DriftlineError,
    InternalError,
    SparkLost,
    WarehouseUnavailable,
    from_code,
)
from driftline.rows.fingerprints import fingerprints, position_seed
from driftline.rows.frames import Fingerprints
from driftline.values.types import Recipe

from warehouse_agent.storage.backends import known, request_counts
from warehouse_agent.storage.backends.interface import StoreError
from warehouse_agent.storage.backends.request_counts import Counts
from warehouse_agent.storage.store import read_at

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]

DATA_FILE = "data file"  # key of an error's details: the file that is unreadable or changed
# Of this process alone: Spark quotes values of rows in its errors, and a source may send any.
_MARK = f"driftline-error-{secrets.token_hex(16)}:"
_MORE_MEMORY = (
    "Run the command again; what arrived is kept. If it repeats, set more "
    '`"spark.driver.memory"` or fewer tasks (`"spark.master" = "local[2]"`) in [spark].'
)
_READ_SPARK = (
    "Check `[spark]`, and that Spark may read and write the warehouse; run with --debug for the "
    "whole of Spark's message."
)
_LOST = re.compile(
    "Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure"
    "|SparkContext was shut down|stopped SparkContext"
    "|java.lang.OutOfMemoryError|SparkOutOfMemoryError|MemoryError"
)
_FILE = re.compile(r"\S+\.parquet")
_ABSENT = re.compile("FileNotFoundError: |FileNotFoundException|NoSuchFileException")
_sums: dict[SparkContext, Accumulator[Counts]] = {}
_MARKED = re.compile(re.escape(_MARK) + r"(\{.*?\}):end")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Reference to the file of a fragment key, which a task reads.

    `known`: the key, in the process that has read it; it never leaves that.
    """

    uri: str
    known: bytes | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[KeyFile], tuple[str]]:
        """Pass the reference alone to a task in another process."""
        return KeyFile, (self.uri,)

    def fingerprints(self, recipe: Recipe) -> Fingerprints:
        """Return the function that fingerprints rows under this key."""
        return fingerprints(self._key(), recipe)

    def position_seed(self) -> int:
        """Return the seed of positions under this key."""
        return position_seed(self._key())

    def _key(self) -> bytes:
        return read_at(self.uri) if self.known is None else self.known


def task(function: Task) -> Task:
    """Wrap a function as a Spark task, which reaches the stores that this process knows, and whose
    typed errors and requests of buckets reach the driver, which wraps it."""
    mark, stores = _MARK, known.learnt()  # a worker has another mark
    requests = _request_sums() if any(map(known.is_bucket, stores)) else None

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        known.learn(stores)
        try:
            yield from function(batches)
        except (DriftlineError, StoreError) as error:
            if (typed := meaning(error)) is None:
                raise
            raise RuntimeError(marked(typed, mark)) from None
        if requests is not None:  # those of a task that failed come with the worker's next one
            requests.add(request_counts.REQUESTS.drained())

    return run


class _RequestSums:
    """How an accumulator of Spark adds up requests: in the driver, that of `mark`, to its own."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def zero(self, value: Counts) -> Counts:  # noqa: ARG002
        return Counter()

    def addInPlace(self, value: Counts, more: Counts) -> Counts:
        if self.mark != _MARK:
            return Counter(value) + Counter(more)
        request_counts.REQUESTS.add(more)
        return value


def _request_sums() -> Accumulator[Counts] | None:
    """Return the accumulator of the running session; None: it has none, as Spark Connect's."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if context not in _sums:
        _sums.clear()  # of a session that has ended
        _sums[context] = context.accumulator(Counter(), _RequestSums(_MARK))  # type: ignore[arg-type]
    return _sums[context]


def marked(error: DriftlineError, mark: str = _MARK) -> str:
    """Return an error as text, which `meaning` finds again in the text of a Spark exception, in the
    process of this mark; then in words, for readers, whose queries end with Spark's exception."""
    text = json.dumps([error.code, error.message, error.remedy, error.where, error.details])
    return mark + "{" + text.encode().hex() + f"}}:end\n{error}"


def cause(error: Exception) -> str:
    """Return the line of a Spark error that says what happened: its innermost cause."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traceback = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if traceback:  # of a task in Python: the frames are indented, and the cause follows them
        after = (line for line in lines[traceback[-1] + 1 :] if not line.startswith(" "))
        return next(after, lines[0]).strip()
    causes = [line.strip() for line in lines if line.strip().startswith("Caused by:")]
    if causes:
        return causes[-1].removeprefix("Caused by: ")
    # py4j names its failed call first; Java's own error follows a colon.
    java = (line[2:].strip() for line in lines if line.startswith(": "))
    return next(java, lines[0].strip() if lines else type(error).__name__)


@contextlib.contextmanager
def driver_errors() -> Iterator[None]:
    """Raise the error of a task or the storage instead of Spark's exception around it."""
    try:
        yield
    except Exception as problem:
        if (error := meaning(problem)) is None:
            raise
        raise error from problem


def meaning(problem: Exception) -> DriftlineError | None:
    """Return the error behind a failure of Spark or a store; None if it is another failure or our
    mistake.

    Raises:
        KeyboardInterrupt: the failure is one of cleaning up after an interruption, such as waiting
            for a job of a JVM that was ended.
    """
    if (interruption := _interruption(problem)) is not None:
        raise interruption
    if isinstance(problem, DriftlineError):
        return problem
    if isinstance(problem, StoreError):
        return WarehouseUnavailable(
            f"The warehouse's bucket cannot be read or written: {problem}.", remedy=problem.remedy
        )
    text = str(problem)
    if _has_no_jvm(problem, text):
        return jvm_lost()
    # A failed write comes as py4j's own exception, which Spark Connect does not even have.
    if not _is_of_pyspark(problem) and type(problem).__name__ != "Py4JJavaError":
        return None
    if match := _MARKED.search(text):
        code, message, remedy, where, details = json.loads(bytes.fromhex(match[1][1:-1]))
        return from_code(code, message, remedy=remedy, where=where, details=details)
    if "No space left on device" in text or f"Errno {errno.ENOSPC}" in text:
        return WarehouseUnavailable(
            "The warehouse's disk is full.",
            remedy="Free space and run the refresh again; the last published version is untouched.",
        )
    if "PATH_NOT_FOUND" in text or _ABSENT.search(text):
        path = _FILE.search(text)
        what = f"A file of the warehouse is not there: {path[0] if path else cause(problem)}."
        return unreadable(what, path[0] if path else "unknown")
    if "ChecksumException" in text:
        path = _FILE.search(text)
        what = f"A file of the warehouse is damaged: {path[0] if path else cause(problem)}."
        return unreadable(what, path[0] if path else "unknown")
    if lost := _LOST.search(text):
        what = "ran out of memory" if "Memory" in lost[0] else "ended: it was killed, or crashed"
        return SparkLost(f"A process of Spark {what}.", remedy=_MORE_MEMORY)
    return None


def unreadable(message: str, file: str) -> WarehouseUnavailable:
    """Return the error of a data file that cannot be read, or is not as it was written."""
    return WarehouseUnavailable(
        message,
        remedy="Run the command again; `driftline verify` names files that are missing or damaged.",
        details={DATA_FILE: file},
    )


def jvm_lost() -> SparkLost:
    """Return the error of a JVM that ended."""
    return SparkLost(
        "Spark's Java process ended: it was killed, or ran out of memory.", remedy=_MORE_MEMORY
    )


def mistake(problem: Exception, where: str) -> DriftlineError:
    """Return a failure as a typed error at a place: its meaning if known, else INTERNAL.

    Raises:
        KeyboardInterrupt: as of `meaning`.
    """
    error = meaning(problem)
    if error is None:
        is_of_spark = _is_of_pyspark(problem) or "Py4J" in type(problem).__name__
        what = "Spark failed" if is_of_spark else type(problem).__name__
        # A Python worker runs our code; any other message is about Spark's settings or storage.
        is_ours = not is_of_spark or "Traceback (most recent" in str(problem)
        is_ours &= not (is_of_spark and "PermissionError" in str(problem))
        remedy = "" if is_ours else _READ_SPARK
        error = InternalError(f"{what}: {cause(problem)}", where=where, remedy=remedy)
    if error is not problem:
        error.__cause__ = problem
        error.where = error.where or where
    return error


def _interruption(problem: BaseException) -> KeyboardInterrupt | None:
    """Return the interruption in whose handling a failure was raised; None: there is none."""
    error: BaseException | None = problem
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of a failed job, for `except`.

    PySpark wraps some failures of its jobs; an unreadable file raises Py4J's own error.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def _is_of_pyspark(problem: Exception) -> bool:
    """Return True for an exception of PySpark; import nothing, as this may run out of files."""
    errors = sys.modules.get("pyspark.errors")
    return errors is not None and isinstance(problem, errors.PySparkException)


def _has_no_jvm(problem: Exception, text: str) -> bool:
    """Return True if py4j lost its connection to the JVM."""
    kind = type(problem).__name__
    if kind == "Py4JNetworkError" or "Answer from Java side is empty" in text:
        return True
    if kind == "Py4JError" and "Trace:" not in text:  # one with a trace was answered by the JVM
        return True
    if not isinstance(problem, ConnectionError):
        return False
    trace = problem.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith("py4j."):
            return True
        trace = trace.tb_next
    return False
