"""The statistics of rows, ω±, as rows are written: begun, or carried over from the row before.

A row that is shipped is written anyway, so its statistics cost no file. They cost no shuffle of the
table either: the rows to remove are named, which makes the before-images few, and only their keys,
fingerprints and statistics are read and looked up (`known`). Rows that are merely written again
(rewritten, packed, restated) keep their columns as they are.

 1. A new key begins: `first` and `changed` are this version, `updates` is 0.
 2. A known key with another fingerprint is an update: `first` stays, `updates` is one more,
    `changed` is this version, `rate` is what is left of it and the weight of this update.
 3. A known key with the same fingerprint was shipped in vain, and keeps what it had; so does one
    that already has this version, having been staged by an attempt that was cut: an update that
    came with it and was taken back before this refresh stays counted.
 4. A null before-image (a file without statistics) counts as never updated; `first` stays null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from warehouse_agent.columns.layout import HI, LO, RESERVED, STATISTICS, Layout, quoted
from warehouse_agent.planning.change_forecast import Past
from warehouse_agent.planning.update_probability import (
    BIRTH,
    DAY_S,
    ELAPSED_MIN_S,
    TAU_S,
    Clock,
    Outlook,
    update_weight,
    updates_expected,
    usual_most,
    usual_share,
)
from warehouse_agent.spark.executors import Batches, task
from warehouse_agent.storage.data_files import by_place
from warehouse_agent.storage.table import Snapshot

_BEFORE = f"{RESERVED}before_"
_NAMES = tuple(name for name, _ in STATISTICS)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the rows of a version get, and what the table expected of them.

    Attributes:
        version: that the rows will be published as.
        at_s: when, seconds since 1970.
        elapsed_s: since the last refresh.
        clock: of the versions before; empty for a load.
        most, share: as `update_probability.usual_most` and `Outlook` say of this refresh.
    """

    version: int
    at_s: float
    elapsed_s: float
    clock: Clock
    most: int
    share: float

    @property
    def clock_after(self) -> Clock:
        return self.clock.after(self.version, self.at_s)

    @property
    def view(self) -> Outlook:
        """On this refresh, for published rows."""
        return Outlook(self.clock, self.share, self.at_s, self.elapsed_s)


def stamp_for(
    base: Snapshot | None, history: Sequence[Past], *, at_s: float, elapsed_s: float | None
) -> Stamp:
    """Of the version after `base`, from earlier refreshes, oldest first.

    `elapsed_s`: seconds since the last of them; None: nothing is known but the version's own time.
    """
    if base is None:
        return Stamp(0, at_s, DAY_S, Clock(), 1, 1.0)
    clock = clock_of(base)
    if elapsed_s is None:
        elapsed_s = at_s - clock.seconds[-1]
    elapsed_s = max(elapsed_s, ELAPSED_MIN_S)
    found = updates_expected(history, rows=base.rows, elapsed_s=elapsed_s)
    most, share = usual_most(found), usual_share(found, base.rows)
    return Stamp(base.version + 1, at_s, elapsed_s, clock, most, share)


def clock_of(snapshot: Snapshot) -> Clock:
    """The times of its versions; of a table without statistics it begins with this version."""
    if snapshot.record.clock is not None:
        return snapshot.record.clock
    at = datetime.fromisoformat(snapshot.record.published_at)
    return Clock().after(snapshot.version, at.timestamp())


def begun(rows: int, stamp: Stamp) -> list[pa.Array]:
    """Of so many new rows; those of a load are not young, only unknown."""
    values = (stamp.version, 0, stamp.version, _birth(stamp))
    kinds = (kind for _, kind in STATISTICS)
    return [pa.array(np.full(rows, v), kind) for v, kind in zip(values, kinds, strict=True)]


def carried(
    hi: pa.Array, lo: pa.Array, before: Sequence[Any], stamp: Stamp, weight: float
) -> list[pa.Array]:
    """Of rows of these fingerprints, from those of the same keys before.

    Args:
        before: arrays [n] of hi, lo and the statistics, null where there was no such row.
        weight: what an update counts.
    """
    before_hi, before_lo, first, updates, changed, rate = before
    now = pa.scalar(stamp.version, pa.int32())
    is_new = pc.is_null(before_hi)
    is_equal = pc.and_(pc.equal(hi, before_hi), pc.equal(lo, before_lo))
    is_same = pc.or_(pc.fill_null(is_equal, False), pc.fill_null(pc.equal(changed, now), False))
    left = np.zeros(len(hi))
    if stamp.clock.versions:
        at = pc.cast(changed, pa.float64()).to_numpy(zero_copy_only=False)
        age = np.maximum(stamp.at_s - stamp.clock.times(at), 0)
        rates = pc.fill_null(rate, 0).to_numpy(zero_copy_only=False)
        left = rates.astype(np.float64) * np.exp(-age / TAU_S)

    def column(new: Any, kept: Any, updated: Any) -> Any:
        return pc.if_else(is_new, new, pc.if_else(is_same, kept, updated))

    more = pc.add(pc.fill_null(updates, 0), pa.scalar(1, pa.int32()))
    rates = pa.array(weight + left, pa.float32())
    columns = (
        column(now, first, first),
        column(pa.scalar(0, pa.int32()), updates, more),
        column(now, changed, now),
        column(pa.scalar(_birth(stamp), pa.float32()), rate, rates),
    )
    return [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]


def weight(stamp: Stamp, updated: int | None) -> float:
    """What an update counts of so many; None: as many as usual."""
    return 1.0 if updated is None else update_weight(stamp.most, updated)


def joined(
    rows: DataFrame, before: DataFrame, layout: Layout, stamp: Stamp, *, updated: int | None
) -> DataFrame:
    """Rows, decoded, with the statistics of those of the same keys before, or begun.

    Args:
        before: rows of the working copy, more than are replaced, if need be; of those that share a
            key, as staged rows of a source whose key is not unique may, any one counts.
        updated: as of `weight`.
    """
    keys = list(layout.key_names)
    renamed = [f"{name} as {_BEFORE}{name}" for name in (HI, LO, *_NAMES)]
    known = before.selectExpr(*map(quoted, keys), *renamed).dropDuplicates(keys)
    names = layout.decoded_schema.names
    ordered = [*map(quoted, names), *(f"{_BEFORE}{n}" for n in (HI, LO, *_NAMES))]
    side_by_side = rows.join(known, keys, "left").select(*ordered)
    counts = weight(stamp, updated)
    hi, lo, end = names.index(HI), names.index(LO), len(names)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = batch.columns
            found = carried(columns[hi], columns[lo], columns[end:], stamp, counts)
            yield pa.RecordBatch.from_arrays([*columns[:end], *found], schema=layout.file_schema)

    return by_place(side_by_side).mapInArrow(task(run), layout.ddl)


def _birth(stamp: Stamp) -> float:
    return BIRTH if stamp.version else 0.0
