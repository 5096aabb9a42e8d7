"""PostgreSQL: one snapshot read by several sessions, each some of the blocks of a table.

The exchange's session exports its snapshot; another session imports it and sees the same rows. A
row of a snapshot has one place (`ctid`), so ranges of blocks that cover all places, the last one
open, are every row once, whatever is written meanwhile. Parts are small and many: whoever is free
takes the next.

Invariants: only a plain heap table is split, as a whole: no `where`, no row security, no heirs or
partitions. Conditions may depend on the transaction that asks (`now()`), places of partitions are
not unique, and only heaps have them. A table that gets an heir in the middle is read without it to
the end (ONLY): each part is a statement, and would see it. The planner must agree: a TID range scan
(PostgreSQL 14), or each part would be a scan of everything. Whatever does not hold leaves the scan
to one session.

Rejected: ranges of the key. They read the heap in the order of an index, and need one.
Rejected: PostgreSQL's own parallel scan. The backends are not what is slow; who hashes is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from driftline.errors import DatabaseUnavailable

from source_agent.engines.interface import Relation, Rows, Session, Shape
from source_agent.engines.postgresql.sql import BOUNDS, EXPLAIN, copy_of
from source_agent.engines.postgresql.types import PostgresqlCatalogue
from source_agent.engines.relations import plan_of, select_sql

BLOCKS_MIN: Final = 2048  # 16 MiB: below it another connection costs as much as it saves
PART_BLOCKS: Final = 512  # 4 MiB, some 30 ms: who ends last is not waited for long
KEEP_S: Final = 1.0  # between two statements while others read: no server takes us for idle
KEEP_SHARE: Final = 0.25  # of the server's limit for idle sessions, where that is shorter
ROWS_PER_BLOCK: Final = 100  # of a table that nobody has analysed

SPLIT = """
SELECT pg_catalog.pg_relation_size(c.oid)
       / pg_catalog.current_setting('block_size')::pg_catalog.int8,
       NULLIF(GREATEST(c.reltuples, 0), 0)::pg_catalog.float8 / NULLIF(c.relpages, 0)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam
WHERE c.oid = pg_catalog.to_regclass(%s)::pg_catalog.oid AND a.amname = 'heap'
  AND c.relkind IN ('r', 'm') AND NOT c.relhassubclass AND NOT c.relrowsecurity
  AND pg_catalog.has_column_privilege(c.oid, 'ctid', 'SELECT')
  AND pg_catalog.has_function_privilege('pg_catalog.pg_export_snapshot()', 'EXECUTE')"""
IMPORT = "SET TRANSACTION SNAPSHOT '{snapshot}'"
SEES = "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text"  # which transactions it does
STATEMENTS: Final = (SPLIT, IMPORT.format(snapshot="…"), SEES)

_SNAPSHOT: Final = re.compile(r"[0-9A-Fa-f-]{1,64}")
_END: Final = "(4294967295,0)"  # behind the last block that a table can have
_TID_RANGE: Final = "Tid Range Scan"


@dataclass(frozen=True, slots=True)
class Cut:
    """A table's blocks in `parts` ranges of `step` each; the last has no end."""

    parts: int
    step: int

    def bounds(self, part: int) -> tuple[str, str]:
        """The first place of a part, and the first behind it."""
        end = _END if part + 1 == self.parts else f"({(part + 1) * self.step},0)"
        return f"({part * self.step},0)", end


def cut(blocks: int, *, rows_per_block: float | None, rows_max: int | None) -> Cut | None:
    """How to cut so many blocks; None: not worth it.

    Args:
        rows_per_block: about, when the table was last analysed; None: never.
        rows_max: of one part, about; None is no limit.
    """
    if blocks < BLOCKS_MIN:
        return None
    step = PART_BLOCKS
    if rows_max is not None:
        step = max(int(min(step, rows_max / (rows_per_block or ROWS_PER_BLOCK))), 1)
    return Cut(max(-(-blocks // step), 1), step)


def part_sql(shape: Shape) -> str:
    """The SELECT of one part, whose bounds are in the transaction's two settings."""
    bounds = (
        f"pg_catalog.current_setting('driftline.{name}')::pg_catalog.tid"
        for name in ("first", "last")
    )
    return select_sql(
        shape,
        f"ctid OPERATOR(pg_catalog.>=) {next(bounds)}",
        f"ctid OPERATOR(pg_catalog.<) {next(bounds)}",
        source=f"ONLY {plan_of(shape).source}",  # and no table that inherits from it
    )


def is_divisible(shape: Shape) -> bool:
    """Whether what the file publishes is a table as a whole."""
    return shape.relation.table is not None and not plan_of(shape).where


def import_sql(snapshot: str) -> str:
    """Raises DatabaseUnavailable: the server's name for a snapshot is none."""
    if not _SNAPSHOT.fullmatch(snapshot):
        raise DatabaseUnavailable("PostgreSQL exported a snapshot under an unknown kind of name.")
    return IMPORT.format(snapshot=snapshot)


class PartReader(Session, PostgresqlCatalogue, Protocol):
    """A session that reads parts of a table, each a range of places."""

    def read_part(self, shape: Shape, first: str, last: str) -> Iterator[Rows]:
        """Read the rows at places from `first` on and before `last`. Raises as `scan`."""

    def keep(self, relation: Relation) -> None:
        """Issue statements, so that the server does not take the session for idle."""

    def refuse_interrupted(self) -> None:
        """Raise DatabaseUnavailable once `interrupt` was called."""


@dataclass(frozen=True, slots=True)
class PostgresqlJoin:
    """Make the same split in another process.

    `open` makes a session over the snapshot that another session has exported and still holds. It
    contains the password: it is pickled into a pipe and nowhere else. `sees` names the transactions
    that the snapshot includes.
    """

    open: Callable[[], PartReader] = field(repr=False)
    sees: str
    shape: Shape
    cut: Cut

    def __call__(self) -> PostgresqlSplit:
        session = self.open()
        if session.ask(SEES)[0][0] != self.sees:
            session.close()
            raise DatabaseUnavailable(
                "A reader's connection sees another snapshot than the one it was to share.",
                remedy="Have `database.url` name one server, not a list or a balancer of several.",
            )
        return PostgresqlSplit(session, self)


class PostgresqlSplit:
    """Implement `interface.Split`."""

    def __init__(self, session: PartReader, join: PostgresqlJoin) -> None:
        self._session, self.join = session, join
        self._kept_at = time.monotonic()
        idle_s = [limit.seconds for limit in session.time_limits if limit.is_idle]
        self._keep_s = min([KEEP_S, *(s * KEEP_SHARE for s in idle_s)])

    @property
    def session(self) -> Session:
        return self._session

    @property
    def parts(self) -> int:
        return self.join.cut.parts

    def read(self, part: int) -> Iterator[Rows]:
        return self._session.read_part(self.join.shape, *self.join.cut.bounds(part))

    def note(self, rows: int) -> None:  # noqa: ARG002 - the governor counts them
        self._session.refuse_interrupted()

    def wait(self) -> None:
        self._session.refuse_interrupted()
        if time.monotonic() - self._kept_at > self._keep_s:
            self._session.keep(self.join.shape.relation)
            self._kept_at = time.monotonic()


def choose(session: PostgresqlCatalogue, shape: Shape, rows_max: int | None) -> Cut | None:
    """How this relation is cut now; None: one session has to read it all."""
    if not is_divisible(shape):
        return None
    found = session.ask(SPLIT, plan_of(shape).source)
    if not found:
        return None
    blocks, rows_per_block = found[0]
    chosen = cut(int(blocks), rows_per_block=rows_per_block, rows_max=rows_max)
    if chosen is None or chosen.parts == 1:
        return None
    session.ask(BOUNDS, *chosen.bounds(0))
    plan = session.ask(EXPLAIN + part_sql(shape))[0][0][0]["Plan"]
    return chosen if plan["Node Type"] == _TID_RANGE else None


def templates(shape: Shape) -> list[str]:
    """What a split of this relation asks, beyond STATEMENTS."""
    return [EXPLAIN + part_sql(shape), copy_of(part_sql(shape))] if is_divisible(shape) else []
