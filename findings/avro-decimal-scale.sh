#!/usr/bin/env bash
# avro 1.12.2 (Apache's package for Python): a decimal with fewer digits behind the point than its
# schema has is written without the missing zeros. 1.2 in decimal(5,2) becomes 0.12, a tenth of it,
# and every reader reads that; 1.20 is right. More digits than the schema has are refused.
# fastavro 1.13.1 writes the same value of the same schema as 1.20.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet avro==1.12.2 fastavro==1.13.1
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
import io
import json
from decimal import Decimal

import avro.datafile
import avro.io
import avro.schema
import fastavro

kind = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
schema = {"type": "record", "name": "line", "fields": [{"name": "price", "type": kind}]}


def by_apache(price):
    file = io.BytesIO()
    parsed = avro.schema.parse(json.dumps(schema))
    with avro.datafile.DataFileWriter(file, avro.io.DatumWriter(), parsed) as writer:
        writer.append({"price": price})
        writer.flush()
        return file.getvalue()


def by_fastavro(price):
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(schema), [{"price": price}])
    return file.getvalue()


for written in ("1.20", "1.2", "-0.5", "30"):
    for write in (by_apache, by_fastavro):
        (row,) = fastavro.reader(io.BytesIO(write(Decimal(written))))
        print(f"{written} {write.__name__}: {row['price']}")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
1.20 by_apache: 1.20
1.20 by_fastavro: 1.20
1.2 by_apache: 0.12
1.2 by_fastavro: 1.20
-0.5 by_apache: -0.05
-0.5 by_fastavro: -0.50
30 by_apache: 0.30
30 by_fastavro: 30.00
SEEN
