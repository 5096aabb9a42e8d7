"""One attempt at the fragments of a run: prepare all, compare them in one stream, finish each.

The three phases are called in order by one thread. Each works on all fragments of the run. An error
is that of its fragment and stops no other; what was staged is kept for the next attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from driftline import wire_pb2 as pb
from driftline.errors import (
    DerivationRefused,
    DriftlineError,
    DuplicateKey,
    FrameDamaged,
    InternalError,
    LimitExceeded,
    MalformedMessage,
    NotNow,
    NullKey,
    ProofFailed,
    RecipeChanged,
    SourceUnreachable,
    ValueDoesNotFit,
    WarehouseUnavailable,
)

from warehouse_agent.config import Fragment, Proof
from warehouse_agent.events import (
    RefreshStarted,
)
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history import line_notes, marks
from warehouse_agent.history.notes import Notes
from warehouse_agent.planning.attempts import Reached
from warehouse_agent.refresh import derivation, reporting, schema_change, tiled, whole
from warehouse_agent.refresh.commit import commit
from warehouse_agent.refresh.finish import write_and_prove
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import (
    Prepared,
    PreparedPass,
    PreparedWhole,
    expect_spark,
    prepare,
)
from warehouse_agent.refresh.recovery import repair
from warehouse_agent.refresh.whole import ComparisonResult
from warehouse_agent.report import Report
from warehouse_agent.runs.command import RefreshCommand
from warehouse_agent.storage import formats
from warehouse_agent.storage.opened_table import overtaken
from warehouse_agent.transport import preflight
from warehouse_agent.transport.channel import SourceChannel, Stream, StreamEnded

_OF_ROWS = (ValueDoesNotFit, NullKey, DuplicateKey, LimitExceeded)

_OF_LOSERS = (FrameDamaged, InternalError, ProofFailed, WarehouseUnavailable)

_Ready = tuple[Job, PreparedWhole]  # to be compared in one exchange


class Attempt:
    """One attempt at the fragments of a run. Call `prepare`, `compare` and `finish`, in order.

    `failed` has the error of each fragment that failed so far, by name; `reached` how far those
    came whose exchange failed.
    """

    def __init__(
        self, command: RefreshCommand, fragments: Sequence[Fragment], reports: dict[str, Report]
    ) -> None:
        """Begin an attempt; count it in the reports, which are by fragment name."""
        self.fragments = fragments
        self.failed: dict[str, DriftlineError] = {}
        self.reached: dict[str, Reached] = {}
        self._command, self._services, self._reports = command, command.services, reports
        self._jobs: dict[str, Job] = {}
        self._prepared: list[tuple[Job, Prepared]] = []
        self._compared: dict[str, ComparisonResult] = {}
        self._held: set[str] = set()  # proven, and left to the turn of their component
        for fragment in fragments:
            report = reports[fragment.name]
            report.attempts += 1
            self._services.histories.begin(self._services.store, fragment.name)
            self._services.emit(RefreshStarted(fragment.name, report.attempts))

    @property
    def has_retryable(self) -> bool:
        """Return True if a fragment failed that may be tried again."""
        return any(_is_tried_again(error) for error in self.failed.values())

    def fail_all(self, error: DriftlineError) -> None:
        """Note an error as that of every fragment that has none of its own."""
        for fragment in self.fragments:
            self.failed.setdefault(fragment.name, error)

    def prepare(self, link: SourceChannel) -> None:
        """Prepare our side of each fragment; another thread may exchange over the link."""
        command, services = self._command, self._services
        described, read = dict[str, pb.DescribeReply](), dict[str, Notes]()
        for f in self.fragments:
            try:
                read[f.name] = Notes.read(services.store, f.name)
            except DriftlineError as error:
                self.failed[f.name] = error
        if command.is_deferred:
            for f in self.fragments:
                expect_spark(services.steps, services.store, f.name, services.histories)
            begun = {name for name, notes in read.items() if notes.head is not None}
            described = preflight.ask(link, services.store, self.fragments, self.failed, begun)
        for f in (f for f in self.fragments if f.name not in self.failed):
            report, notes = self._reports[f.name], read[f.name]
            self._jobs[f.name] = Job(
                services.steps,
                services.store,
                f,
                services.options,
                report,
                notes,
                services.emit,
                services.histories,
            )
        for job in self._jobs.values():
            with _catching(job, self.failed), job.phase("reduce"):
                if job.fragment.proof is not Proof.TOTAL:
                    link.relations()  # what to compare depends on what it allows, and knows
                allowance = link.allowance(job.fragment.relation)
                describe = partial(_describe, link, job, described.get(job.name))
                p = prepare(job, describe, allowance, features=link.features, has=link.has)
                reporting.prepared(job.report, p)
                WarehouseFailpoint.PREPARED.reach()
                self._prepared.append((job, p))
            if job.name in self.failed:
                command.published(job.report)

    def compare(self, link: SourceChannel) -> None:
        """Compare what was prepared, all in one stream, except tiles; replace a broken stream."""
        ready: list[_Ready] = []
        prepared, self._prepared = self._prepared, []
        for job, p in prepared:
            match p:
                case PreparedPass():
                    self._walk(link, job, p)
                case PreparedWhole():
                    ready.append((job, p))
        while ready:
            with link.stream(job.fragment.relation for job, _ in ready) as stream:
                ready = self._exchange(link, stream, ready)
            if len(self.failed) < len(self._jobs):  # else the source was not reached at all
                with contextlib.suppress(DriftlineError):  # the note may be lost
                    line_notes.note_line(self._services.store, link, stream)

    def finish(self) -> dict[str, DriftlineError]:
        """Write, prove and publish what was compared; return the retryable errors by name."""
        again = {}
        for fragment in self.fragments:
            report = self._reports[fragment.name]
            if (job := self._jobs.get(fragment.name)) is None:
                self._command.published(report)
            else:
                self._publish(job)
            if fragment.name in self._held:
                continue
            if (error := self.failed.get(fragment.name)) is not None:
                if job is not None:
                    error = _of_the_loser(job, error)
                    if job.reached is not None:
                        self.reached[fragment.name] = job.reached
                    with contextlib.suppress(DriftlineError):  # what was learnt may be lost
                        job.write_notes()
                    repair.note_failure(job, error)
                    with contextlib.suppress(DriftlineError):
                        job.discard()
                report.fail(error)
                if _is_tried_again(error):
                    again[fragment.name] = error
                    continue
            self._command.finished(report)
        return again

    def _publish(self, job: Job) -> None:
        """Write, prove and publish what was compared of a fragment, if it did not fail."""
        done = self._compared.pop(job.name, None)
        if done is not None and job.name not in self.failed:
            with _catching(job, self.failed):
                turn = self._command.turns.get(job.name)
                if turn is not None and not done.found.is_equal:
                    turn.expect_views()
                proven = write_and_prove(job, done)
                if turn is not None:
                    turn.hold(job, proven)
                    self._held.add(job.name)
                    return
                job.report.note_published(commit(job, proven))
                job.report.recovered()
                version, flips = job.report.version, self._services.flips
                flipped = flips.committed(job.fragment, version, job.notes)
                job.report.warehouse_version = flipped

    def _walk(self, link: SourceChannel, job: Job, p: PreparedPass) -> None:
        """Compare a fragment tile by tile."""
        with self._comparing(link, job):
            try:
                with job.phase("exchange"):
                    done = tiled.walk(job, p, link, self._services.sleep)
            except DriftlineError:
                tiles = p.tiles
                job.reached = Reached(tiles.resumed_at, len(tiles.outcomes), len(tiles.tiling))
                raise
            finally:
                reporting.walked(job.report, p.tiles)
            reporting.compared(job.report, done.found)
            reporting.copied(job.report, p, done.found)
            self._compared[job.name] = done

    def _exchange(self, link: SourceChannel, stream: Stream, ready: list[_Ready]) -> list[_Ready]:
        """Compare one after the other; return those left if the stream cannot be used again."""
        for number, (job, p) in enumerate(ready):
            with self._comparing(link, job):
                done = self._compared[job.name] = whole.exchange(job, p, stream)
                reporting.exchanged(job.report, p, done.found)
            left = ready[number + 1 :]
            error = self.failed.get(job.name)
            if number and isinstance(error, StreamEnded):
                del self.failed[job.name]
                return ready[number:]
            if isinstance(error, SourceUnreachable):
                self.failed.update({other.name: error for other, _ in left})
                return []
            if stream.is_abandoned:
                return left
        return []

    @contextlib.contextmanager
    def _comparing(self, link: SourceChannel, job: Job) -> Iterator[None]:
        """Catch the error of a comparison and note its bytes; find out which columns changed."""
        sent, received = link.bytes_sent, link.bytes_received
        with _catching(job, self.failed):
            yield
        job.report.source_release = link.agent or None
        job.report.bytes_sent += link.bytes_sent - sent
        job.report.bytes_received += link.bytes_received - received
        error = self.failed.get(job.name)
        if isinstance(error, RecipeChanged):
            self.failed[job.name] = self._explained(link, job, error)
        elif isinstance(error, DerivationRefused | MalformedMessage):
            base = formats.head(self._services.store, job.name)
            why = derivation.explained(error, link.describe, job.fragment, base)
            self.failed[job.name] = why

    def _explained(self, link: SourceChannel, job: Job, error: RecipeChanged) -> DriftlineError:
        """Return the error with the columns that changed, or the error of asking for them."""
        base = formats.head(self._services.store, job.name)
        if base is None or error.details:  # the error names the changes already
            return error
        try:
            return schema_change.explained(link.describe(job.fragment.relation), base, job.name)
        except DriftlineError as other:
            return other


def _of_the_loser(job: Job, error: DriftlineError) -> DriftlineError:
    """Return the error of an attempt, LOCKED if another command published a version meanwhile.

    Where locks do not keep others away, who publishes first clears what was staged, and the other
    one fails wherever it misses it.
    """
    if job.store.has_locks or job.base is None or not isinstance(error, _OF_LOSERS):
        return error
    with contextlib.suppress(DriftlineError):
        newest = formats.head(job.store, job.name)
        if newest is not None and newest.version != job.base:
            lost = overtaken(job.name)
            lost.__cause__ = error
            return lost
    return error


def _is_tried_again(error: DriftlineError) -> bool:
    """Return True if another attempt may go well: not before hours of the source that it names."""
    return error.is_retryable and not (isinstance(error, NotNow) and error.until())


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
        names = (fragment.relation, fragment.name)
        # A source writes `relation.column`, the warehouse's own code a column or the fragment.
        columns = (
            error.where.removeprefix(f"{n}.") for n in names if error.where.startswith(f"{n}.")
        )
        column = next(columns, "" if error.where in names else error.where)
        error.where = f"{about}.{column}" if column else about
    return error


def _describe(
    link: SourceChannel,
    job: Job,
    known: pb.DescribeReply | None,
    relation: str,
    beside: Sequence[str],
) -> pb.DescribeReply:
    """Return the description of a relation: the known one, or the source's answer."""
    job.report.round_trips += 1
    reply = link.describe(relation, beside) if known is None else known
    with contextlib.suppress(WarehouseUnavailable):  # the note may be lost
        line_notes.note_limits(job.store, link.source, reply.description)
        derivation.note_offer(job.store, job.fragment, reply)
    job.notes = replace(job.notes, marker_time=marks.time_column(reply.description))
    return reply
