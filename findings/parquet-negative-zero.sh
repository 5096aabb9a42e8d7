#!/usr/bin/env bash
# Spark 4.3.0 and DuckDB 1.5.5 hold -0.0 and 0.0 for equal, and yet `x = 0.0` loses rows of a Parquet file
# whose value is -0.0: a thousand of three thousand here. Spark asks the dictionary of a row group, in its
# own files as well as in others', and DuckDB the Bloom filter, where a writer was told to make one
# (deltalake 1.6.6). Both hold the bytes of -0.0 only, so the row group is left out. With one 0.0 in the row
# group all are found, and a condition that is not pushed down (`x + 0 = 0.0`) finds them always, as does
# Polars 2.1.0 (and DuckDB 2.0.1). So the answer depends on which rows share a row group. Needs Java 17.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet duckdb==1.5.5 pyspark==4.3.0 deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1
"$work/venv/bin/python" -W ignore - "$work" >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
import sys
from glob import glob

import duckdb
import polars
import pyarrow
from deltalake import BloomFilterProperties, ColumnProperties, WriterProperties, write_deltalake
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
bloom = ColumnProperties(bloom_filter_properties=BloomFilterProperties(True, 0.001, 1000))
alone = [-0.0, 3.5, -12.25] * 1000
beside = [*alone, 0.0]
for name, numbers, properties in (
    ("by deltalake", alone, ColumnProperties()),
    ("with a Bloom filter", alone, bloom),
    ("with a Bloom filter, 0.0 beside", beside, bloom),
    ("by Spark", alone, None),
    ("by Spark, 0.0 beside", beside, None),
):
    folder = f"{sys.argv[1]}/{name}"
    if properties is None:
        spark.createDataFrame([(number,) for number in numbers], "x double").coalesce(1).write.parquet(folder)
    else:
        properties = WriterProperties(default_column_properties=properties)
        write_deltalake(folder, pyarrow.table({"x": numbers}), writer_properties=properties)
    (file,) = glob(f"{folder}/*.parquet")
    for where in ("x = 0.0", "x + 0 = 0.0"):
        by_duckdb = duckdb.sql(
            f"SELECT count(*) FROM '{file}' WHERE {where.replace('0.0', '0.0::DOUBLE')}"
        ).fetchone()[0]
        by_spark = spark.read.parquet(file).where(where.replace("0.0", "0.0D")).count()
        by_polars = polars.scan_parquet(file).filter(polars.sql_expr(where)).collect().height
        print(f"{name}: {where}: DuckDB {by_duckdb}, Spark {by_spark}, Polars {by_polars}")
spark.stop()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
by deltalake: x = 0.0: DuckDB 1000, Spark 0, Polars 1000
by deltalake: x + 0 = 0.0: DuckDB 1000, Spark 1000, Polars 1000
with a Bloom filter: x = 0.0: DuckDB 0, Spark 0, Polars 1000
with a Bloom filter: x + 0 = 0.0: DuckDB 1000, Spark 1000, Polars 1000
with a Bloom filter, 0.0 beside: x = 0.0: DuckDB 1001, Spark 1001, Polars 1001
with a Bloom filter, 0.0 beside: x + 0 = 0.0: DuckDB 1001, Spark 1001, Polars 1001
by Spark: x = 0.0: DuckDB 1000, Spark 0, Polars 1000
by Spark: x + 0 = 0.0: DuckDB 1000, Spark 1000, Polars 1000
by Spark, 0.0 beside: x = 0.0: DuckDB 1001, Spark 1001, Polars 1001
by Spark, 0.0 beside: x + 0 = 0.0: DuckDB 1001, Spark 1001, Polars 1001
SEEN
