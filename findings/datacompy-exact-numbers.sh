#!/usr/bin/env bash
# datacompy 1.1.0: with its tolerances at 0, which is their default, integers and decimals are compared
# as doubles. Two identifiers above 2**53 match, and two amounts of 18 digits that differ by a cent,
# with pandas and with Polars, and the report counts no unequal value. Join columns are compared exactly.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet datacompy==1.1.0 pandas==3.0.6 polars==1.44.2
"$work/venv/bin/python" -W ignore - >"$work/seen" <<'PYTHON'
from decimal import Decimal

import datacompy
import pandas
import polars

for name, frame in (("PandasCompare", pandas.DataFrame), ("PolarsCompare", polars.DataFrame)):
    for one, other in (
        (9223372036854775807, 9223372036854775806),
        (Decimal("1234567890123456.78"), Decimal("1234567890123456.79")),
        ("9007199254740993", "9007199254740992"),
    ):
        sides = [frame({"id": [1], "value": [value]}) for value in (one, other)]
        found = getattr(datacompy, name)(*sides, join_columns="id", abs_tol=0, rel_tol=0)
        print(name, one, other, "match" if found.matches() else "differ")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
PandasCompare 9223372036854775807 9223372036854775806 match
PandasCompare 1234567890123456.78 1234567890123456.79 match
PandasCompare 9007199254740993 9007199254740992 differ
PolarsCompare 9223372036854775807 9223372036854775806 match
PolarsCompare 1234567890123456.78 1234567890123456.79 match
PolarsCompare 9007199254740993 9007199254740992 differ
SEEN
