#!/usr/bin/env bash
# fastavro 1.13.1: a decimal zero with a sign, which rounding an amount below half a cent makes, is
# written to a decimal of the type fixed as -0.02; to one of bytes it is 0 since
# https://github.com/fastavro/fastavro/pull/361. In a union of date and timestamp a datetime is written as
# the date, for it is one in Python, and its time is lost; with the timestamp first it is kept. The files
# say so to any reader, and no error is raised, with `validator=True` neither.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet fastavro==1.13.1 avro==1.12.2
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
import io
from datetime import UTC, datetime
from decimal import Decimal

import avro.datafile
import avro.io
import fastavro


def written(kind, value):
    file = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    fastavro.writer(file, schema, [{"x": value}], validator=True)
    file.seek(0)
    (other,) = avro.datafile.DataFileReader(io.BytesIO(file.getvalue()), avro.io.DatumReader())
    return str(next(fastavro.reader(file))["x"]), str(other["x"])


money = {"logicalType": "decimal", "precision": 10, "scale": 2}
amount = round(Decimal("-0.004"), 2)
print(amount, "fixed", *written({"type": "fixed", "size": 8, "name": "m", **money}, amount))
print(amount, "bytes", *written({"type": "bytes", **money}, amount))
day = {"type": "int", "logicalType": "date"}
instant = {"type": "long", "logicalType": "timestamp-micros"}
noon = datetime(2024, 5, 6, 12, tzinfo=UTC)
print("date first:", *written([day, instant], noon))
print("timestamp first:", *written([instant, day], noon))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
-0.00 fixed -0.02 -0.02
-0.00 bytes 0.00 0.00
date first: 2024-05-06 2024-05-06
timestamp first: 2024-05-06 12:00:00+00:00 2024-05-06 12:00:00+00:00
SEEN
