#!/usr/bin/env bash
# deltalake 1.6.6: a table partitioned by bytes, which the format and the package allow, gives back other
# bytes than were written: b"abc" is the 18 characters \u0061\u0062\u0063, the escaped form that the log
# holds. All readers of the package agree on it, so that a filter by the value that was written finds no
# row, and a delete removes none, without a word. The same bytes in a column that does not partition are right.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
"$work/venv/bin/python" - "$work" >"$work/seen" <<'PYTHON'
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

for how, by in (("partitioned", ["tenant"]), ("whole", None)):
    path = f"{sys.argv[1]}/{how}"
    write_deltalake(path, pa.table({"tenant": [b"abc", b"xyz"], "amount": [1, 2]}), partition_by=by)
    table = DeltaTable(path)
    print(how, sorted(table.to_pyarrow_table()["tenant"].to_pylist()))
    found = QueryBuilder().register("t", table).execute("SELECT amount FROM t WHERE tenant = X'616263'")
    print("  query  ", sum(batch.num_rows for batch in found))
    print("  filters", table.to_pyarrow_table(filters=[("tenant", "=", b"abc")]).num_rows)
    print("  delete ", table.delete("tenant = X'616263'")["num_deleted_rows"])
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
partitioned [b'\\u0061\\u0062\\u0063', b'\\u0078\\u0079\\u007A']
  query   0
  filters 0
  delete  0
whole [b'abc', b'xyz']
  query   1
  filters 1
  delete  1
SEEN
