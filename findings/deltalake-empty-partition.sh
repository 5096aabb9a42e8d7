#!/usr/bin/env bash
# deltalake 1.6.6, Polars 2.1.0: a table partitioned by a text that is empty in one row and NULL in another.
# Two readers of one library differ: to_pyarrow_table shows both as NULL, QueryBuilder and Polars keep them
# apart. DELETE WHERE p IS NULL removes one row, and the first reader still shows a NULL.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1
"$work/venv/bin/python" - "$work/table" >"$work/seen" <<'PYTHON'
import sys

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

ROWS = pa.table({"p": ["", None, "a"], "v": [1, 2, 3]})


def show(when):
    table = DeltaTable(sys.argv[1])
    query = QueryBuilder().register("t", table)
    print(when)
    print("  to_pyarrow_table", table.to_pyarrow_table().sort_by("v").to_pylist())
    print("  QueryBuilder", pa.table(query.execute("SELECT * FROM t ORDER BY v")).to_pylist())
    print("  Polars", pl.scan_delta(sys.argv[1]).sort("v").collect().to_dicts())


write_deltalake(sys.argv[1], ROWS, partition_by=["p"])
show("written:")
print(DeltaTable(sys.argv[1]).delete("p IS NULL")["num_deleted_rows"], "deleted")
show("after DELETE WHERE p IS NULL:")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
written:
  to_pyarrow_table [{'p': None, 'v': 1}, {'p': None, 'v': 2}, {'p': 'a', 'v': 3}]
  QueryBuilder [{'p': '', 'v': 1}, {'p': None, 'v': 2}, {'p': 'a', 'v': 3}]
  Polars [{'p': '', 'v': 1}, {'p': None, 'v': 2}, {'p': 'a', 'v': 3}]
1 deleted
after DELETE WHERE p IS NULL:
  to_pyarrow_table [{'p': None, 'v': 1}, {'p': 'a', 'v': 3}]
  QueryBuilder [{'p': '', 'v': 1}, {'p': 'a', 'v': 3}]
  Polars [{'p': '', 'v': 1}, {'p': 'a', 'v': 3}]
SEEN
