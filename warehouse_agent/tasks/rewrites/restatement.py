"""Write published rows again under other columns, with new fingerprints and their statistics.

No row travels for it: fingerprints are made from the stored values. New columns, and columns of
another type, start as null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from driftline.rows.columns import split
from driftline.rows.keys import null_keys

from warehouse_agent.columns.layout import STATISTICS, Layout
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.tasks.scan import FilePiece, Function, scan
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import WRITTEN, Sink, written

_STATISTICS = tuple(name for name, _ in STATISTICS)


def restate(
    steps: Steps,
    folder: DataFolder,
    files: Sequence[DataFile],
    old: Layout,
    new: Layout,
    key: KeyFile,
) -> list[DataFile]:
    """Write the rows of files, of the layout `old`, in the layout `new` in a new folder; one step.

    Return no file if a key column is new or has another type. Rows with a null key are left out.

    Raises:
        WarehouseUnavailable: a file cannot be read or written.
    """
    kept = _kept(old, new)
    if any(kept[i] is None for i in range(new.recipe.key_columns)):
        return []
    sources = [kept[i] for i in new.order]
    names = [*(source for source in sources if source is not None), *_STATISTICS]
    columns = pa.schema([old.file_schema.field(column) for column in names])
    folder.make()
    function = _restate(folder.uri(), sources, new, key)
    size = steps.size_of_rows(files)
    return written(
        scan(steps, files, columns, function, WRITTEN, work=StepWork(StepKind.WRITE, size)), folder
    )


def _kept(old: Layout, new: Layout) -> list[str | None]:
    """Return, for each column in tuple order, the published name of its values; None: new."""
    known = {
        (column.name, column.type, carrier): name
        for column, carrier, name in zip(old.recipe.columns, old.carriers, old.names, strict=True)
    }
    columns = zip(new.recipe.columns, new.carriers, strict=True)
    return [known.get((column.name, column.type, carrier)) for column, carrier in columns]


def _restate(folder: str, sources: Sequence[str | None], layout: Layout, key: KeyFile) -> Function:
    data = [layout.file_schema.field(name) for name in layout.data_names]

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        fingerprints = key.fingerprints(layout.recipe)
        seed = key.position_seed()
        with Sink(folder, "restated", layout.file_schema, layout.integer_key) as out:
            for batch in (piece.batch for piece in pieces):
                arrays = [
                    pa.nulls(len(batch), field.type) if source is None else batch.column(source)
                    for source, field in zip(sources, data, strict=True)
                ]
                block = layout.row_bytes(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(data)))
                has_key = ~null_keys(block, layout.recipe)
                block = block.take(has_key)
                if not len(block):
                    continue
                hi, lo = fingerprints(block.rows())
                values = split(block, len(layout.recipe.columns))
                rows = layout.batch(values, block, hi, lo, seed=seed)
                kept = batch.select(_STATISTICS).filter(pa.array(has_key))
                restated = [*rows.columns, *kept.columns]
                out.add(pa.RecordBatch.from_arrays(restated, schema=layout.file_schema))
            files = list(out.finish())
        yield from files

    return run
