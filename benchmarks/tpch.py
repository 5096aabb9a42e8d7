"""TPC-H tables in a real PostgreSQL, and a mix of scattered changes.

80 % updates, 15 % inserts, 5 % deletes, scattered over the table, from a fixed seed.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import psycopg

from benchmarks.floor import floor_bytes

DATA = Path(".cache/tpch")  # made once, below the working folder
TABLES = {
    "customer": """CREATE TABLE customer (c_custkey bigint PRIMARY KEY, c_name varchar(25) NOT NULL,
        c_address varchar(40) NOT NULL, c_nationkey bigint NOT NULL, c_phone char(15) NOT NULL,
        c_acctbal numeric(15,2) NOT NULL, c_mktsegment varchar(10) NOT NULL,
        c_comment varchar(117) NOT NULL)""",
    "orders": """CREATE TABLE orders (o_orderkey bigint PRIMARY KEY, o_custkey bigint NOT NULL,
        o_orderstatus char(1) NOT NULL, o_totalprice numeric(15,2) NOT NULL,
        o_orderdate date NOT NULL, o_orderpriority char(15) NOT NULL, o_clerk char(15) NOT NULL,
        o_shippriority int NOT NULL, o_comment varchar(79) NOT NULL)""",
    "lineitem": """CREATE TABLE lineitem (l_orderkey bigint NOT NULL, l_partkey bigint NOT NULL,
        l_suppkey bigint NOT NULL, l_linenumber int NOT NULL, l_quantity numeric(15,2) NOT NULL,
        l_extendedprice numeric(15,2) NOT NULL, l_discount numeric(15,2) NOT NULL,
        l_tax numeric(15,2) NOT NULL, l_returnflag char(1) NOT NULL,
        l_linestatus char(1) NOT NULL, l_shipdate date NOT NULL, l_commitdate date NOT NULL,
        l_receiptdate date NOT NULL, l_shipinstruct char(25) NOT NULL, l_shipmode char(10) NOT NULL,
        l_comment varchar(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber))""",
}


def generate(folder: Path, scale: float, table: str) -> Path:
    """The table as CSV, made once."""
    out = folder / f"sf{scale}"
    file = out / f"{table}.csv"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        program = Path(sys.executable).parent / "tpchgen-cli"
        command: list[str | Path] = [program, "csv", "-s", str(scale), "--tables", table, "-o", out]
        subprocess.run(command, check=True, capture_output=True)
    return file


def load(connection: psycopg.Connection, file: Path, table: str) -> int:
    """Create and fill the table; returns its rows."""
    connection.execute(f"DROP TABLE IF EXISTS {table}")
    connection.execute(TABLES[table])
    copy = f"COPY {table} FROM STDIN (FORMAT csv, HEADER)"
    with connection.cursor() as cursor, file.open("rb") as data:
        with cursor.copy(copy) as sink:
            while piece := data.read(1 << 20):
                sink.write(piece)
        cursor.execute(f"VACUUM (ANALYZE) {table}")
        cursor.execute(f"SELECT count(*) FROM {table}")
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])


def change_orders(
    connection: psycopg.Connection, share: float, *, seed: int = 1
) -> tuple[int, int]:
    """Scatter changes over `share` of the orders; returns how many rows changed, and the floor in
    bytes of any way to say so."""
    keys = [r[0] for r in connection.execute("SELECT o_orderkey FROM orders ORDER BY 1").fetchall()]
    rng = random.Random(seed)
    chosen = rng.sample(keys, int(len(keys) * share * 0.85))
    cut = int(len(chosen) * 16 / 17)
    updated, deleted = chosen[:cut], chosen[cut:]
    present, last = set(keys), keys[-1]
    inserted: list[int] = []
    while len(inserted) < int(len(keys) * share * 0.15):
        key = rng.randrange(1, last + 1)
        if key not in present:
            present.add(key)
            inserted.append(key)
    with connection.transaction():
        connection.execute(
            "UPDATE orders SET o_totalprice = o_totalprice + 1.01,"
            " o_comment = left('changed ' || o_comment, 79) WHERE o_orderkey = ANY(%s)",
            (updated,),
        )
        connection.execute("DELETE FROM orders WHERE o_orderkey = ANY(%s)", (deleted,))
        connection.execute(
            "INSERT INTO orders SELECT k, o_custkey, 'O', o_totalprice, o_orderdate,"
            " o_orderpriority, o_clerk, 0, o_comment FROM unnest(%s::bigint[]) WITH ORDINALITY"
            " AS n(k, i) JOIN (SELECT *, row_number() OVER (ORDER BY o_orderkey) AS i FROM orders"
            " LIMIT %s) AS o USING (i)",
            (inserted, len(inserted)),
        )
    changed = len(updated) + len(deleted) + len(inserted)
    copy = (
        "COPY (SELECT * FROM orders WHERE o_orderkey = ANY(%s) ORDER BY 1) TO STDOUT (FORMAT csv)"
    )
    with connection.cursor().copy(copy, ([*updated, *inserted],)) as lines:
        rows = len(keys) + len(inserted)
        return changed, floor_bytes(map(bytes, lines), rows=rows, changed=changed)
