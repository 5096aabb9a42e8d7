#!/usr/bin/env bash
# chdb 4.4.0 (ClickHouse 26.9 in Python): a column of Arrow's date64 becomes seconds since 1970 in 32
# bits, so a day before 1970 or after February 2106 is another one: 1950-06-01 is in July 2086, 2150 is in
# 2013, and 9999-12-31, the usual end of a row that is still valid, is 28 January 2106. So it is for a table
# of pyarrow and for a file or stream of Arrow, and `date_time_overflow_behavior = 'throw'` changes nothing.
# Right are date32 in the same table, and the same column by way of Parquet.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0 pyarrow==26.0.1
"$work/venv/bin/python" -W ignore - "$work" >"$work/seen" <<'PYTHON'
import sys
from datetime import date

import chdb
import pyarrow as pa
import pyarrow.parquet as pq

days = [date(1950, 6, 1), date(2024, 5, 6), date(2150, 1, 1), date(9999, 12, 31)]
table = pa.table({"a": pa.array(days, pa.date32()), "b": pa.array(days, pa.date64())})
with pa.ipc.new_file(f"{sys.argv[1]}/days.arrow", table.schema) as file:
    file.write_table(table)
pq.write_table(table, f"{sys.argv[1]}/days.parquet")
for source in ("Python(table)", f"file('{sys.argv[1]}/days.arrow')", f"file('{sys.argv[1]}/days.parquet')"):
    print(source.replace(sys.argv[1], "."))
    query = f"SELECT a, toDate32(b) FROM {source} ORDER BY a"
    print(chdb.query(f"{query} SETTINGS date_time_overflow_behavior = 'throw'", "TSV"), end="")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
Python(table)
1950-06-01	2086-07-07
2024-05-06	2024-05-06
2150-01-01	2013-11-24
9999-12-31	2106-01-28
file('./days.arrow')
1950-06-01	2086-07-07
2024-05-06	2024-05-06
2150-01-01	2013-11-24
9999-12-31	2106-01-28
file('./days.parquet')
1950-06-01	1950-06-01
2024-05-06	2024-05-06
2150-01-01	2150-01-01
9999-12-31	9999-12-31
SEEN
