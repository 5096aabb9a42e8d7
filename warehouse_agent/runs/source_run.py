"""The runs of one source: prepare the fragments of a run, compare them, finish them, try again.

All fragments of a run are prepared, then compared one after the other in one stream, so that they
share its snapshot, then finished one after the other. An error is reported for its fragment. A
retryable error is retried a few times, after longer and longer pauses; what was staged is kept.

Runs of one source learn from each other. If the source was not reached in all attempts of a run, no
later run asks it. If its database was not available, or its DBA allowed nothing now, for all
fragments of a run, each later run has one attempt until something else happens. Else hundreds of
fragments would wait, one run after the other, for what does not come back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import tenacity
from driftline import wire_pb2 as pb
from driftline.errors import (
    DatabaseUnavailable,
    DriftlineError,
    DuplicateKey,
    LimitExceeded,
    NotNow,
    NullKey,
    RecipeChanged,
    SourceUnreachable,
    ValueDoesNotFit,
    WarehouseUnavailable,
)

from warehouse_agent.config import Fragment, Source
from warehouse_agent.events import (
    Listener,
    RefreshCommitted,
    RefreshFailed,
    RefreshNotStarted,
    RefreshRetried,
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
_OF_SOURCE = (DatabaseUnavailable, NotNow)

# A link that was used less long ago is used again. gRPC's keep-alive rests between two streams, so
# a firewall may have dropped an older one.
LINK_IDLE_S_MAX = 20.0

_Ready = tuple[Job, Prepared, OurSide]  # to be compared in one exchange


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

    def retrying(self, attempts: int) -> tenacity.Retrying:
        """Return the loop of the attempts at a run, which goes on while an attempt has failures."""
        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(attempts),
            wait=tenacity.wait_exponential_jitter(multiplier=0.5, max=self.wait_s_max),
            retry=tenacity.retry_if_result(bool),
            sleep=self.sleep,
            retry_error_callback=lambda _state: None,
        )

    def finished(self, report: Report) -> None:
        """Emit the last event of a fragment."""
        self.emit(RefreshFailed(report) if report.error else RefreshCommitted(report))

    def refused(self, report: Report, error: DriftlineError, *, is_ours: bool) -> None:
        """Emit the report of a fragment on which no work began; `is_ours`: we hold its lock."""
        self.published(report, is_ours=is_ours)
        report.fail(error)
        self.finished(report)

    def in_time(
        self, fragments: Sequence[Fragment], reports: Mapping[str, Report]
    ) -> list[Fragment]:
        """Return the fragments of a run to start now; report those that would end too late."""
        if self.ends_at is None:
            return list(fragments)
        takes_s, left_s = dict[str, float](), self.ends_at - time.monotonic()
        for fragment in fragments:
            takes_s[fragment.name] = 0.0
            with contextlib.suppress(DriftlineError):  # its own refresh says what is wrong
                durations_s = record.durations_s(self.store, fragment.name, schedule.DURATIONS)
                takes_s[fragment.name] = schedule.expected_s(durations_s)
        chosen = schedule.in_time(fragments, takes_s, left_s)
        for name in (f.name for f in fragments if f not in chosen):
            report = reports[name]
            report.not_started = (
                f"By its history it takes {takes_s[name]:,.0f} s, and until the deadline "
                f"{max(left_s, 0):,.0f} s are left for its run."
            )
            self.published(report, is_ours=False)
            self.emit(RefreshNotStarted(report))
        return chosen

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


class SourceRuns:
    """The runs of one source in one command, one after the other. Call `close` at the end."""

    def __init__(self, command: Command, source: Source) -> None:
        self.source = source
        self._command = command
        self._link: Link | None = None
        self._used_at = 0.0  # seconds of a monotonic clock
        self._is_reached = not command.is_deferred
        self._lost: DriftlineError | None = None  # why the source is not asked any more
        self._is_away = False  # all of the newest run failed by _OF_SOURCE

    def close(self) -> None:
        """Close the link; from another thread this ends an exchange."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def refresh(self, fragments: Sequence[Fragment]) -> list[Report]:
        """Refresh the fragments of a run; emit the report of each as soon as the fragment is done.

        Their locks are held from here until all are done.
        """
        reports = {f.name: Report(f.name) for f in fragments}
        if not (fragments := self._command.in_time(fragments, reports)):
            return list(reports.values())
        with contextlib.ExitStack() as locks:
            is_ours = self._lost is None
            left = self._locked(fragments, reports, locks) if is_ours else list(fragments)
            self._reach()
            if self._lost is not None:
                for fragment in left:
                    reports[fragment.name].attempts = 0 if self._is_reached else 1
                    self._command.refused(reports[fragment.name], self._lost, is_ours=is_ours)
            elif left:
                self._tried(left, reports)
        return list(reports.values())

    def _locked(
        self, fragments: Sequence[Fragment], reports: dict[str, Report], locks: contextlib.ExitStack
    ) -> list[Fragment]:
        """Take the locks of fragments; return those that are ours now, report the others."""
        ours = []
        for fragment in fragments:
            try:
                locks.enter_context(self._command.store.lock(fragment.name))
                ours.append(fragment)
            except DriftlineError as locked:
                self._command.refused(reports[fragment.name], locked, is_ours=False)
        return ours

    def _reach(self) -> None:
        """Find out once whether anything listens at the source's address."""
        if self._is_reached or self._lost is not None:
            return
        try:
            preflight.reach(self.source)
            self._is_reached = True
        except DriftlineError as error:
            self._lost = error

    def _tried(self, fragments: list[Fragment], reports: dict[str, Report]) -> None:
        """Try fragments until none has a retryable error; learn for later runs."""
        left, failed = fragments, dict[str, DriftlineError]()
        attempts = 1 if self._is_away else self._command.attempts
        for attempt in self._command.retrying(attempts):
            failed = self._attempt(left, reports, attempts)
            left = _broken_last([f for f in left if f.name in failed], failed)
            attempt.retry_state.set_result(failed)
        for fragment in left:
            self._command.finished(reports[fragment.name])
        away = [error for error in failed.values() if isinstance(error, _OF_SOURCE)]
        was_away, self._is_away = self._is_away, len(away) == len(fragments)
        lost = [error for error in failed.values() if isinstance(error, SourceUnreachable)]
        # One relation may break every stream: then the source still answers.
        if lost and not was_away and not self._answers():
            self._lost = lost[0]

    def _answers(self) -> bool:
        """Return True if the source answers on a new connection."""
        try:
            with Link(self.source) as link:
                link.describe("")
        except DriftlineError:
            return False
        return True

    def _attempt(
        self, fragments: list[Fragment], reports: dict[str, Report], attempts: int
    ) -> dict[str, DriftlineError]:
        """Try each fragment once; emit the report of each that is done.

        Returns:
            The retryable errors, by fragment name; the reports of these fragments hold them.
        """
        for fragment in fragments:
            report = reports[fragment.name]
            report.attempts += 1
            self._command.emit(RefreshStarted(fragment.name, report.attempts))
        attempt = _Attempt(self._command, fragments, reports)
        try:
            link = self._connected()
            attempt.compare(link, attempt.prepare(link))
        except DriftlineError as lost:
            attempt.fail_all(lost)
        if attempt.failed:  # the link may be why
            self.close()
        self._used_at = time.monotonic()
        again = attempt.finish()
        if reports[fragments[0].name].attempts < attempts:
            for error, names in _alike(again):
                self._command.emit(RefreshRetried(names, error))
        return again

    def _connected(self) -> Link:
        """Return the link to the source, a new one if it was not used for long."""
        if self._link is not None and time.monotonic() - self._used_at > LINK_IDLE_S_MAX:
            self.close()
        if self._link is None:
            self._link = Link(self.source)
        return self._link


def _broken_last(fragments: list[Fragment], failed: dict[str, DriftlineError]) -> list[Fragment]:
    """Return fragments in the order of the next attempt: the one that broke the stream comes last.

    The fragments behind it in the run have its error, so that it is the first with one.
    """
    broken = [f for f in fragments if isinstance(failed[f.name], SourceUnreachable)][:1]
    return [f for f in fragments if f not in broken] + broken


class _Attempt:
    """One attempt at the fragments of a run. Call `prepare`, `compare` and `finish`, in order.

    `failed` has the error of each fragment that failed so far, by name.
    """

    def __init__(
        self, command: Command, fragments: Sequence[Fragment], reports: dict[str, Report]
    ) -> None:
        self.failed: dict[str, DriftlineError] = {}
        self._command = command
        self._fragments, self._reports = fragments, reports
        self._jobs: dict[str, Job] = {}
        self._compared: dict[str, Compared] = {}

    def fail_all(self, error: DriftlineError) -> None:
        """Note an error as that of every fragment that has none of its own."""
        for fragment in self._fragments:
            self.failed.setdefault(fragment.name, error)

    def prepare(self, link: Link) -> list[tuple[Job, Prepared]]:
        """Prepare our side of each fragment; return those that can be compared."""
        command, described = self._command, dict[str, pb.DescribeReply]()
        if command.is_deferred:
            for f in self._fragments:
                expect_spark(command.steps, command.store, f.name)
            described = preflight.ask(link, command.store, self._fragments, self.failed)
        for f in (f for f in self._fragments if f.name not in self.failed):
            report = self._reports[f.name]
            self._jobs[f.name] = Job(
                command.steps, command.store, f, command.options, report, command.emit
            )
        found = []
        for job in self._jobs.values():
            with _catching(job, self.failed), job.phase("reduce"):
                p = prepare(job, partial(_describe, link, job, described.get(job.name)))
                reporting.prepared(job.report, p)
                found.append((job, p))
            if job.name in self.failed:
                command.published(job.report)
        return found

    def compare(self, link: Link, prepared: Sequence[tuple[Job, Prepared]]) -> None:
        """Compare all in one stream, except tiles; replace a broken stream."""
        ready: list[_Ready] = []
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
        for fragment in self._fragments:
            report = self._reports[fragment.name]
            job, done = self._jobs.get(fragment.name), self._compared.pop(fragment.name, None)
            if job is None:
                self._command.published(report)
            elif done is not None and fragment.name not in self.failed:
                with _catching(job, self.failed):
                    report.took(commit(job, write_and_prove(job, done)))
                    report.recovered()
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


def _alike(failed: dict[str, DriftlineError]) -> list[tuple[DriftlineError, tuple[str, ...]]]:
    """Return each error once, with the names of the fragments that failed by it."""
    alike: dict[int, tuple[DriftlineError, list[str]]] = {}
    for name, error in failed.items():
        alike.setdefault(id(error), (error, []))[1].append(name)
    return [(error, tuple(names)) for error, names in alike.values()]
