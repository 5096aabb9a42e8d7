"""Prepare our side of a refresh, before the stream opens; the same for every scope.

Read the published version. For a pass, resume it or begin one. Otherwise build the working copy,
always a set of files: take up what earlier attempts staged (decision 4), recompute the rows under a
changed recipe, and reduce the copy in Spark. Nothing here is visible to readers.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection
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
from warehouse_agent.config import Proof
from warehouse_agent.failpoints import Point
from warehouse_agent.history import record
from warehouse_agent.history.known import Situation, forecasts, marker_of, noted_knots
from warehouse_agent.methods.interface import OurSide, WorkingCopy
from warehouse_agent.methods.registry import opening_for
from warehouse_agent.planning import choice
from warehouse_agent.planning.candidates import Allowance, Known
from warehouse_agent.planning.change_forecast import Expected, Run
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
    layout, told = _layout(job, base, describe)
    if (wanted := job.fragment.incremental) is not None:
        _check_key(layout, job.name)
    fragment_key = _fragment_key(job, base)
    at = _situation(job, base, layout, told, allowance, features)
    earlier = list(at.runs)
    rows_expected = base.rows if told is None and base is not None else told or 0
    stamp = _stamp(base, earlier, at.now)
    files, tiles = base.sound if base else (), None
    if wanted and base and at.is_pass:
        tiles = auxiliary_table.take_up(job, base, wanted, earlier)
        salt = tiles.salt
        partition = tiles.tiling.partition(0)  # of any tile: a pass is priced by its tiles
    else:
        if base and schema_change.differs(layout, base.layout):
            files = _restate(job, base, layout)
        files = _take_up(job, base, layout, files, stamp, is_part=at.read_at_most is not None)
        salt = Salt.fresh()
        partition = _partition(job, layout, files)
    known = at.known(files, partition, tiles.tiled if tiles else None)
    known.check_allowed()
    changes, expected = forecasts(known)
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


def _situation(
    job: Job,
    base: Snapshot | None,
    layout: Layout,
    told: int | None,
    allowance: Allowance | None,
    features: Features,
) -> Situation:
    """Read what is remembered of the fragment; drop few staged rows where a marker is used."""
    noted = job.remembered()
    differs = base is not None and schema_change.differs(layout, base.layout)
    is_other = differs or job.options.accept_schema
    withdrawn, failed = "", job.report.error  # of the attempt before
    if failed is not None and failed["code"] == ProofFailed.code:
        withdrawn = "the proof of another attempt failed"
    elif is_other:
        withdrawn = "the columns or rows of the relation changed"
    staged = job.staging.frame_bytes() if job.fragment.proof is Proof.KEYS else 0
    marker = marker_of(
        job.fragment,
        base,
        noted,
        features=features,
        staged_bytes=staged,
        is_trusted=job.options.trust_marker,
        withdrawn=withdrawn,
    )
    if staged and base is not None and marker is not None and marker.mark:
        job.staging.clear()
    return Situation(
        fragment=job.fragment,
        base=base,
        recipe=layout.recipe,
        notes=noted,
        runs=tuple(record.runs(job.store, job.name)),
        line=record.line(job.store, job.fragment.source, noted),
        now=datetime.now(UTC),
        is_other=is_other,
        allowance=allowance,
        marker=marker,
        rows_told=told or None,
    )


def _layout(job: Job, base: Snapshot | None, describe: Describe) -> tuple[Layout, int | None]:
    """Return the layout of the new version, and the source's estimate of its rows; None: it was not
    asked."""
    if base is None or job.options.accept_schema:
        reply = describe(job.fragment.relation)
        return derivation.described(reply, job.fragment, base), reply.description.rows_expected
    if derivation.has_other_wishes(job, base):
        reply = describe(job.fragment.relation)
        return derivation.followed(reply, job.fragment, base), None
    schema_change.check_carriers(base.layout, job.fragment)
    return base.layout, None


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
    if not is_part:  # all rows are compared, whatever relation these are of (`marker_of`)
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
    rows, is_integer = sum(f.rows for f in files), layout.recipe.integer_key
    if not is_integer or not rows:
        return choice.partition_for([], rows, integer_key=is_integer)
    knots = noted_knots(job.remembered(), layout, rows, data_files.bounds(files))
    if knots is None:
        shares = [i / choice.QUANTILES for i in range(choice.QUANTILES + 1)]
        knots = quantiles.samples_of(job.steps, files, layout).quantiles(shares)
        job.remember(quantiles=knots, quantiles_rows=rows, key=layout.names[0])
    return choice.partition_for(knots, rows, integer_key=True)
