"""The result of a comparison: which of our rows are replaced by the rows that came.

`Difference` is one of six cases, so that mypy names each place where a further case is missing. An
`Outcome` adds what the source said at the end. Both are immutable, and know no method. Outcomes of
tiles and of shards become one here (`joined`), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from driftline.arrays import U64, Bools, Bytes, Integers
from driftline.reconciliation.named_keys import KeyMap
from driftline.relations.activity import Activity
from driftline.rows.digests import Digest

from warehouse_agent.planning.choice import Method
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.tasks.digests import Listing

EXACT, FUZZY = "exact", "fuzzy"  # of `Finished.consistency`


@dataclass(frozen=True, slots=True)
class NoDifference:
    """Both sides hold the same rows."""


@dataclass(frozen=True, slots=True)
class AllRows:
    """The rows that came replace all our rows."""


@dataclass(frozen=True, slots=True)
class ListedRows:
    """The listed rows are replaced or deleted; a first load lists none."""

    rows: Listing


@dataclass(frozen=True, slots=True)
class BelowKeys:
    """Our rows below these k, uint64 [n] ascending, are replaced or deleted."""

    ks: U64
    embedding: KeyMap


@dataclass(frozen=True, slots=True)
class EmptiedZones:
    """Zones in which each of our rows is replaced or deleted; they hold `rows` rows.

    `first` and `last` are their positions, int64 [n], inclusive; zones ascend and do not touch.
    """

    first: Integers
    last: Integers
    rows: int

    @classmethod
    def of(cls, zones: list[tuple[int, int]], rows: int) -> Self:
        """Build from the first and last position of each zone, ascending."""
        first, last = np.array(zones, np.int64).reshape(-1, 2).T
        return cls(first, last, rows)

    def holds(self, where: Integers) -> npt.NDArray[np.bool_]:
        """Return which of these positions, int64 [n], lie in a zone: bool [n]."""
        at = np.minimum(np.searchsorted(self.last, where), len(self.last) - 1)
        return (self.first[at] <= where) & (where <= self.last[at])

    def meets(self, first: int, last: int) -> bool:
        """Return True if a zone holds a position between these, both inclusive."""
        at = int(np.searchsorted(self.last, first))
        return at < len(self.last) and int(self.first[at]) <= last


@dataclass(frozen=True, slots=True)
class ChangedZones:
    """Our rows in the zones, and the listed rows outside, are replaced or deleted."""

    emptied: EmptiedZones
    listed: Listing


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Our rows at these places are deleted: by the path of a data file, a bit for each of its rows
    (`np.packbits`); none for a file of which all rows stay."""

    bits: Mapping[str, Bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Mapping[str, Bools]) -> Self:
        """Return the rows that are True, by the path of their file, bool [rows of the file]."""
        return cls({path: np.packbits(rows) for path, rows in places.items() if rows.any()})

    def joined(self, other: Self) -> Self:
        """Return these rows and those of another."""
        both = {path: bits | self.bits.get(path, bits) for path, bits in other.bits.items()}
        return type(self)({**self.bits, **both})

    def inside(self, paths: Collection[str]) -> Self:
        """Return those that are in files of these paths."""
        return type(self)({path: bits for path, bits in self.bits.items() if path in paths})

    def at(self, path: str, first: int, count: int) -> Bools:
        """Return which of `count` rows of a file are deleted, bool [count]; `first` is the first
        one's number."""
        if path not in self.bits:
            return np.zeros(count, np.bool_)
        begin = first // 8
        bits = np.unpackbits(self.bits[path][begin : -(-(first + count) // 8)])
        return bits[first - 8 * begin :][:count].astype(np.bool_)

    @property
    def rows(self) -> int:
        """Return their number."""
        return sum(int(np.unpackbits(bits).sum()) for bits in self.bits.values())


Difference = NoDifference | AllRows | ListedRows | BelowKeys | ChangedZones | PlacedRows


@dataclass(frozen=True, slots=True)
class MarkerUse:
    """Use of the marker of a relation, as its source tells it.

    `mark` is for the next refresh, empty if there is none; `why` there is none, or why the mark
    that was sent could not be used. `by_marker`: updated rows are those that the marker shows, of
    which `rows` were read. `hashes`: the database can hash keys; `counted`: it did, and no key was
    read. `audited`: the audited mark could be used, and of the `unmarked` rows that came although
    they are not behind it, some have their positions, int64 [n], and row hashes, uint64 [n], here.
    `warnings`: signs that a promise about the marker is not kept, as text.
    `checksum`: the column that is the marker, empty if that is another one; `checksums`: of the
    named rows, the mixed key and checksum, uint64 [n]. `claimed`: no keys were compared. `gone`:
    positions of deleted rows behind an audited mark that is claimed, int64 [n] ascending.
    """

    mark: bytes
    why: str
    by_marker: bool
    rows: int
    hashes: bool
    counted: bool
    audited: bool
    unmarked: int
    positions: Integers
    row_hashes: U64
    checksum: str
    checksums: U64
    warnings: tuple[str, ...] = ()
    claimed: bool = False
    gone: Integers = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an exchange, or of all exchanges of a pass.

    `theirs` is the digest of the source's rows, `came` that of the rows that came (empty for a
    pass). `as_of` and `checked_at` are ISO 8601 in UTC, by the source's and the warehouse's clock.
    `scans` and `rows_read` count at the source, `frame_bytes` all frames that came; `answered_s`
    are the seconds from the opening to the first reply other than progress. `held_back_s` are those
    for which the source held its reads back. `snapshot_s` is for how long, at most, it had held a
    snapshot at the end, of a pass the longest one. `activity` is from before the snapshot, of a
    pass from before its first one. `marker` is None if the source was not asked for a mark.
    """

    difference: Difference
    method: Method
    _: KW_ONLY
    theirs: Digest
    as_of: str
    checked_at: str
    consistency: str
    changed: bool
    vouched: bool
    came: Digest = field(default_factory=Digest)
    scans: int = 0
    rows_read: int = 0
    round_trips: int = 1
    frame_bytes: int = 0
    answered_s: float = 0.0
    held_back_s: float = 0.0
    snapshot_s: float = 0.0
    row_security: PolicyDigests | None = None
    activity: Activity | None = None
    marker: MarkerUse | None = None

    @property
    def by_marker(self) -> bool:
        """Return True if updated rows are those that a marker shows."""
        return self.marker is not None and self.marker.by_marker

    @property
    def is_claimed(self) -> bool:
        """Return True if inserted and deleted rows are those that a marker shows, too."""
        return self.marker is not None and self.marker.by_marker and self.marker.claimed

    @property
    def is_equal(self) -> bool:
        """Return True if both sides hold the same rows."""
        return isinstance(self.difference, NoDifference)

    @property
    def is_copy(self) -> bool:
        """Return True if all rows came: a load, or a table that was not worth comparing."""
        return self.method is Method.FULL or isinstance(self.difference, AllRows)

    def beside(self, rest: Digest) -> Outcome:
        """Return the outcome of a part as that of all rows: the `rest` of ours stays as it is.

        These rows were not compared, so they are older.
        """
        return replace(self, theirs=self.theirs + rest, consistency=FUZZY)


def joined(
    outcomes: Sequence[Outcome], difference: Difference, method: Method, *, is_one_snapshot: bool
) -> Outcome:
    """Return the outcomes of exchanges that compared different rows of a relation as one.

    What was spent is added up. The rows are as old as those of the earliest instant, and proven
    when the last exchange was. Pure, and associative but for the difference, which the caller knows
    how to join.

    Args:
        outcomes: at least one, in the order of the rows.
        is_one_snapshot: all exchanges read one snapshot; else several are of different instants.
    """
    earliest = min(outcomes, key=lambda one: one.as_of)
    weaker = [one.consistency for one in outcomes if one.consistency != EXACT]
    if len(outcomes) > 1 and not is_one_snapshot:
        weaker.insert(0, FUZZY)
    policies = [one.row_security for one in outcomes if one.row_security is not None]
    return Outcome(
        difference,
        method,
        theirs=sum((one.theirs for one in outcomes), Digest()),
        as_of=earliest.as_of,
        checked_at=max(one.checked_at for one in outcomes),
        consistency=next(iter(weaker), EXACT),
        changed=any(one.changed for one in outcomes),
        vouched=all(one.vouched for one in outcomes),
        came=sum((one.came for one in outcomes), Digest()),
        scans=sum(one.scans for one in outcomes),
        rows_read=sum(one.rows_read for one in outcomes),
        round_trips=sum(one.round_trips for one in outcomes),
        frame_bytes=sum(one.frame_bytes for one in outcomes),
        answered_s=outcomes[0].answered_s,
        held_back_s=sum(one.held_back_s for one in outcomes),
        snapshot_s=max(one.snapshot_s for one in outcomes),
        row_security=policies[-1] if policies else None,
        activity=earliest.activity,
        marker=next((one.marker for one in outcomes if one.marker is not None), None),
    )
