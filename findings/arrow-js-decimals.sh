#!/usr/bin/env bash
# apache-arrow 21.2.0 and parquet-wasm 0.8.0 (npm): a decimal of a Parquet file comes without its
# scale: 0.10 of decimal(18,2) is 10 as a number and as text. The last microsecond of 9999, which many
# systems write for "no end", is the first moment of the year 10000.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyarrow==26.0.1
npm install --silent --prefix "$work" apache-arrow@21.2.0 parquet-wasm@0.8.0 >/dev/null
"$work/venv/bin/python" - "$work/prices.parquet" <<'PYTHON'
import sys
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

prices = pa.array([Decimal("0.10"), Decimal("-3.50")], pa.decimal128(18, 2))
until = pa.array([datetime(2024, 5, 5), datetime.max], pa.timestamp("us"))
pq.write_table(pa.table({"price": prices, "until": until}), sys.argv[1])
PYTHON
cat >"$work/read.mjs" <<'JAVASCRIPT'
import { readFileSync } from "node:fs"
import { tableFromIPC } from "apache-arrow"
import { readParquet } from "parquet-wasm"

const file = readParquet(new Uint8Array(readFileSync(process.argv[2])))
for (const { price, until } of tableFromIPC(file.intoIPCStream()))
  console.log(Number(price), String(price), new Date(until).toISOString())
JAVASCRIPT
node "$work/read.mjs" "$work/prices.parquet" >"$work/seen"
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
10 10 2024-05-05T00:00:00.000Z
-350 -350 +010000-01-01T00:00:00.000Z
SEEN
