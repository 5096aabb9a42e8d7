"""A first load of several sources, each over a line of its own: one after the other, side by side.

    python -m benchmarks.refreshes.sources
    python -m benchmarks.refreshes.sources --silent
    python -m benchmarks.refreshes.sources --sources 2 --tables 2 --kilobytes 20

Each source agent runs in a network namespace behind a line of `tests.wan.link`; a relay at its near
end leads to an address of this machine, as the namespaces of several lines cannot be one. So a TCP
connection is made at once, and TLS over the line. Rows are random bytes, which nobody compresses.
The command is a process, into an empty warehouse. Every table is compared with its source.

With --silent the line of the last source is cut: how much later are the others done than without
that source?
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from deltalake import DeltaTable

from source_agent.enrolment import enroll
from tests import ROOT
from tests.harness.pair import environment
from tests.wan.link import SOURCE_ADDRESS, Link

PORT = 7443
ROW_BYTES = 500
START_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command cost, and when the sources were done, in seconds.

    Attributes:
        wall_s, cpu_s: of the command and its children.
        done_s: by source, when its last report was printed.
        line_s: what the bytes of all lines take, one line after the other.
    """

    wall_s: float
    cpu_s: float
    done_s: dict[str, float]
    line_s: float


class Site:
    """A database, its source agent behind a line, and the address of the line's near end."""

    def __init__(self, name: str, folder: Path, link: Link, *, tables: int, kilobytes: int) -> None:
        self.name, self.folder, self.link, self.tables = name, folder, link, tables
        folder.mkdir()
        rng, rows = random.Random(name), kilobytes * 1000 // ROW_BYTES
        with contextlib.closing(self._connection()) as database, database:
            for table in self.names:
                database.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, note BLOB)")
                database.executemany(
                    f"INSERT INTO {table} VALUES (?, ?)",
                    ((i, rng.randbytes(ROW_BYTES)) for i in range(rows)),
                )
        enroll(folder / "certs", source_names=["127.0.0.1"])
        (folder / "source.toml").write_text(
            f'[database]\nurl = "sqlite:///{folder}/erp.db"\n'
            f'[server]\nlisten = "{SOURCE_ADDRESS}:{PORT}"\ncertificate = "certs/source.pem"\n'
            'key = "certs/source.key"\nclient_ca = "certs/ca.pem"\naudit_file = "audit.jsonl"\n'
            + "".join(f'[relations.{table}]\ntable = "{table}"\n' for table in self.names)
        )

    @property
    def names(self) -> list[str]:
        return [f"t{number}" for number in range(self.tables)]

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        """Run the source agent and the relay at the near end of its line."""
        ready = self.folder / "port"
        with contextlib.ExitStack() as stack:
            command = ["--config", str(self.folder / "source.toml"), "serve", "--port-file"]
            agent = self.link.popen_source(
                [sys.executable, "-m", "source_agent.cli", *command, str(ready)],
                cwd=ROOT,
                env=environment(),
            )
            stack.callback(_end, agent)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self.address = f"127.0.0.1:{listener.getsockname()[1]}"
            words = [str(listener.fileno()), SOURCE_ADDRESS, str(PORT)]
            relay = self.link.popen_warehouse(
                [sys.executable, "-m", "benchmarks.refreshes.line_relay", *words],
                cwd=ROOT,
                env=environment(),
                pass_fds=(listener.fileno(),),
            )
            stack.callback(_end, relay)
            until = time.monotonic() + START_S_MAX
            while not ready.exists():
                assert time.monotonic() < until, "the source agent did not start"
                time.sleep(0.05)
            yield

    def settings(self) -> str:
        """Return the lines of warehouse.toml about this source."""
        certs = self.folder / "certs"
        fragments = (
            f'[fragments.{self.name}_{table}]\nsource = "{self.name}"\nrelation = "{table}"\n'
            for table in self.names
        )
        return (
            f'[sources.{self.name}]\naddress = "{self.address}"\nca = "{certs}/ca.pem"\n'
            f'certificate = "{certs}/warehouse.pem"\nkey = "{certs}/warehouse.key"\n'
            + "".join(fragments)
        )

    def check(self, warehouse: Path) -> None:
        """Compare what is published with the database."""
        with contextlib.closing(self._connection()) as database:
            for table in self.names:
                ours = DeltaTable(str(warehouse / f"{self.name}_{table}")).to_pyarrow_table()
                published = zip(ours["id"].to_pylist(), ours["note"].to_pylist(), strict=True)
                assert sorted(published) == database.execute(f"SELECT * FROM {table}").fetchall()

    def carried_bytes(self) -> int:
        """Return the bytes that have come over the line to the warehouse."""
        return self.link.counters().to_warehouse_bytes

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "erp.db")


def load(folder: Path, sites: list[Site], *, at_once: int, rate_mbit: float, silent: str) -> Ran:
    """Load all tables into a new warehouse; those of the source `silent` must fail, if any."""
    warehouse = folder / "warehouse"
    shutil.rmtree(warehouse, ignore_errors=True)
    (folder / "warehouse.toml").write_text(
        f'[warehouse]\npath = "warehouse"\nsources_at_once = {at_once}\n'
        + "".join(site.settings() for site in sites)
    )
    carried, cpu_s = sum(site.carried_bytes() for site in sites), _children_cpu_s()
    start, done_s = time.perf_counter(), dict[str, float]()
    process = subprocess.Popen(
        [sys.executable, "-m", "warehouse_agent.cli", "refresh", "--all", "--json"],
        cwd=folder,
        env=environment(ROOT),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        report: dict[str, Any] = json.loads(line)
        source = report["name"].partition("_")[0]
        done_s[source] = time.perf_counter() - start
        assert (report["error"] is not None) == (source == silent), report
    process.wait()
    wall_s = time.perf_counter() - start
    carried = sum(site.carried_bytes() for site in sites) - carried
    for site in sites:
        if site.name != silent:
            site.check(warehouse)
    line_s = carried / (rate_mbit * 125_000)
    return Ran(wall_s, _children_cpu_s() - cpu_s, done_s, line_s)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    process.wait()


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _show(what: str, ran: Ran) -> None:
    print(f"{what:32} wall {ran.wall_s:7.2f} s, processor {ran.cpu_s:6.2f} s", flush=True)


@click.command()
@click.option("--sources", default=4, show_default=True)
@click.option("--tables", default=6, show_default=True, help="Of each source.")
@click.option("--kilobytes", default=400, show_default=True, help="Of each table.")
@click.option("--rtt-ms", default=100.0, show_default=True)
@click.option("--rate-mbit", default=1.0, show_default=True)
@click.option("--silent", is_flag=True, help="Measure a source that does not answer instead.")
def main(
    sources: int, tables: int, kilobytes: int, rtt_ms: float, rate_mbit: float, silent: bool
) -> None:
    """Time a first load of several sources over lines of their own."""
    with TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, sites = Path(name), list[Site]()
        for number in range(sources):
            link = stack.enter_context(Link(rtt_ms=rtt_ms, rate_mbit=rate_mbit))
            source = f"s{number}"
            sites.append(Site(source, folder / source, link, tables=tables, kilobytes=kilobytes))
            stack.enter_context(sites[-1].serve())
        print(
            f"{sources} sources of {tables} x {kilobytes} kB, {rtt_ms:g} ms, {rate_mbit:g} Mbit/s, "
            f"{os.cpu_count()} cores",
            flush=True,
        )
        if silent:
            alone = load(folder, sites[:-1], at_once=sources, rate_mbit=rate_mbit, silent="")
            _show(f"{sources - 1} sources", alone)
            sites[-1].link.cut()
            beside = load(
                folder, sites, at_once=sources, rate_mbit=rate_mbit, silent=sites[-1].name
            )
            _show("and one that does not answer", beside)
            for source, at in alone.done_s.items():
                print(f"{source}: done {beside.done_s[source] - at:+.2f} s later")
            return
        one = load(folder, sites, at_once=1, rate_mbit=rate_mbit, silent="")
        _show("one after the other", one)
        print(f"the lines took {one.line_s / one.wall_s:.0%} of it", flush=True)
        all_ = load(folder, sites, at_once=sources, rate_mbit=rate_mbit, silent="")
        _show("side by side", all_)
        print(f"{all_.wall_s / one.wall_s:.3f} x")


if __name__ == "__main__":
    main()
