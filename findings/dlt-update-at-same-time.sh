#!/usr/bin/env bash
# dlt 1.31.0 with deltalake 1.6.6, SQLAlchemy 2.1.9: an incremental load by a time column reads the
# rows of the last time again (its condition is >=), so that a change within the same second comes
# with the next load. A new row does. A row that was loaded and is updated again is read and dropped:
# those of the last time are known by their primary key, whatever their values are now. The old
# amount stays until the row's time moves on; nothing is reported. Safe:
# incremental("changed", primary_key=()), which loads the rows of the last time once more and leaves
# them to write_disposition="merge".
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet dlt==1.31.0 deltalake==1.6.6 pyarrow==26.0.1 sqlalchemy==2.1.9
(cd "$work" && RUNTIME__DLTHUB_TELEMETRY=false "$work/venv/bin/python" - >"$work/seen" 2>"$work/errors") <<'PYTHON' || { cat "$work/errors"; exit 1; }
import sqlite3

import dlt
from deltalake import DeltaTable
from dlt.sources.sql_database import sql_table

source = sqlite3.connect("orders.db")
source.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER, changed TIMESTAMP)")


def load(name: str, backend: str, **keys: object) -> list[tuple[int, int]]:
    files = dlt.destinations.filesystem("lake")
    pipeline = dlt.pipeline(name, destination=files, dataset_name="d", pipelines_dir="state")
    table = sql_table(
        "sqlite:///orders.db",
        table="orders",
        backend=backend,
        incremental=dlt.sources.incremental("changed", **keys),
        primary_key="id",
    )
    pipeline.run(table, table_name=name, write_disposition="merge", table_format="delta")
    rows = DeltaTable(f"lake/d/{name}").to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["amount"]) for row in rows)


for name, backend, keys in (
    ("rows", "sqlalchemy", {}),
    ("arrow", "pyarrow", {}),
    ("no_key", "pyarrow", {"primary_key": ()}),
):
    source.execute("DELETE FROM orders")
    source.execute("INSERT INTO orders VALUES (1, 10, '2024-01-01 08:00:00.000000')")
    source.execute("INSERT INTO orders VALUES (2, 20, '2024-01-01 08:00:05.000000')")
    source.commit()
    before = load(name, backend, **keys)
    source.execute("UPDATE orders SET amount = 99 WHERE id = 2")
    source.execute("INSERT INTO orders VALUES (3, 30, '2024-01-01 08:00:05.000000')")
    source.commit()
    print(name, before, "->", load(name, backend, **keys))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
rows [(1, 10), (2, 20)] -> [(1, 10), (2, 20), (3, 30)]
arrow [(1, 10), (2, 20)] -> [(1, 10), (2, 20), (3, 30)]
no_key [(1, 10), (2, 20)] -> [(1, 10), (2, 99), (3, 30)]
SEEN
