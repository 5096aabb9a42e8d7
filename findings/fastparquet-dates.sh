#!/usr/bin/env bash
# fastparquet 2026.9.0, pandas 2.3.3: a Parquet DATE before 1677-09-21 or after 2262-04-11 is read
# as another, plausible day: days are made nanoseconds in 64 bits, which wrap. 9999-12-31, which
# many systems write for "no end", is a day of 1816.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet fastparquet==2026.9.0 pandas==2.3.3 pyarrow==26.0.1
"$work/venv/bin/python" - "$work/prices.parquet" >"$work/seen" <<'PYTHON'
import sys
from datetime import date

import fastparquet
import pyarrow as pa
import pyarrow.parquet as pq

days = [date(1500, 1, 1), date(2024, 5, 5), date(9999, 12, 31)]
pq.write_table(pa.table({"valid_until": days}), sys.argv[1])
read = fastparquet.ParquetFile(sys.argv[1]).to_pandas()["valid_until"]
for wrote, found in zip(days, read, strict=True):
    print(wrote, "is read as", found.date())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
1500-01-01 is read as 2084-07-20
2024-05-05 is read as 2024-05-05
9999-12-31 is read as 1816-03-29
SEEN
