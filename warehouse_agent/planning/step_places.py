"""Choose where a step of a refresh runs, by predicted seconds and memory. Pure.

In the driver's process a step costs its bytes over the rate of its kind, in as many threads as
there are cores; they share an interpreter, so each further one adds a part of the first (`gain`).
A large step that reads rows has processes instead (`in_processes`).
On Spark it costs what is left of the session's start, a job, and its bytes over the rate of a task,
in as many tasks as run at once; one task reads a file. Rows that need more memory than the driver's
share go to Spark always, and where the data engineer set `small_bytes`, that alone decides.

A cluster's start is not counted: its executors are checked before a source is asked, and whoever
has one wants large steps there. A machine that is twice as fast is so in both places, so what the
rates must know is their ratio; `benchmarks.reloads.step_places` measures steps in both places,
beside what is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MANY_FILES = 1 << 20  # more than tasks run at once
# Bytes of rows over those of their files, where the files are not opened: TPC-H's lineitem, orders.
UNPACKED = 4
# Processor seconds of a session in the driver's own JVM and of its first job, which starts the
# Python workers and is compiled; they keep as many cores busy.
START_CPU_S, START_CORES = 16.0, 4
JOB_S = 0.5  # of a later job: its plan, and its tasks' start
# Bytes that a task may hold of rows that it looks up: on machines whose memory is not known; the
# least, with which it goes on however slowly; and the most, beyond which it gains little.
TASK_BYTES, TASK_BYTES_MIN, TASK_BYTES_MAX = 256 << 20, 64 << 20, 1 << 30
# Of rows that a step reads, from which on processes beside the driver's gain more than they take to
# start; what a further one adds to the first; the memory of each, which counts in the driver's
# share. Of 1.2 M rows of lineitem: one thread 2.05 s, two 1.8, two processes 1.2.
PROCESS_BYTES, PROCESS_GAIN, PROCESS_MEMORY = 192 << 20, 0.65, 192 << 20


class StepPlace(StrEnum):
    """A place in which a step runs."""

    DRIVER = "driver"
    SPARK = "spark"


class StepKind(StrEnum):
    """Kinds of steps, by what they do with their bytes.

    DIGESTS: reads stored digests alone (a step counts an eighth of their bytes).
    READ: reads rows, encodes or compares them.
    WRITE: reads or decodes rows and writes them.
    """

    DIGESTS = "digests"
    READ = "read"
    WRITE = "write"


class PlaceReason(StrEnum):
    """Reasons for a place.

    JOIN: the step joins rows, which Spark alone does.
    """

    BYTES = "small_bytes"
    MEMORY = "memory"
    SECONDS = "seconds"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class StepRate:
    """Bytes a second of one thread, and of one task of Spark; what a further thread adds."""

    thread: float
    gain: float
    task: float


# Of 3 M rows of TPC-H's lineitem (754 MB in Arrow) on two cores: threads prove them in 4.0 s and
# write them in 1.7, two tasks prove them in 2.9. A task is a process with one thread and takes as
# many processor seconds, and a tenth more that is Spark's own.
RATES = {
    StepKind.DIGESTS: StepRate(thread=28e6, gain=0.7, task=25e6),
    StepKind.READ: StepRate(thread=150e6, gain=0.25, task=145e6),
    StepKind.WRITE: StepRate(thread=250e6, gain=0.8, task=230e6),
}


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step.

    Attributes:
        size: bytes of rows, uncompressed, that it reads or writes.
        files: that it reads.
        held: bytes that it holds at once, if that is more than `size`; a step that goes through its
            rows in batches holds less.
    """

    kind: StepKind
    size: int
    files: int = MANY_FILES
    held: int = 0


def written(size: int) -> tuple[StepWork, StepWork]:
    """Return the work of steps that write rows of so many bytes, and read them back."""
    return StepWork(StepKind.WRITE, size), StepWork(StepKind.READ, size)


@dataclass(frozen=True, slots=True)
class StepResources:
    """Resources of both places.

    Attributes:
        threads: at once in the driver's process.
        memory: the driver's share, in bytes.
        tasks: of Spark at once.
        start_s: until the session is there; 0: it is, or it is a cluster's.
        cold_start_s: the same if none had been started.
    """

    threads: int
    memory: int
    tasks: int
    start_s: float
    cold_start_s: float


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """The place of a step, and why.

    Attributes:
        limit: bytes that `small_bytes` or the driver's share of memory are, if one decided.
        driver_s, spark_s: predicted; with `start_s`, what was left of the session's start. None:
            nobody asked.
        needs_spark: it would run on Spark also if no session had been started before.
    """

    place: StepPlace
    reason: PlaceReason
    size: int
    needs_spark: bool
    limit: int | None = None
    driver_s: float | None = None
    spark_s: float | None = None
    start_s: float | None = None

    @property
    def why(self) -> str:
        """Return why, for people: `driver 1.8 s, Spark 9.4 s with its start`."""
        match self.reason:
            case PlaceReason.BYTES:
                return f"{self.size:,} bytes, and `small_bytes` is {self.limit:,}"
            case PlaceReason.MEMORY:
                return f"{self.size:,} bytes, and the driver's share of memory is {self.limit:,}"
            case PlaceReason.JOIN:
                return "it joins rows, which Spark alone does"
        start = " with its start" if self.start_s else ""
        return f"driver {self.driver_s:,.1f} s, Spark {self.spark_s:,.1f} s{start}"

    @property
    def because(self) -> str:
        """Return what follows on "it has so many bytes" where an error says why Spark is needed."""
        match self.reason:
            case PlaceReason.BYTES:
                return f"and `small_bytes` is {self.limit:,}"
            case PlaceReason.MEMORY:
                return f"and the driver's share of memory (`driver_share`) is {self.limit:,}"
            case PlaceReason.JOIN:
                return "and joins rows, which Spark alone does"
        return f"for which the prediction is {self.why}"

    def to_json(self) -> dict[str, Any]:
        """Return it for a report, without the place, which the report has."""
        seconds = {"driver_s": self.driver_s, "spark_s": self.spark_s}
        return {
            "why": self.why,
            "reason": self.reason.value,
            "bytes": self.size,
            **{name: None if s is None else round(s, 1) for name, s in seconds.items()},
            "needs_spark": self.needs_spark,
        }


def local_start_s(cores: int) -> float:
    """Predict the seconds until the first job of a local session is as fast as later ones."""
    return START_CPU_S / min(max(cores, 1), START_CORES)


def by_bytes(work: StepWork, small_bytes: int) -> PlacedStep:
    """Place a step by the setting alone; with 0 it runs on Spark."""
    is_small = 0 < small_bytes >= work.size
    place = StepPlace.DRIVER if is_small else StepPlace.SPARK
    return PlacedStep(place, PlaceReason.BYTES, work.size, not is_small, small_bytes)


def by_prediction(work: StepWork, there: StepResources) -> PlacedStep:
    """Place a step where it is expected to end first, and on Spark if memory demands it."""
    if max(work.size, work.held) > there.memory:
        size = max(work.size, work.held)
        return PlacedStep(StepPlace.SPARK, PlaceReason.MEMORY, size, True, there.memory)
    here_s, job_s = driver_s(work, there.threads, there.memory), JOB_S + tasks_s(work, there.tasks)
    is_there = here_s > there.start_s + job_s
    return PlacedStep(
        StepPlace.SPARK if is_there else StepPlace.DRIVER,
        PlaceReason.SECONDS,
        work.size,
        here_s > there.cold_start_s + job_s,
        driver_s=here_s,
        spark_s=there.start_s + job_s,
        start_s=there.start_s,
    )


def joining(size: int) -> PlacedStep:
    """Place a step that Spark alone can do."""
    return PlacedStep(StepPlace.SPARK, PlaceReason.JOIN, size, True)


def task_bytes(memory: int | None, at_once: int) -> int:
    """Return the bytes that each of `at_once` tasks may hold of rows that it looks up, if all may
    hold `memory` bytes; None: not known."""
    if memory is None:
        return TASK_BYTES
    return min(max(memory // max(at_once, 1), TASK_BYTES_MIN), TASK_BYTES_MAX)


def driver_s(work: StepWork, threads: int, memory: int = 0) -> float:
    """Predict the seconds of a step in the driver's process, whose share of memory is `memory`."""
    rate = RATES[work.kind]
    gain = PROCESS_GAIN if in_processes(work, threads, memory) else rate.gain
    return work.size / (rate.thread * (1 + (max(threads, 1) - 1) * gain))


def in_processes(work: StepWork, threads: int, memory: int) -> bool:
    """Return True if a step in the driver's place reads its rows in as many processes beside it as
    it would have threads."""
    if work.kind is not StepKind.READ or work.size < PROCESS_BYTES:
        return False
    return threads > 1 and threads * PROCESS_MEMORY <= memory


def tasks_s(work: StepWork, tasks: int) -> float:
    """Predict the seconds of a step in Spark's tasks, without the job's fixed price."""
    return work.size / (RATES[work.kind].task * max(min(tasks, work.files), 1))
