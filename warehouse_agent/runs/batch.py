"""Refresh many fragments in one command; the failure of one does not stop the others.

Fragments of a source are prepared, then compared one after the other in one stream, so that they
share its snapshot, then finished. An error is reported for its fragment. A retryable error is
retried a few times, after longer and longer pauses; what was staged is kept.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import tenacity
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

from warehouse_agent.config import Fragment, Source, WarehouseConfig
from warehouse_agent.events import (
    Event,
    Listener,
    RefreshCommitted,
    RefreshFailed,
    RefreshRetried,
    RefreshStarted,
)
from warehouse_agent.history import record
from warehouse_agent.history.record import RunHistory
from warehouse_agent.methods.interface import OurSide
from warehouse_agent.refresh import repair, reporting, schema_change, tiled, whole
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.commit import commit
from warehouse_agent.refresh.finish import write_and_prove
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.prepare import Prepared, prepare
from warehouse_agent.refresh.whole import Compared
from warehouse_agent.report import Report
from warehouse_agent.runs import preflight
from warehouse_agent.spark.executors import mistake
from warehouse_agent.spark.session import Deferred
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.transport.channel import Link, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_ROWS = (ValueDoesNotFit, NullKey, DuplicateKey, LimitExceeded)
ATTEMPTS = 4  # of a refresh, if its errors are retryable
WAIT_S_MAX = 30.0

_log = logging.getLogger("driftline")

_Ready = tuple[Job, Prepared, OurSide]  # to be compared in one exchange


@dataclass
class Runner:
    """Refresh fragments of one configuration with one Spark session.

    With a deferred session, Spark is started only when the source was reached, the lock of a
    fragment is held and its relation was found.

    Each event goes to the history of runs, then to `listeners` in their order. An exception of a
    listener is logged at debug level and dropped: a refresh does not depend on its listeners. Only
    BrokenPipeError ends the command, because its answers are not read any more.
    """

    spark: SparkSession | Deferred
    config: WarehouseConfig
    listeners: Sequence[Listener] = ()
    sleep: Callable[[float], None] = field(default=tenacity.nap.sleep)
    attempts: int = ATTEMPTS

    @property
    def store(self) -> Store:
        """Return the store of the configured warehouse."""
        return Store(self.config.path)

    def refresh(self, fragments: Sequence[Fragment], options: Options) -> list[Report]:
        """Refresh fragments; emit the report of each as soon as the fragment is done.

        Returns:
            A report for every fragment, source by source; failures are in the reports.
        """
        together: dict[tuple[str, str], list[Fragment]] = {}
        for fragment in fragments:
            # A refresh in tiles takes long and shares no snapshot, so the others come first.
            alone = fragment.name if fragment.incremental else ""
            together.setdefault((fragment.source.name, alone), []).append(fragment)
        reports: list[Report] = []
        for _, group in sorted(together.items(), key=lambda pair: bool(pair[0][1])):
            reports += self._source(group[0].source, group, options)
        return reports

    def _emit(self, event: Event) -> None:
        """Pass an event to every listener; the history first, so that it is kept when printed."""
        listeners: tuple[Listener, ...] = (RunHistory(self.store), *self.listeners)
        for listener in listeners:
            try:
                listener(event)
            except BrokenPipeError:
                raise
            except Exception as problem:
                _log.debug("a listener failed on %s", type(event).__name__, exc_info=problem)

    def _finished(self, report: Report) -> None:
        """Emit the last event of a fragment."""
        self._emit(RefreshFailed(report) if report.error else RefreshCommitted(report))

    def _source(
        self, source: Source, fragments: list[Fragment], options: Options
    ) -> Iterable[Report]:
        """Refresh the fragments of one source and return their reports."""
        reports = {f.name: Report(f.name) for f in fragments}
        with contextlib.ExitStack() as locks:
            left = []
            for fragment in fragments:
                try:
                    locks.enter_context(self.store.lock(fragment.name))
                    left.append(fragment)
                except DriftlineError as locked:
                    self._refused(reports[fragment.name], locked)
            try:
                if isinstance(self.spark, Deferred):
                    preflight.reach(source)
            except DriftlineError as error:
                for fragment in left:
                    reports[fragment.name].attempts = 1
                    self._refused(reports[fragment.name], error)
                return reports.values()
            retrying = tenacity.Retrying(
                stop=tenacity.stop_after_attempt(self.attempts),
                wait=tenacity.wait_exponential_jitter(multiplier=0.5, max=WAIT_S_MAX),
                retry=tenacity.retry_if_result(bool),
                sleep=self.sleep,
                retry_error_callback=lambda _state: None,
            )
            for attempt in retrying if left else ():
                left = self._attempt(source, left, options, reports)
                attempt.retry_state.set_result(left)
            for fragment in left:
                self._finished(reports[fragment.name])
        return reports.values()

    def _attempt(
        self,
        source: Source,
        fragments: list[Fragment],
        options: Options,
        reports: dict[str, Report],
    ) -> list[Fragment]:
        """Try each fragment once; emit the report of each that is done.

        Returns:
            The fragments that are worth another try; their reports hold the error.
        """
        jobs: dict[str, Job] = {}
        compared: dict[str, Compared] = {}
        failed: dict[str, DriftlineError] = {}
        for fragment in fragments:
            reports[fragment.name].attempts += 1
            self._emit(RefreshStarted(fragment.name, reports[fragment.name].attempts))
        try:
            with Link(source) as link:
                described: dict[str, pb.DescribeReply] = {}
                if isinstance(self.spark, Deferred):
                    described = preflight.ask(link, self.store, fragments, failed)
                steps = Steps(self.spark, self.config.small_bytes)
                for f in (f for f in fragments if f.name not in failed):
                    report = reports[f.name]
                    jobs[f.name] = Job(steps, self.store, f, options, report, self._emit)
                self._converse(link, list(jobs.values()), described, compared, failed)
        except DriftlineError as lost:
            failed.update({f.name: lost for f in fragments if f.name not in failed})
        again = []
        for fragment in fragments:
            report = reports[fragment.name]
            job, done = jobs.get(fragment.name), compared.get(fragment.name)
            if job is None:
                self._published(report)
            elif done is not None and fragment.name not in failed:
                with _catching(job, failed):
                    report.took(commit(job, write_and_prove(job, done)))
                    report.recovered()
            if (error := failed.get(fragment.name)) is not None:
                if job is not None:
                    repair.note_failure(job, error)
                    with contextlib.suppress(DriftlineError):
                        job.discard()
                report.fail(error)
                if error.is_retryable:
                    again.append(fragment)
                    continue
            self._finished(report)
        self._say_retried(again, failed, reports)
        return again

    def _say_retried(
        self,
        fragments: list[Fragment],
        failed: dict[str, DriftlineError],
        reports: dict[str, Report],
    ) -> None:
        """Emit which fragments are tried again and why; one event for each cause."""
        alike: dict[int, tuple[DriftlineError, list[str]]] = {}
        for fragment in fragments:
            error = failed[fragment.name]
            if reports[fragment.name].attempts < self.attempts:
                alike.setdefault(id(error), (error, []))[1].append(fragment.name)
        for error, names in alike.values():
            self._emit(RefreshRetried(tuple(names), error))

    def _converse(
        self,
        link: Link,
        jobs: list[Job],
        described: dict[str, pb.DescribeReply],
        compared: dict[str, Compared],
        failed: dict[str, DriftlineError],
    ) -> None:
        """Prepare all, then compare all in one stream, except tiles; replace a broken stream."""
        prepared: dict[str, Prepared] = {}
        for job in jobs:
            with _catching(job, failed), job.phase("reduce"):
                describe = partial(_describe, link, job, described.get(job.name))
                p = prepared[job.name] = prepare(job, describe)
                reporting.prepared(job.report, p)
        ready: list[_Ready] = []
        for job in jobs:
            if job.name not in prepared:
                self._published(job.report)
                continue
            p = prepared[job.name]
            match p.ours:
                case Pass() as tiles:
                    with self._comparing(link, job, failed):
                        try:
                            with job.phase("exchange"):
                                done = tiled.walk(job, p, tiles, link, self.sleep)
                        finally:
                            reporting.walked(job.report, tiles)
                        reporting.compared(job.report, done.found)
                        compared[job.name] = done
                case ours:
                    ready.append((job, p, ours))
        while ready:
            with link.stream() as stream:
                ready = self._exchange(link, stream, ready, compared, failed)
            if len(failed) < len(jobs):  # else the source was not reached at all
                with contextlib.suppress(DriftlineError):  # the note may be lost
                    record.note_line(self.store, link, stream)

    def _exchange(
        self,
        link: Link,
        stream: Stream,
        ready: list[_Ready],
        compared: dict[str, Compared],
        failed: dict[str, DriftlineError],
    ) -> list[_Ready]:
        """Compare one after the other; return those left if the stream cannot be used again."""
        for number, (job, p, ours) in enumerate(ready):
            with self._comparing(link, job, failed):
                done = compared[job.name] = whole.exchange(job, p, ours, stream)
                reporting.exchanged(job.report, done)
            left = ready[number + 1 :]
            error = failed.get(job.name)
            if isinstance(error, SourceUnreachable):
                failed.update({other.name: error for other, _, _ in left})
                return []
            if stream.is_abandoned:
                return left
        return []

    @contextlib.contextmanager
    def _comparing(self, link: Link, job: Job, failed: dict[str, DriftlineError]) -> Iterator[None]:
        """Catch the error of a comparison and note its bytes; find out which columns changed."""
        sent, received = link.bytes_sent, link.bytes_received
        with _catching(job, failed):
            yield
        job.report.bytes_sent += link.bytes_sent - sent
        job.report.bytes_received += link.bytes_received - received
        error = failed.get(job.name)
        if isinstance(error, RecipeChanged):
            failed[job.name] = self._explained(link, job, error)

    def _explained(self, link: Link, job: Job, error: RecipeChanged) -> DriftlineError:
        """Return the error with the columns that changed, or the error of asking for them."""
        base = formats.head(self.store, job.name)
        if base is None or error.details:  # the error names the changes already
            return error
        try:
            return schema_change.explained(link.describe(job.fragment.relation), base, job.name)
        except DriftlineError as other:
            return other

    def _refused(self, report: Report, error: DriftlineError) -> None:
        """Emit the report of a fragment on which no work began."""
        self._published(report)
        report.fail(error)
        self._finished(report)

    def _published(self, report: Report) -> None:
        """Note the published version of a fragment that is not worked on."""
        with contextlib.suppress(Exception):  # the report has the error of the table
            if (snapshot := formats.head(self.store, report.name)) is not None:
                report.version = report.previous_version = snapshot.version
                report.rows_total = snapshot.rows


@contextlib.contextmanager
def _catching(job: Job, failed: dict[str, DriftlineError]) -> Iterator[None]:
    """Note an exception as the failure of one fragment."""
    try:
        yield
    except Exception as problem:
        failed[job.name] = _placed(mistake(problem, job.name), job.fragment)


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
