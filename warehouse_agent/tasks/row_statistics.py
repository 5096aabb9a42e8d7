"""Statistics of rows, ω± of Lu, Liu and Hyland, set when a row is written.

The before-images of a refresh are few, and only their keys, fingerprints and statistics are read
and looked up (`key_lookup`), so statistics cost no file and no shuffle. Rows that are written again
unchanged keep theirs.

 1. A new key begins: `first` and `changed` are this version, `updates` is 0.
 2. A known key with another fingerprint is an update: `first` stays, `updates` is one more,
    `changed` is this version, `rate` is the decayed rate plus the weight of this update.
 3. A known key with the same fingerprint did not change and keeps its statistics. So does a row
    that has this version already: an interrupted attempt staged it. An update in that attempt stays
    counted, even if the source has reverted it.
 4. A null before-image (a file without statistics) counts as never updated; `first` stays null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warehouse_agent.columns.layout import STATISTICS
from warehouse_agent.planning.change_forecast import RefreshOutcome
from warehouse_agent.planning.update_probability import (
    BIRTH,
    DAY_S,
    ELAPSED_MIN_S,
    TAU_S,
    ChangeOutlook,
    VersionClock,
    update_weight,
    updates_expected,
    usual_most,
    usual_share,
)
from warehouse_agent.storage.table import Snapshot


@dataclass(frozen=True, slots=True)
class StatisticsStamp:
    """Values for the statistics of a version's new rows.

    Attributes:
        at_s: time of the version, seconds since 1970.
        elapsed_s: seconds since the last refresh.
        clock: times of the versions before; empty for a load.
        most: updates of a usual refresh (`update_probability.usual_most`).
        share: updates expected per row (`update_probability.ChangeOutlook`).
    """

    version: int
    at_s: float
    elapsed_s: float
    clock: VersionClock
    most: int
    share: float

    @property
    def clock_after(self) -> VersionClock:
        """Return the times of the versions, this one included."""
        return self.clock.after(self.version, self.at_s)

    @property
    def view(self) -> ChangeOutlook:
        """Return the outlook on this refresh, for published rows."""
        return ChangeOutlook(self.clock, self.share, self.at_s, self.elapsed_s)


def stamp_for(
    base: Snapshot | None,
    history: Sequence[RefreshOutcome],
    *,
    at_s: float,
    elapsed_s: float | None,
) -> StatisticsStamp:
    """Return the stamp of the version after `base`; `base` is None for a load.

    `history` has earlier refreshes, oldest first. `at_s` is the time of the new version in seconds
    since 1970, `elapsed_s` the seconds since the last refresh; None if only `base` has a time.
    """
    if base is None:
        return StatisticsStamp(0, at_s, DAY_S, VersionClock(), 1, 1.0)
    clock = clock_of(base)
    if elapsed_s is None:
        elapsed_s = at_s - clock.seconds[-1]
    elapsed_s = max(elapsed_s, ELAPSED_MIN_S)
    expected = updates_expected(history, rows=base.rows, elapsed_s=elapsed_s)
    most, share = usual_most(expected), usual_share(expected, base.rows)
    return StatisticsStamp(base.version + 1, at_s, elapsed_s, clock, most, share)


def clock_of(snapshot: Snapshot) -> VersionClock:
    """Return the times of a table's versions; without statistics only that of this version."""
    if snapshot.record.clock is not None:
        return snapshot.record.clock
    at = datetime.fromisoformat(snapshot.record.published_at)
    return VersionClock().after(snapshot.version, at.timestamp())


def begun(rows: int, stamp: StatisticsStamp) -> list[pa.Array]:
    """Return the statistics of `rows` new rows, arrays [rows]. A load's rows are not young."""
    values = (stamp.version, 0, stamp.version, _birth(stamp))
    kinds = (kind for _, kind in STATISTICS)
    return [pa.array(np.full(rows, v), kind) for v, kind in zip(values, kinds, strict=True)]


def carried(
    hi: pa.Array, lo: pa.Array, before: Sequence[Any], stamp: StatisticsStamp, weight: float
) -> list[pa.Array]:
    """Return the statistics of rows, an array [n] for each column of STATISTICS.

    Args:
        hi, lo: fingerprint lanes of the rows, int64 [n].
        before: hi, lo and statistics of the former rows, arrays [n]; null for a new key.
        stamp: of the version.
        weight: of an update (`weight`).
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


def weight(stamp: StatisticsStamp, updated: int | None) -> float:
    """Return the weight of one of `updated` updates; None means the usual number."""
    return 1.0 if updated is None else update_weight(stamp.most, updated)


def _birth(stamp: StatisticsStamp) -> float:
    return BIRTH if stamp.version else 0.0
