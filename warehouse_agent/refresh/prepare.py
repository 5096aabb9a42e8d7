"""Our side of an exchange, before the stream opens.

The published version is read, what earlier attempts staged is taken up (decision 4), a changed
recipe is restated, and the working copy, always a set of files, is reduced in Spark to the sums
over its ranges. Nothing here is visible to readers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from driftline import wire_pb2 as pb
from driftline.digests import Digest, Salt
from driftline.errors import MalformedMessage, ValueDoesNotFit, WarehouseUnavailable
from driftline.fingerprints import FRAGMENT_KEY_BYTES
from driftline.ranges import Partition, RangeSums

from warehouse_agent.columns.layout import Layout, quoted
from warehouse_agent.history import record
from warehouse_agent.planning import choice, notes, prices, sketch_size, update_probability
from warehouse_agent.planning.candidates import Known, predicted
from warehouse_agent.planning.change_forecast import Expected, Run
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.planning.tiling import Tiled
from warehouse_agent.refresh import repair, schema_change
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.units import Units, in_units
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage import data_files, row_security
from warehouse_agent.storage.data_files import DataFile, rows_of
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import digests, row_statistics
from warehouse_agent.tasks.digests import Sums
from warehouse_agent.tasks.row_statistics import Stamp

Describe = Callable[[str], pb.DescribeReply]


@dataclass
class Prepared:
    """Our side of the exchange. `files` are the working copy, `base` is what readers see."""

    base: Snapshot | None
    layout: Layout
    files: tuple[DataFile, ...]
    partition: Partition
    salt: Salt
    sketch: Sketch | None
    sums: Sums
    changes_expected: Expected | None
    rows_expected: int  # for progress only
    stamp: Stamp  # of the rows that this refresh writes
    known: Known  # what the model of costs knows
    units: Units | None = None  # by groups
    rows_lost: int = 0  # as of `mend.to_be_told`

    @property
    def is_part(self) -> bool:
        """Whether some rows are left uncompared."""
        return self.units is not None and self.units.grouped.part is not None

    @property
    def left(self) -> Digest:
        """Of our rows that are left uncompared."""
        return self.units.grouped.rest if self.units is not None else Digest()


def prepare(job: Job, describe: Describe) -> Prepared:
    """Everything that is done before the stream opens; `describe` asks the source, at most
    once, and only for a first load or with accept_schema."""
    base = repair.published(job)
    job.report.previous_version = job.report.version = base.version if base else None
    job.report.rows_total = base.rows if base else None
    remembered = job.remembered()
    layout, expected = _layout(job, base, describe)
    ensure_key(job, base)
    files = base.sound if base else ()
    if base and schema_change.differs(layout, base.layout):
        files = _restate(job, base, layout)
    earlier, now = record.runs(job.store, job.name), datetime.now(UTC)
    stamp = stamp_of(base, earlier, now)
    budget = _budget(job, base, layout)
    files = _take_up(job, base, layout, files, stamp, is_part=budget is not None)
    partition = _partition(job, layout, files, remembered)
    salt = Salt.fresh()
    changes = _changes_expected(job, earlier, sum(f.rows for f in files), now)
    sketch = units = None
    lost = repair.to_be_told(base, files) if base else 0
    known = known_of(
        job,
        base,
        layout,
        files=files,
        partition=partition,
        earlier=earlier,
        rows_expected=expected if lost or not (base or files) else None,
        read_at_most=budget,
    )
    differing = repair.grown(changes, lost, sum(f.rows for f in files))
    job.report.predicted = asdict(predicted(known, differing))
    if files and (job.fragment.method is Method.GROUP or budget is not None):
        units = in_units(
            job,
            layout,
            files,
            salt,
            probability_sql=_probability(base, changes, stamp),
            row_bytes=known.prices.row,
            line=known.line,
            budget=budget,
        )
        partition = choice.everything()
    elif files and job.fragment.method not in (Method.RANGE, Method.FULL):
        sketch = _sketch(known, sum(f.rows for f in files), differing, lost)
    sums = Sums(RangeSums(partition.ranges))
    if units is not None:
        sums.ranges.total = units.compared
    elif files:
        sums = digests.reduced(job.spark, files, layout, partition, salt, sketch)
    return Prepared(
        base=base,
        layout=layout,
        files=files,
        partition=partition,
        salt=salt,
        sketch=sketch,
        units=units,
        sums=sums,
        changes_expected=differing,
        rows_expected=expected,
        stamp=stamp,
        known=known,
        rows_lost=lost,
    )


def _sketch(known: Known, rows: int, differing: Expected | None, lost: int) -> Sketch:
    """Return the initial sketch for `rows` rows, `lost` of which certainly differ."""
    return sketch_size.open_sketch(
        rows=rows + lost,
        bounds=known.bounds,
        expected=differing,
        sure=lost,
        prices=known.prices,
        line=known.line,
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


def _changes_expected(job: Job, earlier: list[Run], rows: int, now: datetime) -> Expected | None:
    """How many of these rows will have changed; None: nothing is known."""
    found = record.changes_expected(earlier, rows, now)
    if found is not None:
        job.report.changes_expected = (found.low, found.median, found.high)
    return found


def ensure_key(job: Job, base: Snapshot | None) -> None:
    """Make the fragment key of a first load. Raises WarehouseUnavailable: it is gone."""
    place = (PRIVATE, "keys", f"{job.name}.key")
    if job.store.read(*place) is not None:
        return
    if base is not None:
        raise WarehouseUnavailable(
            "The fragment key is gone; fingerprints cannot be compared without it.",
            where=job.name,
            remedy=f"Restore {job.key_file.uri}, or move the table's folder away for a new "
            "first load.",
        )
    job.store.write(secrets.token_bytes(FRAGMENT_KEY_BYTES), *place, private=True)


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
    newest = None
    for number, folder in enumerate(leftovers):
        one = job.ship(f"taken-{number}", job.staging.uris(folder), layout, stamp)
        rows = rows_of(job.spark, layout, [f.uri for f in one])
        newest = (
            rows
            if newest is None
            else (newest.join(rows.select(*selected), keys, "left_anti").unionByName(rows))
        )
    assert newest is not None
    if len(leftovers) > 1:
        one = job.write("taken", newest.dropDuplicates(keys), layout)
    taken = one
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


def _partition(
    job: Job, layout: Layout, files: tuple[DataFile, ...], remembered: dict[str, object]
) -> Partition:
    rows = sum(f.rows for f in files)
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
        ).first()
    return list(row["q"]) if row and row["q"] else []
