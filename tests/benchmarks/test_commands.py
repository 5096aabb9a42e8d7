"""Every command of `benchmarks/` at a tiny size: it ends well, and prints its table with numbers.

Numbers of such sizes say nothing, so no test looks at one. Commands run as `python -m` runs them,
but in this process: most of the time of a tiny run would be the imports of a new one. They get the
database servers and the Spark session of the tests, and what they leave in a server is dropped.
Processes of their own are those that wait for all children of theirs (`many`), whose children
import the main module (`snapshots`), and that end with a signal (`line_relay`). `carnes` restarts
its server, and two of `peers` put servers into network namespaces, so they start their own.
"""

from __future__ import annotations

import csv
import json
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.decisions.expect import HISTORIES
from benchmarks.replay import results as replay_results
from tests import ROOT
from tests.harness import servers
from tests.harness.histories import available
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment
from warehouse_agent.planning import allowance, candidates, group_shards, plan_inputs
from warehouse_agent.spark import session
from warehouse_agent.tasks import digests, scan

BENCHMARKS = ROOT / "benchmarks"
FOOTBALL = "intl_football_results"
N = r"[\d.,]+"  # a number

POSTGRESQL, MARIADB, SPARK, WAN = (
    getattr(pytest.mark, name) for name in ("postgresql", "mariadb", "spark", "wan")
)
ZSTD = pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd: tests/setup zstd")
PGBENCH = pytest.mark.skipif(
    shutil.which("pgbench") is None, reason="NO PGBENCH, NOT TESTED: install postgresql-contrib"
)
REAL = pytest.mark.skipif(
    not all(map(available, HISTORIES)), reason="NO REAL TABLES, NOT TESTED: ../shared/data"
)


@dataclass(frozen=True)
class Command:
    """One run: the words after the module's name, and regular expressions of what it prints.

    In the words `{folder}` is the working folder, and `{root}` that of this checkout. Marks also
    say which servers and session are lent. `prepare` makes files in the working folder first.
    """

    words: str
    prints: tuple[str, ...]
    marks: tuple[pytest.MarkDecorator, ...] = ()
    prepare: Callable[[Path], None] = lambda _: None
    is_process: bool = False


def write_changes(folder: Path) -> None:
    """Write short histories of change for `when`: three rows a day for two months."""
    for name in HISTORIES:
        file = folder / name / "changes_all_commits.csv"
        file.parent.mkdir()
        with file.open("w", newline="") as out:
            lines = csv.writer(out)
            lines.writerow(["date", "inserts", "updates", "deletes"])
            for day in range(1, 28 * 2):
                at = f"2026-{day // 28 + 1:02}-{day % 28 + 1:02}T{9 + day % 7:02}:00:00+00:00"
                lines.writerow([at, 1, 2, 0])


def write_peers(folder: Path) -> None:
    """Copy the recorded runs of one table, pattern and link."""
    lines = (BENCHMARKS / "peers.jsonl").read_text().splitlines(keepends=True)
    first = json.loads(lines[0])
    same = ("table", "pattern", "scale", "rtt_ms", "rate_mbit")
    found = [line for line in lines if all(json.loads(line)[k] == first[k] for k in same)]
    (folder / "peers.jsonl").write_text("".join(found))


def write_replay(folder: Path) -> None:
    """Write records of a replay of three refreshes."""
    made = [
        replay_results.Record(
            commit=number,
            at=f"2026-0{number}-01T00:00:00+00:00",
            rows=1000,
            inserted=1,
            updated=2,
            deleted=0,
            expected=(1, 3, 6),
            sent_bytes=900,
            received_bytes=600,
            frame_bytes=300,
            round_trips=1,
            method="sketch",
            scans=1,
            idle_bytes=800,
            bare_bytes=500,
            modelled_bytes=1500,
            load_bytes=20_000,
            floor_bytes=200,
            csv_bytes=60_000,
        )
        for number in (1, 2, 3)
    ]
    list(replay_results.write(made, folder / "replay.jsonl"))


COMMANDS = {
    "source.activity": Command(
        "--tables 3 --rounds 2",
        (
            rf"statement, 3 tables +{N} ms",
            rf"open, 3 tables probed +{N} ms",
            rf"call, 1 table +{N}",
        ),
        (POSTGRESQL,),
    ),
    "refreshes.against": Command(
        "{root} --rows 300 --rounds 1 --share 10 --lazy-spark",
        (
            r"300 rows, 10 % changed in each of 1 rounds",
            rf"load, cold +wall, s +there +{N} +here +{N} +ratio {N}",
            rf"10 % changed +bytes +there +{N} +here +{N} +ratio {N}",
        ),
        (POSTGRESQL,),
    ),
    "refreshes.commands": Command(
        "{root} --rows 300 --orders 300 --tables 1 --lines 60 --rounds 1",
        (
            rf"300 rows, unchanged: there {N} s  here {N} s  ratio {N} \({N} to {N}\)",
            rf"status of 3: there {N} s  here {N} s  ratio {N}",
            rf"300 rows, 1 % changed: there {N} s  here {N} s  ratio {N}",
            rf"lines of a history: 30 {N} s  60 {N} s  ratio {N}",
        ),
    ),
    "refreshes.told": Command(
        "--fragments 3",
        (rf"3 fragments: first {N} s, nothing new {N} s, all fail {N} s, all overdue {N} s",),
    ),
    "source.carnes": Command(
        "--rows 2000 --columns 30 --changed 10 --copied 10 --view-rows 400 --statements",
        (
            rf"-- ID/RCS: {N} pages\n--   execute .*: COPY \( SELECT \"id\", \"f0\", \"f1\", ",
            r"\| Figure 9: columns published \| RSBC \| P/SWC \| MDS \| TLCS \| ID/RCS \|",
            rf"\| 30 %, neighbours \| {N} \| {N} \| {N} / \*\*{N}\*\* \|",
            r"\| Figure 10: rows in the older copy \|",
            rf"\| 10 %, scattered \| {N} \| {N} \| {N} / \*\*{N}\*\* \|",
            rf"\| time stamps; marker \| 0\.152 \| {N} \| \*\*{N}\*\* \|.* \*\*{N}\*\* \|$",
        ),
        (POSTGRESQL, SPARK),
    ),
    "views.derived": Command(
        "--scale 0.001 --refreshes 1 --share 10",
        (
            rf"first load of q3_whole: {N} bytes on the link, rows",
            rf"0: lineitem +{N} changed rows, floor +{N}, +{N} bytes, {N} x, \w+",
            rf"0: in all +floor {N}, {N} bytes, {N} x; of every changed row {N}",
        ),
        (POSTGRESQL, SPARK, WAN),
    ),
    "views.site_joins": Command(
        "--scale 0.001 --refreshes 1 --share 10 --only q5",
        (
            rf"1: q5 joins +{N} rows, +{N} bytes, +-?{N} s of the source \(erp",
            rf"\| Q5, 1 refreshes \| {N}; {N}; {N} \| {N} × \| {N} ×; {N} × \| -?{N} ×; -?{N} × \|",
        ),
        (POSTGRESQL, SPARK),
    ),
    "files.dump": Command(
        "--mib 1 --repeat 1",
        (
            r"file +pass +CPU s +MiB +of split +of parse",
            rf"plain +split +{N} +{N} +1\.00 +{N}",
            rf"\.zst +engine +{N} +{N} +{N} +{N}",
        ),
    ),
    "decisions.expect": Command(
        f"--history {FOOTBALL} --schedule weekly",
        (
            r"\| history \| refreshes \(unchanged\) \| estimator \| log-loss \|",
            rf"\| {FOOTBALL}, weekly \| {N} \({N}%\) \| \*\*ours\*\* \| {N} \| {N}% \|",
        ),
        (REAL,),
    ),
    "decisions.expect_rows": Command(
        f"--history {FOOTBALL} --schedule weekly --refreshes 30",
        (
            r"\| history \| updates \(bulk\) \| estimator \| usual \| all \|",
            rf"\| {FOOTBALL}, weekly \| {N} \({N}\) \| \*\*ours\*\* \| {N} \| {N} \|",
        ),
        (REAL,),
    ),
    "decisions.pauses": Command(
        f"--history {FOOTBALL} --pauses 2",
        (rf"\| {FOOTBALL}, every 1 h \| 3 days \| {N} \| {N} \| yes \|",),
        (REAL,),
    ),
    "source.fetch": Command(
        "--scale 0.001 --repeat 1",
        (
            r"\| engine \| share \| rows \| ranges \| index s \| scan s \| memory s \| MB \|",
            rf"\| sqlite +\| 100\.0% \| +1,500 \| +{N} \| +{N} \| +{N} \| +{N} \| +{N} \|",
            r"mariadb: a second scan beats the index from (above|below|\d)",
            r"postgresql: a second scan beats",
        ),
        (POSTGRESQL, MARIADB),
    ),
    "views.flips": Command(
        "3 6",
        (
            rf"commit: median {N} ms, slowest of 6 {N} ms \(3 tables\)",
            rf"flip: median {N} ms",
            rf"open: median {N} ms",
        ),
    ),
    "refreshes.groups_without_scans": Command(
        "--rows 20000 --changes 40 --learnt 2 --rounds 1",
        (
            r"20,000 rows, 1 parts of 5% after 2 complete refreshes: ",
            rf"{N} of 40 changes found, {N} times a uniform draw; {N} left, {N} expected; ",
        ),
        (POSTGRESQL,),
    ),
    "source.hashes": Command(
        "--scale 0.001 --repeat 1",
        (
            r"orders: 1,500 rows, [\d,]+ ranges, least of 1",
            r"lineitem: [\d,]+ rows",
            rf"\| key and hash +\| +{N} \| +{N} \| +{N} \| +{N} \|",
            rf"\| survey, database +\| +{N} \| +{N} \| +{N} \| +{N} \|",
        ),
        (POSTGRESQL,),
    ),
    "source.live_workload": Command(
        "--rounds 1 --seconds 1 --settle 0.3 --peak 1 --rows 2000 --scale 1 --way default",
        (
            rf"peak: {N} transactions/s; pgbench keeps {N}",
            rf"default: {N} rows/s scanned",
            r"\| beside \| seconds \| p95, ms \|",
            rf"\| alone \| \d \| {N} \| {N} \| 1\.00 \|",
            rf"\| default \| \d \| {N} \| {N} \| {N} \|",
        ),
        (POSTGRESQL, PGBENCH),
    ),
    "refreshes.report_pages": Command(
        "--tables 10 --refreshes 30",
        (
            rf"10 tables, 30 refreshes each: {N} s, processor {N} s, {N} MB; ",
            rf"; index {N} kB, pages {N} MB",
        ),
    ),
    "refreshes.metrics": Command(
        "--tables 3 --lines 4 --rounds 1",
        (
            r"4 lines a history, 1 rounds",
            rf"3 tables: without {N} s, with {N} s, more -?{N} s; textfile {N} kB; 1 first",
        ),
        is_process=True,
    ),
    "refreshes.many": Command(
        "--tables 1 --rows 60 --changed 3 --rounds 1",
        (
            r"1 x 60 rows, 1 rounds",
            rf"load +wall +{N} s, processor +{N} s, source +{N} s, driver {N} MB",
            rf"3 changed, 1 +wall +{N} s, .* apply: driver, prove: driver",
            rf"status +wall +{N} s",
            rf"--help +wall +{N} s",
        ),
        is_process=True,
    ),
    "decisions.month": Command(
        "6 2 3",
        (rf"[1-9]\d* refreshes, \d+ decisions, {N} s of one processor, .*; 0 rules broken",),
    ),
    "refreshes.one_machine": Command(
        "--rows 2000",
        (
            r"load of the machine before: ",
            rf"load of 2,000 rows: {N} s, held back {N} s \({N}%\); others used {N}% of the proc",
            r"goal: held back for at most 5%",
        ),
        (POSTGRESQL,),
        is_process=True,
    ),
    "refreshes.pair": Command(
        "--scale 0.001 --refreshes 1 --share 10 --lazy-spark",
        (
            r"orders, scale 0\.001: 1,500 rows; 0\.0 ms, no Mbit/s",
            rf"10 % \([\d,]+ rows, floor {N}\) +{N} bytes on the link = {N} x floor, \w+, +\d+ p",
            rf"last refresh ÷ warm load: {N}",
            rf"source agent, peak resident: {N} MB",
        ),
        (POSTGRESQL, WAN),
    ),
    "decisions.paper": Command(
        "--seeds 1",
        (
            rf"\| RPC \+ compound \| {N} \| {N} \| \d+% \|",
            r"Figure 6: of \d+ refreshes of a week",
            r"\| 0\.5 \| 1\.00 \| ",
            rf"recurrent load over the best fixed interval: optimum {N}, threshold {N}",
        ),
    ),
    "peers.compare": Command(
        "--tool driftline --tool full-copy:3 --tool pg_comparator:5 --table orders"
        " --pattern scattered --rate 1 --scale 0.001 --rtt-ms 0 --rate-mbit 0 --warm 1 --lazy-spark"
        " --results {folder}/peers.jsonl --output {folder}/pictures",
        (
            rf"orders scattered 1 % \[.*\] warming 0: driftline \(\w+\) {N} bytes, floor {N}, ",
            r"orders scattered 1 % \[.*\] measured: driftline \(\w+\) [^:]+$",
        ),
        (POSTGRESQL, WAN),
    ),
    "peers.log_capture": Command(
        "--scale 0.001 --warm 1 --rounds 1 --rtt-ms 0 --rate-mbit 0 --lazy-spark --no-install",
        (
            rf"^\| Driftline \| {N} kB \| {N} \| {N} \|  \|$",
            r"^- DEBEZIUM IS LEFT OUT: not installed, and nothing is to be",
        ),
        (POSTGRESQL, WAN),
    ),
    "peers.plots": Command(
        "--results {folder}/peers.jsonl --output {folder}/pictures",
        (r"peers-bytes-\w+-\w+-0ms-0mbit\.svg$",),
        prepare=write_peers,
    ),
    "source.probed": Command(
        "--minutes 1 --tables 3 --seconds 1",
        (
            rf"no probe +\d+ transactions, p50 {N}, p95 {N}, p99 {N} ms",
            rf"a probe a minute +\d+ transactions, p50 {N}",
            rf"[1-9]\d* questions about 3 tables, median {N} ms",
        ),
        (POSTGRESQL, PGBENCH),
    ),
    "refreshes.reduce": Command(
        "--rows 2000 --files 2 --repeat 1",
        (
            r"2,000 rows, 2 files, \d+ processors",
            rf"ranges +threads 1 +batches +16,384 +per M rows: wall {N} s +processor {N} s",
            rf"finest sketch +threads 2 +batches 131,072 +per M rows: wall {N} s",
        ),
    ),
    "replay.commits": Command(
        f"--history {FOOTBALL} --upto 3 --results {{folder}}/replay.jsonl",
        (
            rf"{FOOTBALL}, objective seconds",
            rf"\| the others \| 3 \| {N} \|",
            r"\| driftline \| [\d.]+ [kM]?B \| 1\.00 \|",
        ),
        (REAL,),
    ),
    "replay.groups": Command(
        "--commits 1",
        tuple(rf"\| {name} \| 1 \| {N} \({N} deleted\) \| {N} \| {N} \|" for name in HISTORIES),
        (REAL,),
    ),
    "replay.picture": Command(
        "--results {folder}/replay.jsonl --picture {folder}/replay.svg", (), prepare=write_replay
    ),
    "reloads.step_places": Command(
        "--scale 0.001 --share 1 --cores 1 --place threads --place chosen --json {folder}/p.json",
        (
            rf"^load +1 cores +threads +{N} s +processor +{N} s .* \[apply:driver prove:driver\]$",
            rf"^nothing +1 cores +chosen +{N} s",
            rf"^1 % +1 cores +chosen +{N} s .*\[reduce:driver apply:driver prove:driver\]$",
            rf"^ +apply: {N} bytes, {N} s; predicted driver {N} s, Spark {N} s with its start$",
        ),
        (POSTGRESQL,),
        is_process=True,
    ),
    "reloads.copied": Command(
        "--rows 3000",
        tuple(
            rf"^{step} +{N} s +{N} processor s \({N} µs a row\) +memory {N} MB +temporary {N} MB "
            for step in ("load", "copy", "feed")
        ),
    ),
    "reloads.proved": Command(
        "--rows 3000 --rounds 1",
        tuple(
            rf"^{way} +{N} s +{N} × one thread, {N} cores$"
            for way in ("one thread", "threads", "processes")
        ),
    ),
    "reloads.cut_loads": Command(
        "--rows 2000 --engine sqlite --key text --at 50",
        (
            rf"^\| text \| here \| unbroken \| 1 \| {N} \| 1\.000 \| {N} \| 1\.00 \|$",
            rf"^\| text \| here \| killed at 50 % \| 2 \| {N} \| {N} \| {N} \| {N} \|$",
        ),
    ),
    "reloads.readers": Command(
        "--scale 0.001 --reader delta-rs --reader Polars --no-install",
        (
            rf"\| orders \| 1,500 \| {N} \| {N} \| {N} \| delta-rs \|",
            rf"\| customer \| 150 \| {N} \| {N} \| {N} \| delta-rs \|",
            r"^- POLARS IS LEFT OUT: not installed, and nothing is to be",
        ),
        (POSTGRESQL,),
    ),
    "reloads.against_reload": Command(
        "--table orders --scale 0.002 --rounds 1 --share 1 --peer copy --peer connectorx"
        " --no-install --json {folder}/reloads.json --line 1ms,1000mbit --pattern scattered",
        (
            r"^\| orders, 3,000 rows, loopback \| driftline, s \| copy, s \| ÷ copy \| connectorx",
            rf"^\| first load, proven \| {N}; {N} \| {N}; {N} \| {N}; {N} \| NOT MEASURED \|",
            rf"^\| nothing changed \| {N}; {N} \|.* ≤ 0\.5 × dlt: NOT MEASURED \|$",
            rf"^\| 1 % updated \| {N}; {N} \|.* {N}; {N} \| ≤ 0\.27 × before: NOT MEASURED \|$",
            r"^- CONNECTORX IS LEFT OUT: not installed, and nothing is to be",
            rf"^\| lineitem, {N} rows, 1ms,1000mbit \| driftline, s \| zstd copy, s \|",
            rf"^\| half, scattered, at first \| {N}; {N} \| {N}; {N} \|.* ≤ 1\.3 × zstd copy: ",
            rf"^\| half, scattered, when forecast \| {N}; {N} \|.* ≤ 1\.05 × zstd copy: ",
        ),
        (POSTGRESQL, WAN, ZSTD),
        is_process=True,
    ),
    "refreshes.shards": Command(
        "3000 500", (r'"rows": 3000, .*"proof": "total", .*"equal": true',)
    ),
    "source.marker_pages": Command(
        "--rows 2000 --share 1 --wait 0",
        tuple(
            rf"\| {engine} \| {deletes} \| 1 % \| {rows} \| {proof} \| {N} \| {N} \| {N} \| {N} \|"
            for engine in ("PostgreSQL", "MariaDB")
            for deletes in ("never", "flag")
            for rows in ("neighbours", "scattered")
            for proof in ("keys", "claimed")
        ),
        (POSTGRESQL, MARIADB),
    ),
    "refreshes.since": Command(
        "--scale 0.001 --seconds 1 --marker checksum",
        (
            rf"late commits, 1 s: {N} changed rows",
            r"xmin +missed 0 \(0\.0%\)",
            r"orders, 1,500 rows",
            rf"checksum +1\.0% updated, some deleted +{N} rows by the marker, {N} of {N} changed",
        ),
        (POSTGRESQL,),
    ),
    "decisions.rhythms": Command(
        "--days 60 --seeds 1 --history few",
        (
            r"\| history \| forecast by \| bytes ÷ floor: median, 90 % \| one round trip \|",
            rf"\| few \| elapsed time \| {N}, {N} \| {N}% \| {N} \| {N}% \|",
            rf"\| few \| the model \| {N}, {N} \| {N}% \| {N} \| {N}% \|",
        ),
    ),
    "decisions.sizes": Command(
        "--refreshes 12 --seeds 1",
        (
            r"\| changes a day \| objective \| bytes ÷ floor: median, 90 % \|",
            rf"\| Poisson \| seconds \| {N}, {N} \| {N}% \| {N}%, {N}% \| {N}% \|",
            rf"\| bulk at times \| bytes \| {N}, {N} \|",
        ),
    ),
    "files.snapshots": Command(
        "--rows 6000 --distance 0 --runs 1 --figures",
        (
            r"6,000 records, distance 0",
            rf"parse and hash +-?{N} s CPU +x +1\.00 +{N} s wall +{N} MiB \(\+-?{N}\)",
            rf"window +-?{N} s CPU .* 0 pairs mended, .* 0 temporary files",
            rf"driftline diff +-?{N} s CPU ",
            r"out: \d+ changes, 0 useless pairs, as changed",
            *(rf"^Figure {number}: " for number in (2, 8, 9, 10, 11, 14, 15, 16)),
            r"^Figures 17 and 18: ",
            rf"^ +6,000 +-?{N}, {N}; {N}, 2 .* {N}; 5\.\d+, 5 .* {N}; 4\.\d+, 4 ",
            rf"^SMC1 by Spark, 6,000 records: {N}, {N}$",
        ),
        is_process=True,
    ),
    "source.agent": Command(
        "--scale 0.001 --rows-millions 1.5 --table orders --repeat 1 --changed 50",
        (
            r"sqlite: 1,500 orders, [\d,]+ ranges, least of 1",
            r"\| +\| wall s \| M rows/s \| ÷ fetchmany \| ÷ fetchall \|",
            rf"\| ranges, 2 processes +\| +{N} \| +{N} \| +{N} \| +{N} \| +{N} \|",
            rf"CPU, µs per row: read {N}, gather {N}",
            r"peak resident \(VmHWM\), 50 changed rows, 2 reader\(s\)",
            rf"\| +1,500,000 rows, {N} ranges \| nothing changed +\| {N} .*MB \| {N} s \|",
            rf"\| \d+ rows by ranges \({N} row hashes\) +\| {N}",
        ),
        (POSTGRESQL, MARIADB),
    ),
    "refreshes.sources": Command(
        "--sources 2 --tables 1 --kilobytes 20 --rtt-ms 1 --rate-mbit 100",
        (
            r"2 sources of 1 x 20 kB, 1 ms, 100 Mbit/s",
            rf"one after the other +wall +{N} s, processor +{N} s",
            rf"side by side +wall +{N} s, processor +{N} s",
            rf"^{N} x$",
        ),
        (WAN,),
    ),
    "views.staleness": Command(
        "--rows 100 --piece 8 --only 8 --phases 1 --warm 2",
        (
            rf"\| 8: 64 \| {N} \| \d+ \| {N} \| {N} \| \*\*{N}\*\* \|",
            rf"Figure 8, automatic: evened by processor {N}; S1 {N}, S2 {N}; Eq\. 7 {N}; U {N}, V",
        ),
        (SPARK,),
    ),
    "views.maintenance": Command(
        "0.001 0.05 Q3 1",
        (
            r"5\.000% changed",
            rf"Q3 +cpu +s: recompute +{N}, incremental +{N} = \*\*{N}\*\* .* view [\d,]+ rows",
            rf"Q3 +auto: \w+ = \*\*{N}\*\* of the better, check included",
            rf"\| 0\.001, 5 %, Q3 \| {N} \| {N} \| \*\*{N}\*\* \|",
        ),
        (SPARK,),
    ),
    "decisions.when": Command(
        "{folder}",
        (
            *(
                rf"\| {name}, a week(?: \| (?:\*\*)?{N} \({N}\)(?:\*\*)?){{5}} \| {N} \|"
                for name in HISTORIES
            ),
        ),
        prepare=write_changes,
    ),
    "source.writers": Command(
        "--rows 300 --tile 150 --reply-ms 0",
        tuple(
            rf"\| {engine} \| integer \| {what} \| {N} s, {N} ms, {N} \| {N} s, {N} ms, {N} \|"
            for engine in ("SQLite, rollback journal", "MyISAM, no unique key", "PostgreSQL")
            for what in ("compared", "shipped")
        ),
        (POSTGRESQL, MARIADB),
    ),
    "refreshes.object_store": Command(
        "--rows 300 --rounds 1 --delay-ms 5 --store moto",
        tuple(
            rf"{what} changed, {name}: {N} s, {N} x"
            for what in (r"1\.0% of the rows", "nothing")
            for name in ("disk", "moto", r"moto \+5 ms")
        ),
    ),
    "source.products": Command(
        "--scale 0.001 --repeat 1",
        tuple(
            rf"\| {what} \| {N}: {N}, {N} \| {N}: {N}, {N} \| {N} \|"
            for what in ("load", "nothing changed", "1 % updated")
        ),
        (MARIADB, pytest.mark.mysql),
    ),
}
OF_THEIR_OWN = {"refreshes.line_relay", "source.again", "warm"}  # no table: below
# Tables of the results that their commands print: a comment before each names its command.
TABLE = re.compile(r"(?:^\|.*\|\n){3,}", re.MULTILINE)
TABLES = {
    found[1]: found[2].strip()
    for page in sorted((ROOT / "docs" / "results").glob("*.md"))
    for found in re.finditer(
        r"<!-- python -m benchmarks\.([\w.]+) -->\n((?:\|.*\|\n){3,})",
        page.read_text(encoding="utf-8"),
    )
}
OWN_SERVERS = {"source.carnes", "peers.compare", "peers.log_capture"}
# What commands set in modules of the product: it is set back.
SET = (
    (group_shards, "KEYS_MAX"),
    (allowance, "GROUPED_KEYS_MAX"),
    (candidates, "GROUPED_KEYS_MAX"),
    (plan_inputs, "GROUPED_KEYS_MAX"),
    (scan, "THREAD_BYTES"),
    (scan, "THREADS_MAX"),
    (scan, "DIGEST_ROWS"),
    (digests, "DRIVER_BYTES_MAX"),
    (digests, "READ_FACTOR"),
)


def test_every_command_is_tested() -> None:
    found = {
        ".".join(file.relative_to(BENCHMARKS).with_suffix("").parts)
        for file in BENCHMARKS.rglob("*.py")
        if re.search(r"^if __name__ == .__main__.:$", file.read_text(), re.MULTILINE)
    }
    assert found == COMMANDS.keys() | OF_THEIR_OWN
    assert COMMANDS.keys() >= TABLES.keys()
    assert len(TABLES) >= 5


def shape(table: str) -> tuple[tuple[str, ...], set[str]]:
    """Return the header of a table of Markdown and the names of its rows, without their numbers:
    a run of another size has more columns or rows of a kind, which count once."""
    lines = [line.split("|")[1:-1] for line in re.sub(N, "N", table).strip().splitlines()]
    head, _, *rows = ([cell.strip() for cell in cells] for cells in lines)
    return tuple(dict.fromkeys(head)), {row[0] for row in rows}


@pytest.fixture(autouse=True)
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder of the test: no file of the tree is written. Children find the tree."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    for module, name in SET:
        monkeypatch.setattr(module, name, vars(module)[name])
    ends = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, ends)


def run(
    module: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> str:
    """Run `python -m benchmarks.MODULE WORDS` in this process; return what it printed."""
    program = str(BENCHMARKS / f"{module.replace('.', '/')}.py")
    monkeypatch.setattr(sys, "argv", [program, *words])
    code: object = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert code in (0, None), f"{code}\n{err}"
    return str(out)


def run_process(module: str, words: list[str]) -> str:
    """Run the same as a process of its own; return what it printed."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def lent(server: Any, found: Callable[[], set[tuple[str, str]]]) -> Iterator[Any]:
    """Lend a server to a command; then drop its databases, and its roles, which own nothing."""
    before = found()
    try:
        yield server
    finally:
        new = found() - before
        for kind, name in sorted(new):  # databases first
            if kind == "database":
                server.drop_database(name)
            else:
                with server.superuser() as connection:
                    connection.execute(f'DROP ROLE "{name}"')


def lend_postgresql(server: servers.PostgreSQL) -> Callable[..., Any]:
    """Return a function for commands in place of the class: it lends the server of the tests."""

    def found() -> set[tuple[str, str]]:
        with server.superuser() as connection:
            return set(
                connection.execute(
                    "SELECT 'database', datname FROM pg_database"
                    " UNION SELECT 'role', rolname FROM pg_roles"
                ).fetchall()
            )

    return lambda **_: lent(server, found)


def lend_mariadb(server: servers.MariaDB) -> Callable[..., Any]:
    """Return the same for MariaDB, where no command makes accounts."""

    def found() -> set[tuple[str, str]]:
        with server.admin() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            return {("database", str(name)) for (name,) in cursor.fetchall()}

    return lambda: lent(server, found)


def replace_server(name: str, lend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `lend` in place of a class of servers, in its module and in those of benchmarks."""
    kind = getattr(servers, name)
    monkeypatch.setattr(servers, name, lend)
    for module in [m for n, m in sys.modules.items() if n.startswith("benchmarks.")]:
        if vars(module).get(name) is kind:
            monkeypatch.setattr(module, name, lend)


@pytest.fixture
def lending(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Command], None]:
    """Return a function that lends a command the servers and the session that its marks name."""

    def lend(module: str, command: Command) -> None:
        import_module(f"benchmarks.{module}")  # before a class is replaced: what it imports stays
        if WAN in command.marks:
            request.getfixturevalue("wan_available")
        if POSTGRESQL in command.marks and module not in OWN_SERVERS:
            server = request.getfixturevalue("postgresql")
            replace_server("PostgreSQL", lend_postgresql(server), monkeypatch)
        if MARIADB in command.marks:
            server = request.getfixturevalue("mariadb")
            replace_server("MariaDB", lend_mariadb(server), monkeypatch)
        if SPARK in command.marks and WAN not in command.marks:  # no namespace around it
            lend_spark(request, monkeypatch)

    return lend


def lend_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command that starts and stops Spark get the session of the tests."""
    spark = request.getfixturevalue("spark")
    monkeypatch.setattr(session, "start", lambda *_: session.pin(spark))
    monkeypatch.setattr(type(spark), "stop", lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=command.marks) for name, command in COMMANDS.items()]
)
def test_command(
    module: str,
    working: Path,
    lending: Callable[[str, Command], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    command = COMMANDS[module]
    command.prepare(working)
    lending(module, command)
    words = [word.format(folder=working, root=ROOT) for word in command.words.split()]
    if command.is_process:
        out = run_process(module, words)
    else:
        out = run(module, words, monkeypatch, capsys)
    for expected in command.prints:
        assert re.search(expected, out, re.MULTILINE), f"{expected}\nis not in\n{out}"
    if module in TABLES:
        head, names = shape(TABLES[module])
        rows_of = dict(map(shape, TABLE.findall(out)))
        assert rows_of[head]
        assert rows_of[head] <= names
    for option, file in pairwise(words):
        if option in ("--results", "--picture", "--json"):
            assert Path(file).stat().st_size > 0
        if option == "--output" and module == "peers.plots":
            assert [*Path(file).glob("*.svg")]


@pytest.mark.slow
def test_requests_by_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The other way of `refreshes.object_store`, across a checkpoint of the log."""
    words = ["--rows", "300", "--share", "0.05", "--store", "moto", "--files", "3"]
    words += ["--versions", "3,11"]
    out = run("refreshes.object_store", words, monkeypatch, capsys)
    for version in (3, 11):
        for what in (rf"{N} files, nothing changed", rf"{N} files rewritten"):
            expected = rf"version {version}, {what}: {N} \({N} with {N} log, .*\) requests of at"
            assert re.search(expected, out), f"{expected}\nis not in\n{out}"


@pytest.mark.slow
@pytest.mark.spark
def test_warm_refreshes_what_it_reads(
    working: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """`warm` has no table: a name in, a report out."""
    lend_spark(request, monkeypatch)
    legacy = SqliteLegacy(working / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, "x") for i in range(10)])
    with Pair(NoSpark(), legacy, working / "pair", {"orders": 'table = "orders"'}) as pair:
        monkeypatch.setattr(sys, "stdin", StringIO("orders\norders\n"))
        out = run("warm", [str(pair.warehouse_toml())], monkeypatch, capsys)
    legacy.close()
    reports = [json.loads(line) for line in out.splitlines()]
    assert [(r["name"], r["error"], r["rows_total"]) for r in reports] == [("orders", None, 10)] * 2


@pytest.mark.slow
def test_line_relay_carries_both_ways() -> None:
    """`line_relay` prints nothing, and its parent ends it."""

    def echo(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            peer.sendall(peer.recv(100).upper())

    with (
        socket.create_server(("127.0.0.1", 0)) as near,
        socket.create_server(("127.0.0.1", 0)) as far,
    ):
        thread = threading.Thread(target=echo, args=(far,))
        thread.start()
        words = [str(near.fileno()), *map(str, far.getsockname())]
        command = [sys.executable, "-m", "benchmarks.refreshes.line_relay", *words]
        with subprocess.Popen(command, pass_fds=(near.fileno(),)) as process:
            try:
                with socket.create_connection(near.getsockname(), timeout=60) as client:
                    client.sendall(b"driftline")
                    assert client.recv(100) == b"DRIFTLINE"
                    assert client.recv(100) == b""
                assert process.poll() is None
            finally:
                process.terminate()
                thread.join()
        assert process.returncode == -signal.SIGTERM
