#!/usr/bin/env bash
# hyparquet 1.33.0 and @dsnp/parquetjs 1.8.8 (npm) read numbers of a Parquet file: the first makes a
# double of each decimal, so that two amounts of decimal(18,2) are equal, although it keeps every
# digit of a bigint; the second takes unsigned integers for signed ones.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyarrow==26.0.1
npm install --silent --prefix "$work" hyparquet@1.33.0 @dsnp/parquetjs@1.8.8 >/dev/null
"$work/venv/bin/python" - "$work/numbers.parquet" <<'PYTHON'
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

amounts = [Decimal("9999999999999999.98"), Decimal("9999999999999999.99")]
table = {
    "amount": pa.array(amounts, pa.decimal128(18, 2)),
    "number": pa.array([2**53, 2**53 + 1], pa.int64()),
    "unsigned": pa.array([2**32 - 1, 2**31], pa.uint32()),
}
pq.write_table(pa.table(table), sys.argv[1], compression="none")
PYTHON
cat >"$work/read.mjs" <<'JAVASCRIPT'
import parquetjs from "@dsnp/parquetjs"
import { asyncBufferFromFile, parquetReadObjects } from "hyparquet"

const path = process.argv[2]
const [one, other] = await parquetReadObjects({ file: await asyncBufferFromFile(path) })
console.log("hyparquet:", one.amount, other.amount, one.amount === other.amount)
console.log("hyparquet:", one.number, other.number, one.unsigned, other.unsigned)
const cursor = (await parquetjs.ParquetReader.openFile(path)).getCursor(["unsigned"])
console.log("parquetjs:", (await cursor.next()).unsigned, (await cursor.next()).unsigned)
JAVASCRIPT
node "$work/read.mjs" "$work/numbers.parquet" >"$work/seen"
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
hyparquet: 10000000000000000 10000000000000000 true
hyparquet: 9007199254740992n 9007199254740993n 4294967295 2147483648
parquetjs: -1 -2147483648
SEEN
