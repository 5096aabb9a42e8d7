#!/usr/bin/env bash
# deltalake 1.6.6, Polars 2.1.0: for a decimal(38,0) above 2^63 - 1 delta-rs writes the statistic
# 9223372036854775807 as the greatest value of the file. Readers that skip files by statistics then
# find no row by its value: delta-rs' own query engine, its dataset for pyarrow, and Polars.
# All rows are in the file, and are read without a filter.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1 polars==2.1.0
"$work/venv/bin/python" - "$work/table" >"$work/seen" <<'PYTHON'
import json
import sys
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake

path, large = sys.argv[1], Decimal(2**63 + 10)
type_ = pa.decimal128(38, 0)
write_deltalake(path, pa.table({"account": pa.array([Decimal(5), large], type_)}))
table = DeltaTable(path)
for line in (Path(path) / "_delta_log/00000000000000000000.json").read_text().splitlines():
    if "add" in (action := json.loads(line)):
        print("statistics", json.loads(action["add"]["stats"])["maxValues"])
query = QueryBuilder().register("accounts", table)
for where in ("", f" WHERE account = {large}"):
    found = pa.table(query.execute(f"SELECT * FROM accounts{where}").read_all())
    print(f"delta-rs{where}:", found.num_rows)
chosen = pc.field("account") == pa.scalar(large, type_)
print("pyarrow, filtered:", table.to_pyarrow_dataset().to_table(filter=chosen).num_rows)
print("Polars, filtered:", pl.scan_delta(path).filter(pl.col("account") == large).collect().height)
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
statistics {'account': 9223372036854775807}
delta-rs: 2
delta-rs WHERE account = 9223372036854775818: 0
pyarrow, filtered: 0
Polars, filtered: 0
SEEN
