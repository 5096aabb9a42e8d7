"""Changes by a marker: the mark of a snapshot, the rows behind one, and the keys of all rows.

A *mark* is made here and taken back here; the warehouse only keeps it. It says of which relation,
recipe, marker and database it is, because behind the mark of another one lie other rows. A mark
that does not fit is not used: all rows are compared, and the warehouse is told why.

 1. The next mark is read before any row: what changes between two reads of a session without
    snapshots is behind it.
 2. Keys are represented by their positions (`key_digests`), so reading them hashes nothing. Where
    the marker is a checksum, its hash stands beside them, and a row whose checksum is the
    warehouse's counts as unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools, Positions
from driftline.errors import OPEN, DatabaseRefused, DriftlineError, ValueDoesNotFit
from driftline.limits import (
    BEHIND_ROWS_MAX,
    GONE_ROWS_MAX,
    MARK_BYTES_MAX,
    ROWS_HELD_BYTES,
    UNMARKED_ROWS_MAX,
)
from driftline.rows.columns import Block, value_spans
from driftline.rows.digests import MASK64, Digest, Salt
from driftline.rows.key_digests import checksum_hashes, mixed_keys

from source_agent.engines.interface import MarkerReads, Rows, Session
from source_agent.engines.relations.markers import (
    XIDS_MAX,
    EarlierSnapshot,
    Mark,
    MarkedBy,
    MarkerKind,
    RunningTransactions,
    check_claimable,
)
from source_agent.engines.relations.shapes import Consistency, Shape
from source_agent.printable import counted, printable_row
from source_agent.scan.batches import Batch, Batches
from source_agent.scan.reader import ReadAgain, Reader

_VERSION: Final = 3  # of a mark's form
_DIGITS: Final = re.compile("-?[0-9]{1,20}")
_NO_MARKER: Final = "the source's DBA names no marker of this relation"


class KeyReader(Reader):
    """A `Reader` of keys, and of checksums if they are the marker; positions and hashes of the
    checksums take the place of fingerprints."""

    def _batch(
        self,
        block: Block,
        rows: Rows,  # noqa: ARG002 - keys are not hashed
        where: Positions,
    ) -> Batch:
        checksums = None
        if len(self.recipe.columns) > self.recipe.key_columns:
            checksums = _checksums(block, self.recipe.key_columns, self.salt)
        return Batch(block, where, mixed_keys(where, self.salt, checksums))

    def split(self, again: ReadAgain | None = None) -> None:
        """Return None: there is nothing to hash that processes could share."""


def key_reader(session: Session, reader: Reader, shape: Shape | None = None) -> KeyReader:
    """Return a reader of what a comparison by the marker reads of another reader's rows.

    shape: of these rows; None: that of the other reader.
    """
    return KeyReader(
        session,
        (shape or reader.shape).narrow(),
        fragment_key=reader.fragment_key,
        salt=reader.salt,
        tally=reader.tally,
    )


class TooManyRowsBehind(Exception):
    """More than BEHIND_ROWS_MAX rows are behind a mark, or more than GONE_ROWS_MAX are gone."""


class RowsBehindMark:
    """The rows behind a mark: read once, and held if they fit in ROWS_HELD_BYTES.

    `positions`: of all of them, int64 [rows] ascending; `digest`: of the rows. Raises
    TooManyRowsBehind.
    """

    def __init__(self, marked: ExchangeMarker) -> None:
        self._marked, self.digest = marked, Digest()
        self._held: list[Batch] | None = []
        self._size = 0
        self.positions = _gathered(map(self._hold, marked.read()), BEHIND_ROWS_MAX)

    def _hold(self, batch: Batch) -> Batch:
        self._size += len(batch.block.buffer)
        if self._size > ROWS_HELD_BYTES:
            self._held = None
        if self._held is not None:
            self._held.append(batch)
        self.digest += batch.mixed.digest()
        return batch

    def __len__(self) -> int:
        return len(self.positions)

    def batches(self) -> Batches:
        """Yield the rows. Raises SnapshotLost if other rows are read the second time."""
        if self._held is not None:
            yield from self._held
            return
        digest = Digest()
        for batch in self._marked.read():
            digest += batch.mixed.digest()
            yield batch
        self._marked.reader.check_snapshot(digest == self.digest)

    def holds(self, where: Positions) -> Bools:
        """Return which of these positions, int64 [n], are behind the mark: bool [n]."""
        return _among(where, self.positions)


@dataclass(slots=True)
class ExchangeMarker:
    """The marker of a relation in one exchange.

    `theirs`: the mark to read from, None if it does not fit; `why`: then the reason. `next`: for
    the next exchange, empty if there is none. `rows`: read by the marker. `counted`: the database
    compared the keys. `future`: rows with a time that is yet to come. `open_s`: a transaction is
    open for so long, which is longer than `late` allows; 0: none is known. `claimed`: no keys are
    compared, where the mark fits.
    """

    reader: Reader
    keys: KeyReader
    next: bytes = b""
    why: str = ""
    theirs: Mark | None = None
    rows: int = 0
    counted: bool = False
    future: int = 0
    open_s: float = 0.0
    claimed: bool = False
    _session: Session | None = None
    _gone: Positions | None = None  # rows behind the audited mark, int64 ascending
    _behind: Positions | None = None  # the audited mark, int64 ascending
    _generation: int = 0  # of the snapshot in which the rows behind the mark were read
    _unmarked: list[tuple[Positions, U64, U64]] = field(default_factory=list)
    _unmarked_rows: int = 0
    _hash_max: int = MASK64  # of rows that may be among the least

    @property
    def marked_by(self) -> MarkedBy | None:
        """The marker, as the database describes it; None: there is none."""
        return self.reader.shape.marker

    @property
    def checksum(self) -> str:
        """The column with a checksum of each row, if that is the marker; else empty."""
        marked = self.marked_by
        is_checksum = marked is not None and marked.kind is MarkerKind.CHECKSUM
        return marked.marker.column if marked is not None and is_checksum else ""

    @property
    def _reads(self) -> MarkerReads:
        markers = None if self._session is None else self._session.capabilities.markers
        assert markers is not None, "an engine that describes a marker reads by it"
        return markers

    def read(self) -> Batches:
        """Yield the rows behind the mark."""
        assert self.theirs is not None, "a mark that does not fit is not read from"
        if self.checksum and self.marked_by is not None and not self.marked_by.nullable:
            return  # every row has one
        rows = self._reads.read_marked(self.reader.shape, self.theirs)
        self.rows = 0  # they may be read again
        for batch in self.reader.batches(rows):
            self.rows += len(batch.positions)
            yield batch

    def behind(self) -> RowsBehindMark | None:
        """Return the rows behind the mark; None: too many, so that it cannot be used."""
        assert self._session is not None, "a mark that fits is of a session"
        try:
            behind = RowsBehindMark(self)
            self._generation = self._session.snapshot.generation
            return behind
        except TooManyRowsBehind:
            self.theirs, self.rows, self.why = None, 0, _too_many()
        return None

    def gone(self, mark: Mark) -> Positions:
        """Return the positions of the rows behind a mark that the relation has no more, int64 [n]
        ascending. Raises TooManyRowsBehind; ValueDoesNotFit: a flag among them is wrong."""
        assert self._session is not None, "a mark that fits is of a session"
        shape = self.reader.shape.gone()
        if shape is None:
            return np.zeros(0, np.int64)
        keys = key_reader(self._session, self.reader, shape)
        where = _gathered(keys.batches(self._reads.read_marked(shape, mark)), GONE_ROWS_MAX)
        if len(where) and (wrong := self.reader.shape.misflagged()) is not None:
            self._refuse_misflagged(self._reads.read_marked(wrong, mark))
        return where

    def check_flags(self) -> None:
        """Raise ValueDoesNotFit, with a key, if the flag of a row is NULL, or neither 0 nor 1."""
        if self._session is not None and (wrong := self.reader.shape.misflagged()) is not None:
            self._refuse_misflagged(self._session.scan(wrong))

    def _refuse_misflagged(self, rows: Iterable[Rows]) -> None:
        shape = self.reader.shape
        first = None
        for batch in rows:  # to the end: the session goes on
            first = first or next(iter(batch), None)
        if first is None:
            return
        assert shape.marker is not None, "a flag is a marker's"
        flag, keys = shape.marker.marker.deleted, shape.keys().recipe
        key = printable_row(first, keys)
        raise ValueDoesNotFit(
            f"The flag of deleted rows, {flag!r}, is NULL, or neither 0 nor 1, in the row with key"
            f" {key}.",
            where=shape.relation.name,
            remedy="Mend the row, and have the database refuse such values (NOT NULL, CHECK).",
            abroad=OPEN,
        )

    def changes(self) -> tuple[RowsBehindMark, Positions] | None:
        """Return the rows behind the mark, and the positions of those that are gone, int64 [n]
        ascending; None: the mark cannot be used, and `why`."""
        if (mark := self.theirs) is None or (behind := self.behind()) is None:
            return None
        try:
            return behind, self.gone(mark)
        except TooManyRowsBehind:
            what = counted(GONE_ROWS_MAX, "deleted row")
            self.theirs, self.rows, self.why = None, 0, f"more than {what} are behind the mark"
        return None

    def hash_keys(self, seed: int) -> tuple[int, int] | None:
        """Return the number of rows, and the sum of the database's hashes of their keys; None if it
        cannot make them. `seed` has 64 signed bits."""
        assert self._session is not None
        hash_keys, plan = self._session.capabilities.hash_keys, self.reader.shape.plan
        if hash_keys is None or plan is None or not plan.key_hash:
            return None
        try:
            count_and_sum = hash_keys(self.reader.shape, seed)
        except DatabaseRefused:  # the login may not call the function
            return None
        self.counted = True
        self.reader.tally.rows_read += count_and_sum[0]
        return count_and_sum

    def audit(self, behind: Positions) -> None:
        """Name rows that are sent from now on and are not behind the mark.

        behind: the positions of those that are, int64 [n] ascending.
        """
        self._behind = behind

    def count_future(self) -> None:
        """Count the rows whose time is yet to come: they are read each time, and hide a mistake."""
        if self.marked_by is not None and self.marked_by.is_time:
            self.future = self._reads.count_future(self.reader.shape)

    def note_sent(self, batch: Batch) -> None:
        """Note rows that are sent in an audit, and are not behind the audited mark."""
        if self._behind is None:
            return
        chosen, hashes = ~_among(batch.positions, self._behind), batch.mixed.m0
        self._unmarked_rows += int(np.count_nonzero(chosen))
        chosen &= hashes <= np.uint64(self._hash_max)
        where, narrow = batch.positions[chosen], np.zeros(0, np.uint64)
        if self.checksum:
            names = [column.name for column in self.reader.recipe.columns]
            checksums = _checksums(batch.block, names.index(self.checksum), self.reader.salt)
            narrow = mixed_keys(where, self.reader.salt, checksums[chosen]).m0
        self._unmarked.append((where, hashes[chosen], narrow))
        if sum(len(noted[0]) for noted in self._unmarked) > 2 * UNMARKED_ROWS_MAX:
            self._sample()

    def _sample(self) -> None:
        """Keep those UNMARKED_ROWS_MAX of the noted rows that have the least hashes: the hashes are
        salted, so that any rows are as likely as others."""
        if not self._unmarked:
            return
        where, hashes, narrow = map(np.concatenate, zip(*self._unmarked, strict=True))
        if len(where) > UNMARKED_ROWS_MAX:
            least = np.argpartition(hashes, UNMARKED_ROWS_MAX - 1)[:UNMARKED_ROWS_MAX]
            where, hashes = where[least], hashes[least]
            narrow = narrow[least] if len(narrow) else narrow
            self._hash_max = int(hashes.max())
        self._unmarked = [(where, hashes, narrow)]

    def message(self, *, by_marker: bool) -> pb.Marked:
        """Return how the marker was used, for the end of an exchange."""
        self._sample()
        plan, named = self.reader.shape.plan, list(zip(*self._unmarked, strict=True))
        none = np.zeros(0, np.uint64)
        where, hashes, narrow = named or ([none.view(np.int64)], [none], [none])
        return pb.Marked(
            mark=self.next,
            why=self.why,
            by_marker=by_marker,
            rows=self.rows,
            hashes=plan is not None and bool(plan.key_hash),
            counted=self.counted and by_marker,
            positions=np.concatenate(where).astype("<i8").tobytes(),
            row_hashes=np.concatenate(hashes).astype("<u8").tobytes(),
            unmarked=self._unmarked_rows,
            audited=self._is_audited(),
            future=self.future,
            open_s=self.open_s,
            checksum=self.checksum if self.next else "",
            checksums=np.concatenate(narrow).astype("<u8").tobytes(),
            claimed=self.claimed and by_marker,
            gone=b"" if self._gone is None else self._gone.astype("<i8").tobytes(),
        )

    def _is_audited(self) -> bool:
        """Return True if the keys behind the audited mark and all rows are of one snapshot: else
        what a writer changed in between looks like rows that the marker missed."""
        if self._behind is None or self._session is None:
            return False
        is_exact = self.reader.consistency is Consistency.EXACT  # else honest writers are blamed
        return is_exact and self._session.snapshot.generation == self._generation


def begin(session: Session, reader: Reader, asked: pb.Since) -> ExchangeMarker:
    """Read the mark of this snapshot, and find out whether the warehouse's one can be used.

    For an audit, the keys behind the audited mark are read.
    """
    if why := _unusable(reader.shape):
        bare = replace(reader.shape, marker=None)
        return ExchangeMarker(reader, key_reader(session, reader, bare), why=why)
    if asked.claimed:
        assert reader.shape.marker is not None, "a relation without a marker is compared"
        name = reader.shape.relation.name
        check_claimable(name, reader.shape.marker, vouched=reader.shape.vouched)
    keys = key_reader(session, reader)
    result = ExchangeMarker(reader, keys, claimed=asked.claimed, _session=session)
    try:
        now = result._reads.mark(reader.shape)
    except DriftlineError as error:
        if error.is_retryable:
            raise
        result.why = f"the database does not tell the mark: {error.message}"
        return result
    body, mark = _body(now, reader.shape), asked.mark or asked.audited
    fits = _fitting(mark, body, reader.shape)
    marked = reader.shape.marker
    assert marked is not None, "a relation without a marker has no mark"
    if marked.is_time and (ask := session.capabilities.running) is not None:
        before = _earlier(mark) if isinstance(fits, Mark) else None
        running, as_of = ask(), session.snapshot.as_of
        since = running.open_since(as_of, before)
        body |= _running(EarlierSnapshot(running, as_of, since))
        result.open_s = _too_long(since, as_of, marked)
    result.next = json.dumps(body, separators=(",", ":")).encode()
    if len(result.next) > MARK_BYTES_MAX:
        result.next, result.why = b"", "the mark is too long: the table has too many partitions"
        return result
    if not isinstance(fits, Mark):
        result.why = fits
    elif asked.mark and bool(result.checksum) is not asked.checksums:
        result.why = "the warehouse's agent is older than checksums"
    elif asked.mark:
        result.theirs = fits
    elif reader.consistency is Consistency.EXACT:  # else an audit could blame honest writers
        rows = result._reads.read_marked(reader.shape.narrow(), fits)
        try:
            result.audit(_gathered(result.keys.batches(rows), BEHIND_ROWS_MAX))
            if asked.claimed:
                result._gone = result.gone(fits)
            result._generation = session.snapshot.generation
        except TooManyRowsBehind:
            result._behind, result.why = None, _too_many()
    if result.theirs is None:
        result.count_future()  # else once it is known that rows are behind the mark
        if asked.claimed:
            result.check_flags()
    return result


def _too_many() -> str:
    return f"more than {counted(BEHIND_ROWS_MAX, 'row')} are behind the mark"


def _unusable(shape: Shape) -> str:
    """Return why a relation has no marks; empty: it has."""
    marked = shape.marker
    if marked is None:
        return _NO_MARKER
    chosen = {column.name for column in shape.recipe.columns}
    if marked.kind is MarkerKind.CHECKSUM and marked.marker.column not in chosen:
        return "the checksum is not among the columns that the warehouse chose"
    return ""


def _checksums(block: Block, place: int, salt: Salt) -> U64:
    """Return the hash of the checksum of each row, which is the column at `place`, uint64 [n]."""
    starts, lengths = value_spans(block, place + 1)[-1]
    return checksum_hashes(block.buffer, starts, lengths, salt)


def _body(mark: Mark, shape: Shape) -> dict[str, object]:
    marked = shape.marker
    assert marked is not None, "a relation without a marker has no mark"
    return {
        "version": _VERSION,
        "relation": shape.relation.name,
        "rows": _rows_of(shape),
        "recipe": shape.recipe.id.hex(),
        "marker": marked.identity,
        "source": mark.source,
        "definition": mark.definition,
        "at": mark.at,
    }


def _rows_of(shape: Shape) -> str:
    """Return what decides which rows a relation has."""
    relation, plan = shape.relation, shape.plan
    where = plan.where if plan is not None else ""
    return f"{relation.table or relation.query} {where}".strip()


_DIFFERS: Final = {
    "version": "another release of the source agent made the mark",
    "relation": "the mark is of another relation",
    "rows": "the source's DBA changed which rows the relation has",
    "recipe": "the mark is of other columns",
    "marker": "the source's DBA changed the marker",
    "source": "the mark is of another database or table, or from before a restart, a restore or"
    " a fail-over",
    "definition": "a table, a column or an expression that the relation reads was changed or"
    " replaced",
}


def _running(now: EarlierSnapshot) -> dict[str, object]:
    """Return what a mark keeps of the transactions that were open."""
    return {
        "open": [now.running.oldest, now.running.next],
        "as_of": now.as_of,
        "since": now.since,
    }


def _earlier(data: bytes) -> EarlierSnapshot | None:
    """Return what a mark that fits says of the transactions that were open; None: nothing."""
    theirs = json.loads(data)
    try:
        oldest, next_one = theirs["open"]
        as_of, since = theirs["as_of"], theirs["since"]
        datetime.fromisoformat(as_of), datetime.fromisoformat(since)
    except (ValueError, KeyError, TypeError):
        return None
    if type(oldest) is not int or type(next_one) is not int:
        return None
    return EarlierSnapshot(RunningTransactions(oldest, next_one), as_of, since)


def _too_long(since: str, as_of: str, marked: MarkedBy) -> float:
    """Return how long a transaction is open, in seconds; 0: not longer than `late`."""
    open_s = (datetime.fromisoformat(as_of) - datetime.fromisoformat(since)).total_seconds()
    return open_s if open_s > (marked.marker.late_s or 0.0) else 0.0


def _fitting(data: bytes, ours: Mapping[str, object], shape: Shape) -> Mark | str:
    """Return the warehouse's mark, or why it cannot be used; empty: none came.

    data: the bytes that came; ours: the mark of this snapshot.
    """
    if not data:
        return ""
    try:
        theirs = json.loads(data)
        at, source = theirs["at"], theirs["source"]
    except (ValueError, KeyError, TypeError):
        return "the mark is damaged"
    if not isinstance(at, str) or not isinstance(source, str):
        return "the mark is damaged"
    for key, why in _DIFFERS.items():
        if theirs.get(key) != ours[key]:
            return why
    mark, marked, now = Mark(source, at), shape.marker, str(ours["at"])
    assert marked is not None, "a relation without a marker has no mark"
    if _form(at) != _form(now):
        return "the mark is damaged"
    if _is_later(mark, now, marked):
        return "the mark is later than the database's clock, or its newest row, is now"
    if _is_long_ago(at, now, shape):
        return "too many transactions have begun since the mark"
    return mark


def _is_long_ago(at: str, now: str, shape: Shape) -> bool:
    """Return True if the numbers of transactions behind a mark cannot be told from older ones."""
    is_xmin = shape.marker is not None and shape.marker.kind is MarkerKind.XMIN
    return is_xmin and int(now) - int(at) > XIDS_MAX


def _form(at: str) -> str:
    """Return the form of a mark: marks of one marker differ in digits, and numbers in the sign."""
    return _DIGITS.sub("0", at)


def _is_later(mark: Mark, now: str, marked: MarkedBy) -> bool:
    """Return True if a mark passes the one of this snapshot, as after a restore.

    Raises ValueError: its values are not those of the markers.
    """
    pairs = zip(mark.each(marked), Mark("", now).each(marked), marked.each, strict=True)
    return any(_passes(at, other, one) for at, other, one in pairs)


def _passes(at: str, now: str, marked: MarkedBy) -> bool:
    if marked.is_time or marked.kind is MarkerKind.CHECKSUM:
        return at > now  # times, in one form that sorts by their bytes
    return int(at) > int(now)


def _gathered(batches: Iterable[Batch], rows_max: int) -> Positions:
    """Return the positions of all rows, int64 [rows] ascending. Raises TooManyRowsBehind."""
    parts, rows = [np.zeros(0, np.int64)], 0
    for batch in batches:
        rows += len(batch.positions)
        if rows > rows_max:
            raise TooManyRowsBehind
        parts.append(batch.positions)
    every = np.concatenate(parts)
    every.sort()  # in place: no third array
    return every


def _among(where: Positions, named: Positions) -> Bools:
    """Return which positions, int64 [n], are among the named, int64 [m] ascending."""
    if not len(named):
        return np.zeros(len(where), np.bool_)
    at = np.minimum(np.searchsorted(named, where), len(named) - 1)
    is_named: Bools = named[at] == where
    return is_named
