"""Pages that a refresh by a marker reads at its source, beside Carnes and Hanson's formula.

    python -m benchmarks.source.marker_pages [--rows 100000] [--share 0.1 --share 1 --share 3]
                                             [--engine PostgreSQL --engine MariaDB]

A table of rows of some 200 bytes with a time column, an index of it, and the index that `check`
names for the keys. Rows are updated, neighbours by key or scattered, and PostgreSQL is vacuumed;
then two warehouses refresh from the same state, one that compares keys and one that accepts claims.
With a flag of deleted rows, both indexes hold it, and one changed row in 16 is deleted by it.

Pages are those of the table and its indexes that were looked at, cached or not: `pg_statio` on
PostgreSQL, `Innodb_buffer_pool_read_requests` on MariaDB, which also counts the catalogue's and
each step down an index, so a refresh by claims that finds nothing is taken off. The formula is that
of the paper (TDI): I A + K, and S A because the index does not cover the published columns: I, S:
pages of the index and the table; A: the share that changed; K: the height of the index. The paper
takes changed rows for neighbours. Between audits it reads nothing else: that is `claimed`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from tests.harness.no_spark import NoSpark
from tests.harness.pair import SourceProcess
from tests.harness.servers import MariaDB, PostgreSQL
from warehouse_agent import config as configure
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner

HEIGHT: Final = 3  # of an index, K in the paper
LATE_S: Final = 1.0
SETTLED_S: Final = 2.5  # until no row is read again because it may be late
SEEN_S: Final = 1.5  # until a server has counted what an ended session read
SHARES: Final = (0.1, 1.0, 3.0)  # percent
PROOFS: Final = ("keys", "claimed")
Run = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Engine:
    """A database of one engine: `run` executes SQL as its owner."""

    name: str
    url: str
    run: Run

    @property
    def is_postgresql(self) -> bool:
        return self.name == "PostgreSQL"

    def create(self, rows: int, *, has_flag: bool) -> None:
        """Make the table anew, as if it had been written once."""
        zone = "timestamptz" if self.is_postgresql else "timestamp(6) NULL"
        old = "2020-01-01 00:00:00" + ("+00" if self.is_postgresql else "")
        self.run("DROP TABLE IF EXISTS t")
        self.run(
            "CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL,"
            f" filler varchar(200) NOT NULL, updated_at {zone},"
            " gone boolean NOT NULL DEFAULT false)"
        )
        numbers = f"generate_series(1, {rows}) AS s(i)" if self.is_postgresql else None
        series = numbers or f"(SELECT seq AS i FROM seq_1_to_{rows}) AS s"
        filler = "repeat(md5(CAST(i AS char(20))), 5)"
        self.run(f"INSERT INTO t SELECT i, i, {filler}, '{old}', false FROM {series}")
        time_kind = zone.removesuffix(" NULL")
        self.run(
            "ALTER TABLE t ALTER updated_at SET NOT NULL"
            if self.is_postgresql
            else f"ALTER TABLE t MODIFY updated_at {time_kind} NOT NULL DEFAULT '{old}'"
        )
        for statement in self._indexes(has_flag=has_flag):
            self.run(statement)
        self.settle()

    def _indexes(self, *, has_flag: bool) -> list[str]:
        if not has_flag:
            return ["CREATE INDEX t_time ON t (updated_at)"]
        if self.is_postgresql:
            keys = "CREATE INDEX t_keys ON t (id) INCLUDE (gone)"
            return ["CREATE INDEX t_time ON t (updated_at) INCLUDE (gone, id)", keys]
        return [
            "CREATE INDEX t_time ON t (updated_at, gone)",
            "CREATE INDEX t_keys ON t (gone, id)",
        ]

    def settle(self) -> None:
        """Vacuum. Without the checkpoint, commits that are not flushed keep pages from being marked
        as visible to all: the server of the tests commits asynchronously."""
        if self.is_postgresql:
            self.run("CHECKPOINT")
        self.run("VACUUM (ANALYZE) t" if self.is_postgresql else "ANALYZE TABLE t")

    def change(self, rows: int, share: float, *, is_scattered: bool, has_flag: bool) -> int:
        """Update a share of the rows, one in 16 of them to deleted; return how many."""
        count = max(round(rows * share / 100), 1)
        where = f"id % {rows // count} = 1" if is_scattered else f"id > {rows // 3} AND NOT gone"
        some = "id IN (SELECT id FROM (SELECT id FROM t WHERE {} ORDER BY id LIMIT {}) AS chosen)"
        chosen = f"{where} AND NOT gone" if is_scattered else some.format(where, count)
        deleted = ", gone = (substr(filler, 1, 1) = 'a')" if has_flag else ""
        self.run(f"UPDATE t SET v = v + 1, updated_at = now(){deleted} WHERE {chosen}")
        self.settle()
        return count

    def sizes(self) -> tuple[float, float]:
        """Return the pages of the time's index and of the table."""
        if self.is_postgresql:
            found = self.run(
                "SELECT pg_relation_size('t_time') / 8192, pg_relation_size('t') / 8192"
            )
            return float(found[0][0]), float(found[0][1])
        asked = (
            "SELECT index_name, stat_value FROM mysql.innodb_index_stats WHERE table_name = 't'"
            " AND stat_name = 'size' AND database_name = DATABASE()"
        )
        pages: dict[str, Any] = dict(self.run(asked))
        return float(pages["t_time"]), float(pages["PRIMARY"])

    def pages(self) -> tuple[int, int]:
        """Return the pages of the table and of its indexes that were looked at; of MariaDB 0 and
        all."""
        if self.is_postgresql:
            self.run("SELECT pg_stat_clear_snapshot()")
            blocks = "heap_blks_read + heap_blks_hit, idx_blks_read + idx_blks_hit"
            ((heap, index),) = self.run(
                f"SELECT {blocks} FROM pg_statio_user_tables WHERE relname = 't'"
            )
            return int(heap), int(index)
        ((_, count),) = self.run("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'")
        return 0, int(count)


class Bench:
    """A source agent, and a warehouse whose fragment accepts one proof."""

    def __init__(self, folder: Path, engine: Engine, proof: str, *, has_flag: bool) -> None:
        self._engine, self.proof, self._folder = engine, proof, folder
        deletes = 'deleted = "gone"' if has_flag else 'deletes = "never"'
        marker = f'{{ column = "updated_at", late = "{LATE_S:g}s", {deletes} }}'
        (folder / "source.toml").write_text(
            f'[database]\nurl = "{engine.url}"\n[server]\nlisten = "127.0.0.1:0"\n'
            'insecure = true\naudit_file = "audit.jsonl"\n[limits]\nfeedback = false\n'
            f'[relations.t]\ntable = "t"\ncolumns = ["id", "v", "filler"]\nmarker = {marker}\n'
        )
        self.source = SourceProcess(folder / "source.toml")

    def refresh(self) -> Report:
        """Refresh, which must go well."""
        file = self._folder / "warehouse.toml"
        file.write_text(
            f'[warehouse]\npath = "{self._folder}/warehouse"\nsmall_bytes = {1 << 40}\n'
            f'[sources.erp]\naddress = "{self.source.address}"\ninsecure = true\n'
            f'[fragments.t]\nsource = "erp"\nproof = "{self.proof}"\nmethod = "since"\n'
        )
        config = configure.load(file)
        runner = Runner(NoSpark(), config, attempts=1)
        (report,) = runner.refresh(list(config.fragments.values()), Options())
        assert report.error is None, report.error
        return report

    def measured(self, wait: float) -> tuple[Report, int, int]:
        """Refresh; return the report, and the pages of the table and of its indexes."""
        heap, index = self._engine.pages()
        report = self.refresh()
        time.sleep(wait * SEEN_S)
        after = self._engine.pages()
        return report, after[0] - heap, after[1] - index


def measure(
    engine: Engine, rows: int, shares: Sequence[float], deletes: Sequence[str], wait: float
) -> None:
    """Print a line for each flag, share, pattern and proof."""
    for has_flag in (name == "flag" for name in deletes):
        engine.create(rows, has_flag=has_flag)
        with ExitStack() as stack:
            benches = []
            for proof in PROOFS:
                folder = Path(stack.enter_context(TemporaryDirectory()))
                bench = Bench(folder, engine, proof, has_flag=has_flag)
                stack.enter_context(bench.source)
                benches.append(bench)
                bench.refresh()
            for is_scattered in (False, True):
                for share in shares:
                    _lines(
                        engine, benches, rows, share, wait,
                        is_scattered=is_scattered, flag=has_flag,
                    )  # fmt: skip


def _lines(
    engine: Engine,
    benches: Sequence[Bench],
    rows: int,
    share: float,
    wait: float,
    *,
    is_scattered: bool,
    flag: bool,
) -> None:
    time.sleep(wait * SETTLED_S)
    idle = []
    for bench in benches:
        bench.refresh()  # no row is late any more
        idle.append(bench.measured(wait)[2])
    changed = engine.change(rows, share, is_scattered=is_scattered, has_flag=flag)
    time.sleep(wait * SETTLED_S)
    index, table = engine.sizes()
    formula = (index + table) * changed / rows + HEIGHT
    for bench in benches:
        report, heap, read = bench.measured(wait)
        assert report.proof == bench.proof, report.marker
        if not engine.is_postgresql:
            read = max(read - min(idle), 0)
        pattern = "scattered" if is_scattered else "neighbours"
        print(
            f"| {engine.name} | {'flag' if flag else 'never'} | {share:g} % | {pattern} |"
            f" {bench.proof} | {heap:,} | {read:,} | {formula:,.0f} |"
            f" {(heap + read) / formula:.2f} |",
            flush=True,
        )


@contextmanager
def engines(names: Sequence[str]) -> Iterator[Iterator[Engine]]:
    """Yield the databases one after the other, each on a server of its own."""
    with ExitStack() as stack:

        def made() -> Iterator[Engine]:
            if "PostgreSQL" in names:
                server = stack.enter_context(PostgreSQL())
                database = server.create_database("pages")
                owner = stack.enter_context(closing(server.superuser(database)))

                def run(sql: str) -> list[tuple[Any, ...]]:
                    cursor = owner.execute(sql)
                    return cursor.fetchall() if cursor.description else []

                yield Engine("PostgreSQL", server.url("postgres", database), run)
            if "MariaDB" in names:
                family = stack.enter_context(MariaDB())
                name = family.create_database("pages")
                admin = stack.enter_context(closing(family.admin(name)))

                def ask(sql: str) -> list[tuple[Any, ...]]:
                    with admin.cursor() as cursor:
                        cursor.execute(sql)
                        found = list(cursor.fetchall())
                    admin.commit()
                    return found

                yield Engine("MariaDB", family.url("root", name), ask)

        yield made()


@click.command(help=__doc__)
@click.option("--rows", default=100_000, show_default=True)
@click.option("--share", "shares", default=SHARES, multiple=True, help="percent that change.")
@click.option(
    "--engine",
    "names",
    type=click.Choice(["PostgreSQL", "MariaDB"]),
    default=["PostgreSQL", "MariaDB"],
    multiple=True,
)
@click.option(
    "--deletes", type=click.Choice(["never", "flag"]), default=["never", "flag"], multiple=True
)
@click.option("--wait", default=1.0, show_default=True, help="Times the seconds that it waits.")
def main(
    rows: int,
    shares: tuple[float, ...],
    names: tuple[str, ...],
    deletes: tuple[str, ...],
    wait: float,
) -> None:
    """Measure pages of refreshes by a marker."""
    print(
        "| engine | deletes | changed | rows | proof | table | index | formula | pages ÷ formula |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with engines(names) as made:
        for engine in made:
            measure(engine, rows, shares, deletes, wait)


if __name__ == "__main__":
    main()
