#!/usr/bin/env bash
# DataFusion 55.0.0, pyarrow 26.0.1: the sum of two decimals of 38 digits wraps at 2^127 and is
# negative, without an error. One would expect an error or a wider type.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet datafusion==55.0.0 pyarrow==26.0.1
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionContext

amounts = pa.array([Decimal("9" * 38)] * 2, pa.decimal128(38, 0))
context = SessionContext()
context.from_arrow(pa.table({"amount": amounts}), name="bills")
print("datafusion", context.sql("SELECT sum(amount) AS s FROM bills").to_pydict()["s"][0])
print("pyarrow", pc.sum(amounts).as_py())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
datafusion -140282366920938463463374607431768211458
pyarrow -140282366920938463463374607431768211458
SEEN
