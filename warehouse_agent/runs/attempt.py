"""One attempt at the fragments of a run: prepare all, compare them in one stream, finish each.

The three phases are called in order by one thread. Each works on all fragments of the run. An error
is that of its fragment and stops no other; what was staged is kept for the next attempt.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from driftline import wire_pb2 as pb
from driftline.errors import (
    DriftlineError,
    DuplicateKey,
    LimitExceeded,
    NullKey,
    RecipeChanged,
    SourceUnreachable,
    ValueDoesNotFit,
    WarehouseUnavailable,
)

from warehouse_agent.config import Fragment
from warehouse_agent.events import (
    Listener,
    RefreshCommitted,
    RefreshFailed,
    RefreshNotStarted,
    RefreshStarted,
)
from warehouse_agent.history import record
from warehouse_agent.methods.interface import OurSide
from warehouse_agent.refresh import repair, reporting, schema_change, tiled, whole
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.commit import commit
from warehouse_agent.refresh.finish import write_and_prove
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.prepare import Prepared, expect_spark, prepare
from warehouse_agent.refresh.whole import Compared
from warehouse_agent.report import Report
from warehouse_agent.runs import preflight, schedule
from warehouse_agent.spark.session import Deferred
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.transport.channel import Link, Stream

_OF_ROWS = (ValueDoesNotFit, NullKey, DuplicateKey, LimitExceeded)

_Ready = tuple[Job, Prepared, OurSide]  # to be compared in one exchange


@dataclass(frozen=True, slots=True)
class RunBefore:
    """The run before another one of its source: when it is expected to be done, and if it is.

    Attributes:
        expected_at: by a monotonic clock, in seconds.
    """

    expected_at: float = 0.0
    is_done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Command:
    """Settings and services that the runs of all sources of one command share; safe for threads.

    Attributes:
        emit: passes an event to the listeners.
        sleep: waits for seconds.
        attempts: of a refresh, if its errors are retryable.
        wait_s_max: the longest pause between two attempts, before some jitter.
        ends_at: the deadline by a monotonic clock, in seconds; None: there is none.
    """

    steps: Steps
    store: Store
    options: Options
    emit: Listener
    sleep: Callable[[float], None]
    attempts: int
    wait_s_max: float
    ends_at: float | None = None

    @property
    def is_deferred(self) -> bool:
        """Return True if mistakes are to be found before Spark may start."""
        return isinstance(self.steps.session, Deferred)

    def finished(self, report: Report) -> None:
        """Emit the last event of a fragment."""
        self.emit(RefreshFailed(report) if report.error else RefreshCommitted(report))

    def refused(self, report: Report, error: DriftlineError, *, is_ours: bool) -> None:
        """Emit the report of a fragment on which no work began; `is_ours`: we hold its lock."""
        self.published(report, is_ours=is_ours)
        report.fail(error)
        self.finished(report)

    def in_time(
        self, fragments: Sequence[Fragment], reports: Mapping[str, Report], before: RunBefore
    ) -> tuple[list[Fragment], float]:
        """Return the fragments of a run to start now; report those that would end too late.

        Where the run before may need the time that they need, wait until it is done, then decide.

        Returns:
            The fragments, and the seconds that they are expected to take; 0 without a deadline.
        """
        if self.ends_at is None:
            return list(fragments), 0.0
        takes_s = dict[str, float]()
        for fragment in fragments:
            takes_s[fragment.name] = 0.0
            with contextlib.suppress(DriftlineError):  # its own refresh says what is wrong
                durations_s = record.durations_s(self.store, fragment.name, schedule.DURATIONS)
                takes_s[fragment.name] = schedule.expected_s(durations_s)
        left_s = self.ends_at - time.monotonic()
        chosen = schedule.in_time(fragments, takes_s, left_s)
        behind_s = left_s if before.is_done.is_set() else self.ends_at - before.expected_at
        if chosen != schedule.in_time(fragments, takes_s, min(left_s, behind_s)):
            before.is_done.wait()
            left_s = self.ends_at - time.monotonic()
            chosen = schedule.in_time(fragments, takes_s, left_s)
        for name in (f.name for f in fragments if f not in chosen):
            report = reports[name]
            report.not_started = (
                f"By its history it takes {takes_s[name]:,.0f} s, and until the deadline "
                f"{max(left_s, 0):,.0f} s are left for its run."
            )
            self.published(report, is_ours=False)
            self.emit(RefreshNotStarted(report))
        return chosen, sum(takes_s[fragment.name] for fragment in chosen)

    def published(self, report: Report, *, is_ours: bool = True) -> None:
        """Note the published version of a fragment that is not worked on.

        If we hold its lock, also complete its history.
        """
        with contextlib.suppress(Exception):  # the report has the error of the table
            if (snapshot := formats.head(self.store, report.name)) is not None:
                report.version = report.previous_version = snapshot.version
                report.rows_total = snapshot.rows
            if is_ours:
                record.complete(self.store, report.name, snapshot)


class Attempt:
    """One attempt at the fragments of a run. Call `prepare`, `compare` and `finish`, in order.

    `failed` has the error of each fragment that failed so far, by name.
    """

    def __init__(
        self, command: Command, fragments: Sequence[Fragment], reports: dict[str, Report]
    ) -> None:
        """Begin an attempt; count it in the reports, which are by fragment name."""
        self.fragments = fragments
        self.failed: dict[str, DriftlineError] = {}
        self._command, self._reports = command, reports
        self._jobs: dict[str, Job] = {}
        self._prepared: list[tuple[Job, Prepared]] = []
        self._compared: dict[str, Compared] = {}
        for fragment in fragments:
            report = reports[fragment.name]
            report.attempts += 1
            command.emit(RefreshStarted(fragment.name, report.attempts))

    @property
    def has_retryable(self) -> bool:
        """Return True if a fragment failed that may be tried again."""
        return any(error.is_retryable for error in self.failed.values())

    def fail_all(self, error: DriftlineError) -> None:
        """Note an error as that of every fragment that has none of its own."""
        for fragment in self.fragments:
            self.failed.setdefault(fragment.name, error)

    def prepare(self, link: Link) -> None:
        """Prepare our side of each fragment; another thread may exchange over the link."""
        command, described = self._command, dict[str, pb.DescribeReply]()
        if command.is_deferred:
            for f in self.fragments:
                expect_spark(command.steps, command.store, f.name)
            described = preflight.ask(link, command.store, self.fragments, self.failed)
        for f in (f for f in self.fragments if f.name not in self.failed):
            report = self._reports[f.name]
            self._jobs[f.name] = Job(
                command.steps, command.store, f, command.options, report, command.emit
            )
        for job in self._jobs.values():
            with _catching(job, self.failed), job.phase("reduce"):
                p = prepare(job, partial(_describe, link, job, described.get(job.name)))
                reporting.prepared(job.report, p)
                self._prepared.append((job, p))
            if job.name in self.failed:
                command.published(job.report)

    def compare(self, link: Link) -> None:
        """Compare what was prepared, all in one stream, except tiles; replace a broken stream."""
        ready: list[_Ready] = []
        prepared, self._prepared = self._prepared, []
        for job, p in prepared:
            match p.ours:
                case Pass() as tiles:
                    self._walk(link, job, p, tiles)
                case ours:
                    ready.append((job, p, ours))
        while ready:
            with link.stream() as stream:
                ready = self._exchange(link, stream, ready)
            if len(self.failed) < len(self._jobs):  # else the source was not reached at all
                with contextlib.suppress(DriftlineError):  # the note may be lost
                    record.note_line(self._command.store, link, stream)

    def finish(self) -> dict[str, DriftlineError]:
        """Write, prove and publish what was compared; return the retryable errors by name."""
        again = {}
        for fragment in self.fragments:
            report = self._reports[fragment.name]
            if (job := self._jobs.get(fragment.name)) is None:
                self._command.published(report)
            else:
                self._publish(job)
            if (error := self.failed.get(fragment.name)) is not None:
                if job is not None:
                    repair.note_failure(job, error)
                    with contextlib.suppress(DriftlineError):
                        job.discard()
                report.fail(error)
                if error.is_retryable:
                    again[fragment.name] = error
                    continue
            self._command.finished(report)
        return again

    def _publish(self, job: Job) -> None:
        """Write, prove and publish what was compared of a fragment, if it did not fail."""
        done = self._compared.pop(job.name, None)
        if done is not None and job.name not in self.failed:
            with _catching(job, self.failed):
                job.report.took(commit(job, write_and_prove(job, done)))
                job.report.recovered()

    def _walk(self, link: Link, job: Job, p: Prepared, tiles: Pass) -> None:
        """Compare a fragment tile by tile."""
        with self._comparing(link, job):
            try:
                with job.phase("exchange"):
                    done = tiled.walk(job, p, tiles, link, self._command.sleep)
            finally:
                reporting.walked(job.report, tiles)
            reporting.compared(job.report, done.found)
            self._compared[job.name] = done

    def _exchange(self, link: Link, stream: Stream, ready: list[_Ready]) -> list[_Ready]:
        """Compare one after the other; return those left if the stream cannot be used again."""
        for number, (job, p, ours) in enumerate(ready):
            with self._comparing(link, job):
                done = self._compared[job.name] = whole.exchange(job, p, ours, stream)
                reporting.exchanged(job.report, done)
            left = ready[number + 1 :]
            error = self.failed.get(job.name)
            if isinstance(error, SourceUnreachable):
                self.failed.update({other.name: error for other, _, _ in left})
                return []
            if stream.is_abandoned:
                return left
        return []

    @contextlib.contextmanager
    def _comparing(self, link: Link, job: Job) -> Iterator[None]:
        """Catch the error of a comparison and note its bytes; find out which columns changed."""
        sent, received = link.bytes_sent, link.bytes_received
        with _catching(job, self.failed):
            yield
        job.report.bytes_sent += link.bytes_sent - sent
        job.report.bytes_received += link.bytes_received - received
        error = self.failed.get(job.name)
        if isinstance(error, RecipeChanged):
            self.failed[job.name] = self._explained(link, job, error)

    def _explained(self, link: Link, job: Job, error: RecipeChanged) -> DriftlineError:
        """Return the error with the columns that changed, or the error of asking for them."""
        base = formats.head(self._command.store, job.name)
        if base is None or error.details:  # the error names the changes already
            return error
        try:
            return schema_change.explained(link.describe(job.fragment.relation), base, job.name)
        except DriftlineError as other:
            return other


@contextlib.contextmanager
def _catching(job: Job, failed: dict[str, DriftlineError]) -> Iterator[None]:
    """Note an exception as the failure of one fragment."""
    try:
        yield
    except Exception as problem:
        failed[job.name] = _placed(job.steps.mistake(problem, job.name), job.fragment)


def _placed(error: DriftlineError, fragment: Fragment) -> DriftlineError:
    """Add fragment, relation and column to an error about rows; return it."""
    if isinstance(error, _OF_ROWS):
        about = fragment.name
        if fragment.relation != fragment.name:
            about += f" (relation {fragment.relation})"
        column = error.where
        for name in (fragment.relation, fragment.name):
            column = "" if column == name else column.removeprefix(f"{name}.")
        error.where = f"{about}.{column}" if column else about
    return error


def _describe(
    link: Link, job: Job, known: pb.DescribeReply | None, relation: str
) -> pb.DescribeReply:
    """Return the description of a relation: the known one, or the source's answer."""
    job.report.round_trips += 1
    reply = link.describe(relation) if known is None else known
    with contextlib.suppress(WarehouseUnavailable):  # the note may be lost
        record.note_limits(job.store, link.source, reply.description)
    return reply
