#!/usr/bin/env bash
# pyreadstat 1.3.7, pandas 2.3.3, xport 3.2.1 (SAS transport files, XPORT 5): a file is filled up with
# blanks to a multiple of 80 bytes, and blanks are also the empty row of a table of text alone. Empty rows at
# the end are lost by two readers, whatever their number; pandas reads other numbers, and one row too many
# where none was empty. pandas also reads 0 as 5.4e-79, which is not equal to 0. No error is raised.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyreadstat==1.3.7 pandas==2.3.3 xport==3.2.1 pyarrow==26.0.1
"$work/venv/bin/python" -W ignore - "$work/t.xpt" >"$work/seen" <<'PYTHON'
import sys

import pandas as pd
import pyreadstat
import xport.v56

path = sys.argv[1]


def readers(frame: pd.DataFrame) -> dict[str, list[object]]:
    pyreadstat.write_xport(frame, path, table_name="T", file_format_version=5)
    column = frame.columns[0]
    with open(path, "rb") as file:
        other = next(iter(xport.v56.load(file).values()))
    return {
        "pyreadstat": pyreadstat.read_xport(path)[0][column].tolist(),
        "pandas": pd.read_sas(path)[column].tolist(),
        "xport": other[column].tolist(),
    }


for empty in (0, 1, 2, 20, 80, 100):
    found = readers(pd.DataFrame({"note": ["paid"] * 3 + [""] * empty}))
    print(3 + empty, "rows:", {name: len(rows) for name, rows in found.items()})
print(readers(pd.DataFrame({"balance": [0.0, 0.1, -0.0, 1.0]})))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
3 rows: {'pyreadstat': 3, 'pandas': 4, 'xport': 3}
4 rows: {'pyreadstat': 3, 'pandas': 4, 'xport': 3}
5 rows: {'pyreadstat': 3, 'pandas': 4, 'xport': 3}
23 rows: {'pyreadstat': 3, 'pandas': 20, 'xport': 3}
83 rows: {'pyreadstat': 3, 'pandas': 80, 'xport': 3}
103 rows: {'pyreadstat': 3, 'pandas': 100, 'xport': 3}
{'pyreadstat': [0.0, 0.1, 0.0, 1.0], 'pandas': [5.397605346934028e-79, 0.1, 5.397605346934028e-79, 1.0], 'xport': [0.0, 0.1, 0.0, 1.0]}
SEEN
