#!/usr/bin/env bash
# csvkit 2.2.0: csvsort, csvjoin and csvsql rewrite far more than the leading zeros that their options
# name. First names that are months, May and June, become days of the year 1; codes such as 2026_01 become
# the number 202601, since Python's Decimal reads them so, and are joined with it; currency signs are
# dropped, and dollars and euros are one kind of number; 2h becomes 2:00:00. --no-leading-zeroes leaves all of
# it. Safe: --no-inference.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet csvkit==2.2.0
cat >"$work/people.csv" <<'CSV'
id,name,code,price,shift
1,May,2026_01,$5,2h
2,June,2026_02,€6,30m
CSV
printf 'code,period\n202601,first\n' >"$work/periods.csv"
(
    cd "$work" && PATH="$work/venv/bin:$PATH"
    csvsort --columns id people.csv
    csvsort --columns id --no-leading-zeroes people.csv
    csvjoin --columns code people.csv periods.csv
    csvsort --columns id --no-inference people.csv
) >"$work/seen"
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
id,name,code,price,shift
1,0001-05-01,202601,5,2:00:00
2,0001-06-01,202602,6,0:30:00
id,name,code,price,shift
1,0001-05-01,202601,5,2:00:00
2,0001-06-01,202602,6,0:30:00
id,name,code,price,shift,period
1,0001-05-01,202601,5,2:00:00,first
id,name,code,price,shift
1,May,2026_01,$5,2h
2,June,2026_02,€6,30m
SEEN
