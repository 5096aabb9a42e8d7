"""The statistics of rows, ω±, as rows are written: begun, or carried over from the row before.

A row that is shipped is written anyway, so its statistics cost no file. They cost no shuffle of the
table either: the rows to remove are named, which makes the before-images few, and only their keys,
fingerprints and statistics are read and joined. Rows that are merely written again (rewritten,
packed, restated) keep their columns as they are.

 1. A new key begins: `first` and `changed` are this version, `updates` is 0.
 2. A known key with another fingerprint is an update: `first` stays, `updates` is one more,
    `changed` is this version, `rate` is what is left of it and the weight of this update.
 3. A known key with the same fingerprint was shipped in vain, and keeps what it had; so does one
    that already has this version, having been staged by an attempt that was cut.
 4. A null before-image (a file without statistics) counts as never updated; `first` stays null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from warehouse_agent.expect import Past
from warehouse_agent.heat import (
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
from warehouse_agent.layout import (
    CHANGED,
    FIRST,
    HI,
    LO,
    RATE,
    RESERVED,
    STATISTICS,
    UPDATES,
    Layout,
    quoted,
)
from warehouse_agent.publish import Snapshot

JOINED_ROWS_MAX = 1_000_000  # of before-images that every executor gets: 60 bytes each
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
        most, share: as `heat.usual_most` and `heat.Outlook` say of this refresh.
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

    @property
    def next_view(self) -> Outlook:
        """On the refresh after this one, as long after it as this one is after the last."""
        at_s = self.at_s + self.elapsed_s
        return Outlook(self.clock_after, self.share, at_s, self.elapsed_s)


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
    if pairs := snapshot.meta.get("clock"):
        return Clock.from_json(pairs)
    at = datetime.fromisoformat(snapshot.meta["published_at"])
    return Clock().after(snapshot.version, at.timestamp())


def begun(rows: DataFrame, stamp: Stamp) -> DataFrame:
    """Decoded rows with the statistics of new ones; those of a load are not young, only unknown."""
    return rows.selectExpr(
        *map(quoted, rows.columns),
        f"{stamp.version} as {FIRST}",
        f"0 as {UPDATES}",
        f"{stamp.version} as {CHANGED}",
        f"cast({_birth(stamp)!r} as float) as {RATE}",
    )


def carried(
    rows: DataFrame, before: DataFrame, layout: Layout, stamp: Stamp, *, updated: int | None
) -> DataFrame:
    """Rows, decoded, with the statistics of those of the same keys before, or begun.

    Args:
        before: rows of the working copy, more than are replaced, if need be; of those that share a
            key, as staged rows of a source whose key is not unique may, any one counts.
        updated: how many rows are updated, about; None: as many as usual, of any number before.
    """
    keys = list(layout.key_names)
    weight = 1.0 if updated is None else update_weight(stamp.most, updated)
    renamed = [f"{name} as {_BEFORE}{name}" for name in (HI, LO, *_NAMES)]
    known = before.selectExpr(*map(quoted, keys), *renamed).dropDuplicates(keys)
    if updated is not None and updated <= JOINED_ROWS_MAX:
        known = F.broadcast(known)
    names = [name for name in rows.columns if name not in _NAMES]
    joined = rows.select(*map(quoted, names)).join(known, keys, "left")
    return joined.selectExpr(*map(quoted, names), *_statistics(stamp, weight))


def _birth(stamp: Stamp) -> float:
    return BIRTH if stamp.version else 0.0


def _statistics(stamp: Stamp, weight: float) -> Sequence[str]:
    is_new = f"{_BEFORE}{HI} is null"
    is_same = (
        f"(({HI} <=> {_BEFORE}{HI} and {LO} <=> {_BEFORE}{LO}) "
        f"or {_BEFORE}{CHANGED} <=> {stamp.version})"
    )
    rate = f"cast({weight!r} as double)"
    if stamp.clock.versions:
        age = f"greatest({stamp.at_s!r}D - ({stamp.clock.time_sql(_BEFORE + CHANGED)}), 0D)"
        rate += f" + coalesce({_BEFORE}{RATE}, 0D) * exp(-{age} / {TAU_S!r}D)"

    def column(name: str, new: str, updated: str) -> str:
        kept = f"{_BEFORE}{name}"
        return f"case when {is_new} then {new} when {is_same} then {kept} else {updated} end"

    now = str(stamp.version)
    return (
        f"{column(FIRST, now, _BEFORE + FIRST)} as {FIRST}",
        f"{column(UPDATES, '0', f'coalesce({_BEFORE}{UPDATES}, 0) + 1')} as {UPDATES}",
        f"{column(CHANGED, now, now)} as {CHANGED}",
        f"cast({column(RATE, f'{_birth(stamp)!r}D', rate)} as float) as {RATE}",
    )
