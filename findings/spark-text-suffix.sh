#!/usr/bin/env bash
# Spark 4.3.0: a text of digits with a D or F behind is a number, since Java's parser of doubles knows these
# endings. Under inferSchema the seats 12D and 12F of a CSV file are both 12.0. In ANSI mode, too, a text that
# meets a decimal or a double becomes a double: `seat = 12.0` finds all three seats, and 12D as a
# decimal or an integer is none. Safe: a schema; a comparison of texts.
# Needs a Java 17 or later (JAVA_HOME, or java on the path).
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyspark==4.3.0
printf 'seat,passenger\n12D,1\n12F,2\n12,3\n' >"$work/seats.csv"
"$work/venv/bin/python" - "$work/seats.csv" >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print([row.seat for row in spark.read.csv(sys.argv[1], header=True, inferSchema=True).collect()])
spark.read.csv(sys.argv[1], header=True).createOrReplaceTempView("seats")
print("ANSI mode:", spark.conf.get("spark.sql.ansi.enabled"))
for condition in ("seat = 12.0", "seat = 12.0D", "seat = '12'", "try_cast(seat AS decimal(4,1)) = 12.0"):
    found = spark.sql(f"SELECT seat FROM seats WHERE {condition}").collect()
    print(condition, [row.seat for row in found])
spark.stop()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
[12.0, 12.0, 12.0]
ANSI mode: true
seat = 12.0 ['12D', '12F', '12']
seat = 12.0D ['12D', '12F', '12']
seat = '12' ['12']
try_cast(seat AS decimal(4,1)) = 12.0 ['12']
SEEN
