"""Choose where a step of a refresh runs: as Spark's tasks, or in this process.

A step is one function over Arrow batches (`scan`). Large steps run as Spark's tasks. A step that
reads or writes few bytes runs in a few threads of this process, because Spark's fixed price (a
session, a job) would be most of its time. Both places run the same function on the same files.

Spark is started when the first step needs it, or beside other work before, where a later step
will. Few steps have another function on Spark: where rows that no task could hold are joined or
sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from driftline.errors import ConfigurationError, DriftlineError, InternalError

from warehouse_agent.events import Listener, PhaseStarted
from warehouse_agent.report import PhaseTime, Report
from warehouse_agent.spark import cluster
from warehouse_agent.spark.executors import jvm_lost, mistake
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.data_files import DataFile, uncompressed
from warehouse_agent.storage.store import Store, located

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIGEST_BYTES = 24  # of a row: its position and both lanes of its fingerprint
# Steps that read digests alone move no rows, and may read as many times small_bytes.
DIGESTS_FACTOR = 8


class StepPlace(StrEnum):
    """A place in which a step runs."""

    DRIVER = "driver"
    SPARK = "spark"


@dataclass(slots=True)
class StepLog:
    """The places in which the steps of a refresh ran.

    Attributes:
        places: by phase; Spark, if any step of the phase ran there.
        phases: the phases that the refresh is in, the innermost last.
        session: the deferred session that a step used last.
    """

    places: dict[str, str] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    session: SparkSession | None = None

    def note(self, place: StepPlace) -> None:
        """Note where a step of the current phase runs."""
        if self.phases and self.places.get(self.phases[-1]) != StepPlace.SPARK:
            self.places[self.phases[-1]] = place.value


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of a fragment or a view in a command: each is announced, and timed in its report.

    Attributes:
        log: of the places in which steps of a phase run; its `places` are those of the report.
    """

    report: Report
    log: StepLog
    emit: Listener = lambda _event: None

    @contextmanager
    def __call__(self, name: str) -> Iterator[PhaseTime]:
        """Emit that a phase begins; add the seconds spent inside to the report."""
        self.emit(PhaseStarted(self.report.name, name))
        self.log.phases.append(name)
        try:
            with self.report.phase(name) as spent:
                yield spent
        finally:
            self.log.phases.pop()


@dataclass(frozen=True, slots=True)
class Steps:
    """Choose the place of each step.

    Attributes:
        session: Spark's session, or one that starts when it is first needed.
        small_bytes: the most bytes that a step may read or write in this process; with 0 every
            step runs on Spark.
        log: of the places.
        store: the warehouse that executors must reach; None: they are not asked.
    """

    session: SparkSession | DeferredSession
    small_bytes: int = 0
    log: StepLog = field(default_factory=StepLog)
    store: Store | None = None

    def spark(self, size: int) -> SparkSession:
        """Return the session for a step on Spark of `size` bytes; start it if this is the first.

        Raises:
            ConfigurationError: Spark does not start, or its executors do not reach the warehouse;
                the details say which step needs it and why.
            SparkLost: its executors were lost.
        """
        self.log.note(StepPlace.SPARK)
        with self._explained(size):
            return self._checked()

    def expect(self, size: int) -> None:
        """Begin to start Spark, beside what comes first, if a later step of `size` bytes needs it.

        A cluster is waited for: its executors are to be checked before a source is asked.

        Raises:
            ConfigurationError: it is known already that Spark does not start, or as of `spark`;
                details as of `spark`.
            SparkLost: as of `spark`.
        """
        if self._is_small(size):
            return
        with self._explained(size):
            if isinstance(self.session, DeferredSession) and self.session.is_local:
                self.session.begin()
            else:
                self._checked()

    def begin(self, size: int | None = None) -> None:
        """Begin to start Spark, which a later step may need; an error is left to that step.

        Do nothing if it is known that the step has `size` bytes, and that is little.
        """
        if isinstance(self.session, DeferredSession) and (size is None or not self._is_small(size)):
            with suppress(DriftlineError):
                self.session.begin()

    def _checked(self) -> SparkSession:
        """Return the session, whose executors reach the warehouse."""
        spark = self.session
        if isinstance(spark, DeferredSession):
            spark = self.log.session = spark.get()
        if self.store is not None:
            cluster.check(spark, self.store)
        return spark

    @contextmanager
    def _explained(self, size: int) -> Iterator[None]:
        """Add to an error of the start which step needs Spark and why."""
        try:
            yield
        except ConfigurationError as error:
            why = f"it has at least {size:,} bytes, and `small_bytes` is {self.small_bytes:,}"
            step = self.log.phases[-1] if self.log.phases else "reading"
            error.details["Spark is needed"] = f"for a step of `{step}`: {why}"
            raise

    def _is_small(self, size: int) -> bool:
        return 0 < self.small_bytes >= size

    def mistake(self, problem: Exception, where: str) -> DriftlineError:
        """Return a failure of a refresh as a typed error at a place (`executors.mistake`).

        If the JVM of its session has ended, anything may fail: another thread may have noticed, and
        started another JVM, which knows no object of the first.
        """
        error, session, used = mistake(problem, where), self.session, self.log.session
        if not isinstance(error, InternalError) or not isinstance(session, DeferredSession):
            return error
        if used is None or session.is_current(used):
            return error
        lost = jvm_lost()
        lost.where, lost.__cause__ = where, problem
        return lost

    def fits_here(self, size: int) -> bool:
        """Return True if a step of `size` bytes would run in this process."""
        return self._is_small(size)

    def runs_here(self, size: int) -> bool:
        """Return True if a step of `size` bytes runs in this process, and note it."""
        if not self._is_small(size):
            return False
        self.log.note(StepPlace.DRIVER)
        return True

    def size_of_rows(self, files: Sequence[DataFile]) -> int:
        """Return the uncompressed bytes of files by their footers; what is large is not opened.

        A file that cannot be opened counts by its size, and whoever reads it says why.
        """
        size = sum(f.size for f in files)
        return size if size > self.small_bytes else max(size, sum(map(_uncompressed, files)))


def size_of_digests(files: Sequence[DataFile]) -> int:
    """Return the bytes that count for a step that reads only the digests of files."""
    return sum(f.rows for f in files) * DIGEST_BYTES // DIGESTS_FACTOR


def _uncompressed(file: DataFile) -> int:
    system, path = located(file.uri)
    try:
        with system.open_input_file(path) as source:
            return uncompressed(pq.read_metadata(source))
    except (OSError, ValueError, pa.ArrowException):
        return file.size
