"""Prepare our side of a refresh, before the stream opens; the same for every scope.

Read the published version. For a pass, resume it or begin one. Otherwise build the working copy,
always a set of files: take up what earlier attempts staged (decision 4), restate the rows under a
changed recipe, and reduce the copy in Spark to the sums over its ranges. Nothing here is visible
to readers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from driftline import wire_pb2 as pb
from driftline.digests import Salt
from driftline.errors import (
    ConfigurationError,
    MalformedMessage,
    ValueDoesNotFit,
    WarehouseUnavailable,
)
from driftline.fingerprints import FRAGMENT_KEY_BYTES
from driftline.ranges import Partition

from warehouse_agent.columns.layout import Layout, quoted
from warehouse_agent.history import record
from warehouse_agent.methods.interface import OurSide, WorkingCopy
from warehouse_agent.methods.registry import opening_for, predicted
from warehouse_agent.planning import choice, notes, prices, update_probability
from warehouse_agent.planning.candidates import Candidate, Known
from warehouse_agent.planning.change_forecast import Expected, Run
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.tiling import Tiled
from warehouse_agent.refresh import auxiliary_table, repair, schema_change
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.job import Job
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage import data_files, row_security
from warehouse_agent.storage.data_files import DataFile, rows_of
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import row_statistics
from warehouse_agent.tasks.row_statistics import Stamp

Describe = Callable[[str], pb.DescribeReply]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Our side of a refresh, before anything is compared.

    `base` is what readers see, without its lost files; `files` are the working copy, whose rows
    are compared. `changes` is the forecast of changed rows, `expected` that of rows that differ,
    lost ones included; None: nothing is known. `rows_expected` is for progress only. `stamp` is for
    the rows that this refresh writes.
    """

    base: Snapshot | None
    layout: Layout
    files: tuple[DataFile, ...]
    salt: Salt
    fragment_key: bytes = field(repr=False)
    known: Known
    changes: Expected | None
    expected: Expected | None
    predicted: Candidate
    rows_expected: int
    stamp: Stamp
    ours: OurSide | Pass  # one exchange, or the tiles of a pass

    @property
    def is_part(self) -> bool:
        """Return True if some rows are left uncompared."""
        return self.known.read_at_most is not None


def prepare(job: Job, describe: Describe) -> Prepared:
    """Read the published version, build the working copy and reduce it.

    Args:
        describe: asks the source for a relation, at most once, and only for a first load or where
            a changed schema is accepted.

    Raises:
        ConfigurationError, RecipeChanged, WarehouseUnavailable: see the steps.
    """
    base = repair.published(job)
    layout, rows_expected = _layout(job, base, describe)
    if (wanted := job.fragment.incremental) is not None:
        _check_key(layout, job.name)
    fragment_key = ensure_key(job, base)
    earlier, now = record.runs(job.store, job.name), datetime.now(UTC)
    stamp = stamp_of(base, earlier, now)
    ours: OurSide | Pass
    # A pass walks along a version: a first load and other columns are one exchange.
    if wanted and base and any(f.rows for f in base.sound) and not job.options.accept_schema:
        ours = auxiliary_table.take_up(job, base, wanted, earlier)
        files, salt = base.sound, ours.salt
        known = known_of(
            job,
            base,
            layout,
            files=files,
            partition=ours.tiling.cuts,
            earlier=earlier,
            tiled=ours.tiled,
        )
        expected = changes = record.changes_expected(earlier, base.rows, now)
    else:
        budget = _budget(job, base, layout)
        files = base.sound if base else ()
        if base and schema_change.differs(layout, base.layout):
            files = _restate(job, base, layout)
        files = _take_up(job, base, layout, files, stamp, is_part=budget is not None)
        salt, lost = Salt.fresh(), repair.to_be_told(base, files) if base else 0
        known = known_of(
            job,
            base,
            layout,
            files=files,
            partition=_partition(job, layout, files),
            earlier=earlier,
            rows_expected=rows_expected if lost or not (base or files) else None,
            read_at_most=budget,
            rows_lost=lost,
        )
        rows = sum(f.rows for f in files)
        changes = record.changes_expected(earlier, rows, now)
        expected = repair.grown(changes, lost, rows)
        likely, noted = _probability(base, changes, stamp), job.remembered()
        copy = WorkingCopy(job.spark, job.name, layout, files, salt, job.phase, likely, noted)
        ours = opening_for(known).plan(known, expected).reduce(copy)
    return Prepared(
        base=base,
        layout=layout,
        files=files,
        salt=salt,
        fragment_key=fragment_key,
        known=known,
        changes=changes,
        expected=expected,
        predicted=predicted(known, expected),
        rows_expected=rows_expected,
        stamp=stamp,
        ours=ours,
    )


def known_of(
    job: Job,
    base: Snapshot | None,
    layout: Layout,
    *,
    files: Sequence[DataFile],
    partition: Partition,
    earlier: Sequence[Run],
    rows_expected: int | None = None,
    read_at_most: int | None = None,
    tiled: Tiled | None = None,
    rows_lost: int = 0,
) -> Known:
    """What the model of costs knows before a refresh."""
    remembered, rows = job.remembered(), sum(f.rows for f in files)
    line = record.line(job.store, job.fragment.source, remembered)
    is_torn = base is not None and bool(base.lost)
    if is_torn:  # what was lost is to come, and as little else as can be
        line = replace(line, objective=Objective.BYTES)
    priced = prices.known(remembered, len(layout.names), level=line.level(rows))
    if is_torn:  # a copy is no way out because of a price that was drawn from other rows
        priced = replace(priced, copied=max(priced.copied, priced.row))
    return Known(
        name=job.name,
        version=base.version if base else None,
        rows=rows if base or files else None,
        rows_expected=rows_expected,
        prices=priced,
        partition=partition,
        integer_key=layout.recipe.integer_key,
        bounds=data_files.bounds(files),
        line=line,
        now=datetime.now(UTC),
        forced=job.fragment.method,
        read_at_most=read_at_most,
        runs=tuple(earlier),
        files=tuple((f.rows, f.size) for f in files),
        tiled=tiled,
        rows_lost=rows_lost,
    )


def _layout(job: Job, base: Snapshot | None, describe: Describe) -> tuple[Layout, int]:
    """That of the new version, and how many rows the source is expected to have."""
    if base is None or job.options.accept_schema:
        reply = describe(job.fragment.relation)
        return schema_change.described(reply, job.fragment, base), reply.description.rows_expected
    schema_change.check_carriers(base.layout, job.fragment)
    return base.layout, base.rows


def _budget(job: Job, base: Snapshot | None, layout: Layout) -> int | None:
    """Rows of the source that may be read; None: all. What is not compared would be missing from a
    first version, as in one that follows an empty one or lost files, have no values in new columns,
    or be of policies that no longer apply."""
    is_new = (
        base is None or not base.rows or base.lost or schema_change.differs(layout, base.layout)
    )
    return None if is_new or job.options.accept_schema else job.fragment.read_at_most


def _probability(base: Snapshot | None, changes: Expected | None, stamp: Stamp) -> str:
    """Spark SQL for how likely a row is to have been updated. Where no refresh of everything tells
    how many are, parts may have told which."""
    if base is None:
        return f"cast({choice.CHANGE_SHARE} as double)"
    view = stamp.view if changes is not None else replace(stamp.view, share=choice.CHANGE_SHARE)
    return update_probability.probability_sql(view)


def stamp_of(base: Snapshot | None, earlier: list[Run], now: datetime) -> Stamp:
    """Of the rows that this refresh writes, after these."""
    elapsed_s = (now - earlier[-1].at).total_seconds() if earlier else None
    pasts = record.pasts(earlier)
    return row_statistics.stamp_for(base, pasts, at_s=now.timestamp(), elapsed_s=elapsed_s)


def ensure_key(job: Job, base: Snapshot | None) -> bytes:
    """Return the fragment key; make that of a first load.

    Raises:
        WarehouseUnavailable: it is gone.
    """
    place = (PRIVATE, "keys", f"{job.name}.key")
    if (key := job.store.read(*place)) is not None:
        return key
    if base is not None:
        raise WarehouseUnavailable(
            "The fragment key is gone; fingerprints cannot be compared without it.",
            where=job.name,
            remedy=f"Restore {job.key_file.uri}, or move the table's folder away for a new "
            "first load.",
        )
    key = secrets.token_bytes(FRAGMENT_KEY_BYTES)
    job.store.write(key, *place, private=True)
    return key


def _check_key(layout: Layout, name: str) -> None:
    """Raise ConfigurationError where tiles are asked for and the key is not one integer."""
    if not layout.recipe.integer_key:
        key = ", ".join(column.name for column in layout.recipe.key)
        raise ConfigurationError(
            f"`incremental` needs a key of one integer, and the key is ({key}).",
            where=name,
            remedy="Remove `incremental` from the fragment.",
        )


def _restate(job: Job, base: Snapshot, layout: Layout) -> tuple[DataFile, ...]:
    """The published rows under a changed recipe, fingerprints recomputed from values."""
    restated = schema_change.restate(job.spark, base, layout, job.key_file)
    return () if restated is None else tuple(job.write("restated", restated, layout))


def _take_up(
    job: Job,
    base: Snapshot | None,
    layout: Layout,
    files: tuple[DataFile, ...],
    stamp: Stamp,
    *,
    is_part: bool,
) -> tuple[DataFile, ...]:
    """The working copy: the files ⊕ what unfinished exchanges staged."""
    wanted = job.note(base, layout)
    if is_part and base and row_security.may_hide(base, job.remembered()):
        job.staging.clear()
        return files
    if not is_part:  # all of it is compared again, wherever it came from
        wanted = {key: wanted[key] for key in ("base_version", "recipe")}
    leftovers = job.staging.leftovers(wanted)
    if not leftovers:
        return files
    try:
        return _merge(job, files, layout, leftovers, stamp)
    except (MalformedMessage, ValueDoesNotFit):
        # Of no use, and perhaps of no truth any more: the source says so when it is asked again.
        job.staging.clear()
        return files


def _merge(
    job: Job, files: tuple[DataFile, ...], layout: Layout, leftovers: list[str], stamp: Stamp
) -> tuple[DataFile, ...]:
    keys = list(layout.key_names)
    selected = [quoted(name) for name in keys]
    shipped = (
        job.write_staged(f"taken-{number}", job.staging.uris(folder), layout, stamp)
        for number, folder in enumerate(leftovers)
    )
    taken = next(shipped)
    newest = rows_of(job.spark, layout, [f.uri for f in taken])
    for one in shipped:
        rows = rows_of(job.spark, layout, [f.uri for f in one])
        newest = newest.join(rows.select(*selected), keys, "left_anti").unionByName(rows)
    if len(leftovers) > 1:
        taken = job.write("taken", newest.dropDuplicates(keys), layout)
    if not files:
        return tuple(taken)
    # Older rows of the same keys must go; what is known of them stays.
    rows = rows_of(job.spark, layout, [f.uri for f in taken])
    new_keys = rows.select(*selected).distinct()
    old = rows_of(job.spark, layout, [f.uri for f in files])
    before, updated = old.join(new_keys, keys, "left_semi"), sum(f.rows for f in taken)
    counted = row_statistics.joined(rows, before, layout, stamp, updated=updated)
    taken = job.write("counted", counted, layout)
    rewritten = job.write("superseded", old.join(new_keys, keys, "left_anti"), layout)
    return (*rewritten, *taken)


def _partition(job: Job, layout: Layout, files: tuple[DataFile, ...]) -> Partition:
    rows, remembered = sum(f.rows for f in files), job.remembered()
    if not layout.recipe.integer_key or not rows:
        return choice.partition_for([], rows, integer_key=layout.recipe.integer_key)
    is_of_key = remembered.get("key") == layout.names[0]
    knots = notes.knots(remembered, "quantiles") if is_of_key else []
    counted = int(notes.number(remembered, "quantiles_rows") or 0)
    if choice.outgrown(knots, counted, rows, data_files.bounds(files)):
        knots = _quantiles(job, layout, files)
        job.remember(quantiles=knots, quantiles_rows=rows, key=layout.names[0])
    return choice.partition_for(knots, rows, integer_key=True)


def _quantiles(job: Job, layout: Layout, files: tuple[DataFile, ...]) -> list[int]:
    shares = ", ".join(str(i / choice.QUANTILES) for i in range(choice.QUANTILES + 1))
    rows = rows_of(job.spark, layout, [f.uri for f in files])
    with driver_errors():
        row = rows.selectExpr(
            f"percentile_approx({layout.position_sql}, array({shares}), 2000) as q"
        ).collect()[0]
    return list(row["q"] or [])
