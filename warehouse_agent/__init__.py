"""The warehouse agent: keeps fragments equal to relations at remote sources, with Spark.

The tree is the data flow of a refresh: `configure` → `prepare` (`readers`, `layout`, `reduce`) →
`exchange` over a `link`, into `stage` → `finish` (apply, prove) and `commit`; `run` does many
of them, `cli` and `commands` face people. `carry*` turn bytes into Spark's values on executors,
`store` is where things are kept, `plan` decides without I/O.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["changes", "read"]

# Spark's JVM is forked while a channel to a source is open. gRPC's handlers of fork() then abort
# three in a hundred children before they execute anything (test_preflight.py), and none of our
# children use gRPC. gRPC reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def read(spark: SparkSession, path: str | Path, name: str, version: int | None = None) -> DataFrame:
    """The published table of a fragment as a DataFrame, pinned: see `readers.read`."""
    from warehouse_agent.storage import readers  # pyspark is imported by those who use it

    return readers.read(spark, path, name, version)


def changes(
    spark: SparkSession, path: str | Path, name: str, *, since: int, upto: int | None = None
) -> DataFrame:
    """The change feed after version `since`, up to and including `upto`: see `readers.changes`."""
    from warehouse_agent.storage import readers

    return readers.changes(spark, path, name, since=since, upto=upto)
