#!/usr/bin/env bash
# Spark 4.3.0: a comparison of text over JDBC is evaluated by the database, under the column's
# collation, and Spark, which compares bytes, does not look again. So the same filter finds other rows
# than over a copy of the table, or over the same frame after cache(): of a, B, Z, b in the order of a
# dictionary `name > 'Z'` finds nothing, by bytes a and b. Where a collation ignores case, = 'b' also
# returns B, and <> 'b' loses it. Shown with Derby, which Spark brings along; PostgreSQL 15 under ICU's
# en-US (driver 42.5.5) gave the same 0 rows, and 2 after cache(). Safe:
# option("pushDownPredicate", "false"), or comparing text of a copy alone.
# Needs a Java 17 or later (JAVA_HOME, or java on the path).
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyspark==4.3.0
cd "$work"
"$work/venv/bin/python" - >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
names = spark.createDataFrame([(name,) for name in ("a", "B", "Z", "b")], "name STRING")
for strength, filters in (
    ("", ("name > 'Z'", "name < 'a'")),
    (":PRIMARY", ("name = 'b'", "name <> 'b'")),
):
    url = f"jdbc:derby:memory:names{len(strength)};territory=en_US;collation=TERRITORY_BASED{strength}"
    writer = names.write.option("createTableColumnTypes", "name VARCHAR(9)")
    writer.jdbc(f"{url};create=true", "names")
    pushed = spark.read.jdbc(url, "names")
    kept = spark.read.option("pushDownPredicate", "false").jdbc(url, "names")
    copied = spark.createDataFrame(pushed.collect(), pushed.schema)
    for test in filters:
        found = (frame.where(test).collect() for frame in (pushed, kept, copied))
        print(test, *("".join(sorted(row[0] for row in rows)) or "none" for rows in found))
spark.stop()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
name > 'Z' none ab ab
name < 'a' none BZ BZ
name = 'b' Bb b b
name <> 'b' Za BZa BZa
SEEN
