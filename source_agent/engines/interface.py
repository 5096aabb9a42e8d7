"""The interface that every database engine implements: `Engine`, `Session` and its `Capabilities`.

An `Engine` opens `Session`s. A session is one read-only snapshot of one database. It yields *row
bytes* (protocol, section 3) in batches and knows nothing of fingerprints, messages or the network.

Invariants: identifiers come from the DBA's file and the catalogue alone and are quoted by the
engine; values from the network (key bounds, keys, literals of derivations) are bound, never
formatted; every statement that a session can issue is one of the `templates` that `explain` prints.

Rejected: SQLAlchemy's Core for the reads. It decodes every value, which costs three times the scan
and rounds some types.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from driftline.arrays import U64, Positions
from driftline.limits import DATABASE_SILENCE_S
from driftline.relations.activity import Activity
from driftline.relations.derivations import Derivation
from driftline.relations.references import Reference
from driftline.rows.key_order import Key, KeyRange

from source_agent.engines.relations.markers import Mark, RunningTransactions
from source_agent.engines.relations.predicates import Compare, JoinedRelation, Within
from source_agent.engines.relations.shapes import Consistency, Relation, Shape

# A batch is closed at whichever limit is reached first.
BATCH_ROWS = 4_096  # numpy is efficient, and the rows stay in the cache
BATCH_BYTES = 2 << 20
BATCH_S = 1.0  # rows that come slowly are counted and shown in time

Rows = list[bytes]


class LocatedRows(Rows):
    """Rows of a scan, and where each lies in the snapshot: `locators`, uint64 [rows]."""

    __slots__ = ("locators",)

    def __init__(self, rows: Rows, locators: U64) -> None:
        super().__init__(rows)
        self.locators = locators


Ask = Callable[..., list[tuple[Any, ...]]]  # a session's `ask`: an SQL text, then its values


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A time limit of a session, under the database's name. `is_idle`: it ends idle sessions."""

    name: str
    seconds: float
    is_idle: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """The DBA's budgets for one session, in seconds; None is no limit.

    `silence_s`: the longest time in which a database that is being read may deliver nothing.
    """

    statement_s: float | None = None
    lock_s: float = 5.0
    idle_s: float = 120.0
    connect_s: float = 10.0
    silence_s: float = DATABASE_SILENCE_S

    @property
    def of_statements(self) -> Sequence[TimeLimit]:
        """Return the limit of a statement that the agent itself enforces; none if there is none."""
        if self.statement_s is None:
            return ()
        return (TimeLimit("statement_timeout_s", self.statement_s, is_idle=False),)


@dataclass(frozen=True, slots=True)
class Privilege:
    """A privilege of the login, for `check`. `excess`: more than SELECT on what is published.

    `is_note`: more than that, but not for this login alone, or only needed at times: nothing that
    should be taken away without asking whom else it serves.
    `is_unknown`: the engine cannot read privileges, nor keep a session from writing: only the login
    does.
    """

    what: str
    excess: bool
    is_unknown: bool = False
    is_note: bool = False


class Pulse:
    """The last time a database delivered something: a row, some bytes, the end of a statement.

    The reading thread writes it, another looks at it. `at`: seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.at = time.monotonic()

    def beat(self) -> None:
        """Record that the database delivered something now."""
        self.at = time.monotonic()


@dataclass(frozen=True, slots=True)
class DatabaseTime:
    """Seconds that a thread waited for the database, of its own CPU, and without a processor."""

    waited_s: float = 0.0
    worked_s: float = 0.0
    queued_s: float = 0.0

    @property
    def read_s(self) -> float:
        """All of them: what the read took, without what it waited for others."""
        return self.waited_s + self.worked_s + self.queued_s


@dataclass(frozen=True, slots=True)
class Listed:
    """A table or view of the database, for `init`; `table` is its name as source.toml has it.

    `key`: the columns of a unique index, all NOT NULL, if there is one and no primary key.
    `unread`: why it cannot be read, and what to do, where its name alone says so; else empty.
    """

    schema: str
    name: str
    table: str
    key: tuple[str, ...] = ()
    unread: str = ""


class MarkedRead(Enum):
    """The way in which a database finds the rows behind a recent mark, the cheapest first."""

    COVERING = "by an index alone"
    INDEX = "by an index, then the table"
    SCAN = "by a scan of the table"


@dataclass(frozen=True, slots=True)
class KeysRead:
    """The way in which a database reads the keys of all rows, and the statement by which its owner
    makes an index do alone; empty: one does, or none can be named."""

    way: MarkedRead
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about the server of a session; empty and 0: not known, or there is none.

    `release`: its product and release, such as `MySQL 9.7.4`. `pooler`: the effect of a connection
    pooler in front of it, as text. `backend`: the number of the process that works for this session
    alone. `holds_back`: the work that waits for the end of a snapshot, as text.
    """

    release: str = ""
    pooler: str = ""
    backend: int = 0
    holds_back: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """State of a session's snapshot. The session has another one when that changes.

    `as_of`: its time, ISO 8601, UTC, by the database's clock. `consistency` of everything read so
    far: FUZZY as soon as one row is from elsewhere. `generation` grows when the session's next
    reads see other data than the last ones; `as_of` is another one then.
    """

    as_of: str = ""
    consistency: Consistency = Consistency.EXACT
    generation: int = 0


class MarkerReads(Protocol):
    """Reads by markers, for the relations whose shape has one (`engines.relations.markers`)."""

    def identity(self) -> Mapping[str, str]:
        """Return what tells this database from another one, by names for people; empty: nothing.

        A mark carries it. Raises DatabaseRefused: the login may not ask for it.
        """

    def mark(self, shape: Shape) -> Mark:
        """Return the mark of what this snapshot shows of a relation.

        It never passes what a later snapshot may still show for the first time, as far as the
        marker's promises hold. Raises DatabaseRefused: the login may not ask for it.
        """

    def read_marked(self, shape: Shape, mark: Mark) -> Iterator[Rows]:
        """Yield the rows behind a mark, and those without a marker. Raises as `Session.scan`."""

    def marked_read(self, shape: Shape) -> MarkedRead | None:
        """Return how the rows behind a recent mark would be found, from EXPLAIN, for `check`.

        None: the database does not tell. Raises DatabaseRefused: a column is not granted.
        """

    def keys_read(self, shape: Shape) -> KeysRead | None:
        """Return how the keys of all rows would be read, from EXPLAIN, for `check`.

        None: the database does not tell. Raises DatabaseRefused: a column is not granted.
        """

    def count_future(self, shape: Shape) -> int:
        """Return the number of rows whose time is later than the snapshot's, by a minute and more.

        Only for a marker that is a time column. Raises as `Session.scan`.
        """


class ReadBetween(Protocol):
    """A read of ranges of the whole key, for relations that are not `unordered`."""

    def __call__(
        self, shape: Shape, within: KeyRange, /, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        """Yield the rows whose keys lie in a range, by an index of the whole key.

        The database's own order decides. Ranges that follow each other miss no row: one with a NULL
        in its key comes with one of them. Raises as `Session.scan`.

        Args:
            within: bounds in canonical string forms.
            rows_max: as in `Session.read_ranges`.
        """


class ReadKeys(Protocol):
    """A read by keys, for relations that are `keyed`, or `vouched` and not `unordered`."""

    def __call__(
        self, shape: Shape, keys: Sequence[Key], /, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        """Yield the rows with these keys, each by a search of an index. Raises as `Session.scan`.

        Where the database takes more values for equal than those of the same bytes, rows with other
        keys may be among them.

        Args:
            keys: in canonical string forms, none twice.
            rows_max: as in `Session.read_ranges`.
        """


@dataclass(frozen=True, slots=True)
class Unlocated:
    """The reason why rows of a relation have no locators, and what the DBA may do about it, if
    anything; without names of tables."""

    why: str
    remedy: str = ""


class LocatorReads(Protocol):
    """Reads of rows by where they lie, which a scan of the same snapshot told.

    A locator is a number of 64 bits that the engine alone understands. It is of no use in another
    snapshot.
    """

    def locate(self, shape: Shape, /) -> Shape | Unlocated:
        """Return the relation with locators: its `scan`, and its `split`, yield `LocatedRows`.

        The rows are those of a scan without, byte by byte. Raises as `Session.scan`.
        """

    def read_located(self, shape: Shape, locators: U64, /) -> Iterator[Rows]:
        """Yield the rows at these locators, of a shape that `locate` returned. Raises as
        `Session.scan`.

        A locator at which the snapshot has no row yields none: the caller counts.

        Args:
            locators: uint64 [n], ascending, none twice.
        """


class HashKeys(Protocol):
    """Hashes of all keys, by the database, for relations whose plan has a `key_hash`."""

    def __call__(self, shape: Shape, seed: int, /) -> tuple[int, int]:
        """Return the number of rows, and the sum modulo 2^64 of the hashes of their keys (protocol,
        section 6). `seed` has 64 signed bits. Raises DatabaseRefused: the login may not hash."""


class SplitScan(Protocol):
    """A scan in parts."""

    def __call__(self, shape: Shape, /, *, rows_max: int | None = None) -> Split | None:
        """Return the scan in parts of about `rows_max` rows at most.

        None if only `scan` can read the relation, or if it is too small to be worth it.
        """


@dataclass(frozen=True, slots=True)
class Capabilities:
    """List what a session can do beyond `Session`; None: it cannot, and its caller does without.
    What comes together is one object, the rest are functions.

    An engine names what it has, so it need not follow when a field is added. Shapes promise nothing
    that is not here; the conformance suite compares them.

    `activities`: the activity of relations, by name, from before the snapshot began
    (`Engine.open`); empty: none is known. `running`: return the transactions that are open in this
    snapshot. `references`: return the foreign keys of a described relation to relations of a list,
    and name nothing else (`foreign_keys`). `compare`: return a comparison of a derivation as SQL.
    `within`: return a join of a derivation as SQL.
    """

    activities: Mapping[str, Activity] = field(default_factory=dict)
    markers: MarkerReads | None = None
    running: Callable[[], RunningTransactions] | None = None
    read_between: ReadBetween | None = None
    read_keys: ReadKeys | None = None
    hash_keys: HashKeys | None = None
    split: SplitScan | None = None
    references: Callable[[Shape, Sequence[Relation]], tuple[Reference, ...]] | None = None
    compare: Compare | None = None
    within: Within | None = None
    locators: LocatorReads | None = None


class Session(Protocol):
    """One read-only snapshot. Not thread-safe, except `interrupt` and `answers`. Close it.

    These members every engine has. What only some can do is in `capabilities`.
    """

    @property
    def server(self) -> ServerFacts:
        """Facts about the server."""

    @property
    def snapshot(self) -> SnapshotState:
        """The state of the snapshot now."""

    @property
    def pulse(self) -> Pulse:
        """The pulse that beats when the database delivers something."""

    @property
    def time_limits(self) -> Sequence[TimeLimit]:
        """Time limits in force: of each kind the tighter of the login's and source.toml's."""

    @property
    def capabilities(self) -> Capabilities:
        """Return what this session can do beyond these members."""

    def answers(self, within_s: float) -> bool:
        """Return True if the server answers a new connection within about `within_s` seconds.

        Another thread calls it while this session waits, to tell a busy server from a dead one.
        """

    def describe(self, relation: Relation) -> Shape:
        """Return the relation as it is now.

        Raises:
            ConfigurationError: no such table, column or key, or a type refused by name.
            DatabaseRefused: SELECT is not granted.
        """

    def derive(
        self, shape: Shape, derivation: Derivation, joins: Sequence[JoinedRelation] = ()
    ) -> Shape:
        """Return the columns and rows of a described relation that a derivation chooses.

        joins: the relations whose rows may choose its rows, described in this session.

        Raises:
            DerivationRefused: a column that it lacks, or does not compare so.
            LimitExceeded, MalformedMessage: the derivation is too large, or none.
        """

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        """Yield every row once, in batches; if `ordered`, by ascending integer key.

        NULL keys are passed on: the caller finds and refuses them. An engine that sorts nothing
        takes `ordered` only for a shape that is `ordered`.

        Raises:
            ValueDoesNotFit: a value that its declared type cannot hold; names column and key.
        """

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        """Yield the rows whose integer key lies in one of these ranges, by index. Raises as `scan`.

        Ranges that together cover every integer miss no row: a key that is no integer belongs to
        the range of the next smaller one, or to the range that begins at the least integer or ends
        at the greatest; one row with a NULL key comes with the range that begins at the least.

        Args:
            shape: a relation with `recipe.integer_key`.
            first, last: disjoint ranges, int64 [n] each, both inclusive.
            rows_max: it may end after more rows than that, so that the database does not read
                rows that the caller will not use.
        """

    def pause(self) -> None:
        """Prepare for a wait for the network: end the snapshot if readers block writers.

        `snapshot.generation` grows if the data has changed before the next read.
        """

    def interrupt(self) -> None:
        """End the running statement and every later one with an error in the reading thread.

        Any thread may call it, for a session that is not needed any more: call only `close` then,
        after this has returned. It returns within seconds, also if the server is dead. Raises
        nothing.
        """

    def close(self) -> None:
        """Close the connection, and with it the snapshot."""


class Split(Protocol):
    """A scan in parts, which several processes read in any order; together they are every row."""

    @property
    def session(self) -> Session:
        """The session that reads the parts."""

    @property
    def parts(self) -> int:
        """The number of parts."""

    @property
    def join(self) -> Callable[[], Split]:
        """A function that opens another session over the same snapshot, with the same parts.

        It can be pickled for another process. The snapshot lasts as long as the session that was
        split. The function raises DatabaseUnavailable or DatabaseRefused.
        """

    def read(self, part: int) -> Iterator[Rows]:
        """Yield the rows of one part, 0 ≤ part < parts. Raises as `Session.scan`."""

    def note(self, rows: int) -> None:
        """Note that another process has read `rows` more. Raises if the scan must end."""

    def spent(self, time: DatabaseTime) -> None:
        """Note what another process spent on a part; it may wait, and raises as `note`."""

    def wait(self) -> None:
        """Keep the session from being closed as idle while others read. Raises as `note`."""

    def finish(self) -> None:
        """Check, when all parts were read, what `scan` checks at its end. Raises as `scan`."""


class Engine(Protocol):
    """One database, named by the DBA's URL.

    Every method that asks the database raises DatabaseUnavailable or DatabaseRefused.
    """

    @property
    def name(self) -> str:
        """The engine's name, such as `postgresql`."""

    def open(self, probed: Sequence[Relation] = (), named: Sequence[Relation] = ()) -> Session:
        """Open a session with a new read-only snapshot.

        Before it the activity of `probed` is read, by one statement; an engine that knows none, or
        whose statement failed, says so or leaves it out. An engine whose snapshots do not keep the
        definitions of tables then locks those of `named`, which the session is to read, if it can:
        one that it cannot lock stops nothing until it is described. Others ignore `named`.
        """

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        """Return the login's privileges from the catalogues, without trying to write."""

    def scan_cost(self, shape: Shape) -> str:
        """Return one line on the cost of a full scan: rows, bytes and plan, from EXPLAIN."""

    def warnings(self, shape: Shape) -> list[str]:
        """Return a note for each column that can hold what a refresh refuses, for `check`."""

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int) -> str:
        """Return the least-privilege script that a DBA runs as herself.

        `connections` are allowed at once: two exchanges, a description, one to spare.
        """

    def listed(self) -> list[Listed]:
        """Return the tables and views of the database that are not the server's own, by name."""

    def attempts(self, relation: Relation) -> list[str]:
        """Return the SQL texts that describing a relation issues, even if it is refused."""

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        """Return every SQL text that this agent can issue for these relations, each once."""
