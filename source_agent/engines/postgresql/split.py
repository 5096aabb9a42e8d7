"""PostgreSQL: how a table is cut into parts that several sessions of one snapshot read.

A row of a snapshot has one place (`ctid`), so ranges of blocks that cover all places contain every
row once, whatever is written meanwhile. Parts are small and many: a free reader takes the next.

Invariants: only a plain heap table is split, without the DBA's `where`, whose result may depend
on the transaction (`now()`), row security, children or partitions, whose places are not unique. A
child that is added meanwhile is not read (ONLY). The plan must be a TID range scan (PostgreSQL 14);
otherwise each part would scan the whole table. Any other relation is read by one session.

Rejected: ranges of the key, which read the heap in the order of an index and need one. PostgreSQL's
own parallel scan: hashing is the bottleneck, not the backends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from driftline.errors import OPEN, DatabaseUnavailable

from source_agent.engines.interface import Ask
from source_agent.engines.postgresql.sql import BOUNDS, EXPLAIN, ONLY, copy_of, name_of
from source_agent.engines.relations.select import select_sql
from source_agent.engines.relations.shapes import Shape

BLOCKS_MIN: Final = 2048  # 16 MiB: below it another connection costs as much as it saves
PART_BLOCKS: Final = 512  # 4 MiB, some 30 ms: the last part delays the end no longer
ROWS_PER_BLOCK: Final = 100  # assumed for a table that was never analysed

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
SEES = "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text"  # names the transactions
STATEMENTS: Final = (SPLIT, IMPORT.format(snapshot="…"), SEES)

_SNAPSHOT: Final = re.compile(r"[0-9A-Fa-f-]{1,64}")
_END: Final = "(4294967295,0)"  # behind the last block that a table can have


@dataclass(frozen=True, slots=True)
class BlockRanges:
    """A table's blocks in `parts` ranges of `step` each; the last has no end."""

    parts: int
    step: int

    def bounds(self, part: int) -> tuple[str, str]:
        """Return the first place of a part and the first place behind it."""
        end = _END if part + 1 == self.parts else f"({(part + 1) * self.step},0)"
        return f"({part * self.step},0)", end


def cut(blocks: int, *, rows_per_block: float | None, rows_max: int | None) -> BlockRanges | None:
    """Cut a table of `blocks` blocks into parts; None: too small to be worth it.

    Args:
        rows_per_block: about, when the table was last analysed; None: never.
        rows_max: of one part, about; None is no limit.
    """
    if blocks < BLOCKS_MIN:
        return None
    step = PART_BLOCKS
    if rows_max is not None:
        step = max(int(min(step, rows_max / (rows_per_block or ROWS_PER_BLOCK))), 1)
    return BlockRanges(max(-(-blocks // step), 1), step)


def part_sql(shape: Shape) -> str:
    """Return the SELECT of one part, whose bounds are in the transaction's two settings."""
    first, last = (
        f"pg_catalog.current_setting('driftline.{name}')::pg_catalog.tid"
        for name in ("first", "last")
    )
    return select_sql(
        shape,
        f"ctid OPERATOR(pg_catalog.>=) {first}",
        f"ctid OPERATOR(pg_catalog.<) {last}",
        source=f"{ONLY}{name_of(shape)}",  # and no table that inherits from it
    )


def import_sql(snapshot: str) -> str:
    """Return the statement that joins an exported snapshot.

    Raises:
        DatabaseUnavailable: the server's name for the snapshot is not of the known form.
    """
    if not _SNAPSHOT.fullmatch(snapshot):
        raise DatabaseUnavailable(
            "PostgreSQL exported a snapshot under an unknown kind of name.",
            abroad=OPEN,
        )
    return IMPORT.format(snapshot=snapshot)


def choose(ask: Ask, shape: Shape, rows_max: int | None) -> BlockRanges | None:
    """Choose how a relation is cut now; None: one session has to read it all."""
    if not _is_divisible(shape):
        return None
    sizes = ask(SPLIT, name_of(shape))
    if not sizes:
        return None
    blocks, rows_per_block = sizes[0]
    chosen = cut(int(blocks), rows_per_block=rows_per_block, rows_max=rows_max)
    if chosen is None or chosen.parts == 1:
        return None
    ask(BOUNDS, *chosen.bounds(0))
    plan = ask(EXPLAIN + part_sql(shape))[0][0][0]["Plan"]
    return chosen if plan["Node Type"] == "Tid Range Scan" else None


def templates(shape: Shape) -> list[str]:
    """List the SQL texts by which a relation is split, beyond STATEMENTS."""
    return [EXPLAIN + part_sql(shape), copy_of(part_sql(shape))] if _is_divisible(shape) else []


def _is_divisible(shape: Shape) -> bool:
    return shape.relation.table is not None and not shape.relation.where
