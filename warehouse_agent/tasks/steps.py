"""Run each step of a refresh where it is placed: as Spark's tasks, or in this process.

A step is one function over Arrow batches (`scan`). It runs in a few threads of this process as long
as Spark's fixed prices (a session, a job) would be most of its time, and the driver's share of
memory suffices (`planning.step_places`). Both places run the same function on the same files.

Spark is started when the first step needs it, or beside other work before, where a later step
will. Few steps have another function on Spark: where rows that no task could hold are joined or
sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from driftline.errors import ConfigurationError, DriftlineError, InternalError

from warehouse_agent.config import DRIVER_SHARE, WarehouseConfig
from warehouse_agent.events import Listener, PhaseStarted
from warehouse_agent.planning import step_places
from warehouse_agent.planning.step_places import (
    PlacedStep,
    StepKind,
    StepPlace,
    StepResources,
    StepWork,
)
from warehouse_agent.report import PhaseTime, Report
from warehouse_agent.spark import cluster
from warehouse_agent.spark.executors import jvm_lost, mistake
from warehouse_agent.spark.machine import machine
from warehouse_agent.spark.session import DeferredSession, tasks_of
from warehouse_agent.storage.data_files import DataFile, uncompressed
from warehouse_agent.storage.store import Store, data_source
from warehouse_agent.tasks.processes import PROCESSES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIGEST_BYTES = 24  # of a row: its position and both lanes of its fingerprint
# Steps that read digests alone move no rows, and may read as many times small_bytes.
DIGESTS_FACTOR = 8
STEP_THREADS = min(4, machine().cores)  # of a step in this process


@dataclass(slots=True)
class StepLog:
    """The places in which the steps of a refresh ran.

    Attributes:
        places: by phase; Spark, if any step of the phase ran there.
        phases: the phases that the refresh is in, the innermost last.
        whys: why, by phase, of its largest step in that place (`PlacedStep.to_json`).
        session: the deferred session that a step used last.
    """

    places: dict[str, str] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    whys: dict[str, dict[str, Any]] = field(default_factory=dict)
    session: SparkSession | None = None

    @classmethod
    def of(cls, report: Report, *phases: str) -> Self:
        """Return a log that writes into a report, within phases of it."""
        return cls(report.places, [*phases], report.places_why)

    def note(self, placed: PlacedStep) -> None:
        """Note where a step of the current phase runs."""
        if not self.phases:
            return
        phase = self.phases[-1]
        before, why = self.places.get(phase), self.whys.get(phase)
        if before == StepPlace.SPARK and placed.place is not StepPlace.SPARK:
            return
        self.places[phase] = placed.place.value
        if why is None or before != placed.place or why["bytes"] <= placed.size:
            needs = placed.needs_spark or (why is not None and why["needs_spark"])
            self.whys[phase] = placed.to_json() | {"needs_spark": needs}


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
            step runs on Spark. None: the place is chosen by seconds and memory.
        log: of the places.
        store: the warehouse that executors must reach; None: they are not asked.
        driver_share: of the memory, which a step in this process may need.
    """

    session: SparkSession | DeferredSession
    small_bytes: int | None = 0
    log: StepLog = field(default_factory=StepLog)
    store: Store | None = None
    driver_share: float = DRIVER_SHARE

    @classmethod
    def of(
        cls,
        config: WarehouseConfig,
        session: SparkSession | DeferredSession,
        log: StepLog | None = None,
        store: Store | None = None,
    ) -> Self:
        """Return what chooses as a configuration says."""
        log = StepLog() if log is None else log
        return cls(session, config.small_bytes, log, store, config.driver_share)

    def spark(self, work: StepWork) -> SparkSession:
        """Return the session for a step that does not run here; start it if this is the first.

        Raises:
            ConfigurationError: Spark does not start, or its executors do not reach the warehouse;
                the details say which step needs it and why.
            SparkLost: its executors were lost.
        """
        return self._on_spark(self.placed(work))

    def spark_to_join(self, size: int) -> SparkSession:
        """Return the session for a step that Spark alone can do, over rows of `size` bytes. Raises
        as `spark`."""
        small = self.small_bytes
        if small is not None and size > small:  # others come to such a step by their size
            return self._on_spark(step_places.by_bytes(StepWork(StepKind.READ, size), small))
        return self._on_spark(step_places.joining(size))

    def expect(self, *later: StepWork) -> None:
        """Begin to start Spark, beside what comes first, if one of these later steps needs it.

        A cluster is waited for: its executors are to be checked before a source is asked.

        Raises:
            ConfigurationError: it is known already that Spark does not start, or as of `spark`;
                details as of `spark`.
            SparkLost: as of `spark`.
        """
        if (placed := self.expected(*later)) is None:
            self.begin_reading(*later)
            return
        with self._explained(placed):
            if isinstance(self.session, DeferredSession) and self.session.is_local:
                self.session.begin()
            else:
                self._checked()

    def begin(self, *later: StepWork) -> None:
        """Begin to start Spark if one of these later steps would need it; an error is left to that
        step."""
        if self.expected(*later) is not None:
            self.begin_joins()
        else:
            self.begin_reading(*later)

    def begin_reading(self, *later: StepWork) -> None:
        """Begin to start processes, beside what comes first, if one of these later steps reads in
        them."""
        if any(map(self.in_processes, later)) and self.expected(*later) is None:
            PROCESSES.start(STEP_THREADS)

    def in_processes(self, work: StepWork) -> bool:
        """Return True if a step in the driver's place reads in processes beside this one."""
        return step_places.in_processes(work, STEP_THREADS, self.memory)

    def begin_joins(self) -> None:
        """Begin to start Spark for steps that it alone can do; an error is left to them."""
        if isinstance(self.session, DeferredSession):
            with suppress(DriftlineError):
                self.session.begin()

    def expected(self, *later: StepWork) -> PlacedStep | None:
        """Return the place of the first of these steps that is on Spark; None: none is."""
        placed = map(self.placed, later)
        return next((one for one in placed if one.place is StepPlace.SPARK), None)

    def placed(self, work: StepWork) -> PlacedStep:
        """Return the place of a step, and why."""
        if self.small_bytes is not None:
            return step_places.by_bytes(work, self.small_bytes)
        session = self.session
        if isinstance(session, DeferredSession):
            start_s = step_places.local_start_s(machine().cores) if session.is_local else 0.0
            left, cold = session.start_left_s(start_s), start_s
        else:
            left = cold = 0.0
        there = StepResources(STEP_THREADS, self.memory, tasks_of(session), left, cold)
        return step_places.by_prediction(work, there)

    @property
    def memory(self) -> int:
        """Return the driver's share of memory, in bytes."""
        return int(machine().memory * self.driver_share)

    def task_bytes(self, work: StepWork) -> int:
        """Return the bytes that each task or thread of a step may hold of rows that it looks up;
        all that run at once hold the driver's share of this machine's memory at most."""
        if self.placed(work).place is StepPlace.DRIVER:
            return step_places.task_bytes(self.memory, STEP_THREADS)
        session = self.session
        is_local = isinstance(session, DeferredSession) and session.is_local
        return step_places.task_bytes(self.memory if is_local else None, tasks_of(session))

    @property
    def most(self) -> int:
        """Return the bytes above which every step runs on Spark."""
        return self.memory if self.small_bytes is None else self.small_bytes

    def _on_spark(self, placed: PlacedStep) -> SparkSession:
        self.log.note(replace(placed, place=StepPlace.SPARK))
        with self._explained(placed):
            return self._checked()

    def _checked(self) -> SparkSession:
        """Return the session, whose executors reach the warehouse."""
        spark = self.session
        if isinstance(spark, DeferredSession):
            spark = self.log.session = spark.get()
        if self.store is not None:
            cluster.check(spark, self.store)
        return spark

    @contextmanager
    def _explained(self, placed: PlacedStep) -> Iterator[None]:
        """Add to an error of the start which step needs Spark and why."""
        try:
            yield
        except ConfigurationError as error:
            step = self.log.phases[-1] if self.log.phases else "reading"
            need = f"it has at least {placed.size:,} bytes, {placed.because}"
            error.details["Spark is needed"] = f"for a step of `{step}`: {need}"
            raise

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
        """Return True if a step that writes `size` bytes would run in this process."""
        return self.placed(StepWork(StepKind.WRITE, size)).place is StepPlace.DRIVER

    def note_written(self, size: int) -> None:
        """Note that a step wrote `size` bytes in this process."""
        placed = self.placed(StepWork(StepKind.WRITE, size))
        self.log.note(replace(placed, place=StepPlace.DRIVER))

    def runs_here(self, work: StepWork) -> bool:
        """Return True if a step runs in this process, and note it."""
        placed = self.placed(work)
        if placed.place is StepPlace.SPARK:
            return False
        self.log.note(placed)
        return True

    def size_of_rows(self, files: Sequence[DataFile]) -> int:
        """Return the uncompressed bytes of files by their footers; what is large is not opened.

        A file that cannot be opened counts by its size, and whoever reads it says why.
        """
        size = sum(f.size for f in files)
        return size if size > self.most else max(size, sum(map(_uncompressed, files)))


def work_of_digests(files: Sequence[DataFile]) -> StepWork:
    """Return the work of a step that reads only the digests of files."""
    size = sum(f.rows for f in files) * DIGEST_BYTES // DIGESTS_FACTOR
    return StepWork(StepKind.DIGESTS, size, len(files))


def _uncompressed(file: DataFile) -> int:
    try:
        with data_source(file.uri) as source:
            return uncompressed(source.footer)
    except (OSError, ValueError, pa.ArrowException):
        return file.size
