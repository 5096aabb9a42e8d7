#!/usr/bin/env bash
# Spark 4.3.0, pyarrow 26.0.1: to Spark NaN is more than any number, so `x > 100` selects it. Parquet's
# statistics leave NaN out, as the format asks, and Spark skips a file by them: in a file of pyarrow
# with 1, NaN, 2 the same filter finds no row. Arithmetic in the filter (x + 0), or a file without
# statistics, brings the row back.
# Needs a Java 17 or later (JAVA_HOME, or java on the path).
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyspark==4.3.0 pyarrow==26.0.1
"$work/venv/bin/python" - "$work" >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

rows = pa.table({"x": [1.0, float("nan"), 2.0]})
pq.write_table(rows, f"{sys.argv[1]}/with.parquet")
pq.write_table(rows, f"{sys.argv[1]}/without.parquet", write_statistics=False)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for name in ("with", "without"):
    frame = spark.read.parquet(f"{sys.argv[1]}/{name}.parquet")
    print(f"{name} statistics:", *(frame.where(test).count() for test in ("x > 100", "x + 0 > 100")))
spark.stop()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
with statistics: 0 1
without statistics: 1 1
SEEN
