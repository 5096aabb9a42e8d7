#!/usr/bin/env bash
# Spark 4.3.0: decimal(38,0) and a decimal with a scale are compared in a common type of 38 digits
# without digits behind the point, to which the other side is rounded. So 1 = 1.49 is true, a join
# pairs them, and nothing is reported; with decimal(37,0) it is false.
# Needs a Java 17 or later (JAVA_HOME, or java on the path).
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyspark==4.3.0
"$work/venv/bin/python" - >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for digits in (38, 37):
    spark.sql(f"SELECT CAST(1 AS DECIMAL({digits},0)) AS k").createOrReplaceTempView("a")
    spark.sql("SELECT CAST(1.49 AS DECIMAL(10,2)) AS k").createOrReplaceTempView("b")
    print(digits, spark.sql("SELECT a.k, b.k FROM a JOIN b ON a.k = b.k").count())
spark.stop()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
38 1
37 0
SEEN
