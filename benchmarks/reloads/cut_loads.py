"""First loads, or copies, that are killed once and run again, beside one that nothing cuts.

    python -m benchmarks.reloads.cut_loads
    python -m benchmarks.reloads.cut_loads --engine postgresql --key uuid --key scattered --at 50
    python -m benchmarks.reloads.cut_loads --other ../before --at 50
    python -m benchmarks.reloads.cut_loads --every 30
    python -m benchmarks.reloads.cut_loads --copies --rows 1000000

Each load is the command `driftline refresh` as a process of its own, from an empty warehouse; a
relay between it and the source agent counts bytes, and kills it once so many of those of the load
that nothing cuts have come. With --every the line breaks after so many seconds, again and again.
With --copies the table is there, and all its rows change before each refresh, as they did before
the last ones, so that each is a copy.
Every loaded table is compared with the source, by its number of rows and the sum of a column.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests import ROOT
from tests.harness.legacy import Legacy, MariaLegacy, PostgresLegacy, SqliteLegacy
from tests.harness.pair import SourceProcess, environment
from tests.harness.relay import Relay
from tests.harness.servers import MariaDB, PostgreSQL

COMMANDS_MAX = 20
LEARNT = 3  # refreshes of all rows, after which the next one is a copy
# The columns of the key, and the order in which the rows lie.
KEYS = {
    "composite": ("a, b", "n"),
    "uuid": ("code", "n"),
    "text": ("code", "n"),
    "scattered": ("n", "code"),
}
# By engine: numbers n from 0, and a text that is another for each.
SERIES = {
    "postgresql": "(SELECT n::bigint FROM generate_series(0, {rows} - 1) AS s(n)) s",
    "mariadb": "(SELECT CAST(seq AS SIGNED) AS n FROM seq_0_to_{last}) s",
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {last})"
    " SELECT n FROM s) s",
}
CODES = {
    "postgresql": "md5(n::text)",
    "mariadb": "md5(n)",
    "sqlite": "lower(hex(randomblob(8)))",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load took in all its commands: seconds, bytes of both directions, commands."""

    seconds: float
    size: int
    commands: int


@dataclass
class Bench:
    """A table at a source, whose agent is reached through a relay, and an empty warehouse."""

    folder: Path
    tree: Path
    legacy: Legacy
    relay: Relay

    def load(self, *, kill_at: int | None = None, every_s: float | None = None) -> Loaded:
        """Load the table into an empty warehouse.

        Args:
            kill_at: the first command is killed when so many bytes have come.
            every_s: the line breaks after so many seconds, until the table is there.
        """
        shutil.rmtree(self.folder / "warehouse", ignore_errors=True)
        return self._refresh(0, kill_at=kill_at, every_s=every_s)

    def learn_copies(self) -> None:
        """Load the table, and refresh it until a copy is expected to take the least time."""
        self.load()
        for _ in range(LEARNT):
            self.copy()

    def copy(self, *, kill_at: int | None = None, every_s: float | None = None) -> Loaded:
        """Change all rows, and refresh the table; arguments as of `load`."""
        self.legacy.execute("UPDATE t SET n = n + 1, amount = (amount + n) % 99991")
        version = DeltaTable(str(self.table)).version() + 1
        return self._refresh(version, kill_at=kill_at, every_s=every_s)

    @property
    def table(self) -> Path:
        """Return the folder of the published table."""
        return self.folder / "warehouse" / "t"

    def _has(self, version: int) -> bool:
        if not DeltaTable.is_deltatable(str(self.table)):
            return False
        return DeltaTable(str(self.table)).version() >= version

    def _refresh(self, version: int, *, kill_at: int | None, every_s: float | None) -> Loaded:
        before, began, commands = self.relay.total_bytes, time.perf_counter(), 0
        while not self._has(version):
            commands += 1
            assert commands <= COMMANDS_MAX, "the load does not end"
            with self._command() as process:
                if kill_at is not None and commands == 1:
                    self.relay.cut_after(down=kill_at, then=process.kill)
                while every_s is not None and process.poll() is None:
                    try:
                        process.wait(every_s)
                    except subprocess.TimeoutExpired:
                        self.relay.cut_after(down=1)
                process.wait()
        self._check()
        taken = time.perf_counter() - began
        return Loaded(taken, self.relay.total_bytes - before, commands)

    @contextmanager
    def _command(self) -> Iterator[subprocess.Popen[bytes]]:
        words = ["--config", str(self.folder / "warehouse.toml"), "refresh", "t"]
        process = subprocess.Popen(
            [sys.executable, "-m", "warehouse_agent.cli", *words],
            cwd=self.tree,
            env=environment(self.tree),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _check(self) -> None:
        table = DeltaTable(str(self.table)).to_pyarrow_dataset()
        column = table.to_table(columns=["n"])["n"]
        ((rows, total),) = self.legacy.rows("summary")
        assert (len(column), pc.sum(column).as_py()) == (rows, int(total))


def fill(legacy: Legacy, rows: int, key: str) -> None:
    """Make a table of some 100 bytes a row as text, in the order of another column than its key."""
    engine = legacy.engine
    keyed, order = KEYS[key]
    divided, rest = ("n DIV 5", "n MOD 5") if engine == "mariadb" else ("n / 5", "n % 5")
    note = "'note of ' || n || ' and ' || n * 7"
    if engine == "mariadb":
        note = "CONCAT('note of ', n, ' and ', n * 7)"
    code, kind = CODES[engine], "VARCHAR(32)"
    if key == "uuid" and engine == "postgresql":
        code, kind = f"{code}::uuid", "UUID"
    legacy.execute("DROP VIEW IF EXISTS summary")
    legacy.execute("DROP TABLE IF EXISTS t")
    legacy.execute(
        f"CREATE TABLE t (a BIGINT NOT NULL, b BIGINT NOT NULL, code {kind} NOT NULL,"
        " n BIGINT NOT NULL, amount BIGINT, note VARCHAR(60))"
    )
    series = SERIES[engine].format(rows=rows, last=rows - 1)
    legacy.execute(
        f"INSERT INTO t SELECT {divided}, {rest}, {code}, n, n * 37 % 99991, {note}"
        f" FROM {series} ORDER BY {code if order == 'code' else order}"
    )
    legacy.execute(f"CREATE UNIQUE INDEX t_key ON t ({keyed})")
    legacy.execute("CREATE VIEW summary AS SELECT count(*) AS c, sum(n) AS s FROM t")


@contextmanager
def bench(folder: Path, tree: Path, legacy: Legacy, key: str) -> Iterator[Bench]:
    """Start the source agent of a tree."""
    folder.mkdir()
    secret = ""
    if legacy.password is not None:
        (folder / "password").write_text(legacy.password)
        (folder / "password").chmod(0o600)
        secret = 'password_file = "password"\n'
    keyed = {"composite": '["a", "b"]', "scattered": '["n"]'}.get(key, '["code"]')
    (folder / "source.toml").write_text(
        f'[database]\nurl = "{legacy.url}"\n{secret}[server]\nlisten = "127.0.0.1:0"\n'
        f'insecure = true\n[limits]\nfeedback = false\n[relations.t]\ntable = "t"\n'
        f"key = {keyed}\n"
    )
    with (
        SourceProcess(folder / "source.toml", tree=tree) as source,
        closing(Relay(source.address)) as relay,
    ):
        (folder / "warehouse.toml").write_text(
            f'[warehouse]\npath = "warehouse"\n[sources.erp]\naddress = "{relay.address}"\n'
            'insecure = true\n[fragments.t]\nsource = "erp"\n'
        )
        yield Bench(folder, tree, legacy, relay)


def legacy_of(engine: str, folder: Path, stack: ExitStack) -> Legacy:
    """Start a server, or make a file."""
    made: Legacy
    if engine == "postgresql":
        made = PostgresLegacy(stack.enter_context(PostgreSQL()))
    elif engine == "mariadb":
        made = MariaLegacy(stack.enter_context(MariaDB()))
    else:
        made = SqliteLegacy(folder / "erp.db")
    stack.callback(made.close)
    return made


def tell(begin: str, what: str, loaded: Loaded, whole: Loaded) -> None:
    """Print a line of the table."""
    size, seconds = loaded.size / whole.size, loaded.seconds / whole.seconds
    print(
        f"| {begin} | {what} | {loaded.commands} | {loaded.size / 1e6:.1f} | {size:.3f}"
        f" | {loaded.seconds:.1f} | {seconds:.2f} |",
        flush=True,
    )


@click.command()
@click.option("--rows", default=10_000_000, show_default=True)
@click.option("--engine", default="postgresql", type=click.Choice(list(SERIES)), show_default=True)
@click.option("--key", "keys", multiple=True, default=["composite"], type=click.Choice(list(KEYS)))
@click.option("--at", multiple=True, default=[25, 50, 75], help="percent of an unbroken load")
@click.option("--every", type=float, help="seconds between breaks of the line")
@click.option("--copies", is_flag=True, help="copies that replace a version, instead of loads")
@click.option("--other", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(
    rows: int,
    engine: str,
    keys: tuple[str, ...],
    at: tuple[int, ...],
    every: float | None,
    copies: bool,
    other: Path | None,
) -> None:
    """Load tables that are cut, of this checkout and of OTHER."""
    print(f"{engine}, {rows:,} rows; ÷: by the unbroken load")
    print("| key | build | load | commands | MB | ÷ | s | ÷ |\n|---|---|---|---|---|---|---|---|")
    trees = {"here": ROOT} | ({} if other is None else {"other": other.resolve()})
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        legacy = legacy_of(engine, Path(scratch), stack)
        for key in keys:
            fill(legacy, rows, key)
            for name, tree in trees.items():
                with bench(Path(scratch) / f"{key}-{name}", tree, legacy, key) as one:
                    again = one.load
                    if copies:
                        one.learn_copies()
                        again = one.copy
                    whole = again()
                    begin = f"{key} | {name}"
                    tell(begin, "unbroken", whole, whole)
                    if every is not None:
                        tell(begin, f"cut every {every:g} s", again(every_s=every), whole)
                        continue
                    for percent in at:
                        kill_at = whole.size * percent // 100
                        tell(begin, f"killed at {percent} %", again(kill_at=kill_at), whole)


if __name__ == "__main__":
    main()
