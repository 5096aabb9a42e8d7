#!/usr/bin/env bash
# Spark 4.3.0: the tolerance of pyspark.testing.assertDataFrameEqual, 1e-5 of the value, described as
# one for floats, holds for decimals as well, inside arrays too. 250,000.00 equals 250,001.99 in
# decimal(18,2), while integers are compared exactly.
# Needs a Java 17 or later (JAVA_HOME, or java on the path).
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyspark==4.3.0 pandas==3.0.6 pyarrow==26.0.1
"$work/venv/bin/python" - >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
from decimal import Decimal

from pyspark.errors import PySparkAssertionError
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
due, paid = Decimal("250000.00"), Decimal("250001.99")
for kind, one, other, more in (
    ("decimal(18,2)", due, paid, {}),
    ("array<decimal(18,2)>", [due], [paid], {}),
    ("bigint", 250000, 250001, {}),
    ("decimal(18,2)", due, paid, {"rtol": 0.0, "atol": 0.0}),
):
    frames = [spark.createDataFrame([(1, v)], f"id int, amount {kind}") for v in (one, other)]
    try:
        assertDataFrameEqual(*frames, **more)
        print(kind, one, other, "equal", *more)
    except PySparkAssertionError:
        print(kind, one, other, "differ", *more)
spark.stop()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
decimal(18,2) 250000.00 250001.99 equal
array<decimal(18,2)> [Decimal('250000.00')] [Decimal('250001.99')] equal
bigint 250000 250001 differ
decimal(18,2) 250000.00 250001.99 differ rtol atol
SEEN
