"""Which data files of a version are missing or damaged, and what is wrong with each.

`absent` asks for sizes; `examine` fingerprints every row again from its values, in Spark's tasks.
A file counts as damaged only if its size can be asked for, all of its bytes can be read, and twice
they are not what was written: a passing I/O error or lack of memory is no damage. If the storage
refuses, its error is raised: a file that cannot be reached is never taken for lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from driftline.errors import DriftlineError, SparkLost, WarehouseUnavailable
from driftline.rows.frames import Fingerprints

from warehouse_agent.columns.layout import HI, LO, Layout
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.spark.executors import DATA_FILE, KeyFile, failures
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, Store, located
from warehouse_agent.tasks.digests import numbers
from warehouse_agent.tasks.scan import OfFiles, read_batches, spread
from warehouse_agent.tasks.steps import Steps

MISSING = "missing"
NAMED_MAX = 10  # files that an error names in its details
_FOUND = pa.schema([(name, pa.string()) for name in ("path", "damage", "refusal")])
_CHUNK_BYTES = 1 << 20  # of a file that is read for its bytes alone


def absent(store: Store, name: str, files: Sequence[DataFile]) -> dict[str, str]:
    """Return what is wrong with files that are missing or have another size, by path.

    Raises:
        WarehouseUnavailable: they cannot be listed.
    """
    sizes = store.sizes(name, [file.path for file in files])
    return {
        f.path: MISSING if f.path not in sizes else f"{sizes[f.path]} bytes instead of {f.size}"
        for f in files
        if sizes.get(f.path) != f.size
    }


def examine(
    steps: Steps, store: Store, name: str, layout: Layout, files: Sequence[DataFile]
) -> dict[str, str]:
    """Return what is wrong with damaged files, by path; none is missing (`absent`). One step.

    Raises:
        WarehouseUnavailable: the storage does not let a file be read.
        SparkLost, PySparkException, Py4JError: Spark failed on a single file.
    """
    key = KeyFile(store.uri(PRIVATE, "keys", f"{name}.key"))
    known = {f.uri: f for f in files}

    def examined(some: Sequence[DataFile]) -> dict[str, str]:
        function = _examine(layout, key, known)
        uris, work = [f.uri for f in some], StepWork(StepKind.READ, steps.size_of_rows(some))
        sizes = [f.size for f in some]
        rows = spread(steps, uris, function, _FOUND, work=work, sizes=sizes).to_pylist()
        for row in rows:
            if row["refusal"] is not None:
                raise WarehouseUnavailable(
                    f"Data file {row['path']} cannot be read: {row['refusal']}",
                    where=name,
                    remedy="Check the disk and its permissions. If the disk can no longer read the "
                    "file, remove the file: the next refresh pulls its rows again.",
                )
        return {row["path"]: row["damage"] for row in rows}

    try:
        return examined(files)
    except Exception as error:
        if len(files) == 1 or not isinstance(error, (SparkLost, *failures())):
            raise
    damaged: dict[str, str] = {}
    for file in files:  # one file may have ended the process that read them all
        damaged |= examined([file])
    return damaged


def listed(wrong: dict[str, str]) -> dict[str, str]:
    """Return the first files that are missing or damaged, as details of an error or report."""
    some = list(wrong.items())[:NAMED_MAX]
    return {f"file {n + 1}": f"{path}: {what}" for n, (path, what) in enumerate(some)}


def _examine(layout: Layout, key: KeyFile, known: dict[str, DataFile]) -> OfFiles:
    def run(uris: Iterator[str]) -> Iterator[pa.RecordBatch]:
        fingerprints = key.fingerprints(layout.recipe)
        for uri in uris:
            file = known[uri]
            damage = _damage(file, layout, fingerprints)
            if damage is None:
                continue
            refusal, lost = _storage_says(file)
            if refusal is None and lost is None:  # the failure may have been a passing one
                damage = _damage(file, layout, fingerprints)
                if damage is None:
                    continue
            columns = [[file.path], [lost or damage], [refusal]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, pa.string()) for column in columns],
                names=["path", "damage", "refusal"],
            )

    return run


def _damage(file: DataFile, layout: Layout, fingerprints: Fingerprints) -> str | None:
    """Return how the rows of a file differ from those that were written; None if they do not."""
    rows = bad = 0
    try:
        for batch in read_batches(file.uri, layout.file_schema):
            hi, lo = fingerprints(layout.row_bytes(batch).rows())
            is_bad = (hi.view(np.int64) != numbers(batch, HI)) | (
                lo.view(np.int64) != numbers(batch, LO)
            )
            rows += len(batch)
            bad += int(is_bad.sum())
            if file.bounds is not None and layout.integer_key is not None and len(batch):
                where = numbers(batch, layout.integer_key)
                if where.min() < file.bounds[0] or where.max() > file.bounds[1]:
                    return "it has keys outside the bounds that the log records"
    except DriftlineError as error:
        if DATA_FILE not in error.details:  # of the storage, and none of the file
            raise
        return error.message
    except (pa.ArrowException, ValueError, TypeError, MemoryError) as error:
        return str(error) or type(error).__name__
    if bad:
        return f"{bad:,} of its rows read back with another fingerprint"
    return None if rows == file.rows else f"rows: {rows:,} instead of {file.rows:,}"


def _storage_says(file: DataFile) -> tuple[str | None, str | None]:
    """Return why the storage refuses a file, and what is missing; both None if all is readable."""
    try:
        system, path = located(file.uri)
        size = 0
        with system.open_input_stream(path) as source:
            while chunk := source.read(_CHUNK_BYTES):
                size += len(chunk)
    except FileNotFoundError:
        return None, MISSING
    except OSError as error:
        return str(error) or type(error).__name__, None
    return None, None if size == file.size else f"bytes: {size:,} instead of {file.size:,}"
