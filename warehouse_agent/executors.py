"""What every Spark job of this agent shares: its tasks' secrets and its tasks' errors.

A task gets the fragment key from a file by its URI, never from a closure, so that it is in no event
log. A DriftlineError raised in a task would reach the driver as text inside a Java exception; it is
written as JSON on its way out and raised again, typed, by `driver_errors`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from driftline.errors import DriftlineError, WarehouseUnavailable, from_code
from driftline.fingerprints import fingerprints, position_seed
from driftline.frames import Fingerprints
from driftline.types import Recipe
from pyspark.errors import PySparkException

from warehouse_agent.store import read_at

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]

_MARK = "driftline-error:"
_MARKED = re.compile(re.escape(_MARK) + r"(\{.*?\}):end")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Where a task finds the fragment key."""

    uri: str

    def fingerprints(self, recipe: Recipe) -> Fingerprints:
        return fingerprints(read_at(self.uri), recipe)

    def position_seed(self) -> int:
        return position_seed(read_at(self.uri))


def task(function: Task) -> Task:
    """The function as a Spark task whose typed errors survive the way to the driver."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        try:
            yield from function(batches)
        except DriftlineError as error:
            text = json.dumps([error.code, error.message, error.remedy, error.where, error.details])
            raise RuntimeError(_MARK + "{" + text.encode().hex() + "}:end") from None

    return run


def cause(error: Exception) -> str:
    """The line of a Spark error that says what happened: its innermost cause."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traceback = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if traceback:  # of a task in Python: the line behind the frames, which are indented
        behind = (line for line in lines[traceback[-1] + 1 :] if not line.startswith(" "))
        return next(behind, lines[0]).strip()
    causes = [line.strip() for line in lines if line.strip().startswith("Caused by:")]
    return (causes[-1:] or [x.strip() for x in lines] or [type(error).__name__])[0].removeprefix(
        "Caused by: "
    )


@contextlib.contextmanager
def driver_errors() -> Iterator[None]:
    """Raise what a task or the storage meant instead of Spark's wrapping of it."""
    try:
        yield
    except Exception as error:
        # A failed write comes as py4j's own exception, which Spark Connect does not even have.
        if not isinstance(error, PySparkException) and type(error).__name__ != "Py4JJavaError":
            raise
        text = str(error)
        if match := _MARKED.search(text):
            code, message, remedy, where, details = json.loads(bytes.fromhex(match[1][1:-1]))
            raise from_code(code, message, remedy=remedy, where=where, details=details) from error
        if isinstance(error, PySparkException) and "PATH_NOT_FOUND" in text:
            raise WarehouseUnavailable(
                f"A file of the warehouse is not there: {cause(error)}",
                remedy="`driftline verify` names the files that are missing.",
            ) from error
        if "No space left on device" in text or f"Errno {errno.ENOSPC}" in text:
            raise WarehouseUnavailable(
                "The warehouse's disk is full.",
                remedy="Free space and run the refresh again; the last published version is "
                "untouched.",
            ) from error
        raise
