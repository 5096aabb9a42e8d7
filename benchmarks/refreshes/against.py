"""This checkout against another, in turn: warm sessions that refresh one table of PostgreSQL.

    python -m benchmarks.refreshes.against ../before
    python -m benchmarks.refreshes.against ../before --small-bytes 0 --share 0

Both source agents read the same database, each warehouse has its own folder and its own session,
and every change is refreshed by both, in turn first. What is compared is the ratio of each pair, so
that a machine whose speed drifts changes nothing; medians are of all pairs but the first two.

Processor seconds of a warehouse are those of its JVM and Python workers as well. A checkout that
knows no `small_bytes` runs all steps on Spark; one that knows no `--lazy-spark` starts it at once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import click

from benchmarks import meter
from source_agent.enrolment import enroll
from tests import ROOT
from tests.harness.pair import SourceProcess, environment
from tests.harness.servers import PostgreSQL

LEFT_OUT = 2  # first pairs of each kind: the session and the forecast get warm
END_S_MAX = 30.0
_DATABASE = "bench"
_TABLE = """
CREATE TABLE orders AS SELECT i AS o_orderkey, i % 99999 AS o_custkey, 'O'::char(1) AS o_status,
(i::bigint * 7919 % 100000000)::numeric / 100 AS o_totalprice,
date '1995-01-01' + i % 2000 AS o_orderdate, 'Clerk#' || i % 1000 AS o_clerk,
md5(i::text) || md5((i + 1)::text) AS o_comment FROM generate_series(1, {rows}) i
"""
_CHANGE = """
UPDATE orders SET o_totalprice = o_totalprice + 1, o_comment = md5(o_comment)
WHERE mod(o_orderkey::bigint * 2654435761 + {seed}, {step}) = 0
"""

Costs = dict[str, float]  # of one refresh, by what is measured


class Side:
    """Both agents of a checkout: a source agent, and a warehouse with a warm session."""

    def __init__(
        self, tree: Path, folder: Path, url: str, small_bytes: int | None, lazy_spark: bool
    ) -> None:
        self._tree, self._folder, self._url, self._small = tree.resolve(), folder, url, small_bytes
        self._words = ["--lazy-spark"] if lazy_spark else []

    def __enter__(self) -> Self:
        folder = self._folder
        enroll(folder / "certs", source_names=["127.0.0.1"])
        (folder / "source.toml").write_text(
            f'[database]\nurl = "{self._url}"\n[server]\nlisten = "127.0.0.1:0"\n'
            'certificate = "certs/source.pem"\nkey = "certs/source.key"\n'
            'client_ca = "certs/ca.pem"\naudit_file = "audit.jsonl"\n'
            '[relations.orders]\ntable = "orders"\n'
        )
        self._stack = ExitStack()
        self._source = self._stack.enter_context(
            SourceProcess(folder / "source.toml", tree=self._tree)
        )
        modules = (self._tree / "warehouse_agent").rglob("*.py")
        is_known = any("small_bytes" in module.read_text() for module in modules)
        small = f"small_bytes = {self._small}\n" if self._small is not None and is_known else ""
        (folder / "warehouse.toml").write_text(
            f'[warehouse]\npath = "warehouse"\n{small}[spark]\n"spark.master" = "local[2]"\n'
            f'[sources.erp]\naddress = "{self._source.address}"\nca = "certs/ca.pem"\n'
            'certificate = "certs/warehouse.pem"\nkey = "certs/warehouse.key"\n'
            '[fragments.orders]\nsource = "erp"\nmethod = "sketch"\n'
        )
        log = self._stack.enter_context((folder / "warehouse.log").open("wb"))
        warm = [sys.executable, "-m", "benchmarks.warm"]
        self._warehouse = subprocess.Popen(
            [*warm, str(folder / "warehouse.toml"), *self._words],
            cwd=self._tree,  # `-m` looks here first
            env=environment(self._tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._stack.callback(self._end)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        assert self._warehouse.stdin is not None
        self._warehouse.stdin.close()
        try:
            self._warehouse.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._warehouse.kill()
            self._warehouse.wait()

    def refresh(self) -> Costs:
        """Refresh once; return what it cost."""
        warehouse, source = [self._warehouse.pid], [self._source.process.pid]
        assert self._warehouse.stdin is not None
        assert self._warehouse.stdout is not None
        before, source_before = meter.cpu_s(warehouse), meter.cpu_s(source)
        start = time.perf_counter()
        self._warehouse.stdin.write("orders\n")
        self._warehouse.stdin.flush()
        report = json.loads(self._warehouse.stdout.readline())
        wall_s = time.perf_counter() - start
        assert report["error"] is None, report["error"]
        return {
            "wall, s": wall_s,
            "exchange, s": report["seconds"].get("exchange", 0.0),
            "warehouse processor, s": meter.cpu_s(warehouse) - before,
            "source processor, s": meter.cpu_s(source) - source_before,
            "bytes": report["bytes_sent"] + report["bytes_received"],
        }


def lines(what: str, pairs: Sequence[tuple[Costs, Costs]]) -> list[str]:
    """Return a line for each cost: medians of both sides and of the ratios, here ÷ there."""
    texts = []
    for name in pairs[0][0]:
        there, here = ([pair[i][name] for pair in pairs] for i in (0, 1))
        ratios = [b / a for a, b in zip(there, here, strict=True) if a]
        text = f"{what:18} {name:24} there {statistics.median(there):12.3f}"
        text += f"  here {statistics.median(here):12.3f}"
        if ratios:
            text += f"  ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        texts.append(f"{text}  of {len(pairs)}")
    return texts


@click.command()
@click.argument("other", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rows", default=400_000, show_default=True)
@click.option("--share", default=1.0, show_default=True, help="Per cent changed; 0: nothing.")
@click.option("--rounds", default=12, show_default=True, help="Pairs of refreshes.")
@click.option("--small-bytes", type=int, help="Of both [warehouse]; default: the agents'.")
@click.option("--lazy-spark", is_flag=True, help="Start Spark when a step needs it.")
def main(
    other: Path, rows: int, share: float, rounds: int, small_bytes: int | None, lazy_spark: bool
) -> None:
    """Refresh a table in warm sessions of this checkout and of OTHER, and print the ratios."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgreSQL())
        server.create_database(_DATABASE)
        database = stack.enter_context(server.superuser(_DATABASE))
        database.autocommit = True
        database.execute(_TABLE.format(rows=rows))
        database.execute("ALTER TABLE orders ADD PRIMARY KEY (o_orderkey)")
        database.execute("VACUUM ANALYZE orders")
        sides = []
        for tree in (other, ROOT):
            folder = Path(stack.enter_context(TemporaryDirectory()))
            url = server.url("postgres", _DATABASE)
            side = Side(tree, folder, url, small_bytes, lazy_spark)
            sides.append(stack.enter_context(side))
        loads = [side.refresh() for side in sides]
        print(f"{rows:,} rows, {share:g} % changed in each of {rounds} rounds", flush=True)
        print(*lines("load, cold", [(loads[0], loads[1])]), sep="\n", flush=True)
        pairs: list[tuple[Costs, Costs]] = []
        for number in range(rounds + LEFT_OUT):
            if share:
                database.execute(_CHANGE.format(seed=number, step=max(round(100 / share), 1)))
                database.execute("VACUUM orders")
            order = (0, 1) if number % 2 else (1, 0)
            costs = {i: sides[i].refresh() for i in order}
            pairs.append((costs[0], costs[1]))
        what = f"{share:g} % changed" if share else "nothing changed"
        print(*lines(what, pairs[LEFT_OUT:]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
