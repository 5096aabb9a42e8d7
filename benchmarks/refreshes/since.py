"""Refreshes by a marker: what they read and cost beside a sketch, and what late commits hide.

    python -m benchmarks.refreshes.since             orders, 750,000 rows, and 60 s of late commits
    python -m benchmarks.refreshes.since --scale 0.1 --seconds 0 --marker checksum

*Cost*: TPC-H orders with an indexed time column, in a real PostgreSQL; the source agent is a
process, the warehouse this one, without Spark. Updates alone, then updates with deletes, each
refreshed by the marker, by `xmin`, by a checksum of 64 bits that the writer sets, and by a sketch,
from one published state; `claimed` is the time column where no keys are compared, and nothing is
deleted. Seconds are of the processor: of the agent's process, and of the database's, which end
with each exchange.

*Late commits*: writers whose transactions last up to 3 s, and a refresh each second: in one
snapshot, what each rule shows is put into a copy, which is then compared with all rows. The cursor
takes rows that are newer than the newest one seen, as most tools do.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import psycopg

from benchmarks import tpch
from source_agent.engines.conformance.reads import decoded, flat, markers_of
from source_agent.engines.interface import Limits, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Mark, Marker
from source_agent.engines.relations.shapes import Relation, Shape
from tests.harness.no_spark import NoSpark
from tests.harness.pair import SourceProcess
from tests.harness.servers import PostgreSQL
from warehouse_agent import config as configure
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner

MARKERS = {
    "time column": 'marker = { column = "updated_at", late = "1s" }',
    "claimed": 'marker = { column = "updated_at", late = "1s", deletes = "never" }',
    "xmin": "marker = { xmin = true }",
    "checksum": 'marker = { checksum = "row_hash" }',
}
# What a trigger at the source would keep: of the key and the value that is changed here.
HASH = "hashtextextended(concat(o_orderkey, ' ', o_totalprice{}), 0)"
TICKS = os.sysconf("SC_CLK_TCK")
LATE_S = 5.0
SEEN_S = 0.5  # until the server has noticed that a process of its own ended


def spent_s(pid: int, *, of_children: bool) -> float:
    """Return the processor seconds of a process, or of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15] if of_children else fields[11:13])) / TICKS


def postmaster(connection: psycopg.Connection) -> int:
    """Return the process id of the server."""
    row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    return int((Path(row[0]) / "postmaster.pid").read_text().split()[0])


class Bench:
    """One marker: a source agent, and a warehouse that holds a published copy of orders."""

    def __init__(self, folder: Path, url: str, server: int, marker: str) -> None:
        self._server, self.proof = server, "claimed" if "deletes" in marker else "keys"
        (folder / "source.toml").write_text(
            f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
            # Both sides share the processors here.
            'audit_file = "audit.jsonl"\n[limits]\nfeedback = false\n'
            f'[relations.orders]\ntable = "orders"\n{marker}\n'
        )
        self.source = SourceProcess(folder / "source.toml")
        self._folder = folder

    def refresh(self, method: str) -> Report:
        """Refresh, which must go well."""
        proof = f'proof = "{self.proof}"\n' if method == "since" else ""
        file = self._folder / "warehouse.toml"
        file.write_text(
            f'[warehouse]\npath = "{self._folder}/warehouse"\nsmall_bytes = {1 << 40}\n'
            f'[sources.erp]\naddress = "{self.source.address}"\ninsecure = true\n'
            f'[fragments.orders]\nsource = "erp"\n{proof}method = "{method}"\n'
        )
        config = configure.load(file)
        (report,) = Runner(NoSpark(), config, attempts=1).refresh(
            list(config.fragments.values()), Options()
        )
        assert report.error is None, report.error
        return report

    def measured(self, method: str) -> tuple[Report, float]:
        """Refresh; return the report, and the processor seconds of the source."""
        before = self._spent_s()
        report = self.refresh(method)
        time.sleep(SEEN_S)
        return report, self._spent_s() - before

    def _spent_s(self) -> float:
        agent = spent_s(self.source.process.pid, of_children=False)
        return agent + spent_s(self._server, of_children=True)

    def copy(self, to: str) -> None:
        """Keep or bring back a state of the warehouse."""
        ours, kept = self._folder / "warehouse", self._folder / "kept"
        a, b = (ours, kept) if to == "kept" else (kept, ours)
        shutil.rmtree(b, ignore_errors=True)
        shutil.copytree(a, b)


def costs(server: PostgreSQL, scale: float, names: Sequence[str]) -> None:
    """Print what refreshes by a marker read and cost."""
    database = server.create_database("since")
    with server.superuser(database) as owner:
        rows = tpch.load(owner, tpch.generate(tpch.DATA, scale, "orders"), "orders")
        owner.execute("ALTER TABLE orders ADD updated_at timestamptz DEFAULT '2020-01-01'")
        owner.execute("ALTER TABLE orders ADD row_hash bigint")
        owner.execute(f"UPDATE orders SET row_hash = {HASH.format('')}")
        owner.execute("CREATE INDEX ON orders (updated_at)")
        owner.execute("VACUUM FULL orders")  # as if it had been written once
        owner.execute("VACUUM (ANALYZE) orders")
        print(f"orders, {rows:,} rows", flush=True)
        for name in names:
            with TemporaryDirectory() as folder:
                url = server.url("postgres", database)
                bench = Bench(Path(folder), url, postmaster(owner), MARKERS[name])
                with bench.source:
                    _measure(bench, owner, name)


def _measure(bench: Bench, owner: psycopg.Connection, name: str) -> None:
    bench.refresh("since")
    bench.refresh("since")
    for share, deletes in ((0.001, False), (0.01, False), (0.01, True)):
        if deletes and bench.proof == "claimed":
            continue
        time.sleep(2.5 if "late" in MARKERS[name] else 0)  # nothing is late
        bench.refresh("since")
        time.sleep(SEEN_S)
        bench.copy("kept")
        step = round(1 / share)
        sql = (
            "UPDATE orders SET o_totalprice = o_totalprice + 1, updated_at = clock_timestamp(),"
            f" row_hash = {HASH.format(' + 1')}"
        )
        changed = owner.execute(f"{sql} WHERE abs(hashint8(o_orderkey)) % {step} = 3").rowcount
        if deletes:
            left = 7 + len(name)  # other rows for each marker, and none that are updated
            gone = f"DELETE FROM orders WHERE abs(hashint8(o_orderkey)) % {20 * step} = {left}"
            changed += owner.execute(gone).rowcount
        took = {}
        for method in ("since", "sketch"):
            bench.copy("back")
            report, took[method] = bench.measured(method)
            assert report.rows_changed == changed, (report.rows_changed, changed)
            if method == "since":
                assert report.marker is not None
                assert report.proof == bench.proof, report.marker
                read = int(report.marker["rows"])
                what = f"{share:.1%} updated{', some deleted' if deletes else ''}"
                counted = "keys counted" if report.marker["keys_counted"] else "keys read"
                counted = "no keys" if bench.proof == "claimed" else counted
                seen = f"{read:,} rows by the marker, {read / changed:.3f} of {changed:,} changed"
        print(
            f"{name:<12} {what:<28} {seen}; {counted}; source {took['since']:.2f} s, sketch"
            f" {took['sketch']:.2f} s: {took['since'] / took['sketch']:.2f}",
            flush=True,
        )


class Writer(threading.Thread):
    """Update random rows in transactions that last up to `longest_s`."""

    def __init__(self, server: PostgreSQL, database: str, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._connection = server.superuser(database)
        self._connection.autocommit = False
        self._random, self._stop_it, self._seed = random.Random(seed), stop, seed

    def run(self) -> None:
        while not self._stop_it.is_set():
            late = self._random.random() < 0.1
            for _ in range(self._random.randrange(1, 8)):
                key = self._random.randrange(1000) * 8 + self._seed  # no two writers share a row
                self._connection.execute(
                    "UPDATE t SET v = v + 1, updated_at = now() WHERE id = %s", (key,)
                )
            self._stop_it.wait(self._random.random() * (3.0 if late else 0.1))
            self._connection.commit()
        self._connection.close()


def late_commits(server: PostgreSQL, seconds: float) -> None:
    """Print how many changed rows each rule missed."""
    database = server.create_database("late")
    with server.superuser(database) as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int, updated_at timestamptz)")
        owner.execute("INSERT INTO t SELECT i, 0, now() FROM generate_series(0, 7999) i")
    engine = connect(server.url("postgres", database), None, Limits())
    stop = threading.Event()
    writers = [Writer(server, database, seed, stop) for seed in range(8)]
    for writer in writers:
        writer.start()
    rules = {
        "xmin": Relation("t", table="t", marker=Marker("")),
        f"time, late = {LATE_S:g} s": Relation(
            "t", table="t", marker=Marker("updated_at", late_s=LATE_S)
        ),
        "cursor on max()": Relation("t", table="t", marker=Marker("updated_at", late_s=LATE_S)),
    }
    copies: dict[str, dict[str, str]] = {}
    marks: dict[str, Mark] = {}
    missed: Counter[str] = Counter()
    changed, ends_at = 0, time.monotonic() + seconds
    before: dict[str, str] = {}
    while time.monotonic() < ends_at:
        with closing(engine.open()) as session:
            rows = None
            for name, relation in rules.items():
                shape = session.describe(relation)
                now = markers_of(session).mark(shape)
                later = _values(session, shape, marks.get(name))
                if rows is None:
                    rows = _values(session, shape, None)
                    values = {key: value for key, (value, _) in rows.items()}
                    changed += sum(before.get(k) != v for k, v in values.items()) if before else 0
                copy = copies.setdefault(name, dict(values))
                if name in marks:
                    copy |= {k: v for k, (v, at) in later.items() if _is_new(name, at, marks[name])}
                missed[name] += sum(copy[key] != value for key, value in values.items())
                copies[name] = dict(values)
                newest = max(at for _, at in rows.values())
                marks[name] = Mark(now.source, newest) if "max" in name else now
            before = values
        time.sleep(1.0)
    stop.set()
    for writer in writers:
        writer.join()
    print(f"late commits, {seconds:g} s: {changed:,} changed rows", flush=True)
    for name in rules:
        print(f"  {name:<20} missed {missed[name]:,} ({missed[name] / max(changed, 1):.1%})")


def _is_new(name: str, at: str, mark: Mark) -> bool:
    return "max" not in name or at > mark.at


def _values(session: Session, shape: Shape, mark: Mark | None) -> dict[str, tuple[str, str]]:
    rows = flat(
        session.scan(shape) if mark is None else markers_of(session).read_marked(shape, mark)
    )
    read = (decoded(row, shape) for row in rows)
    return {str(row[0]): (str(row[1]), str(row[2])) for row in read}


@click.command(help=__doc__)
@click.option("--scale", default=0.5, show_default=True, help="of TPC-H; 1.5 million orders each.")
@click.option("--seconds", default=60.0, show_default=True, help="of late commits.")
@click.option("--marker", "names", type=click.Choice([*MARKERS]), default=[*MARKERS], multiple=True)
def main(scale: float, seconds: float, names: tuple[str, ...]) -> None:
    """Measure refreshes by a marker."""
    with PostgreSQL() as server:
        if seconds:
            late_commits(server, seconds)
        if scale:
            costs(server, scale, names)


if __name__ == "__main__":
    main()
