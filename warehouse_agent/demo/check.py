"""The demonstration's second opinion: is the published table the source's, row for row?

The published files are read with deltalake and pyarrow, the source with its own driver; every value
of both becomes text, both are sorted, and compared as multisets of rows. No line of Driftline's
encoding, fingerprints, digests or Spark jobs takes part, so that it cannot share their mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from warehouse_agent.demo.source import Table


@dataclass(frozen=True, slots=True)
class RowComparison:
    """Rows on both sides, and whether they are the same rows."""

    published: int
    source: int
    equal: bool


def published(path: Path, table: Table) -> pa.Table:
    """The newest version of a Delta table, every value as text."""
    files = DeltaTable(path).file_uris()
    schema = pa.schema([(name, pa.string()) for name in table.names])
    parts = [pq.read_table(file, columns=table.names).cast(schema) for file in files]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def compare(published: pa.Table, source: pa.Table) -> RowComparison:
    """Both as multisets of rows."""
    order = [(name, "ascending") for name in published.column_names]
    equal = published.num_rows == source.num_rows and published.sort_by(order).equals(
        source.sort_by(order)
    )
    return RowComparison(published.num_rows, source.num_rows, equal)
