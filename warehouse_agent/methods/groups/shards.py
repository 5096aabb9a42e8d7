"""Our side of groups in shards: more rows than one exchange can name, divided by key order.

Each shard is a part by named keys (`key_parts`): an exchange of its own, in one stream and so in
one snapshot of the source, under one salt. Its digests add up with those of the others. Shards
cover every key that can exist, so all rows are compared where each shard reads its whole range, and
the result is proven as that of one exchange is. Of a part, a shard reads the ranges of the part
that lie in it.

Our rows of a shard are put into groups while the source waits for its opening, those of the first
one before the stream opens. So neither side holds more than the groups of one shard; what stays of
each is the positions of our rows that are replaced, 8 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import Integers
from driftline.errors import LimitExceeded, MalformedMessage, SnapshotLost
from driftline.reconciliation.named_keys import Ranks
from driftline.rows.digests import Digest, MixedFingerprints, mix
from driftline.rows.key_order import KeyBuffer, KeyOrder, KeyRange, key_text

from warehouse_agent.columns.layout import KEY
from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.groups import assignment, key_parts
from warehouse_agent.methods.groups.assignment import PartRows
from warehouse_agent.methods.groups.exchange import GroupSide
from warehouse_agent.methods.groups.key_parts import KeyWindow
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.planning import group_shards as planning
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.group_selection import CLASS_EDGES, GroupPlan, PartSelection
from warehouse_agent.report import counted
from warehouse_agent.tasks.difference import (
    EXACT,
    BelowKeys,
    ListedRows,
    NoDifference,
    Outcome,
    joined,
)
from warehouse_agent.tasks.digests import RowsInKeyTiles, keys_of, numbers, tasks_for, with_keys
from warehouse_agent.tasks.quantiles import sample_keys
from warehouse_agent.tasks.scan import FilePiece, Function, scan
from warehouse_agent.tasks.steps import work_of_digests
from warehouse_agent.transport.waiting import Requests

SAMPLES_MIN = 4096  # of keys, from which the bounds of shards are taken
ROWS_MAX = 1 << 62  # that the shards of all rows may read: no limit
NOBODY = PartSelection(len(CLASS_EDGES) + 2, 0.0)  # no row is chosen for being likely
_COUNTED = pa.schema(
    [
        *((name, pa.binary()) for name in ("counts", "sizes", "compared", "rest")),
        ("left", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Shard:
    """Keys from `lower` on and before `upper`, key bytes, None: no bound; `rows` of ours in it are
    compared."""

    lower: bytes | None
    upper: bytes | None
    rows: int


@dataclass(frozen=True, slots=True)
class ShardScope:
    """The rows that are compared: `part`, in the ranges of `window` and besides; None: all rows."""

    part: PartRows | None = None
    window: KeyWindow | None = None


@dataclass(frozen=True, slots=True)
class Shards:
    """The division of our rows into shards, with the plan of groups, the costs (bytes of a row
    and of a round trip) and the most rows that may be read in all, `rows_max`."""

    copy: WorkingCopy = field(repr=False)
    plan: GroupPlan
    chosen: ShardScope
    costs: tuple[int, int]
    rows_max: int
    each: tuple[Shard, ...]

    def side(self, number: int, rows_max: int) -> GroupSide:
        """Return our side of a shard; one step.

        Raises:
            LimitExceeded: its keys have more bytes than a source holds.
        """
        shard, recipe = self.each[number], self.copy.layout.recipe
        whole = RowsInKeyTiles(recipe, (), (True,))
        part = self.chosen.part or PartRows(NOBODY, whole)
        inside = whole if self.chosen.window is None else self.chosen.window.inside
        ranges = tuple(
            KeyRange(*(None if key is None else key_text(key, recipe) for key in ends))
            for ends in clipped(inside, shard.lower, shard.upper)
        )
        within = RowsInKeyTiles.between(recipe, shard.lower, shard.upper)
        window = KeyWindow(ranges, inside, None)
        part = replace(part, within=within)
        return key_parts.reduce(self.copy, self.plan, part, window, self.costs, rows_max=rows_max)

    def allowed(self, number: int, read: int) -> int:
        """Return how many rows a shard may read after those before it have read `read`."""
        behind = [shard.rows for shard in self.each[number + 1 :]]
        return planning.budget(self.rows_max, read, behind)


@dataclass(frozen=True, slots=True)
class ShardedSide:
    """Our side in shards, with the fields of `OurSide`; `first` is that of the first shard."""

    shards: Shards
    first: GroupSide
    compared: Digest
    rest: Digest
    turn: NextPartNote
    updates_left: float

    @property
    def rows(self) -> int:
        """Return the number of our rows that are compared."""
        return self.compared.count

    def open(self, terms: ExchangeTerms) -> Requests[Outcome]:
        """Compare one shard after the other.

        Raises:
            SnapshotLost: the source reads another snapshot than at the first shard.
        """
        outcomes: list[Outcome] = []
        read = 0
        for number in range(len(self.shards.each)):
            side = self.first
            if number:
                side = self.shards.side(number, self.shards.allowed(number, read))
            outcomes.append(_replacing((yield from side.compare(terms))))
            read += outcomes[-1].theirs.count
            _check_snapshot(outcomes[0], outcomes[-1])
        one = _joined(outcomes)
        if self.shards.chosen.part is None:
            return one
        return one.beside(self.rest)


def reduce(
    copy: WorkingCopy,
    plan: GroupPlan,
    chosen: ShardScope,
    costs: tuple[int, int],
    *,
    rows_max: int = ROWS_MAX,
    keys_max: int | None = None,
) -> ShardedSide:
    """Divide the chosen rows into shards, and put the first into groups; three steps.

    Args:
        costs: bytes of a row and of a round trip.
        rows_max: the most rows that the source may read in all.
        keys_max: rows that a shard may have; None: as many as an exchange may name.

    Raises:
        LimitExceeded: too many rows lie between two keys of the sample.
    """
    limit = keys_max or planning.KEYS_MAX
    wanted = max(SAMPLES_MIN, 8 * planning.pieces(copy.rows, limit))
    keys = sample_keys(copy.steps, copy.files, copy.layout, max(copy.rows // wanted, 1)).keys
    most = planning.limit(float(np.mean([len(key) for key in keys])), limit)
    bounds = _bounds(copy, keys, planning.pieces(copy.rows, most))
    counts, sizes, compared, rest, left = _count(copy, chosen.part, bounds)
    ends = planning.ends(counts, sizes, limit)
    if ends is None:
        raise LimitExceeded(
            f"More than {counted(most, 'row')} lie between two of {counted(len(keys), 'key')} of a"
            " sample, and are too many for a shard.",
            where=copy.name,
            remedy="Set `read_at_most` of the fragment to fewer rows, or change its `method`.",
        )
    edges = [None, *(bounds[end - 1] for end in ends[:-1]), None]
    rows = np.add.reduceat(counts, [0, *ends[:-1]]).tolist()
    each = tuple(map(Shard, edges[:-1], edges[1:], rows))
    shards = Shards(copy, plan, chosen, costs, rows_max, each)
    first = shards.side(0, shards.allowed(0, 0))
    turn = first.turn
    if turn.groups is not None:  # all shards are taken to be like the first
        turn = replace(turn, groups=turn.groups.scaled(compared.count))
    if chosen.window is not None:
        following, recipe = chosen.window.following, copy.layout.recipe
        key = () if following is None else tuple(key_text(following, recipe))
        turn = replace(turn, key=key)
    return ShardedSide(shards, first, compared, rest, turn, left)


def clipped(
    inside: RowsInKeyTiles, lower: bytes | None, upper: bytes | None
) -> list[tuple[bytes | None, bytes | None]]:
    """Return the chosen ranges of keys that lie between two keys, ascending; None: no bound."""
    order, ranges = KeyOrder(inside.recipe), list[tuple[bytes | None, bytes | None]]()

    def is_less(one: bytes, other: bytes) -> bool:
        return order.ascends(KeyBuffer.of_bytes([one, other]))

    edges = (None, *inside.bounds, None)
    for begin, end, is_chosen in zip(edges[:-1], edges[1:], inside.chosen, strict=True):
        if lower is not None and (begin is None or is_less(begin, lower)):
            begin = lower  # noqa: PLW2901
        if upper is not None and (end is None or is_less(upper, end)):
            end = upper  # noqa: PLW2901
        if is_chosen and (begin is None or end is None or is_less(begin, end)):
            ranges.append((begin, end))
    return ranges


def _bounds(copy: WorkingCopy, keys: Sequence[bytes], count: int) -> list[bytes]:
    """Return at most count − 1 distinct keys of a sample, which divide it evenly, ascending."""
    order, distinct = KeyOrder(copy.layout.recipe), [*dict.fromkeys(keys)]
    at = order.sorted(KeyBuffer.of_bytes(distinct))
    places = np.unique(np.arange(1, count) * len(at) // count)
    return [distinct[int(at[place])] for place in places if place]


def _count(
    copy: WorkingCopy, part: PartRows | None, bounds: Sequence[bytes]
) -> tuple[Integers, Integers, Digest, Digest, float]:
    """Count the chosen rows between bounds, and the bytes of their keys, int64 [bounds + 1] each;
    return the digests of chosen and of all other rows, and Σ P({±t}) of these; one step."""
    rows = scan(
        copy.steps,
        copy.files,
        assignment.with_omega(copy.layout.keyed_schema, copy.layout),
        with_keys(copy.layout.recipe, _counted(copy, part, tuple(bounds))),
        _COUNTED,
        work=work_of_digests(copy.files),
        tasks_max=tasks_for(16 * len(bounds) + 16),
    ).to_pylist()
    counts, sizes = (np.zeros(len(bounds) + 1, np.int64) for _ in range(2))
    compared, rest, left = Digest(), Digest(), 0.0
    for row in rows:
        counts += np.frombuffer(row["counts"], np.int64)
        sizes += np.frombuffer(row["sizes"], np.int64)
        compared += assignment.digest_of(row["compared"])
        rest += assignment.digest_of(row["rest"])
        left += row["left"]
    return counts, sizes, compared, rest, left


def _counted(copy: WorkingCopy, part: PartRows | None, bounds: tuple[bytes, ...]) -> Function:
    recipe, salt, outlook = copy.layout.recipe, copy.salt, copy.outlook

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        order, edges = KeyOrder(recipe), KeyBuffer.of_bytes(bounds)
        counts, sizes = (np.zeros(len(bounds) + 1, np.int64) for _ in range(2))
        compared, rest, left = Digest(), Digest(), 0.0
        for batch in (piece.batch for piece in pieces):
            hi, lo = (numbers(batch, i).view(np.uint64) for i in (1, 2))
            p, mixed = assignment.probabilities(batch, outlook), mix(salt, hi, lo)
            chosen = assignment.chosen_rows(part, batch, p, salt)
            inside, outside = (
                MixedFingerprints(mixed.m0[some], mixed.m1[some]) for some in (chosen, ~chosen)
            )
            compared += inside.digest()
            rest += outside.digest()
            left += float(p[~chosen].sum())
            at = order.ranks(keys_of(batch), edges)[chosen]
            lengths = pc.binary_length(batch.column(KEY)).to_numpy(zero_copy_only=False)[chosen]
            counts += np.bincount(at, minlength=len(counts))
            sizes += np.bincount(at, lengths, len(counts)).astype(np.int64)
        digests = (assignment.digest_bytes(one) for one in (compared, rest))
        columns = [counts.tobytes(), sizes.tobytes(), *digests, left]
        yield pa.RecordBatch.from_pylist(
            [dict(zip(_COUNTED.names, columns, strict=True))], schema=_COUNTED
        )

    return run


def _check_snapshot(first: Outcome, latest: Outcome) -> None:
    """Raise SnapshotLost unless two shards were read in one snapshot, under the same policies."""
    is_exact = first.consistency == latest.consistency == EXACT
    if (is_exact and first.as_of != latest.as_of) or first.row_security != latest.row_security:
        raise SnapshotLost("The source began another snapshot between two shards of a comparison.")


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcomes of all shards as one."""
    difference: NoDifference | BelowKeys = NoDifference()
    if not all(isinstance(outcome.difference, NoDifference) for outcome in outcomes):
        difference = _below(np.unique(np.concatenate([_replaced(outcome) for outcome in outcomes])))
    return joined(outcomes, difference, Method.GROUP, is_one_snapshot=True)


def _replacing(outcome: Outcome) -> Outcome:
    """Return the outcome of a shard, which holds no more of our rows than those to be replaced."""
    if isinstance(outcome.difference, NoDifference):
        return outcome
    return replace(outcome, difference=_below(np.sort(_replaced(outcome))))


def _below(positions: Integers) -> BelowKeys:
    """Return that our rows at these positions, int64 [n] ascending, are replaced or deleted."""
    return BelowKeys(np.arange(len(positions), dtype=np.uint64), Ranks(positions))


def _replaced(outcome: Outcome) -> Integers:
    """Return the positions of our rows that a shard replaces or deletes, int64 [n]."""
    match outcome.difference:
        case NoDifference():
            return np.zeros(0, np.int64)
        case ListedRows(rows):
            return rows.positions
        case BelowKeys(ks, Ranks(positions)):
            return positions[ks.astype(np.int64)]
    raise MalformedMessage("A shard was answered with something else.")
