#!/usr/bin/env bash
# Spark 4.3.0: over JDBC, TIMESTAMP without zone with preferTimestampNTZ=true, which promises the time as it is
# written, comes in UTC where Java's zone is another one: half past midnight in Berlin's summer is 22:30 of the
# day before, and noon in 1500 is ten days later as well. The filter for the time as written finds the row, and
# shows another time. Shown with Derby, which Spark brings along. Safe: a Java in UTC, or CAST to text in a query.
# Needs a Java 17 or later (JAVA_HOME, or java on the path).
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyspark==4.3.0
cd "$work"
"$work/venv/bin/python" - >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
zone = "-Duser.timezone=Europe/Berlin"
spark = builder.config("spark.driver.extraJavaOptions", zone).getOrCreate()
url = "jdbc:derby:memory:shop;create=true"
derby = spark._jvm.java.sql.DriverManager.getConnection(url).createStatement()
derby.execute("CREATE TABLE t (id INT, moment TIMESTAMP)")
for number, moment in enumerate(("2026-07-01 00:30:00", "2026-01-01 12:00:00", "1500-03-01 12:00:00")):
    derby.execute(f"INSERT INTO t VALUES ({number}, '{moment}')")
reader = spark.read.format("jdbc").option("url", url)
text = reader.option("query", "SELECT id, CAST(moment AS VARCHAR(30)) AS moment FROM t").load()
print("text:", [row.MOMENT for row in text.orderBy("ID").collect()])
reader = spark.read.format("jdbc").option("url", url).option("preferTimestampNTZ", "true")
table = reader.option("dbtable", "t").load()
print("read:", table.dtypes[1][1], [str(row.MOMENT) for row in table.orderBy("id").collect()])
found = table.where("moment = TIMESTAMP_NTZ'2026-07-01 00:30:00'").collect()
print("found:", [str(row.MOMENT) for row in found])
spark.stop()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
text: ['2026-07-01 00:30:00.0', '2026-01-01 12:00:00.0', '1500-03-01 12:00:00.0']
read: timestamp_ntz ['2026-06-30 22:30:00', '2026-01-01 11:00:00', '1500-03-11 11:00:00']
found: ['2026-06-30 22:30:00']
SEEN
