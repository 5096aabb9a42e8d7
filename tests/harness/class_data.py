"""Archive the classes of a Spark session: `python -m tests.harness.class_data FILE`.

Half of the processor time of a short session is loading classes. A JVM that is given the archive
(`tests.harness.jvm`) maps them instead. It fits the Java and the jars of the machine that wrote it;
elsewhere a JVM goes on without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.harness.jvm import CHEAP_JVM
from warehouse_agent.spark import session


def work(spark: SparkSession, folder: Path) -> None:
    """Do some of all that sessions of tests do: files, joins, groups, tasks in Python."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    rows = spark.range(100).selectExpr("id", "id % 7 AS k", "CAST(id AS string) AS t")
    rows.mapInArrow(same, rows.schema).write.parquet(str(folder / "rows"))
    spark.read.parquet(str(folder / "rows")).createOrReplaceTempView("x")
    joined = "SELECT a.k, count(*), max(b.t) FROM x a JOIN x b ON a.id = b.id WHERE a.t > '1'"
    spark.sql(f"{joined} GROUP BY a.k ORDER BY a.k").collect()


def main(file: str) -> None:
    """Write the archive when the session's JVM ends."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"{CHEAP_JVM} -XX:ArchiveClassesAtExit={file} -Xlog:disable"
    spark = session.start({"spark.master": "local[2]"})
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # a local session has one
    with tempfile.TemporaryDirectory() as folder:
        work(spark, Path(folder))
        spark.stop()
    java.stdin.close()  # at which it ends by itself
    java.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
