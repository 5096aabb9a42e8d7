"""Is what was published still what is stored? Every file is there, and every row is what it was.

Cheap first: the files of a version exist with their sizes. Then all of them are read in Spark's
tasks, each row encoded and fingerprinted again, and compared with the fingerprint beside it. When
that fails, file by file, so that the damage has a name. Nothing is written and no source is asked.

Running it again does not help against damage, so no failure here is retryable, unlike in a refresh.
"""

from __future__ import annotations

from collections.abc import Callable

from driftline.digests import Salt
from driftline.errors import DriftlineError, ProofFailed, WarehouseUnavailable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from warehouse_agent import prove
from warehouse_agent.executors import KeyFile, cause
from warehouse_agent.publish import DataFile, Snapshot
from warehouse_agent.store import PRIVATE, Store

_RESTORE = "Restore it from a backup, or move the table's folder away for a new first load."
_NAMED_MAX = 10
# PySpark wraps some failures of its jobs; a file that cannot be read comes as Py4J leaves it.
SPARK_FAILURES = (PySparkException, Py4JError)


def verify(spark: SparkSession, store: Store, name: str, snapshot: Snapshot) -> int:
    """Read a version back; returns the number of its rows.

    Raises:
        WarehouseUnavailable: files are missing or damaged, by name, or rows are missing.
    """
    check_files(store, name, snapshot)
    key = KeyFile(store.uri(PRIVATE, "keys", f"{name}.key"))
    salt = Salt.fresh()

    def count(files: tuple[DataFile, ...]) -> int:
        return prove.read_back(spark, files, snapshot.layout, key, salt, name=name).count

    try:
        found = count(snapshot.files)
    except (ProofFailed, WarehouseUnavailable, *SPARK_FAILURES) as error:
        damaged = {}
        for file in snapshot.files:
            if (reason := _damage(count, file)) is not None:
                damaged[file.path] = reason
        raise _damaged(name, damaged, error) from error
    if found != snapshot.meta["rows"]:
        raise WarehouseUnavailable(
            f"{found} rows are in the files and {snapshot.meta['rows']} in the version.",
            where=name,
            remedy=_RESTORE,
        )
    return found


def _damage(count: Callable[[tuple[DataFile, ...]], int], file: DataFile) -> str | None:
    """What is wrong with one file."""
    try:
        rows = count((file,))
    except (DriftlineError, *SPARK_FAILURES) as error:
        return cause(error)
    return None if rows == file.rows else f"{rows} rows instead of {file.rows}"


def _damaged(name: str, damaged: dict[str, str], error: Exception) -> WarehouseUnavailable:
    if not damaged:
        return WarehouseUnavailable(f"The files cannot be read: {cause(error)}", where=name)
    path, reason = next(iter(damaged.items()))
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return WarehouseUnavailable(
        f"Data file {path}{more} is damaged: {reason}",
        where=name,
        remedy=_RESTORE,
        details=_details(damaged),
    )


def check_files(store: Store, name: str, snapshot: Snapshot) -> None:
    """Every data file of a version is there and has its size.

    Raises:
        WarehouseUnavailable: with the files that are not.
    """
    sizes: dict[str, int] = {}
    for folder in sorted({file.path.rpartition("/")[0] for file in snapshot.files}):
        sizes |= {f"{folder}/{file}": size for file, size in store.files(name, folder)}
    wrong = {
        f.path: "missing" if f.path not in sizes else f"{sizes[f.path]} bytes instead of {f.size}"
        for f in snapshot.files
        if sizes.get(f.path) != f.size
    }
    if wrong:
        path, what = next(iter(wrong.items()))
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise WarehouseUnavailable(
            f"Data file {path} is {what}{more}.",
            where=name,
            remedy=_RESTORE,
            details=_details(wrong),
        )


def _details(wrong: dict[str, str]) -> dict[str, str]:
    listed = list(wrong.items())[:_NAMED_MAX]
    return {f"file {n + 1}": f"{path}: {what}" for n, (path, what) in enumerate(listed)}
