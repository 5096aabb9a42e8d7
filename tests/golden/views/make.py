#!/usr/bin/env python3
"""Write a warehouse with a view over two sources, as the agents of this tree leave it.

    make.py [--folder FOLDER]

Run it with the tests' Python in the tree whose warehouse is to be kept; needs a Java. FOLDER is
where it is made; delta-rs notes that place in the first commit of a table. SQLite is the source,
DuckDB the oracle. The one that is kept is of the agents of dd33fd9. Made:

    warehouse/      three versions of the warehouse: a load, a change, a view that stays behind
    expected.json   by warehouse version and table, the rows that readers are given

`open_orders` reads the fragment `orders` and the kept relation `crm.customer`; `inverse` reads
`open_orders`, and cannot be computed for the third version.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[2] / "proto")]

from pyspark.sql import SparkSession  # noqa: E402

from tests.harness.pair import plain  # noqa: E402
from tests.harness.views import Sites  # noqa: E402
from warehouse_agent.spark.java import ensure_java  # noqa: E402

TABLES = {
    "erp": {"orders": "id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER"},
    "crm": {"customer": "code VARCHAR NOT NULL PRIMARY KEY, id INTEGER, name VARCHAR"},
}
VIEWS = {
    "open_orders": "SELECT o.id, o.amount, c.name FROM erp.orders o"
    " JOIN crm.customer c ON c.id = o.customer WHERE o.amount > 0",
    "inverse": "SELECT v.id, 60 / (v.amount - 7) AS x FROM open_orders v",
}
NAMES = ("orders", "crm.customer", *VIEWS)
LEFT_OUT = ("keys", "locks", "sources", "staging", "runs")  # no reader needs them


def make(sites: Sites) -> dict[str, Any]:
    """Refresh three times; return what readers are given of each version."""
    sites.fragment_lines = {"orders": 'source = "erp"'}
    sites.view_lines = dict.fromkeys(VIEWS, 'maintain = "incremental"')
    for i in range(12):
        sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?)", i, i % 4, 2 * i)
    for i in range(4):
        sites.sql("crm", "INSERT INTO customer VALUES (?, ?, ?)", f"c{i}", i, f"name {i}")
    sites.well()
    sites.check()
    sites.sql("erp", "UPDATE orders SET amount = 31 WHERE id = 3")
    sites.sql("erp", "DELETE FROM orders WHERE id = 5")
    sites.sql("crm", "INSERT INTO customer VALUES ('new', 2, 'newcomer')")
    sites.well()
    sites.check()
    sites.sql("erp", "UPDATE orders SET amount = 7 WHERE id = 8")
    assert sites.refresh()["inverse"].error is not None
    sites.check("open_orders")
    return {str(number): {name: rows(sites, number, name) for name in NAMES} for number in range(3)}


def rows(sites: Sites, number: int, name: str) -> list[list[Any]]:
    """Return the rows of a table in a warehouse version, sorted."""
    found = sites.pinned(number).read(name).collect()
    return sorted([str(plain(value)) for value in row] for row in found)


def main() -> None:
    """Make the warehouse, and keep it beside this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("/srv/driftline"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True)
    ensure_java()
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    try:
        with Sites(spark, folder, TABLES, dict(VIEWS)) as sites:
            expected = make(sites)
        shutil.rmtree(HERE / "warehouse", ignore_errors=True)
        shutil.copytree(
            folder / "warehouse",
            HERE / "warehouse",
            ignore=lambda place, _: LEFT_OUT if Path(place).name == "_driftline" else (),
        )
        (HERE / "expected.json").write_text(f"{json.dumps(expected, indent=1)}\n")
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
