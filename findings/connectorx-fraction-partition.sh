#!/usr/bin/env bash
# connectorx 0.4.6, pandas 2.3.3, pyarrow 26.0.1: a read in partitions of a column of fractions, which
# "Partition can only be done on int or float columns" allows, loses rows where the least value is
# negative: both ends are cut to integers towards zero, and -3.2 is less than -3. As pandas it returns
# as many rows as the table has, the lost ones made of zeros; as Arrow it returns fewer.
# partition_num=1 loses them as well, and a column of integers loses its row with 2^63 - 1.
# PostgreSQL's numeric and double precision do the same: 49 of 1000 balances were lost. Safe:
# partition_range with integers below and above every value, or no partitions.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet connectorx==0.4.6 pandas==2.3.3 pyarrow==26.0.1
"$work/venv/bin/python" - "$work/accounts.db" >"$work/seen" <<'PYTHON'
import sqlite3
import sys

import connectorx

TOP = 2**63 - 1
file = sqlite3.connect(sys.argv[1])
file.execute("CREATE TABLE accounts (balance REAL, number INTEGER)")
file.executemany("INSERT INTO accounts VALUES (?, ?)", [(-3.2, 1), (-3.0, 2), (0.5, 3), (9.7, TOP)])
file.commit()


def read(column: str, **how: object) -> list[float]:
    query = f"SELECT {column} FROM accounts ORDER BY 1"
    found = connectorx.read_sql(f"sqlite://{sys.argv[1]}", query, **how)[column]
    return sorted(found.to_pylist() if hasattr(found, "to_pylist") else found.tolist())


print("whole ", read("balance"))
for parts in (1, 3):
    how = {"partition_on": "balance", "partition_num": parts}
    print(parts, "pandas", read("balance", **how))
    print(parts, "arrow ", read("balance", return_type="arrow", **how))
print("range ", read("balance", partition_on="balance", partition_num=3, partition_range=(-4, 10)))
print("number", read("number", return_type="arrow", partition_on="number", partition_num=3))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
whole  [-3.2, -3.0, 0.5, 9.7]
1 pandas [-3.0, 0.0, 0.5, 9.7]
1 arrow  [-3.0, 0.5, 9.7]
3 pandas [-3.0, 0.0, 0.5, 9.7]
3 arrow  [-3.0, 0.5, 9.7]
range  [-3.2, -3.0, 0.5, 9.7]
number [1, 2, 3]
SEEN
