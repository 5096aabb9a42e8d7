"""The one writer of Parquet files by Arrow: what every file that this agent writes has in common.

Bounds are written of columns by which somebody may skip rows: of the source's, and of a row's
statistics. Nobody looks for a range of fingerprints, of hashed positions or of key bytes.

Invariant: a column that may hold NaN has no bounds. Arrow leaves NaN out of them, but readers take
NaN for the greatest value, and would skip rows that hold it. Spark's own writer
names NaN as the greatest value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse_agent.columns.layout import RESERVED, STATISTICS


def writer(target: Any, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Return a writer of zstd files; `options` are those of Arrow, but for bounds and codec."""
    return pq.ParquetWriter(
        target, schema, compression="zstd", write_statistics=_bounded(schema), **options
    )


def _bounded(schema: pa.Schema) -> Sequence[str]:
    """Return the columns that get bounds. Arrow takes paths: a nested column gets none by name."""
    fields = (field for field in schema if not pa.types.is_floating(field.type))
    kept = {name for name, _ in STATISTICS}
    return [f.name for f in fields if not f.name.startswith(RESERVED) or f.name in kept]
