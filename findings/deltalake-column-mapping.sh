#!/usr/bin/env bash
# deltalake 1.6.6: of a table with column mapping by name, which Delta's protocol has since reader
# version 2, to_pyarrow_table, to_pandas and to_pyarrow_dataset return NULL in every mapped column of
# the right number of rows, and a filter finds none. QueryBuilder of the same package reads the
# values.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
import json
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from deltalake import DeltaTable, QueryBuilder

FILE, MAPPING = "part-0.parquet", "delta.columnMapping"
names = {1: "id", 2: "amount"}
types = pyarrow.schema(
    [pyarrow.field(f"col-{i}", pyarrow.int64(), metadata={"PARQUET:field_id": str(i)}) for i in names]
)
log = Path("orders", "_delta_log")
log.mkdir(parents=True)
values = pyarrow.table({"col-1": [1, 2], "col-2": [10, 20]}, schema=types)
pyarrow.parquet.write_table(values, log.parent / FILE)
fields = [
    {
        "name": name,
        "type": "long",
        "nullable": True,
        "metadata": {f"{MAPPING}.id": i, f"{MAPPING}.physicalName": f"col-{i}"},
    }
    for i, name in names.items()
]
actions = [
    {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
    {
        "metaData": {
            "id": "00000000-0000-4000-8000-000000000001",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {f"{MAPPING}.mode": "name", f"{MAPPING}.maxColumnId": "2"},
            "createdTime": 0,
        }
    },
    {
        "add": {
            "path": FILE,
            "partitionValues": {},
            "size": (log.parent / FILE).stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
        }
    },
]
(log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))

table = DeltaTable("orders")
query = QueryBuilder().register("orders", table).execute("SELECT * FROM orders ORDER BY id")
print("QueryBuilder", pyarrow.table(query.read_all()).to_pydict())
print("to_pyarrow_table", table.to_pyarrow_table().to_pydict())
wanted = pyarrow.compute.field("amount") == 10
print("amount = 10:", table.to_pyarrow_dataset().count_rows(filter=wanted), "rows")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
QueryBuilder {'id': [1, 2], 'amount': [10, 20]}
to_pyarrow_table {'id': [None, None], 'amount': [None, None]}
amount = 10: 0 rows
SEEN
