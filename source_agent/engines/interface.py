"""What the agent asks of a database, whatever the engine: the interface that engines implement.

An `Engine` opens `Session`s. A session is one read-only snapshot of one database: everything read
through it is of one instant where the engine can (`Consistency.EXACT`), and it says so where it
cannot. It yields *row bytes* (protocol, section 3) in batches and knows nothing of fingerprints,
messages or the network.

Invariants: identifiers come from the DBA's file alone and are quoted by the engine; values from the
network (key bounds, keys) are bound, never formatted; every statement a session can issue is one of
the `templates` that `explain` prints.

Rejected: SQLAlchemy's Core for the reads. It decodes every value, which costs three times the scan
and rounds some types; it is used for what it is good at, connection URLs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from driftline.arrays import Positions
from driftline.limits import DATABASE_SILENCE_S
from driftline.ranges import POSITION_MIN
from driftline.types import Column, DeclaredType, Recipe

from source_agent.engines.row_security import RowSecurity

BATCH_ROWS = 4_096  # rows hashed and added up at once: numpy is efficient, the rows stay in cache
BATCH_BYTES = 2 << 20  # a batch is closed here when rows are wide
BATCH_S = 1.0  # and here when they come slowly: what was read is counted and seen

Rows = list[bytes]
Ask = Callable[..., list[tuple[Any, ...]]]  # a session's `ask`: an SQL text, then its values


class Consistency(Enum):
    """Whether what a session reads is of one instant."""

    EXACT = "exact"
    FUZZY = "fuzzy"


class Fingerprint(Enum):
    """Who makes what stands for a row while relations are compared (protocol, section 5)."""

    AGENT = "agent"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class Relation:
    """What the DBA published under a name: a table, or a SELECT of hers. Exactly one is set.

    `key` and `columns` are None where the file leaves them to the primary key and to all columns.
    `as_text` names columns read as the engine's own text (SQLite: tagged with the storage class).
    `types` overrides declared types where an engine cannot tell (expressions in SQLite).
    """

    name: str
    table: str | None = None
    query: str | None = None
    key: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    as_text: tuple[str, ...] = ()
    types: tuple[tuple[str, str], ...] = ()
    fingerprint: Fingerprint = Fingerprint.AGENT


@dataclass(frozen=True, slots=True)
class Limits:
    """The DBA's budgets for one session; None is no limit.

    `silence_s`: the longest time in which a database that is being read delivers nothing.
    """

    statement_s: float | None = None
    lock_s: float = 5.0
    idle_s: float = 120.0
    connect_s: float = 10.0
    silence_s: float = DATABASE_SILENCE_S


@dataclass(frozen=True, slots=True)
class Plan:
    """How an engine's own module reads a relation. Nobody else looks inside.

    `source` is the SQL after FROM; `where` a condition or empty. `reads` and `forms` go with the
    recipe's columns: the read expression, and how its raw result becomes the value's bytes.
    `pages` are NOT NULL columns, together unique, by which the relation can be read in pages.
    `consistency` is what the tables involved allow, before anything else happens. `row_hash` is the
    expression of a row's hash where the database makes fingerprints, `seed` what it begins with.
    """

    source: str
    where: str = ""
    reads: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    consistency: Consistency = Consistency.EXACT
    row_hash: str = ""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A relation as the database describes it now, and how it is best read.

    `vouched`: a NOT NULL unique constraint covers the key, so neither NULLs nor duplicates exist.
    `ordered`: reading in key order costs no more than reading in any order.
    `indexed`: `read_ranges` finds the rows by index (only with an integer key).
    `rows_expected`: the engine's own estimate, for progress only; 0 is unknown.
    `notes`: what a DBA or an engineer should know (columns read as text and why), for `check`.
    `row_security`: None where the engine has none.
    """

    relation: Relation
    recipe: Recipe
    vouched: bool
    ordered: bool
    rows_expected: int
    indexed: bool
    notes: tuple[str, ...] = ()
    plan: Plan | None = None
    row_security: RowSecurity | None = None

    def hashed(self, seed: int) -> Shape:
        """The relation as its key columns and each row's hash under a seed of 64 signed bits: an
        int8 named `driftline_hash`. Only where the database makes fingerprints."""
        plan = self.plan
        assert plan is not None, "a relation is read by the engine that described it"
        assert plan.row_hash, "this database makes no fingerprints"
        keys = self.recipe.key_columns
        columns = (*self.recipe.key, Column("driftline_hash", DeclaredType("int8"), nullable=False))
        return replace(
            self,
            recipe=Recipe(columns, keys),
            plan=replace(plan, reads=(*plan.reads[:keys], plan.row_hash), seed=seed),
        )

    def may_be_null_in(self, first: Positions) -> bool:
        """Whether ranges that begin at these keys take in a key that is NULL: it stands before
        every integer, where no constraint vouches that there is none."""
        return not self.vouched and bool((first == POSITION_MIN).any())


@dataclass(frozen=True, slots=True)
class Privilege:
    """One thing the login may do, for `check`. `excess`: more than SELECT on what is published."""

    what: str
    excess: bool


class Pulse:
    """When a database last delivered something: a row, some bytes, the end of a statement.

    Written by the thread that reads, looked at by another. `at`: seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.at = time.monotonic()

    def beat(self) -> None:
        self.at = time.monotonic()


@dataclass(frozen=True, slots=True)
class Listed:
    """A table or view of the database, for `init`.

    `table` is its name as source.toml has it. `key` are the columns of a unique index that are all
    NOT NULL, where there is no primary key; empty: there is none, or a primary key.
    """

    schema: str
    name: str
    table: str
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A limit that a session is under, by the database's own name for it. `is_idle`: it ends a
    session from which nothing comes."""

    name: str
    seconds: float
    is_idle: bool


class Session(Protocol):
    """One read-only snapshot. Not thread-safe but for `interrupt`. Close it."""

    @property
    def consistency(self) -> Consistency:
        """Of everything read so far: FUZZY from the first row on that was not of one instant."""

    @property
    def as_of(self) -> str:
        """The instant of the snapshot: ISO 8601, UTC, by the database's clock."""

    @property
    def time_limits(self) -> Sequence[TimeLimit]:
        """The limits of time in force: of each kind the tighter one of what the database has for
        this login and what source.toml says."""

    @property
    def pulse(self) -> Pulse:
        """Beats when the database delivered something."""

    def answers(self, within_s: float) -> bool:
        """Return True if its server answers a new connection within about so many seconds.

        Called from another thread, while this session waits. A busy server answers, a dead one
        does not.
        """

    def describe(self, relation: Relation) -> Shape:
        """The relation as it is now.

        Raises:
            ConfigurationError: no such table, column or key, or a type refused by name.
            DatabaseRefused: SELECT is not granted.
        """

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        """Every row once, in batches; with `ordered`, by ascending integer key.

        Raises:
            ValueDoesNotFit: a value that its declared type cannot hold; names column and key.
            NullKey: never here; NULLs are passed on and found by the caller.
        """

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        """Rows whose integer key lies in one of the disjoint ranges [first, last], both inclusive,
        by index. Only where `shape.recipe.integer_key`. With `rows_max` it may end when more than
        so many rows have come, so that the database does not read what nobody wants.

        Ranges that cover every integer miss no row, whatever its key: what is no integer lies in
        the range below the next one, or in that which ends at the greatest, and of rows without a
        key one comes with the range that begins at the least (`Shape.may_be_null_in`).

        Raises: as `scan`."""

    def split(self, shape: Shape, *, rows_max: int | None = None) -> Split | None:
        """The scan in parts, of about `rows_max` rows at most; None: only `scan` can read it, or
        it is too small to be worth it."""

    def pause(self) -> None:
        """The caller is about to wait for the network. Where readers block writers the snapshot is
        given up here (and `generation` counts on if the data changed before the next read)."""

    @property
    def generation(self) -> int:
        """Grows when what is read now is no longer what was read before."""

    def interrupt(self) -> None:
        """From another thread: ends what is running, and what would run next, with an error there.

        For a session that nobody needs any more; only `close` is left to do with it, and must not
        be called before this returns. It returns within seconds, also when the server is dead, and
        ends the wait of the thread that reads. Raises nothing; does nothing where nothing runs.
        """

    def close(self) -> None: ...


class Split(Protocol):
    """One scan in parts that together are every row once, whoever reads which, in any order."""

    @property
    def session(self) -> Session: ...

    @property
    def parts(self) -> int: ...

    @property
    def join(self) -> Callable[[], Split]:
        """Opens a session of its own over the same snapshot, with the same parts. It can be pickled
        for another process; the snapshot lasts as long as the session that was split.

        Raises:
            DatabaseUnavailable, DatabaseRefused.
        """

    def read(self, part: int) -> Iterator[Rows]:
        """As `Session.scan`, of one part, 0 ≤ part < parts."""

    def note(self, rows: int) -> None:
        """So many more rows were read elsewhere. Raises what ends a scan between two batches."""

    def wait(self) -> None:
        """Nothing is read here while others read, and no statement runs: the session is kept from
        being taken for idle. Raises as `note`."""


class Engine(Protocol):
    """One database, named by the DBA's URL."""

    @property
    def name(self) -> str: ...

    def open(self) -> Session:
        """A new read-only snapshot.

        Raises:
            DatabaseUnavailable: it does not answer. DatabaseRefused: it refuses the login.
        """

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        """What the login may do, from the privilege catalogues; it never tries to write."""

    def scan_cost(self, shape: Shape) -> str:
        """One line on what a full scan costs: rows, bytes and plan, from catalogue and EXPLAIN."""

    def warnings(self, shape: Shape) -> list[str]:
        """Return a note for each column that can hold what a refresh refuses, for `check`."""

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int) -> str:
        """The least-privilege script that a DBA runs as herself, for this engine; `connections`
        are allowed at once: two exchanges, a description, one to spare."""

    def listed(self) -> list[Listed]:
        """The tables and views of this database that are not the server's own, by name.

        Raises:
            DatabaseUnavailable, DatabaseRefused.
        """

    def attempts(self, relation: Relation) -> list[str]:
        """The SQL texts by which this relation is described, though it be refused.

        Raises:
            DatabaseUnavailable, DatabaseRefused: there is no session to describe it with.
        """

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        """Every SQL text this agent can issue for these relations, each once."""
