#!/usr/bin/env bash
# deltalake 1.6.6: an UPDATE that leaves its row as it was shows in the change data feed as a delete
# and an insert of each row of the rewritten file, also of rows that its condition did not select.
# One that changes a value shows the pair of that row alone (update_preimage, update_postimage).
# A consumer that counts changes, or bills by them, must compare rows first.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
"$work/venv/bin/python" - "$work/table" >"$work/seen" <<'PYTHON'
import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

path = sys.argv[1]
rows = pa.table({"id": [1, 2, 3], "price": [10, 20, 30]})
write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})
for new in ("price", "price + 1"):
    table = DeltaTable(path)
    table.update(updates={"price": new}, predicate="id = 1")
    feed = pa.table(DeltaTable(path).load_cdf(starting_version=table.version())).to_pylist()
    latest = [row for row in feed if row["_commit_version"] == table.version()]
    print(f"price = {new}:", sorted((row["id"], row["_change_type"]) for row in latest))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
price = price: [(1, 'delete'), (1, 'insert'), (2, 'delete'), (2, 'insert'), (3, 'delete'), (3, 'insert')]
price = price + 1: [(1, 'update_postimage'), (1, 'update_preimage')]
SEEN
