"""The pair between two network namespaces over a user-space link, measured on the link's device.

    python -m benchmarks.refreshes.pair --scale 0.5
    python -m benchmarks.refreshes.pair --scale 0.5 --rtt-ms 100 --rate-mbit 10

One warm session refreshes in the warehouse's namespace (with `--lazy-spark` and a small table one
without Spark); the source agent runs in the source's namespace beside a PostgreSQL reached by its
socket. A new connection is made for every refresh. Packets are at most 1,500 bytes, without
offload; bytes are the link's own counters, in both directions, set-up included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import click

from benchmarks import tpch
from benchmarks.source.memory import peak_mb, status_mb
from source_agent.enrolment import enroll
from tests.harness.servers import PostgreSQL
from tests.wan.link import SOURCE_ADDRESS, Link

SOURCE_PORT = 7443
SPARK_PHASES = ("reduce", "list", "apply", "prove", "publish")


class Bench:
    """Both agents around one PostgreSQL database and one link."""

    def __init__(
        self,
        folder: Path,
        server: PostgreSQL,
        link: Link,
        method: str | None = None,
        readers: int = 1,
        lazy_spark: bool = False,
    ) -> None:
        self.folder, self.link = folder, link
        self._words = ["--lazy-spark"] if lazy_spark else []
        self.database = "bench"
        server.create_database(self.database)
        self.connection = server.superuser(self.database)
        enroll(folder / "certs", source_names=[SOURCE_ADDRESS])
        (folder / "source.toml").write_text(
            f'[database]\nurl = "{server.url("postgres", self.database)}"\n'
            f'[server]\nlisten = "0.0.0.0:{SOURCE_PORT}"\ncertificate = "certs/source.pem"\n'
            'key = "certs/source.key"\nclient_ca = "certs/ca.pem"\naudit_file = "audit.jsonl"\n'
            # Both sides share the processors here.
            f"[limits]\nfeedback = false\nreaders = {readers}\n"
            '[relations.orders]\ntable = "orders"\n'
        )
        (folder / "warehouse.toml").write_text(
            '[warehouse]\npath = "warehouse"\n[spark]\n"spark.master" = "local[2]"\n'
            f'[sources.erp]\naddress = "{SOURCE_ADDRESS}:{SOURCE_PORT}"\nca = "certs/ca.pem"\n'
            'certificate = "certs/warehouse.pem"\nkey = "certs/warehouse.key"\n'
            '[fragments.orders]\nsource = "erp"\n'
            + (f'method = "{method}"\n' if method else "")
            + '[fragments.again]\nsource = "erp"\nrelation = "orders"\n'
        )
        self._source: subprocess.Popen[Any] | None = None
        self._warehouse: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        ready = self.folder / "port"
        self._source = self.link.popen_source(
            [
                program("driftline-source"),
                "--config",
                str(self.folder / "source.toml"),
                "serve",
                "--port-file",
                str(ready),
            ]
        )
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert time.monotonic() < deadline, "the source agent did not start"
            time.sleep(0.05)
        warm = [sys.executable, "-m", "benchmarks.warm"]
        self._warehouse = self.link.popen_warehouse(
            [*warm, str(self.folder / "warehouse.toml"), *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        for process in (self._warehouse, self._source):
            if process is not None:
                process.kill()
                process.wait()
        self.connection.close()

    def refresh(self, name: str = "orders") -> dict[str, Any]:
        """One refresh in the warm session; its report with what the link saw."""
        assert self._warehouse is not None
        assert self._warehouse.stdin is not None
        assert self._warehouse.stdout is not None
        before = self.link.counters()
        self._warehouse.stdin.write(f"{name}\n")
        self._warehouse.stdin.flush()
        report: dict[str, Any] = json.loads(self._warehouse.stdout.readline())
        assert report["error"] is None, report["error"]
        time.sleep(0.5)  # the last acknowledgements
        moved = self.link.counters() - before
        report["link_bytes"] = moved.to_source_bytes + moved.to_warehouse_bytes
        report["link_packets"] = moved.to_source_packets + moved.to_warehouse_packets
        return report

    def source_peak(self) -> str:
        """Peak resident memory of the source agent and of its readers."""
        assert self._source is not None
        return peak_mb(self._source.pid)

    def driver_peak(self) -> str:
        """Peak resident memory of the warehouse agent's Python, which drives Spark."""
        assert self._warehouse is not None
        return f"{status_mb(self._warehouse.pid, 'VmHWM'):.1f} MB"


def program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def show(what: str, report: dict[str, Any], floor: int | None = None) -> None:
    seconds = sum(report["seconds"].values())
    times = f" = {report['link_bytes'] / floor:.2f} x floor" if floor else ""
    print(
        f"{what:40} {report['link_bytes']:>12,} bytes on the link{times}, "
        f"{report['method']}, {report['link_packets']:>6} "
        f"packets, {report['round_trips']} round trips, {report['source_scans']} scans, "
        f"{seconds:6.2f} s  {report['seconds']}",
        flush=True,
    )


@click.command()
@click.option("--scale", default=0.5, show_default=True)
@click.option("--rtt-ms", default=0.0, show_default=True)
@click.option("--rate-mbit", default=None, type=float, help="None: unlimited.")
@click.option("--refreshes", default=6, show_default=True)
@click.option("--share", default=1.0, show_default=True, help="Per cent changed in each.")
@click.option("--readers", default=1, show_default=True, help="limits.readers of the source agent.")
@click.option("--method", default=None, help="range, group, sketch, full; else the agent's choice.")
@click.option("--lazy-spark", is_flag=True, help="Start Spark when a step needs it.")
def main(
    scale: float,
    rtt_ms: float,
    rate_mbit: float | None,
    refreshes: int,
    share: float,
    readers: int,
    method: str | None,
    lazy_spark: bool,
) -> None:
    """Load, nothing, scattered changes again and again, a second load; orders at a scale factor."""
    with (
        TemporaryDirectory() as folder,
        PostgreSQL() as server,
        Link(rtt_ms=rtt_ms, rate_mbit=rate_mbit) as link,
        Bench(Path(folder), server, link, method, readers, lazy_spark) as bench,
    ):
        rows = tpch.load(bench.connection, tpch.generate(tpch.DATA, scale, "orders"), "orders")
        print(f"orders, scale {scale}: {rows:,} rows; {rtt_ms} ms, {rate_mbit or 'no'} Mbit/s")
        show("first load, JVM just started", bench.refresh())
        show("nothing changed, first time", bench.refresh())
        show("nothing changed", bench.refresh())
        spark = []
        for number in range(refreshes):
            changed, floor = tpch.change_orders(bench.connection, share / 100, seed=number)
            report = bench.refresh()
            show(f"{share:g} % ({changed:,} rows, floor {floor:,})", report, floor)
            spark.append(sum(report["seconds"].get(p, 0.0) for p in SPARK_PHASES) / rows * 1e6)
        refresh_s = sum(report["seconds"].values())
        load = bench.refresh("again")
        show("first load, JVM warm", load)
        print(f"Spark's part of the refreshes, s per million rows: {[round(s, 2) for s in spark]}")
        print(f"last refresh ÷ warm load: {refresh_s / sum(load['seconds'].values()):.2f}")
        line = json.loads(Path(folder, "warehouse/_driftline/sources/erp.json").read_text())
        print(f"the line as the agent measured it: {line}")
        print(f"source agent, peak resident: {bench.source_peak()}")
        print(f"driver (Python), peak resident: {bench.driver_peak()}")


if __name__ == "__main__":
    main()
