#!/usr/bin/env bash
# Spark 4.3.0: what a function of `mapInArrow` or `mapInPandas` returns is taken to be as large as what
# it is given. Of four numbers it makes 300 MB here, and Spark sends all of it to every task of a join
# (the limit is 10 MB); the same rows from a file are joined by shuffling.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'pyspark[sql]==4.3.0' pyarrow==26.0.1 'pandas<3'
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - "$work" >"$work/seen" 2>"$work/log" <<'PYTHON' ||
import sys

import pyarrow as pa
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
ROWS, WIDTH = 750, 100_000


def in_arrow(batches):
    for batch in batches:
        for number in batch.column(0).to_pylist():
            keys = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
            for begin in range(0, ROWS, 50):
                some = keys.slice(begin, 50)
                texts = pa.array([str(key).zfill(WIDTH) for key in some.to_pylist()])
                yield pa.RecordBatch.from_arrays([some, texts], names=["id", "text"])


def in_pandas(frames):
    yield from (frame.assign(text="x" * WIDTH) for frame in frames)


def told(name, rows):
    plan = rows._jdf.queryExecution().optimizedPlan()
    joined = spark.range(10_000_000).join(rows, "id")._jdf.queryExecution().sparkPlan().toString()
    how = "broadcast" if "BroadcastHashJoin" in joined else "shuffled"
    size = int(str(plan.stats().sizeInBytes()))
    print(f"{name}: taken for {size if size < 10**6 else 'more than 100,000,000'} bytes, {how}")


few = spark.range(0, 4, 1, 1)
rows = few.mapInArrow(in_arrow, "id long, text string")
rows.write.option("compression", "uncompressed").parquet(sys.argv[1] + "/rows")
file = spark.read.parquet(sys.argv[1] + "/rows")
print("bytes:", file.selectExpr("sum(length(text))").first()[0])
told("mapInArrow", rows)
told("mapInPandas", few.mapInPandas(in_pandas, "id long, text string"))
told("the same rows in a file", file)
PYTHON
    { cat "$work/log"; exit 1; }
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
bytes: 300000000
mapInArrow: taken for 32 bytes, broadcast
mapInPandas: taken for 32 bytes, broadcast
the same rows in a file: taken for more than 100,000,000 bytes, shuffled
SEEN
