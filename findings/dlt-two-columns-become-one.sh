#!/usr/bin/env bash
# dlt 1.31.0 with deltalake 1.6.6, SQLAlchemy 2.1.9: column names become snake_case, and two columns
# that get one name become one column: of "net amount" and net_amount, or netAmount, the last one's
# values are loaded, the others are lost without a word. A source with the pyarrow backend is refused
# by name (NameNormalizationCollision), the default backend and rows of Python are not.
# Safe: the pyarrow or connectorx backend; other names in a view or query at the source.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet dlt==1.31.0 deltalake==1.6.6 pyarrow==26.0.1 sqlalchemy==2.1.9
(cd "$work" && RUNTIME__DLTHUB_TELEMETRY=false "$work/venv/bin/python" - >"$work/seen" 2>"$work/errors") <<'PYTHON' || { cat "$work/errors"; exit 1; }
import sqlite3

import dlt
from deltalake import DeltaTable
from dlt.pipeline.exceptions import PipelineStepFailed
from dlt.sources.sql_database import sql_table

source = sqlite3.connect("orders.db")
for name, column in (("blank", '"net amount"'), ("camel", "netAmount")):
    source.execute(f"CREATE TABLE {name} (id INTEGER, {column} INTEGER, net_amount INTEGER)")
    source.execute(f"INSERT INTO {name} VALUES (1, 10, NULL), (2, 10, 20)")
source.commit()
for name in ("blank", "camel"):
    for backend in ("sqlalchemy", "pyarrow"):
        files = dlt.destinations.filesystem("lake")
        loaded = f"{name}_{backend}"
        pipeline = dlt.pipeline(loaded, destination=files, dataset_name="d", pipelines_dir="state")
        table = sql_table("sqlite:///orders.db", table=name, backend=backend)
        try:
            pipeline.run(table, table_name=loaded, write_disposition="replace", table_format="delta")
        except PipelineStepFailed as error:
            print(loaded, "NameNormalizationCollision" in str(error))
            continue
        rows = DeltaTable(f"lake/d/{loaded}").to_pyarrow_table().to_pylist()
        print(loaded, [{k: v for k, v in row.items() if not k.startswith("_dlt")} for row in rows])
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
blank_sqlalchemy [{'id': 1, 'net_amount': None}, {'id': 2, 'net_amount': 20}]
blank_pyarrow True
camel_sqlalchemy [{'id': 1, 'net_amount': None}, {'id': 2, 'net_amount': 20}]
camel_pyarrow True
SEEN
