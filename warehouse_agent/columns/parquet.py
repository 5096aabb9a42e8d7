"""The one writer of Parquet files by Arrow: what every file that this agent writes has in common.

Bounds are written of columns by which somebody may skip rows: of the source's, and of a row's
statistics. Nobody looks for a range of fingerprints, of hashed positions or of key bytes.

Invariant: a published column of floats has no bounds and no dictionary. Arrow leaves NaN out of
bounds, which readers take for the greatest value. A dictionary has the bytes of −0.0 and not those
of 0.0, which readers take for equal. By either they would skip rows that a condition finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse_agent.columns.layout import RESERVED, STATISTICS


def writer(
    target: Any, schema: pa.Schema, *, repeated: Sequence[str] | None = None, **options: Any
) -> pq.ParquetWriter:
    """Return a writer of zstd files.

    Args:
        repeated: columns with few values, which get dictionaries; None: any may have.
        options: those of Arrow, but for bounds, dictionaries and codec.
    """
    real = {field.name for field in schema if pa.types.is_floating(field.type)}
    ours = {name for name in schema.names if name.startswith(RESERVED)}
    bounded = {*schema.names} - real - (ours - {name for name, _ in STATISTICS})
    encoded = {*schema.names} - (real - ours)
    return pq.ParquetWriter(
        target,
        schema,
        compression="zstd",
        # Arrow takes paths: a nested column gets none by name.
        write_statistics=sorted(bounded),
        use_dictionary=sorted(encoded if repeated is None else encoded & {*repeated}),
        **options,
    )
