"""What a probe each minute costs the database's own users: pgbench, without and with it.

    python -m benchmarks.source.probed --minutes 2 [--tables 1000] [--seconds 60]

A real PostgreSQL with 1,000 small tables, of which all are published, and pgbench's own tables, on
which one client works at a fixed rate. Spans without and with a question about the activity of all
tables alternate, so that other load of the machine falls on both; a span takes `--seconds`. Every
transaction is logged; its latency counts from the moment at which it was due.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from benchmarks.source.activity import DATABASE, configured, fill
from tests.harness.pair import SourceProcess
from tests.harness.servers import PostgreSQL
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

ASKED_S = 60.0
RATE = 20  # transactions a second: far below what the machine can, so that waits are seen


def span(uri: str, folder: Path, seconds: int) -> np.ndarray:
    """Run pgbench; return the latencies of its transactions in milliseconds, [n]."""
    program = shutil.which("pgbench")
    if program is None:
        raise click.ClickException("There is no pgbench on PATH.")
    prefix = folder / "latency"
    subprocess.run(
        [program, "--no-vacuum", f"--rate={RATE}", f"--time={seconds}", "--log",
         f"--log-prefix={prefix}", uri],
        check=True, capture_output=True,
    )  # fmt: skip
    latencies = []
    for log in folder.glob("latency.*"):
        lines = [line.split() for line in log.read_text().splitlines()]
        latencies += [float(line[2]) / 1000 for line in lines]
        log.unlink()
    return np.array(latencies)


@click.command(help=__doc__)
@click.option("--minutes", default=10, show_default=True, help="Of each kind, in spans of one.")
@click.option("--tables", default=1000, show_default=True)
@click.option("--seconds", default=60, show_default=True, help="Of a span.")
def main(minutes: int, tables: int, seconds: int) -> None:
    """Print the percentiles of both kinds."""
    with TemporaryDirectory() as name, PostgreSQL() as server:
        folder, url = Path(name), fill(server, tables)
        program = shutil.which("pgbench") or "pgbench"
        uri = server.uri_of(DATABASE)
        subprocess.run([program, "--initialize", "--quiet", uri], check=True, capture_output=True)
        certs = configured(folder, url, tables).parent / "certs"
        by_kind: dict[bool, list[np.ndarray]] = {False: [], True: []}
        asked: list[float] = []
        with SourceProcess(folder / "source.toml") as process:
            source = Source(
                "bench", process.address, ca=certs / "ca.pem",
                certificate=certs / "warehouse.pem", key=certs / "warehouse.key",
            )  # fmt: skip
            names = [f"t{n}" for n in range(tables)]

            def ask(stopped: threading.Event) -> None:
                with SourceChannel(source) as link:
                    while True:
                        began = time.perf_counter()
                        link.activity(names)
                        asked.append((time.perf_counter() - began) * 1000)
                        if stopped.wait(ASKED_S):
                            return

            for minute in range(minutes):
                for is_asked in (False, True) if minute % 2 == 0 else (True, False):
                    stopped = threading.Event()
                    thread = threading.Thread(target=ask, args=(stopped,))
                    if is_asked:
                        thread.start()
                    by_kind[is_asked].append(span(uri, folder, seconds))
                    stopped.set()
                    if is_asked:
                        thread.join()
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"load of the machine at the end: {load}")
    for is_asked, spans in by_kind.items():
        by_span = [float(np.percentile(one, 95)) for one in spans]
        p50, p95, p99 = np.percentile(np.concatenate(spans), (50, 95, 99))
        print(
            f"{'a probe a minute' if is_asked else 'no probe':<17} "
            f"{sum(map(len, spans)):>6} transactions, p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f} "
            f"ms; p95 of each minute: {', '.join(f'{one:.1f}' for one in by_span)}"
        )
    print(f"{len(asked)} questions about {tables:,} tables, median {np.median(asked):.0f} ms")


if __name__ == "__main__":
    main()
