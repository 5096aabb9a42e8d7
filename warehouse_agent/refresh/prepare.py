"""Prepare our side of a refresh, before the stream opens; the same for every scope.

Read the published version. For a pass, resume it or begin one. Otherwise build the working copy,
always a set of files: take up what earlier attempts staged (decision 4), recompute the rows under a
changed recipe, and reduce the copy in Spark. Nothing here is visible to readers.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from driftline import key_order
from driftline import wire_pb2 as pb
from driftline.digests import Salt
from driftline.errors import (
    ConfigurationError,
    MalformedMessage,
    ProofFailed,
    ValueDoesNotFit,
    WarehouseUnavailable,
)
from driftline.fingerprints import FRAGMENT_KEY_BYTES
from driftline.ranges import Partition

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment, Proof
from warehouse_agent.failpoints import Point
from warehouse_agent.history import marks, record
from warehouse_agent.methods.interface import OurSide, WorkingCopy
from warehouse_agent.methods.registry import opening_for
from warehouse_agent.planning import choice, notes, prices
from warehouse_agent.planning.candidates import Allowance, Known
from warehouse_agent.planning.change_forecast import Expected, Run
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.groups import group_selection
from warehouse_agent.planning.markers.state import MarkerState
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.update_probability import Outlook
from warehouse_agent.refresh import auxiliary_table, derivation, leftovers, repair, schema_change
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.job import Job
from warehouse_agent.storage import data_files, row_security
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import quantiles, row_statistics
from warehouse_agent.tasks.restatement import restate
from warehouse_agent.tasks.row_statistics import Stamp
from warehouse_agent.tasks.steps import DIGEST_BYTES, DIGESTS_FACTOR, Steps

Describe = Callable[[str], pb.DescribeReply]
Features = Collection[str]  # of a source

AGAIN_BYTES = 32 << 20  # of staged frames: fewer come again rather than that a marker is not used


@dataclass(frozen=True, slots=True)
class Prepared:
    """Our side of a refresh, before anything is compared.

    Attributes:
        base: the version that readers see, without its lost files.
        files: the working copy, whose rows are compared.
        changes: the forecast of changed rows; None: nothing is known.
        expected: the forecast of rows that differ: changed and lost ones.
        rows_expected: rows at the source, for progress only.
        stamp: for the statistics of the rows that this refresh writes.
        ours: our side of one exchange, or the tiles of a pass.
    """

    base: Snapshot | None
    layout: Layout
    files: tuple[DataFile, ...]
    salt: Salt
    fragment_key: bytes = field(repr=False)
    known: Known
    changes: Expected | None
    expected: Expected | None
    rows_expected: int
    stamp: Stamp
    ours: OurSide | Pass

    @property
    def is_part(self) -> bool:
        """Return True if some rows are not compared."""
        return self.known.read_at_most is not None


def expect_spark(steps: Steps, store: Store, name: str) -> None:
    """Begin to start Spark if a published version is too large to be reduced in this process.

    The history tells its size, so that the log is not opened twice.
    """
    with contextlib.suppress(Exception):  # the refresh says what is wrong, with the table or Spark
        steps.begin(record.rows_total(store, name) * DIGEST_BYTES // DIGESTS_FACTOR)


def prepare(
    job: Job, describe: Describe, allowance: Allowance | None = None, *, features: Features = ()
) -> Prepared:
    """Read the published version, build the working copy and reduce it.

    Args:
        describe: asks the source for a relation, once at most: for a first load, where a changed
            schema is accepted, or where views need other columns or rows.
        allowance: what the source allows to be read; None: it did not say.
        features: of the source.

    Raises: as its steps do, and
        NotNow, LimitExceeded, ConfigurationError: this refresh would be refused (`Known.refusal`).
    """
    base = repair.published(job)
    record.complete(job.store, job.name, base)
    layout, rows_expected = _layout(job, base, describe)
    if (wanted := job.fragment.incremental) is not None:
        _check_key(layout, job.name)
    fragment_key = _fragment_key(job, base)
    earlier, now = record.runs(job.store, job.name), datetime.now(UTC)
    stamp = _stamp(base, earlier, now)
    marker = _marker(job, base, layout, features=features)
    files, tiles, budget, lost, asked = base.sound if base else (), None, None, 0, None
    partition: Partition
    # A pass compares a published version: a first load and other columns take one exchange.
    if wanted and base and any(f.rows for f in files) and not job.options.accept_schema:
        tiles = auxiliary_table.take_up(job, base, wanted, earlier)
        rows, salt = base.rows, tiles.salt
        partition = tiles.tiling.partition(0)  # of any tile: a pass is priced by its tiles
    else:
        budget = _budget(job, base, layout, allowance)
        if base and schema_change.differs(layout, base.layout):
            files = _restate(job, base, layout)
        files = _take_up(job, base, layout, files, stamp, is_part=budget is not None)
        rows, salt = sum(f.rows for f in files), Salt.fresh()
        partition = _partition(job, layout, files)
        lost = repair.to_be_told(base, files) if base else 0
        asked = rows_expected if lost or not (base or files) else None
    known = replace(
        _known(job, base, layout, files, partition, allowance),
        rows_expected=asked,
        read_at_most=budget,
        runs=tuple(earlier),
        tiled=tiles.tiled if tiles else None,
        rows_lost=lost,
        marker=marker,
    )
    known.check_allowed()
    changes = record.changes_expected(earlier, rows, now)
    expected = repair.grown(changes, lost, rows)
    _expect_steps(job, base, earlier, changes, size=int(rows_expected * known.prices.copied))
    ours: OurSide | Pass | None = tiles
    if ours is None:
        outlook, noted = _outlook(base, changes, stamp), job.remembered()
        copy = WorkingCopy(job.steps, job.name, layout, files, salt, job.phase, outlook, noted)
        ours = opening_for(known, expected).plan(known, expected).reduce(copy)
    return Prepared(
        base=base,
        layout=layout,
        files=files,
        salt=salt,
        fragment_key=fragment_key,
        known=known,
        changes=changes,
        expected=expected,
        rows_expected=rows_expected,
        stamp=stamp,
        ours=ours,
    )


def _expect_steps(
    job: Job, base: Snapshot | None, earlier: list[Run], changes: Expected | None, *, size: int
) -> None:
    """Begin to start Spark if a step is expected to need it; `size`: bytes of a first load."""
    if base is None:
        job.steps.expect(size)
    elif record.needed_spark(earlier, changes):
        job.steps.begin()


def _marker(
    job: Job, base: Snapshot | None, layout: Layout, *, features: Features
) -> MarkerState | None:
    """Return what is known of the marker; None: all rows are to be proven."""
    if job.fragment.proof is not Proof.KEYS:
        return None
    found = marks.state(
        job.remembered(),
        base,
        audit_s=job.fragment.audit_s,
        features=features,
        is_trusted=job.options.trust_marker,
    )
    failed = job.report.error  # of the attempt before
    if failed is not None and failed["code"] == ProofFailed.code:
        return replace(found, mark=b"", why="the proof of another attempt failed")
    is_same = base is None or not schema_change.differs(layout, base.layout)
    if is_same and not job.options.accept_schema:
        return _beside_staged(job, base, found)
    return replace(found, mark=b"", why="the columns or rows of the relation changed")


def _beside_staged(job: Job, base: Snapshot | None, found: MarkerState) -> MarkerState:
    """Return the marker as it may be used beside what unfinished exchanges staged.

    Staged rows may be of another relation, database or instant, and only a comparison of all rows
    would notice: a refresh by a marker compares keys, and an audit is of the version as it stands.
    So they are dropped, and come again. Many, and those that replace lost files, are kept for the
    sake of progress, and the mark is not used.
    """
    if base is None or not found.mark:
        return found
    staged = job.staging.frame_bytes()
    if staged > (0 if base.lost else AGAIN_BYTES):
        return replace(found, mark=b"", why="rows that a cut exchange staged are compared again")
    if staged:
        job.staging.clear()
    return found


def _known(
    job: Job,
    base: Snapshot | None,
    layout: Layout,
    files: Sequence[DataFile],
    partition: Partition,
    allowance: Allowance | None,
) -> Known:
    """Return what the cost model knows of our side and of the line."""
    remembered, rows = job.remembered(), sum(f.rows for f in files)
    line = record.line(job.store, job.fragment.source, remembered)
    is_torn = base is not None and bool(base.lost)
    if is_torn:  # pull the lost rows, and as few others as possible
        line = replace(line, objective=Objective.BYTES)
    priced = prices.from_notes(remembered, len(layout.names), level=line.level(rows))
    if is_torn:  # a price learnt from other rows must not make a full copy look cheap
        priced = replace(priced, copied=max(priced.copied, priced.row))
    return Known(
        name=job.name,
        version=base.version if base else None,
        rows=rows if base or files else None,
        rows_expected=None,
        prices=priced,
        partition=partition,
        integer_key=layout.recipe.integer_key,
        bounds=data_files.bounds(files),
        line=line,
        now=datetime.now(UTC),
        forced=job.fragment.method,
        read_at_most=None,
        runs=(),
        files=tuple((f.rows, f.size) for f in files),
        named_key_bytes=group_selection.named_key_bytes(layout.recipe, remembered),
        allowance=allowance,
    )


def _layout(job: Job, base: Snapshot | None, describe: Describe) -> tuple[Layout, int]:
    """Return the layout of the new version, and how many rows the source is expected to have."""
    if base is None or job.options.accept_schema:
        reply = describe(job.fragment.relation)
        return derivation.described(reply, job.fragment, base), reply.description.rows_expected
    if derivation.has_other_wishes(job, base):
        reply = describe(job.fragment.relation)
        return derivation.followed(reply, job.fragment, base), base.rows
    schema_change.check_carriers(base.layout, job.fragment)
    return base.layout, base.rows


def rows_of_part(fragment: Fragment, allowance: Allowance | None, now: datetime) -> int | None:
    """Return how many rows of a published version a refresh compares by key; None: all of them.

    allowance: what the source allows; None: it did not say.
    """
    is_grouped = fragment.method in {None, Method.GROUP} and fragment.incremental is None
    if fragment.proof is not Proof.PART or not is_grouped:
        return None
    if allowance is None:
        return fragment.read_at_most
    return allowance.part(fragment.read_at_most, now)


def _budget(
    job: Job, base: Snapshot | None, layout: Layout, allowance: Allowance | None
) -> int | None:
    """Return how many rows of the source are compared by key; None: all rows are compared.

    All rows are compared if those left out would be missing (a first version, an empty one, lost
    files), lack values of new columns, or fall under policies that no longer apply.
    """
    is_new = (
        base is None or not base.rows or base.lost or schema_change.differs(layout, base.layout)
    )
    if is_new or job.options.accept_schema:
        return None
    return rows_of_part(job.fragment, allowance, datetime.now(UTC))


def _outlook(base: Snapshot | None, changes: Expected | None, stamp: Stamp) -> Outlook | None:
    """Return the outlook on the updates of rows; None if no version has their statistics.

    Without a forecast the rate of updates is a guess, but parts may have found which rows change.
    """
    if base is None:
        return None
    return stamp.view if changes is not None else replace(stamp.view, share=choice.CHANGE_SHARE)


def _stamp(base: Snapshot | None, earlier: list[Run], now: datetime) -> Stamp:
    """Return the stamp of the rows that this refresh writes, after these earlier ones."""
    elapsed_s = (now - earlier[-1].at).total_seconds() if earlier else None
    pasts = record.pasts(earlier)
    return row_statistics.stamp_for(base, pasts, at_s=now.timestamp(), elapsed_s=elapsed_s)


def _fragment_key(job: Job, base: Snapshot | None) -> bytes:
    """Return the fragment key, a new one for a first load.

    Raises:
        WarehouseUnavailable: it is gone or damaged.
    """
    place = (PRIVATE, "keys", f"{job.name}.key")
    key = job.store.read(*place)
    if key is not None and len(key) == FRAGMENT_KEY_BYTES:
        return key
    if key is not None or base is not None:
        what = "gone" if key is None else f"damaged: {len(key)} bytes, not {FRAGMENT_KEY_BYTES}"
        else_ = "remove it" if base is None else "move the table's folder away"
        raise WarehouseUnavailable(
            f"The fragment key is {what}; fingerprints cannot be compared without it.",
            where=job.name,
            remedy=f"Restore {job.key_file.uri}, or {else_} for a new first load.",
        )
    key = secrets.token_bytes(FRAGMENT_KEY_BYTES)
    is_ours = job.store.write_new(key, *place, private=True)
    Point.KEY_WRITTEN.reach()
    if is_ours or (theirs := job.store.read(*place)) is None:
        return key
    return theirs


def _check_key(layout: Layout, name: str) -> None:
    """Raise ConfigurationError if the types of the key have no order, which tiles need.

    The source knows how its database sorts them, and refuses the first tile.
    """
    if (column := key_order.unordered(layout.recipe)) is not None:
        raise ConfigurationError(
            f"`incremental` needs a key that has an order, and its column {column.name} has the "
            f"type {column.type}.",
            where=name,
            remedy="Remove `incremental` from the fragment.",
        )


def _restate(job: Job, base: Snapshot, layout: Layout) -> tuple[DataFile, ...]:
    """Write the published rows under a changed recipe, with new fingerprints."""
    place = (job.steps, job.store, job.name, job.folder("restated"))
    return tuple(restate(*place, base.sound, base.layout, layout, job.key_file))


def _take_up(
    job: Job,
    base: Snapshot | None,
    layout: Layout,
    files: tuple[DataFile, ...],
    stamp: Stamp,
    *,
    is_part: bool,
) -> tuple[DataFile, ...]:
    """Return the working copy: the files with what unfinished exchanges staged merged into them."""
    wanted = job.note(base, layout)
    if is_part and base and row_security.may_hide(base, job.remembered()):
        job.staging.clear()
        return files
    if not is_part:  # all rows are compared, whatever relation these are of (`_beside_staged`)
        wanted = {key: wanted[key] for key in ("base_version", "recipe")}
    folders = job.staging.leftovers(wanted)
    if not folders:
        return files
    try:
        return leftovers.merge(job, files, layout, folders, stamp)
    except (MalformedMessage, ValueDoesNotFit):  # the source sends these rows again
        job.staging.clear()
        return files


def _partition(job: Job, layout: Layout, files: tuple[DataFile, ...]) -> Partition:
    rows, remembered = sum(f.rows for f in files), job.remembered()
    if not layout.recipe.integer_key or not rows:
        return choice.partition_for([], rows, integer_key=layout.recipe.integer_key)
    is_of_key = remembered.get("key") == layout.names[0]
    knots = notes.knots(remembered, "quantiles") if is_of_key else []
    counted = int(notes.number(remembered, "quantiles_rows") or 0)
    if choice.outgrown(knots, counted, rows, data_files.bounds(files)):
        shares = [i / choice.QUANTILES for i in range(choice.QUANTILES + 1)]
        knots = quantiles.samples_of(job.steps, files, layout).quantiles(shares)
        job.remember(quantiles=knots, quantiles_rows=rows, key=layout.names[0])
    return choice.partition_for(knots, rows, integer_key=True)
