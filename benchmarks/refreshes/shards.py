"""A refresh of many rows by groups in shards: time, bytes and memory of both sides.

    python -m benchmarks.refreshes.shards [ROWS] [ROWS_OF_A_SHARD]

A table of ROWS rows with integer keys that span 2^62, in SQLite; one in a hundred is updated, one
in a thousand deleted, as many inserted anywhere. The source agent is a process of its own. Memory
is the greatest resident set of each process since it began: that of the warehouse has the first
load, which is printed apart. What is published is compared with the database, row by row.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, SourceProcess
from warehouse_agent.planning import allowance, candidates, group_shards, plan_inputs
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks.scan import read_batches

STEP = (1 << 62) // 10_000_000  # between two keys


def filled(folder: Path, rows: int) -> SqliteLegacy:
    """Make the table."""
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, v INTEGER, note TEXT)")
    made = ((n * STEP - (1 << 61), n % 97, f"note {n} of the order") for n in range(rows))
    legacy.many("INSERT INTO orders VALUES (?, ?, ?)", [*made])
    return legacy


def edit(legacy: SqliteLegacy) -> None:
    """Update, delete and insert rows in all places."""
    number = f"((id + {1 << 61}) / {STEP})"
    legacy.execute(f"DELETE FROM orders WHERE {number} % 1000 = 7")
    legacy.execute(f"UPDATE orders SET v = v + 1 WHERE {number} % 100 = 3")
    new = f"SELECT id + {STEP // 2}, 1, 'new' FROM orders WHERE {number} % 1000 = 11"
    legacy.execute(f"INSERT INTO orders {new}")


def is_equal(pair: Pair, legacy: SqliteLegacy) -> bool:
    """Compare what is published with the database, by the sum of a hash of each row."""
    snapshot = head(pair.store, "orders")
    assert snapshot is not None
    ours = sum(
        hash(one)
        for file in snapshot.files
        for batch in read_batches(file.uri, snapshot.layout.file_schema)
        for one in zip(
            *(batch.column(name).to_pylist() for name in snapshot.layout.data_names), strict=True
        )
    )
    return ours == sum(map(hash, legacy.rows("orders")))


def peak_mb(status: Path) -> float:
    """Return the greatest resident set of a process, from /proc."""
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def main(rows: int = 1_200_000, most: int | None = None) -> None:
    """Load, edit, refresh by groups, and print what it took."""
    if most is not None:
        group_shards.KEYS_MAX = most
        for module in (allowance, candidates, plan_inputs):
            vars(module)["GROUPED_KEYS_MAX"] = most
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        legacy = filled(folder, rows)
        pair = Pair(NoSpark(), legacy, folder / "pair", {"orders": 'table = "orders"'})
        pair.small_bytes = 4 << 30
        pair.stop()
        with SourceProcess(pair.source_toml()) as source:
            pair.address = source.address
            pair.refresh("orders")
            own = Path("/proc/self/status")
            loaded, of_source = peak_mb(own), Path(f"/proc/{source.process.pid}/status")
            loaded_source = peak_mb(of_source)
            edit(legacy)
            pair.fragment_lines["orders"] = 'method = "group"'
            began, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
            report = pair.refresh("orders")
            spent, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
            print(
                json.dumps(
                    {
                        "rows": report.rows_total,
                        "inserted_updated_deleted": (
                            report.rows_inserted,
                            report.rows_updated,
                            report.rows_deleted,
                        ),
                        "seconds": round(spent, 1),
                        "warehouse_cpu_s": round(used.ru_utime - cpu.ru_utime, 1),
                        "phases": report.seconds,
                        "round_trips": report.round_trips,
                        "scans": report.source_scans,
                        "bytes_sent": report.bytes_sent,
                        "bytes_received": report.bytes_received,
                        "proof": report.proof,
                        "peak_mb_warehouse": (round(loaded), round(peak_mb(own))),
                        "peak_mb_source": (round(loaded_source), round(peak_mb(of_source))),
                        "equal": is_equal(pair, legacy),
                    }
                )
            )
        legacy.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
