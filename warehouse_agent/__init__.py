"""The warehouse agent keeps fragments equal to relations at remote sources, with Spark.

Users import `at`, `read` and `changes`. The rooms are layers (docs/architecture.md).

PySpark takes 0.1 s to import, and small commands need none of it. So a function that calls it
imports it itself, and its types are imported for the type checker alone. Only `readers`, which gets
a session from its caller, imports it at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from warehouse_agent.visible_versions.readers import Storage, Warehouse

__all__ = ["at", "changes", "read"]

# Spark's JVM is forked while a channel to a source is open. gRPC's handlers of fork() then abort
# three in a hundred children before they execute anything (test_preflight.py), and none of our
# children use gRPC. gRPC reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# The largest matrices here are those of a fit, 168 x 168. OpenBLAS shares them between threads that
# wait for each other without sleep: on two busy cores a decomposition of 0.3 ms took 23 ms.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def at(
    spark: SparkSession,
    path: str | Path,
    version: int | None = None,
    *,
    storage: Storage | None = None,
) -> Warehouse:
    """Return a pinned version of the whole warehouse (`readers.at`)."""
    from warehouse_agent.visible_versions import readers

    return readers.at(spark, path, version, storage=storage)


def read(
    spark: SparkSession,
    path: str | Path,
    name: str,
    version: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] = (),
    storage: Storage | None = None,
) -> DataFrame:
    """Return the published table of a fragment or a view, in one version (`readers.read`)."""
    from warehouse_agent.visible_versions import (
        readers,  # imports pyspark, which other users may not need
    )

    return readers.read(spark, path, name, version, columns=columns, where=where, storage=storage)


def changes(
    spark: SparkSession,
    path: str | Path,
    name: str,
    *,
    since: int,
    upto: int | None = None,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] = (),
    storage: Storage | None = None,
) -> DataFrame:
    """Return the change feed after version `since`, up to and including `upto`
    (`readers.changes`). More than seven parameters: most are options, by name alone."""
    from warehouse_agent.visible_versions import readers

    return readers.changes(
        spark,
        path,
        name,
        since=since,
        upto=upto,
        columns=columns,
        where=where,
        storage=storage,
    )
