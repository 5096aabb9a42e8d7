#!/usr/bin/env bash
# pyorc 0.12.0 (the C++ library of Apache ORC): a timestamp in the last second before 1970 that has
# a millisecond or more of that second is written one second later, so that 23:59:59.5 and
# 00:00:00.5 of the next day are one value. pyorc and pyarrow both read it so; pyarrow 26.0.1 writes
# it right. All other timestamps before 1970 are right.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyorc==0.12.0 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
from datetime import UTC, datetime

import pyarrow
import pyarrow.orc
import pyorc

times = [
    datetime(1950, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 58, 500000, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 1000, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC),
    datetime(1970, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
]
with open("pyorc.orc", "wb") as file, pyorc.Writer(file, "struct<at:timestamp>") as writer:
    writer.writerows((at,) for at in times)
column = pyarrow.array([at.replace(tzinfo=None) for at in times], pyarrow.timestamp("us"))
pyarrow.orc.write_table(pyarrow.table({"at": column}), "pyarrow.orc")
for file in ("pyorc.orc", "pyarrow.orc"):
    by_arrow = pyarrow.orc.read_table(file)["at"].cast(pyarrow.timestamp("us")).to_pylist()
    with open(file, "rb") as opened:
        by_pyorc = [row[0].replace(tzinfo=None) for row in pyorc.Reader(opened)]
    assert by_arrow == by_pyorc
    for at, read in zip(times, by_arrow, strict=True):
        wrong = "" if read == at.replace(tzinfo=None) else f" is read as {read}"
        print(f"{file}: {at:%Y-%m-%d %H:%M:%S.%f}{wrong}")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
pyorc.orc: 1950-01-01 00:00:00.500000
pyorc.orc: 1969-12-31 23:59:58.500000
pyorc.orc: 1969-12-31 23:59:59.000999
pyorc.orc: 1969-12-31 23:59:59.001000 is read as 1970-01-01 00:00:00.001000
pyorc.orc: 1969-12-31 23:59:59.500000 is read as 1970-01-01 00:00:00.500000
pyorc.orc: 1970-01-01 00:00:00.500000
pyarrow.orc: 1950-01-01 00:00:00.500000
pyarrow.orc: 1969-12-31 23:59:58.500000
pyarrow.orc: 1969-12-31 23:59:59.000999
pyarrow.orc: 1969-12-31 23:59:59.001000
pyarrow.orc: 1969-12-31 23:59:59.500000
pyarrow.orc: 1970-01-01 00:00:00.500000
SEEN
