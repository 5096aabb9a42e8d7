"""Write staged frames as data files: decoded, verified, with the statistics of their rows.

A Spark task reads staged frames, looks up the rows that they replace, and writes a Parquet file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from warehouse_agent.columns.layout import HI, LO, STATISTICS, Layout
from warehouse_agent.spark.executors import KeyFile, driver_errors
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import row_statistics, staging
from warehouse_agent.tasks.key_lookup import Known
from warehouse_agent.tasks.row_statistics import Stamp
from warehouse_agent.tasks.scan import OfFiles, spread
from warehouse_agent.tasks.write import WRITTEN, Sink, written

_BEFORE = (HI, LO, *(name for name, _ in STATISTICS))


def ship(
    spark: SparkSession,
    store: Store,
    name: str,
    folder: str,
    staged: Sequence[str],
    layout: Layout,
    key: KeyFile,
    stamp: Stamp,
    *,
    before: Sequence[DataFile] = (),
    updated: int | None = 0,
) -> list[DataFile]:
    """Write the rows of staged files as data files of a table; one Spark job.

    Args:
        folder: new, in the table's folder.
        staged: URIs of the staged files.
        before: files of the rows that these replace, and perhaps of others; tasks hold all of them.
        updated: number of updated rows, for `row_statistics.weight`.

    Raises:
        FrameDamaged: a frame does not verify.
        ValueDoesNotFit: a value does not fit its column.
        WarehouseUnavailable: a file cannot be read or written.
    """
    uri, weight = store.uri(name, folder), row_statistics.weight(stamp, updated)
    function = _ship(uri, layout, key, stamp, [f.uri for f in before], weight)
    store.make_folder(name, folder)
    with driver_errors():
        rows = spread(spark, staged, function, WRITTEN).collect()
    return written(rows, store, name, folder)


def _ship(
    folder: str, layout: Layout, key: KeyFile, stamp: Stamp, before: list[str], weight: float
) -> OfFiles:
    (key_name,) = layout.key_names
    columns = pa.schema([layout.file_schema.field(name) for name in (key_name, *_BEFORE)])

    def run(staged: Iterator[str]) -> Iterator[pa.RecordBatch]:
        known = Known.read(before, columns, key_name) if before else None
        with Sink(folder, "shipped", layout.file_schema, layout.integer_key) as out:
            for rows in staging.batches(staged, layout, key):
                if known is None:
                    statistics = row_statistics.begun(len(rows), stamp)
                else:
                    at = known.find(rows[key_name])
                    found = known.at(at, _BEFORE)
                    statistics = row_statistics.carried(rows[HI], rows[LO], found, stamp, weight)
                out.add(
                    pa.RecordBatch.from_arrays(
                        [*rows.columns, *statistics], schema=layout.file_schema
                    )
                )
            found_files = list(out.finish())
        yield from found_files

    return run
