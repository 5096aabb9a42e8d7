"""Refreshes of one table with its warehouse in an object store, beside the same on a local disk.

    python -m benchmarks.refreshes.object_store
    python -m benchmarks.refreshes.object_store --rows 1500000 --rounds 5 --dlt
    python -m benchmarks.refreshes.object_store --rows 1500000 --versions 11,49,100

The source is an SQLite file behind a source agent of its own process. The commands run in this
process, one of each kind of place in turn, after one that is not counted: a refresh of a share of
the rows, scattered over all of them, and one that finds nothing. The store is reached through a
proxy that counts requests; a second one holds each request back, as a distant store does. With
`--dlt` dlt loads all rows again into a Delta table of the same bucket in each round, by its
connectorx backend, in an environment of its own; its process's start is in its seconds.

With `--versions` requests alone are counted, of refreshes at these versions of a table. The first
`--files` versions add a data file each, the others change one row.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import environments
from tests.harness.counted_requests import RequestCounter
from tests.harness.counted_store import FRESH, RECORDS
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import STORES, Bucket
from tests.harness.pair import SourceProcess
from warehouse_agent import config as configure
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store

COLUMNS = "id INTEGER PRIMARY KEY NOT NULL, customer INT, price REAL, day TEXT, note TEXT"


ENVIRONMENT = "object-store-reloads"
DLT_REQUIREMENTS = (
    "connectorx==0.4.6",
    "dlt[deltalake]==1.31.0",
    "pyarrow==26.0.1",
    "s3fs==2026.9.0",
    "sqlalchemy==2.1.9",
)
_DLT = """
import os
import sys
import dlt
from dlt.sources.sql_database import sql_table
file, bucket, endpoint = sys.argv[1:]
keys = {
    "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
    "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    "endpoint_url": endpoint,
    "region_name": "us-east-1",
}
pipeline = dlt.pipeline(
    "reload", pipelines_dir="state", dataset_name="reloaded",
    destination=dlt.destinations.filesystem(
        f"s3://{bucket}/dlt", credentials=keys,
        deltalake_storage_options={"AWS_ALLOW_HTTP": "true", "conditional_put": "etag"},
    ),
)
rows = sql_table(
    f"sqlite:///{file}", "t", backend="connectorx",
    backend_kwargs={"conn": f"sqlite://{file}", "return_type": "arrow"},
)
pipeline.run(rows, write_disposition="replace", table_format="delta")
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a warehouse lies; `counter`: of its requests."""

    name: str
    toml: Path
    bucket: Bucket | None = None
    counter: RequestCounter | None = None

    def refresh(self) -> Report:
        """Refresh the table, which must go well."""
        config = configure.load(self.toml)
        runner = Runner(NoSpark(), config, attempts=1)
        (report,) = runner.refresh(configure.select(config, (), True), Options())
        assert report.error is None, report.error
        return report

    def timed(self, work: Callable[[], object] | None = None) -> tuple[float, str]:
        """Refresh, or do other work there; return the seconds, and what was asked for."""
        began, work = time.monotonic(), work or self.refresh
        if self.counter is None or self.bucket is None:
            work()
            return time.monotonic() - began, ""
        with self.counter.counted(self.bucket) as requests:
            work()
            seconds = time.monotonic() - began
        up, down = requests.up_bytes / 1e6, requests.down_bytes / 1e6
        return seconds, f"{requests.total} requests, {up:.1f} MB up, {down:.1f} MB down"


def fill(file: Path, rows: range) -> None:
    """Insert rows by their keys."""
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"CREATE TABLE IF NOT EXISTS t ({COLUMNS})")
        made = (
            (
                i,
                i * 7919 % 150_000,
                i * 31 % 99_991 / 7,
                f"2026-{i % 12 + 1:02}",
                f"n {i * 7 % 9973}",
            )
            for i in rows
        )
        db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", made)


def count_by_version(place: Place, db: Path, rows: int, share: float, versions: list[int]) -> None:
    """Print the requests of refreshes at some versions of a table, beside the bounds that depend on
    its files; those of its log, of the table of freshness and of locks have bounds of their own."""
    counter, bucket, every = place.counter, place.bucket, round(1 / share)
    assert counter is not None
    assert bucket is not None
    store = Store(bucket.root, storage=bucket.settings)

    def changed(condition: str) -> None:
        with sqlite3.connect(db) as source:
            source.execute(f"UPDATE t SET note = note || '.' WHERE {condition}")

    def counted() -> tuple[int, str]:
        with counter.counted(bucket) as found:
            place.refresh()
        apart = {kind: found.at(kind) for kind in ("log", FRESH)}
        # A removal names objects in its body: those of locks and commands.
        apart["locks"] = sum(found.at(kind) for kind in RECORDS) + found["remove", "table"]
        others = ", ".join(f"{n} {kind}" for kind, n in apart.items())
        return found.total - sum(apart.values()), f"({found.total} with {others})"

    for version in versions:
        while (head := formats.head(store, "t")) is not None and head.version < version:
            changed(f"id = {head.version * 7919 % rows}")
            place.refresh()
        assert head is not None
        files = {file.path for file in head.files}
        place.refresh()  # learns what the next one knows
        n, said = counted()
        print(
            f"version {version}, {len(files)} files, nothing changed: {n} {said}"
            f" requests of at most {12 + 2 * len(files)}"
        )
        changed(f"id % {every} = {version % every}")
        n, said = counted()
        after = formats.head(store, "t")
        assert after is not None
        rewritten = len(files - {file.path for file in after.files})
        print(
            f"version {version}, {rewritten} files rewritten: {n} {said}"
            f" requests of at most {20 + 7 * rewritten}"
        )


def reload(place: Place, folder: Path) -> None:
    """Let dlt load all rows into the place's bucket, as the files in the folder say."""
    assert place.bucket is not None
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    keys = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), place.bucket.keys, strict=True))
    state = folder / f"dlt of {place.bucket.name}"
    state.mkdir(exist_ok=True)
    python = str(environments.program("python", ENVIRONMENT))
    words = [str(folder / "erp.db"), place.bucket.name, place.bucket.endpoint]
    done = subprocess.run(
        [python, "-c", _DLT, *words],
        cwd=state,
        env={**kept, **keys, "RUNTIME__DLTHUB_TELEMETRY": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def written(folder: Path, name: str, address: str, bucket: Bucket | None) -> Path:
    """Write the data engineer's file of a place."""
    file, path = folder / f"{name}.toml", folder / name if bucket is None else bucket.root
    lines = "" if bucket is None else bucket.toml
    file.write_text(
        f'[warehouse]\npath = "{path}"\n{lines}\n[sources.erp]\naddress = "{address}"\n'
        'insecure = true\n\n[fragments.t]\nsource = "erp"\n'
    )
    return file


@click.command()
@click.option("--rows", default=300_000)
@click.option("--share", default=0.01, help="Of the rows that change.")
@click.option("--store", type=click.Choice(sorted(STORES)), default="seaweedfs")
@click.option("--delay-ms", default=30.0, help="Added to each request.")
@click.option("--rounds", default=3)
@click.option("--dlt", "with_dlt", is_flag=True, help="Let dlt load all rows beside it.")
@click.option("--files", default=12, help="Data files, with --versions.")
@click.option("--versions", default="", help="Count requests at these, as in 11,49,100.")
def main(
    rows: int,
    share: float,
    store: str,
    delay_ms: float,
    rounds: int,
    files: int,
    versions: str,
    *,
    with_dlt: bool,
) -> None:
    if with_dlt and (why := environments.missing(ENVIRONMENT, DLT_REQUIREMENTS)):
        raise click.ClickException(why)
    with ExitStack() as up, TemporaryDirectory(prefix="driftline-bench-") as made:
        folder = Path(made)
        fill(folder / "erp.db", range(rows // files if versions else rows))
        source = folder / "source.toml"
        source.write_text(
            f'[database]\nurl = "sqlite:///{folder / "erp.db"}"\n\n[server]\n'
            'listen = "127.0.0.1:0"\ninsecure = true\n\n[limits]\nfeedback = false\n\n'
            '[relations.t]\ntable = "t"\n'
        )
        address = up.enter_context(SourceProcess(source)).address
        server = up.enter_context(STORES[store]())
        near = up.enter_context(RequestCounter(server))
        far = up.enter_context(RequestCounter(server, delay_ms))
        if versions:
            bucket = near.bucket()
            place = Place(store, written(folder, store, address, bucket), bucket, near)
            for part in range(files):
                if part:
                    fill(folder / "erp.db", range(rows * part // files, rows * (part + 1) // files))
                place.refresh()
            at = [int(version) for version in versions.split(",")]
            count_by_version(place, folder / "erp.db", rows, share, at)
            return
        places = [Place("disk", written(folder, "disk", address, None))]
        for name, counter in ((store, near), (f"{store} +{delay_ms:g} ms", far)):
            bucket = counter.bucket()
            toml = written(folder, name.replace(" ", ""), address, bucket)
            places.append(Place(name, toml, bucket, counter))
        for place in places:
            seconds, asked = place.timed()
            print(f"{place.name}: first load of {rows:,} rows {seconds:.2f} s  {asked}")
        for what, changed in ((f"{share:.1%} of the rows", share), ("nothing", 0.0)):
            seconds_of: dict[str, list[float]] = {}
            last: dict[str, str] = {}
            for turn in range(rounds + 1):
                if changed:
                    with sqlite3.connect(folder / "erp.db") as db:
                        every = round(1 / changed)
                        words = "UPDATE t SET note = ? WHERE id % ? = ?"
                        db.execute(words, (f"round {turn}", every, turn % every))
                runs = [(place.name, place.timed) for place in places]
                if with_dlt and changed:
                    runs += [
                        (f"dlt, {place.name}", partial(place.timed, partial(reload, place, folder)))
                        for place in places[1:]
                    ]
                for name, timed in runs:
                    seconds, last[name] = timed()
                    if turn:
                        seconds_of.setdefault(name, []).append(seconds)
            base = statistics.median(seconds_of["disk"])
            for name, found in seconds_of.items():
                median = statistics.median(found)
                print(
                    f"{what} changed, {name}: {median:.2f} s, {median / base:.2f} x  {last[name]}"
                )


if __name__ == "__main__":
    main()
