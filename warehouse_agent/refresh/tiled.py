"""A refresh in tiles, for sources whose readers block writers, or whose DBA wants long pauses.

The published version is compared tile by tile in key order (`tiles`), each tile by a stream of its
own, hence by a snapshot of its own that lasts as long as one tile; in between, nothing is asked of
the source for a while. What each tile came to is kept (`passes`), so that a pass that was cut goes
on where it was. At its end the tiles' digests add up to the source's total, and apply, prove and
publish follow as ever: one commit, of rows of different instants (`fuzzy`).

A first load, and a refresh that accepts other columns, have no version to walk along: they are one
exchange, as `Refresh` does it. So is the refresh of an empty copy.

Carnes and Hanson, sections 3.4 to 3.6: incremental differencing with range checksums. They apply
each range as it comes; here readers see one version or the other, and a proof needs all of it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
from driftline import wire_pb2 as pb
from driftline.digests import Digest
from driftline.errors import (
    ConfigurationError,
    DriftlineError,
    DuplicateKey,
    MalformedMessage,
    TableShrank,
    ValueDoesNotFit,
    VersionMismatch,
)

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Require
from warehouse_agent.events import RowsRead
from warehouse_agent.history import record
from warehouse_agent.methods.conversation import Conversation, Opening
from warehouse_agent.planning import tiling
from warehouse_agent.planning.candidates import Known, predicted
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import Incremental, Tiled, Tiling
from warehouse_agent.refresh import auxiliary_table, finish, prepare, repair, schema_change
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.prepare import Describe, Prepared, stamp_of
from warehouse_agent.refresh.whole import Refresh
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage import row_security
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import (
    Difference,
    Emptied,
    Equal,
    Everything,
    ListedRows,
    Outcome,
    Zones,
)
from warehouse_agent.tasks.digests import Listing, Sums
from warehouse_agent.transport.channel import Link, Stream

QUANTILES_ACCURACY = 32  # steps of rank in a tile, on average
_REFRESHES_LOOKED_AT = 20  # for how many rows come behind the last key


@dataclass
class Sweep(Refresh):
    """One attempt at a job in tiles. Call prepare, walk where it is `in_tiles`, and settle."""

    _pass: Pass | None = None
    _base: Snapshot | None = None
    _known: Known | None = None
    _compared: int = 0  # rows of ours in the tiles that this attempt has compared
    _rows_left: int = 0  # in those that it found unfinished

    @property
    def in_tiles(self) -> bool:
        """Whether there is a pass to walk; else this is an ordinary refresh."""
        return self._pass is not None

    @property
    def _wanted(self) -> Incremental:
        wanted = self.job.fragment.incremental
        assert wanted is not None
        return wanted

    def prepare(self, describe: Describe) -> None:
        """Take up the pass at hand, or begin one: quantiles and a reduction in Spark."""
        job = self.job
        base = repair.published(job)
        if base is None or not any(f.rows for f in base.sound) or job.options.accept_schema:
            super().prepare(describe)
            assert self._prepared is not None
            _check_key(self._prepared.layout, job.name)
            return
        _check_key(base.layout, job.name)
        job.report.previous_version = job.report.version = base.version
        job.report.rows_total = base.rows
        schema_change.check_carriers(base.layout, job.fragment)
        prepare.ensure_key(job, base)
        found = auxiliary_table.resume(job.store, job.fragment, base)
        if found is None:
            found = auxiliary_table.begin(
                job.spark, job.store, job.fragment, base, self._tiling(base)
            )
        self._base, self._pass = base, found
        report, done = job.report, len(found.outcomes)
        if report.tiles is None:
            report.resumed_at = done
        report.tiles, report.tiles_done = len(found.tiling), done
        self._rows_left = sum(found.sums.digest(tile).count for tile in found.left())
        self._predict(base)

    def walk(self, link: Link, sleep: Callable[[float], None]) -> None:
        """Compare the tiles that are left, with a pause between two of them.

        A tile that fails behind one that did not is tried once more: a long pass over a bad line
        must not run out of attempts while it gets on.

        Raises:
            DriftlineError: whatever ends an exchange; finished tiles are kept.
        """
        assert self._pass is not None
        left = deque(self._pass.left())
        measured: Stream | None = None
        gets_on, is_first = False, True
        while left:
            if not is_first:
                sleep(self._wanted.pause_s)
            is_first = False
            try:
                stream = self._stream_over(link, left[0])
            except DriftlineError as error:
                if not (gets_on and error.is_retryable):
                    raise
                gets_on = False
                continue
            left.popleft()
            gets_on = True
            if measured is None or stream.bytes_per_s is not None:
                measured = stream
        if measured is not None:
            with contextlib.suppress(DriftlineError):  # it may be lost
                record.note_line(self.job.store, link, measured)

    def settle(self) -> None:
        """Apply, prove and publish what all tiles came to."""
        if self._pass is None:
            super().settle()
            return
        outcome = self._outcome_of_all()
        report = self.job.report
        report.method = outcome.method.value
        report.as_of, report.consistency = outcome.as_of, outcome.consistency
        try:
            finish.settle(self.job, self._prepared_for_all(), outcome, self._pass.staged())
        except (MalformedMessage, ValueDoesNotFit, DuplicateKey, TableShrank):
            # Of no use, and perhaps of no truth any more: the source says so when asked again.
            self.job.staging.clear()
            raise

    def _predict(self, base: Snapshot) -> None:
        """Note what the pass is expected to take, all of it."""
        job, p = self.job, self._pass
        assert p is not None
        earlier = record.runs(job.store, job.name)
        self._known = prepare.known_of(
            job,
            base,
            base.layout,
            files=base.sound,
            partition=p.tiling.cuts,
            earlier=earlier,
            tiled=Tiled(self._wanted, len(p.tiling), len(p.outcomes)),
        )
        expected = record.changes_expected(earlier, base.rows, datetime.now(UTC))
        if expected is not None:
            job.report.changes_expected = (expected.low, expected.median, expected.high)
        job.report.predicted = asdict(predicted(self._known, expected))

    def _tiling(self, base: Snapshot) -> Tiling:
        wanted = self._wanted
        count = tiling.count_for(base.rows, wanted)
        shares = ", ".join(repr(i / count) for i in range(count + 1))
        accuracy = max(2000, QUANTILES_ACCURACY * count)
        with driver_errors():
            row = (
                repair.positions(self.job.spark, base)
                .selectExpr(
                    f"percentile_approx(position, array({shares}), {accuracy}) as q",
                    "min(position) as least",
                    "max(position) as greatest",
                )
                .first()
            )
        assert row is not None, "an aggregate has one row"
        earlier = record.runs(self.job.store, self.job.name)[-_REFRESHES_LOOKED_AT:]
        inserted = [run.inserted for run in earlier if not run.is_load]
        knots = [row["least"], *row["q"][1:-1], row["greatest"]]
        return tiling.tiling(knots, base.rows, tail=tiling.tail_for(inserted, wanted))

    def _stream_over(self, link: Link, tile: int) -> Stream:
        """A stream, and so a snapshot, of its own for a tile; returns it when it is closed."""
        report = self.job.report
        with link.stream() as stream:
            try:
                self._compare(stream, tile)
            finally:
                report.bytes_sent += stream.bytes_sent
                report.bytes_received += stream.bytes_received
        return stream

    def _compare(self, wire: Stream, tile: int) -> None:
        p, base, job, known = self._pass, self._base, self.job, self._known
        assert p is not None
        assert base is not None
        assert known is not None
        key = job.store.read(PRIVATE, "keys", f"{job.name}.key")
        assert key is not None
        writer, bounds, ours = p.writer(tile), p.tiling.bounds(tile), p.sums.of(tile)
        opening = Opening(
            relation=job.fragment.relation,
            recipe=base.layout.recipe,
            fragment_key=key,
            salt=p.salt,
            partition=p.tiling.partition(tile),
            sums=Sums(ours),
            prices=known.prices,
            forced=job.fragment.method,
            line=known.line,
            rows_expected=ours.total.count,
            room=job.staging.room(job.fragment.staging_at_most),
            within=bounds,
        )

        def list_rows(by: int, chosen: npt.NDArray[np.bool_]) -> Listing:
            with job.phase("list"):
                return digests.list_rows(
                    job.spark,
                    base.sound,
                    base.layout,
                    opening.partition,
                    p.salt,
                    by=by,
                    chosen=chosen,
                    within=bounds,
                )

        conversation = Conversation(
            wire, opening, keep=writer.add, list_rows=list_rows, progress=self._say
        )
        try:
            found = conversation.run()
        finally:
            if conversation.admission.is_overrun:
                writer.drop()
        if found.scans:
            raise VersionMismatch(
                "The source read more than the tile that it was asked for.",
                where=job.name,
                remedy="Install the same release on both sides.",
            )
        writer.flush()
        told = (o.row_security for o in p.outcomes.values() if o.row_security)
        security = row_security.known(base, job.remembered()) or next(told, None)
        row_security.refuse_changed(security, found.row_security, job.name)
        p.finish(tile, found)
        self._compared += ours.total.count
        self._say(pb.Progress())
        report = job.report
        report.tiles_done = len(p.outcomes)
        report.round_trips += found.round_trips
        report.source_scans += found.scans
        report.source_rows_read += found.rows_read

    def _say(self, progress: pb.Progress) -> None:
        """Progress of a tile, as that of what this attempt has to compare."""
        assert self._pass is not None
        rows = self._compared + progress.rows
        self.job.emit(RowsRead(self.job.name, "tiles", rows, self._rows_left))

    def _outcome_of_all(self) -> Outcome:
        p = self._pass
        assert p is not None
        found = [p.outcomes[tile] for tile in range(len(p.tiling))]
        ours = [p.sums.digest(tile) for tile in range(len(p.tiling))]
        whole = [tile for tile, out in enumerate(found) if isinstance(out.difference, Everything)]
        listed = Listing.joined(
            [o.difference.rows for o in found if isinstance(o.difference, ListedRows)]
        )
        method = Method.RANGE
        difference: Difference = ListedRows(listed)
        if all(isinstance(out.difference, Equal) for out in found):
            difference = Equal()
        elif whole and len(whole) == sum(1 for digest in ours if digest.count):
            method, difference = Method.FULL, Everything()
        elif whole:
            # By their bounds and not row by row: of these the driver holds nothing.
            bounds, rows = map(p.tiling.bounds, whole), sum(ours[tile].count for tile in whole)
            difference = Zones(Emptied.of(list(bounds), rows), listed)
        return Outcome(
            difference,
            method,
            theirs=sum((o.theirs for o in found), Digest()),
            as_of=min(o.as_of for o in found),
            checked_at=max(o.checked_at for o in found),
            consistency=found[0].consistency if len(found) == 1 else Require.FUZZY.value,
            changed=any(o.changed for o in found),
            vouched=all(o.vouched for o in found),
            frame_bytes=sum(o.frame_bytes for o in found),
            row_security=found[-1].row_security,
        )

    def _prepared_for_all(self) -> Prepared:
        p, base, job, known = self._pass, self._base, self.job, self._known
        assert p is not None
        assert base is not None
        assert known is not None
        return Prepared(
            base=base,
            layout=base.layout,
            files=base.sound,
            partition=p.tiling.cuts,
            salt=p.salt,
            sketch=None,
            sums=Sums(p.sums.ranges),
            changes_expected=None,
            rows_expected=base.rows,
            stamp=stamp_of(base, record.runs(job.store, job.name), datetime.now(UTC)),
            known=known,
        )


def _check_key(layout: Layout, name: str) -> None:
    if not layout.recipe.integer_key:
        key = ", ".join(column.name for column in layout.recipe.key)
        raise ConfigurationError(
            f"`incremental` needs a key of one integer, and the key is ({key}).",
            where=name,
            remedy="Remove `incremental` from the fragment.",
        )
