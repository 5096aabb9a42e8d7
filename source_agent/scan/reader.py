"""Read the rows of one relation in one snapshot, and derive positions and fingerprints from them.

A `Reader` turns the rows of an engine into batches. It counts them, refuses NULL keys, and checks
that the snapshot is still the one in which the exchange began. Rows that were compared are read
again by index if the key is an indexed integer and at most INDEX_SHARE of the rows is read, else
where they lie, or by their keys, if the scan kept that (`locators`), else by another scan of the
snapshot: of the keys alone, by which few rows are then read, or of all rows. All ways were measured
(`docs/results/source.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from driftline.arrays import U64, Bools, Positions
from driftline.errors import (
    OPEN,
    DatabaseRefused,
    LimitExceeded,
    NullKey,
    SnapshotLost,
    ValueDoesNotFit,
)
from driftline.limits import DATABASE_FINGERPRINT_VERSION, REPEATED_BATCHES_MAX, SAMPLES_MAX
from driftline.rows.columns import Block, gather, pick, stacked, value_spans
from driftline.rows.digests import MixedFingerprints, Salt, mix
from driftline.rows.fingerprints import database_seed, fingerprints, lanes, position_seed
from driftline.rows.key_order import key_text
from driftline.rows.keys import null_keys, positions
from driftline.values.types import Recipe

from source_agent.engines.encoding.rows import never_ending
from source_agent.engines.interface import LocatedRows, Rows, Session, Split
from source_agent.engines.relations.shapes import Consistency, Shape
from source_agent.failpoints import SourceFailpoint
from source_agent.printable import counted, printable_row
from source_agent.scan.batches import Batch, Batches, Locators

INDEX_SHARE = 0.25  # measured: up to 0.75 and more, but from a cache and in key order
KEY_SHARE = 0.1  # of rows that are read by their keys: each costs some six scanned ones
KEYS_FIRST_SHARE = 0.02  # the same, behind a scan of keys, which costs a third of one of rows
KEYS_FIRST_COLUMNS = 2  # for each column of the key
KEYS_AT_ONCE = 4096  # looked up by one call: their texts take some 100 bytes each


@dataclass
class ReadCounts:
    """Counts of what an exchange read, for the report and the audit."""

    scans: int = 0
    rows_read: int = 0
    rows_expected: int = 0
    phase: str = "scan"
    held_back_s: float = 0.0  # to spare the database


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """A way to read rows of a scan once more: with `shape` the scan tells where they lie.

    by_key: that is their keys; False: numbers of `LocatorReads`.
    """

    shape: Shape
    by_key: bool = False


class Reader:
    """Reads one relation for one exchange; `tally` counts what it reads."""

    def __init__(
        self, session: Session, shape: Shape, *, fragment_key: bytes, salt: Salt, tally: ReadCounts
    ) -> None:
        self._session, self.shape, self.tally = session, shape, tally
        self.recipe = shape.recipe
        self.fragment_key, self.salt = fragment_key, salt
        self._snapshot = session.snapshot
        self._has_begun = False
        self._fingerprints = fingerprints(fragment_key, self.recipe)
        self._by_database = self.recipe.fingerprint_version == DATABASE_FINGERPRINT_VERSION
        self._database_seed = database_seed(fragment_key, self.recipe)
        self._seed = position_seed(fragment_key)
        tally.rows_expected = shape.rows_expected

    def scan(self, *, ordered: bool = False) -> Batches:
        """Return every row once, in key order if `ordered`; its iterator raises NullKey."""
        self.tally.scans += 1
        return self.batches(self._session.scan(self.shape, ordered=ordered))

    def split(self, again: ReadAgain | None = None) -> Split | None:
        """Return the scan in parts, or None; never if the database makes the hashes.

        again: from `again`, if the rows shall have locators.
        """
        split = None if self._by_database else self._session.capabilities.split
        if split is None or (again is not None and again.by_key):
            return None
        return split(self.shape if again is None else again.shape)

    def again(self) -> ReadAgain | None:
        """Return how rows of the next scan can be read once more.

        None: by an index of their key, or by another scan. Keys are not kept of a scan that other
        processes could share.
        """
        able, shape = self._session.capabilities, self.shape
        if self._by_database or shape.indexed or self.consistency is not Consistency.EXACT:
            return None
        located = able.locators.locate(shape) if able.locators is not None else None
        if isinstance(located, Shape):
            return ReadAgain(located)
        return ReadAgain(shape, by_key=True) if finds_keys(self._session, shape) else None

    def again_most(self, again: ReadAgain, total: int) -> int:
        """Return the most rows that are read again so: above, another scan of the `total` rows
        costs less. Rows that lie in one of several tables are looked for in each."""
        if again.by_key:
            return int(KEY_SHARE * total)
        plan = again.shape.plan
        assert plan is not None, "a relation is read by the engine that described it"
        return int(INDEX_SHARE * total) // max(len(plan.tables), 1)

    def at(self, again: ReadAgain, locators: Locators) -> Batches:
        """Return the rows at these locators of a scan, none twice; numbers ascend."""
        if not len(locators):
            return iter(())
        if isinstance(locators, Block):
            return self.batches(self._with_keys(locators))
        able = self._session.capabilities.locators
        assert able is not None, "the session has located the relation"
        return self.batches(able.read_located(again.shape, locators))

    def keys_first(
        self,
        is_wanted: Callable[[Positions], Bools],
        take: Callable[[int], bool],
        *,
        rows: int,
        total: int,
    ) -> tuple[Batches, int] | None:
        """Scan keys alone; return the rows whose positions are wanted, read by key, and their
        number. None: another scan of all rows costs less, or the keys do not fit.

        Args:
            is_wanted: asked for positions, int64 [n]; returns bool [n].
            take: takes so many bytes of memory, or returns False.
            rows: estimated number of wanted rows; total: of all rows.
        """
        shape, most = self.shape, int(KEYS_FIRST_SHARE * total)
        is_wide = len(self.recipe.columns) >= KEYS_FIRST_COLUMNS * self.recipe.key_columns
        is_exact = self.consistency is Consistency.EXACT
        is_able = _is_keyed(self._session, shape) and not shape.indexed and is_wide and is_exact
        if not is_able or rows > most:
            return None
        key, salt, found, count = self.fragment_key, self.salt, list[Block](), 0
        alone = Reader(self._session, shape.keys(), fragment_key=key, salt=salt, tally=self.tally)
        for batch in alone.scan():
            some = keys_of(batch.block.take(is_wanted(batch.positions)), self.recipe.key_columns)
            count += len(some)
            if count > most or not take(some.buffer.nbytes + some.starts.nbytes):
                return None
            found.append(some)
        return self.batches(self._with_keys(stacked(found))), count

    def _with_keys(self, keys: Block) -> Iterator[Rows]:
        read_keys = self._session.capabilities.read_keys
        assert read_keys is not None, "the session finds rows by keys"
        for start in range(0, len(keys), KEYS_AT_ONCE):
            some = keys.cut(start, min(start + KEYS_AT_ONCE, len(keys))).rows()
            yield from read_keys(self.shape, [key_text(key, self.recipe) for key in some])

    def scan_hashes(self, again: ReadAgain | None = None) -> Batches:
        """Yield every row once, to be compared and not sent. Raises NullKey, ValueDoesNotFit.

        If the database computes the fingerprints, the blocks hold only keys and hashes. again:
        from `again`, if the rows shall have locators.
        """
        if not self._by_database:
            if again is None:
                yield from self.scan()
                return
            self.tally.scans += 1
            for batch in self.batches(self._session.scan(again.shape)):
                if again.by_key:
                    batch.locators = keys_of(batch.block, self.recipe.key_columns)
                yield batch
            return
        self.tally.scans += 1
        hashed = self.shape.hashed(self._database_seed)
        for rows, block, where in self._blocks(self._session.scan(hashed), hashed.recipe):
            hashes = self._hashes(block)
            self.tally.rows_read += len(rows)
            yield Batch(block, where, mix(self.salt, *lanes(hashes)))

    def find(self, first: Positions, last: Positions, *, rows: int, total: int | None) -> Batches:
        """Return the rows in these ranges of positions, and others too if a scan is cheaper.

        first, last: disjoint ranges, int64 [n] each, both inclusive; rows: estimated number of rows
        in them; total: number of all rows, None to use the index at any cost.
        """
        if total is None or self.by_index(rows, total):
            return self.batches(self._session.read_ranges(self.shape, first, last))
        return self.scan()

    def part(self, zones: Iterable[tuple[Positions, Positions]], *, rows_max: int) -> Batches:
        """Yield the rows in these disjoint ranges and no others, by index at any cost.

        zones: `first` and `last` as in `find`, int64 [n] each, in pieces. Raises LimitExceeded
        above `rows_max` rows; at most a batch more was read.
        """
        left = rows_max
        for first, last in zones:
            rows = self._session.read_ranges(self.shape, first, last, rows_max=left)
            for batch in self.batches(rows):
                left -= len(batch.positions)
                if left < 0:
                    raise part_too_large(self.shape, rows_max)
                yield batch

    def by_index(self, rows: int, total: int) -> bool:
        """Return True if `rows` of `total` rows are read by index."""
        usable = self.shape.indexed and self.recipe.integer_key
        return usable and rows <= INDEX_SHARE * total

    def batch(self, block: Block) -> Batch:
        """Return a batch of row bytes that were read before."""
        return self._batch(block, block.rows(), positions(block, self.recipe, self._seed))

    def check_snapshot(self, agrees: bool = True) -> None:
        """Compare two reads.

        Raises:
            SnapshotLost: the data changed between them.
            DatabaseRefused: one snapshot gave other rows, by the caller's check `agrees`.
        """
        if self.changed or not (agrees or self.consistency is Consistency.EXACT):
            raise _changed(self.shape)
        if not agrees:
            raise DatabaseRefused(
                "Two reads of one snapshot gave other rows: the relation computes other values each"
                " time it is read, as random() and clock_timestamp() do, or an index of its tables"
                " is damaged.",
                where=self.shape.relation.name,
                remedy="Ask the DBA to publish it without such functions, or to check the indexes.",
                abroad=OPEN,
            )

    @property
    def changed(self) -> bool:
        """True if the session has another snapshot than the exchange began with."""
        return self._session.snapshot.generation != self._snapshot.generation

    @property
    def consistency(self) -> Consistency:
        """Consistency of the rows of this relation; other relations of the stream may differ."""
        plan = self.shape.plan
        fuzzy = plan is not None and plan.consistency is Consistency.FUZZY
        return Consistency.FUZZY if fuzzy or self.changed else Consistency.EXACT

    @property
    def as_of(self) -> str:
        """Time of the snapshot in which the exchange began, as text: no row is older."""
        return self.shape.as_of or self._snapshot.as_of

    def pause(self) -> None:
        """Release locks that would block writers while the agent waits for the network."""
        self._session.pause()

    def batches(self, source: Iterator[Rows]) -> Generator[Batch, None, None]:
        """Yield the engine's rows as batches. Raises NullKey."""
        for rows, block, where in self._blocks(source, self.recipe):
            self.tally.rows_read += len(rows)
            yield self._batch(block, rows, where)

    def _blocks(
        self, source: Iterator[Rows], recipe: Recipe
    ) -> Iterator[tuple[Rows, Block, Positions]]:
        """Yield rows, their block and positions; the first row begins the snapshot, or the end.

        Raises NullKey, and DatabaseRefused if the same keys come again and again.
        """
        repeats = Repeats()
        for rows in source:
            if not self._has_begun:
                self._begin()
            SourceFailpoint.BATCH_READ.reach()
            block = gather(rows)
            if not self.shape.vouched:
                self._refuse_nulls(block, recipe)
            where = positions(block, self.recipe, self._seed)
            if (row := repeats.add(where, self._repeats_max)) is not None:
                raise never_ending(rows[row], self.shape, recipe, "again")
            yield rows, block, where
        if not self._has_begun:  # a read without rows is one: what comes later is compared with it
            self._begin()

    @property
    def _repeats_max(self) -> int:
        """The most batches in which a key may come again: none if it is unique in the snapshot."""
        is_unique = self.shape.vouched and self.consistency is Consistency.EXACT
        return 0 if is_unique else REPEATED_BATCHES_MAX

    def _begin(self) -> None:
        """Take the snapshot of the first row; raise SnapshotLost if it has another shape."""
        self._has_begun = True
        if self.changed:  # since the description: the session paused to wait for cells
            self._snapshot = self._session.snapshot
            self.check_snapshot()
            if self._session.describe(self.shape.relation) != self.shape:
                raise _changed(self.shape)

    def _batch(self, block: Block, rows: Rows, where: Positions) -> Batch:

        def mixed(part: Block) -> MixedFingerprints:
            return mix(self.salt, *self._fingerprints(rows if part is block else part.rows()))

        locators = rows.locators if isinstance(rows, LocatedRows) else None
        return Batch(block, where, mixed, locators)

    def _hashes(self, block: Block) -> U64:
        """Return the last value of every row, uint64 [rows]. Raises ValueDoesNotFit on NULL."""
        starts, lengths = value_spans(block, self.recipe.key_columns + 1)[-1]
        if (lengths != 8).any():
            raise ValueDoesNotFit(
                "A column that is declared NOT NULL contains a NULL, which the database cannot "
                "hash.",
                where=self.shape.relation.name,
                remedy='Validate the constraint, or remove `fingerprint = "database"`.',
            )
        window = np.lib.stride_tricks.sliding_window_view(block.buffer, 8)
        return np.ascontiguousarray(window[starts]).view(">u8").reshape(-1).astype(np.uint64)

    def _refuse_nulls(self, block: Block, recipe: Recipe) -> None:
        """Raise NullKey, with samples, if a key of the block is NULL."""
        null: Bools = null_keys(block, recipe)
        if not null.any():
            return
        rows = block.take(np.flatnonzero(null)[:SAMPLES_MAX]).rows()
        samples = [printable_row(row, recipe) for row in rows]
        keys = ", ".join(c.name for c in self.recipe.key)
        raise NullKey(
            f"The key ({keys}) is NULL in at least {counted(len(samples), 'row')}, "
            f"such as {samples[0]}.",
            where=self.shape.relation.name,
            remedy="Publish the relation with a key that is never NULL, or with a filter "
            '(`where = "… IS NOT NULL"`).',
            details={f"sample {i + 1}": text for i, text in enumerate(samples)},
        )


def finds_keys(session: Session, shape: Shape) -> bool:
    """Return True if rows without locators are read again by their keys."""
    return _is_keyed(session, shape) and session.capabilities.split is None


def _is_keyed(session: Session, shape: Shape) -> bool:
    """Return True if `read_keys` finds each row of a relation."""
    is_able = session.capabilities.read_keys is not None
    return is_able and shape.keyed and not shape.is_joined


def keys_of(block: Block, columns: int) -> Block:
    """Return the bytes of the keys of rows, end to end; `columns` are those of the key."""
    (*_, (starts, lengths)) = value_spans(block, columns)
    first = block.starts[:-1] + 2  # behind the number of columns
    sizes = starts + np.maximum(lengths, 0) - first
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return Block(pick(block.buffer, first, sizes), ends)


def part_too_large(shape: Shape, rows_max: int) -> LimitExceeded:
    """Return the error of a part that has more than `rows_max` rows."""
    return LimitExceeded(
        f"This refresh would compare more than {counted(rows_max, 'row')}: the source has many new "
        "rows.",
        where=shape.relation.name,
        remedy="Raise `read_at_most` of the fragment, or remove it for one complete refresh.",
    )


def _changed(shape: Shape) -> SnapshotLost:
    return SnapshotLost(
        "The data changed between two reads of this exchange.",
        where=shape.relation.name,
        abroad=OPEN,
    )


class Repeats:
    """The kept position of one read.

    One position is kept, and replaced when the number of batches has doubled (Brent's cycle
    detection). A read that repeats its keys gives the kept one again, within one round of the
    cycle, once the kept one lies in the cycle and is kept for longer than a round. So nothing is
    assumed about the order in which a database reads, about its collations or about where batches
    end, and no memory grows.
    """

    def __init__(self) -> None:
        self._batches, self._ends_at, self._met = 0, 1, 0
        self._kept: np.int64 | None = None

    def add(self, positions: Positions, met_max: int) -> int | None:
        """Add the positions of a batch; return a row with the kept one, or None.

        Args:
            positions: shape (rows,), of the keys in the batch.
            met_max: the most batches that may have the kept position again; a row of the next is
                returned.
        """
        if not len(positions):
            return None
        if self._kept is not None:
            again = positions == self._kept
            if again.any():
                self._met += 1
                if self._met > met_max:
                    return int(again.argmax())
        self._batches += 1
        if self._batches == self._ends_at:
            self._ends_at *= 2
            self._kept, self._met = positions[-1], 0
        return None
