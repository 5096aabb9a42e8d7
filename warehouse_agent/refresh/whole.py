"""Compare a prepared fragment with its source, in one exchange; `tiled` makes an exchange per tile.

The rows that come are staged, also where the line is cut: the next attempt builds on them (decision
4). Nothing that a reader sees changes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, LimitExceeded

from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history.marks import KeptMark
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.interface import OurSide
from warehouse_agent.methods.registry import compare, is_added_up_later
from warehouse_agent.planning.attempts import Reached, scan_s
from warehouse_agent.planning.choice import PACKED_ROW_S, Method
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.plan_inputs import CopyReason
from warehouse_agent.planning.tiling import Bounds
from warehouse_agent.refresh import marker_audit
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared, PreparedWhole
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.difference import Outcome
from warehouse_agent.tasks.staging import FrameWriter
from warehouse_agent.tasks.written_ahead import FilesAhead
from warehouse_agent.transport.channel import Stream
from warehouse_agent.transport.frame_admission import FrameAdmission
from warehouse_agent.transport.waiting import Waiting

ROWS_TIMED = 10_000  # fewer rows tell how long a round trip takes, not how fast rows are read
BESIDE_FACTOR = 1.2  # a source that read for so much longer than we added up did not wait for us
REDUCE = "reduce"  # phase


@dataclass(frozen=True, slots=True)
class Intake:
    """The rows of an exchange on their way: `writer` stages them, `progress` shows how many of
    `rows_expected` came, with `rows_before` that earlier attempts at a load staged."""

    writer: FrameWriter
    progress: Callable[[pb.Progress], None]
    rows_expected: int
    rows_before: int = 0


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """The result of a comparison, and the URIs of the staged frames that belong to it.

    `written` are data files that hold rows of other frames already, `written_bytes` in Arrow.
    `rows_per_s` is how fast the source read; None: it cannot be told. `marking`: the mark of the
    version that this becomes; None: the source was not asked for one.
    """

    prepared: Prepared
    found: Outcome
    staged: list[str]
    rows_per_s: float | None = None
    marking: KeptMark | None = None
    written: Sequence[DataFile] = ()
    written_bytes: int = 0
    is_unstaged: bool = False  # nothing is staged, so nothing has to be removed


def exchange(job: Job, p: PreparedWhole, stream: Stream) -> ComparisonResult:
    """Compare our side over a stream, stage what comes, and measure how fast the source read.

    Raises:
        DriftlineError: whatever the source refused with, or a broken line or message.
    """
    carried, reduced_s = stream.bytes_carried, job.report.seconds.get(REDUCE, 0.0)
    with job.phase("exchange") as spent, _writing_ahead(job, p) as ahead:
        writer = job.staging.begin(
            job.exchange(p.base, p.layout), ahead.take, rows_expected=p.rows_expected
        )
        writer.copied = p.copied
        before = writer.rows_before if p.base is None or p.taken else 0
        intake = Intake(writer, partial(job.rows_read, before), p.rows_expected, before)
        try:
            outcome = converse(job, p, p.ours, stream, intake)
        except DriftlineError as error:
            if is_added_up_later(p.ours):
                _waited_for_us(error, stream)
            raise
    carried, rate = stream.bytes_carried - carried, None
    if p.part is None:  # a part is read by its keys
        beside_s = job.report.seconds.get(REDUCE, 0.0) - reduced_s  # of the source's scan
        rate = rows_per_s(p.known.line, outcome, spent.seconds + beside_s, carried, beside_s)
    # Rows in no group came before the totals were known: if these are equal, we have the rows.
    staged = [] if outcome.is_equal else [uri for uri in writer.uris() if uri not in ahead.done]
    WarehouseFailpoint.COMPARED.reach()
    return ComparisonResult(
        p,
        outcome,
        staged,
        rate,
        marking=marker_audit.marking(job, p, outcome),
        written=ahead.files,
        written_bytes=ahead.row_bytes,
        is_unstaged=writer.is_alone and not writer.files,
    )


def _waited_for_us(error: DriftlineError, stream: Stream) -> None:
    """Let another attempt have our sums before it asks, if the source may have waited too long.

    It then refuses without saying where, and ends its stream. What it refuses about the relation
    and its rows would be refused again, and leaves the stream, whose snapshot others share.
    """
    is_refusal = not stream.is_abandoned  # an error of ours has ended the stream already
    error.is_retryable |= is_refusal and isinstance(error, LimitExceeded) and not error.where
    if error.is_retryable:
        stream.abandon()


def _writing_ahead(job: Job, p: PreparedWhole) -> FilesAhead:
    """Return what writes the rows of a load while they come; of others it writes none."""
    expected = int(p.rows_expected * p.known.prices.copied)

    def fits(size: int) -> bool:
        return not p.ours.rows and job.steps.fits_here(max(size, expected))

    return FilesAhead(partial(job.folder, "arrived"), p.layout, job.key_file, p.stamp, fits)


def converse(
    job: Job,
    p: Prepared,
    ours: OurSide,
    stream: Stream,
    intake: Intake,
    within: Bounds | None = None,
) -> Outcome:
    """Compare our side over a stream, and write the frames that come.

    A stream on which the source has not ended the relation is abandoned. If the exchange fails, the
    job notes how far it came.

    within: a tile, by positions or by keys.
    """
    marker, writer, began, is_done = p.known.marker, intake.writer, monotonic(), False
    room = job.staging.room(job.fragment.staging_at_most)

    def keep(frame: bytes, wants_all: bool) -> None:
        if wants_all:  # for another attempt
            writer.copied = writer.copied or CopyReason.VERDICT
        writer.add(frame)

    over = Waiting(
        stream,
        FrameAdmission(p.layout.recipe, p.salt, room=room),
        keep=keep,
        progress=intake.progress,
        rows_expected=intake.rows_expected,
        rows_before=intake.rows_before,
    )
    try:
        terms = ExchangeTerms(
            relation=job.fragment.relation,
            recipe=p.layout.recipe,
            fragment_key=p.fragment_key,
            salt=p.salt,
            level=p.known.level(ours.rows, at_once=p.is_copied_at_once),
            agreed=stream.agreed,
            within=within,
            derivation=p.layout.derivation,
            marks=marker is not None and marker.is_known,
            audited=b"" if marker is None or not ours.rows else marker.mark,
            claims=marker is not None and marker.is_known and marker.claims,
        )
        found = replace(compare(ours, terms, over), snapshot_s=stream.snapshot_s)
        is_done = True
        return found
    finally:
        if not over.ended:
            stream.abandon()
        if over.admission.is_overrun and not _makes_room(job, p, over.admission, writer):
            writer.drop()
        else:
            writer.flush()
        if not is_done:
            job.reached = _reached(job, intake, over.said, monotonic() - began)


def _reached(job: Job, intake: Intake, said: pb.Progress, held_s: float) -> Reached:
    """Return how far an exchange came; `said`: the last progress of the source."""
    before, came, expected = intake.writer.rows_before, intake.writer.rows, intake.rows_expected
    rows = max(said.rows_expected, expected)
    takes_s = scan_s(said.rows, rows, held_s, job.notes.rows_per_s)
    return Reached(before, before + came, expected, held_s, takes_s)


def _makes_room(job: Job, p: Prepared, admission: FrameAdmission, writer: FrameWriter) -> bool:
    """Drop what earlier exchanges staged if it takes the room for what came now; return True if
    there was any. It may be rows that have changed since, and would take the room again."""
    is_whole = isinstance(p, PreparedWhole)
    return admission.is_full and is_whole and job.staging.drop_before(writer.folder)


def rows_per_s(
    line: Line, outcome: Outcome, seconds: float, size: int, beside_s: float = 0.0
) -> float | None:
    """Return how fast the source read in one exchange; None if the exchange was too short to tell,
    a copy that the line held up, or the source may have waited for our sums.

    Time for which the source held back says nothing of the next refresh. At least half of the time
    is taken to be spent on reading, because rows are on the line while others are read.

    Args:
        size: bytes of the exchange, in both directions.
        beside_s: seconds for which we added up our rows meanwhile.
    """
    if outcome.rows_read <= ROWS_TIMED or not seconds:
        return None
    waited = line.seconds(size, outcome.round_trips, 0)
    if outcome.method is Method.FULL and outcome.scans == 1 and waited > seconds / 2:
        return None  # rows went out as they were read, and the line took its time
    waited += max(outcome.came.count * PACKED_ROW_S - outcome.frame_bytes / line.bytes_per_s, 0)
    read_s = max(seconds - waited - outcome.held_back_s, seconds / 2)
    return None if read_s < BESIDE_FACTOR * beside_s else outcome.rows_read / read_s
