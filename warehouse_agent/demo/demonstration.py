"""`driftline demo`: the main job from nothing, on generated data, with both agents as processes.

A legacy system with three TPC-H tables, certificates, a source agent beside it and a warehouse
agent over mutual TLS: initial load, a day's changes at the source, what a refresh would cost, the
refresh, one that finds nothing, an independent comparison, and a receipt that the source's side
recomputes. At the end it says what crossed the line against a full copy.

Everything is left in one folder to look at, and nothing is left running. A folder that the
demonstration did not make is never touched.

Not a test and not a benchmark: loopback has no delay. Rejected: calling the agents as functions; it
is the command lines, files and processes of real use that are shown.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rich.box
from driftline.errors import InternalError, ProofFailed, UsageError
from rich.console import Console
from rich.table import Table as Grid

from warehouse_agent.demo import check, postgresql
from warehouse_agent.demo import source as demo_source
from warehouse_agent.demo.processes import answer, running, source, terminable, warehouse
from warehouse_agent.demo.source import TABLES, Legacy

MARKER = ".driftline-demo"  # in every folder that we made
_WAREHOUSE_TOML, _SOURCE_TOML = "warehouse.toml", "source.toml"
_SERVER = """\
[database]
{database}
[server]
listen = "127.0.0.1:{port}"
certificate = "certs/source.pem"
key = "certs/source.key"
client_ca = "certs/ca.pem"
audit_file = "audit.jsonl"
"""
_WAREHOUSE = """\
[warehouse]
path = "warehouse"
[spark]
"spark.master" = "local[*]"
"spark.driver.memory" = "2g"
[sources.erp]
address = "127.0.0.1:{port}"
ca = "certs/ca.pem"
certificate = "certs/warehouse.pem"
key = "certs/warehouse.key"
"""


@dataclass(frozen=True)
class Place:
    """The demonstration's folder."""

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / _SOURCE_TOML

    @property
    def warehouse(self) -> Path:
        return self.folder / _WAREHOUSE_TOML

    def log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.log"


def run(directory: Path, *, postgres: bool, scale: float) -> None:
    """Show it all.

    Raises:
        UsageError: the folder is somebody else's, or the scale is none.
        ConfigurationError: something of the extra `demo` is not installed.
        ChildFailed: an agent failed.
        ProofFailed: the published tables are not the source's.
    """
    if not 0 < scale <= 10:
        raise UsageError(f"Scale {scale} is not between 0 and 10.")
    place = Place(directory.absolute())
    _make_folder(place)
    began = time.monotonic()
    with terminable(), contextlib.ExitStack() as stack:
        legacy: Legacy
        if postgres:
            with _step("starting PostgreSQL"):
                legacy = stack.enter_context(postgresql.postgresql(place.folder))
        else:
            legacy = demo_source.SQLite(place.folder)
        _prepare(place, legacy, scale)
        with _agent(place, legacy):
            reports = _story(place, legacy)
    _summary(*reports)
    print(f"\nDone in {time.monotonic() - began:.0f} s. ", end="")
    _look_further(place, directory, postgres=postgres)


def _make_folder(place: Place) -> None:
    folder = place.folder
    if folder.exists():
        if not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER).is_file()):
            raise UsageError(
                f"{folder} exists and was not made by the demonstration.",
                remedy="Choose another --directory.",
            )
        shutil.rmtree(folder)
    try:
        (folder / "log").mkdir(parents=True)
        (folder / MARKER).write_text("Made by `driftline demo`, which may remove it.\n")
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be made: {error.strerror}.",
            remedy="Choose another --directory.",
        ) from None


def _prepare(place: Place, legacy: Legacy, scale: float) -> None:
    """The legacy system with its tables, certificates, and both configuration files."""
    with _step(f"making a legacy system: TPC-H at scale {scale:g} in {legacy.label}"):
        generated = place.folder / "generated"
        demo_source.generate(generated, scale)
        for table in TABLES:
            legacy.load(table, generated / f"{table.name}.csv")
        shutil.rmtree(generated)
    with _step("enrolling: certificates for both agents, a login that may only read"):
        words = ["enroll", "--directory", str(place.folder / "certs")]
        command = source(place.source, *words, "--source-name", "127.0.0.1")
        answer(command, log=place.log("enroll"))
        _write_source(place, legacy, 0)
        legacy.grant(lambda: answer(source(place.source, "grants"), log=place.log("grants")))


def _write_source(place: Place, legacy: Legacy, port: int) -> None:
    relations = "".join(f'[relations.{t.name}]\ntable = "{t.name}"\n' for t in TABLES)
    text = _SERVER.format(database=legacy.database_toml(), port=port)
    place.source.write_text(text + relations, encoding="utf-8")


@contextlib.contextmanager
def _agent(place: Place, legacy: Legacy) -> Iterator[None]:
    """The source agent, and a warehouse.toml that knows where it listens."""
    file = place.folder / "port"
    command = source(place.source, "serve", "--port-file", str(file))
    with running(command, log=place.log("source"), is_ready=file.exists):
        port = int(file.read_text())
        file.unlink()
        fragments = "".join(f'[fragments.{t.name}]\nsource = "erp"\n' for t in TABLES)
        text = _WAREHOUSE.format(port=port)
        place.warehouse.write_text(text + fragments, encoding="utf-8")
        _write_source(place, legacy, port)  # for whoever starts it again
        yield


Reports = dict[str, dict[str, object]]


def _story(place: Place, legacy: Legacy) -> tuple[Reports, Reports, Reports]:
    """Load, change, plan, refresh twice, compare, receipt. Returns the three refreshes' reports."""
    with _step("driftline refresh --all: the initial load"):
        load = _refresh(place, "load")
    with _step("changing about 1 % of the rows at the source"):
        changed = demo_source.change(legacy)
    with _step("driftline plan --all"):
        planned = answer(warehouse(place.warehouse, "plan", "--all"), log=place.log("plan"))
    print("".join(f"      {line}\n" for line in planned.splitlines()), end="")
    with _step("driftline refresh --all"):
        refreshed = _refresh(place, "refresh")
    with _step("driftline refresh --all, nothing having changed"):
        again = _refresh(place, "again")
    for name, counts in changed.items():
        found = refreshed[name]
        ours = tuple(found[f"rows_{kind}"] for kind in ("inserted", "updated", "deleted"))
        if ours != counts or again[name]["version"] != found["version"]:
            raise ProofFailed(f"{counts} rows changed and {ours} were found.", where=name)
    with _step("comparing every published value with the source, without Driftline's code"):
        _compare(place, legacy)
    with _step("driftline receipt orders, and driftline-source total on the other side"):
        receipt = place.folder / "orders.receipt.json"
        words = ["receipt", "orders", "--output", str(receipt)]
        answer(warehouse(place.warehouse, *words), log=place.log("receipt"))
        command = source(place.source, "total", "--receipt", str(receipt))
        total = answer(command, log=place.log("total"))
    print(f"      {total.strip()}")
    return load, refreshed, again


def _refresh(place: Place, log: str) -> Reports:
    """Refresh everything; the report of each fragment."""
    command = warehouse(place.warehouse, "refresh", "--all", "--json")
    lines = answer(command, log=place.log(log)).splitlines()
    reports: Reports = {body["name"]: body for body in map(json.loads, lines)}
    if set(reports) != {table.name for table in TABLES}:
        raise InternalError(f"Reports came of {', '.join(reports) or 'nothing'}.", where="demo")
    return reports


def _compare(place: Place, legacy: Legacy) -> None:
    for table in TABLES:
        ours = check.published(place.folder / "warehouse" / table.name, table)
        found = check.compare(ours, legacy.texts(table))
        if not found.equal:
            raise ProofFailed(
                f"{found.published} rows are published and {found.source} at the source, or their "
                "values differ.",
                where=table.name,
            )
        print(f"      {table.name}: {found.published:,} rows, equal")


@contextlib.contextmanager
def _step(text: str) -> Iterator[None]:
    """Say what is done, and afterwards for how long."""
    print(f"{text} …", flush=True)
    began = time.monotonic()
    yield
    print(f"      {time.monotonic() - began:.1f} s", flush=True)


def _summary(load: Reports, refreshed: Reports, again: Reports) -> None:
    """What crossed the line against a full copy."""
    grid = Grid(box=rich.box.SIMPLE, title="bytes on the line, both directions, after compression")
    grid.add_column("table")
    for heading in ("rows", "changed", "full copy", "refresh", "share", "nothing changed"):
        grid.add_column(heading, justify="right")
    totals = [0, 0, 0, 0, 0]
    for table in TABLES:
        report = refreshed[table.name]
        kinds = ("rows_inserted", "rows_updated", "rows_deleted")
        cells = [
            _count(report["rows_total"]),
            sum(_count(report[kind]) for kind in kinds),
            *(_moved(reports[table.name]) for reports in (load, refreshed, again)),
        ]
        totals = [a + b for a, b in zip(totals, cells, strict=True)]
        grid.add_row(table.name, *_cells(cells))
    grid.add_section()
    grid.add_row("all", *_cells(totals))
    Console(width=100, highlight=False).print(grid)
    trips = {_count(report["round_trips"]) for report in refreshed.values()}
    print(
        "A full copy is what the initial load took. "
        f"Round trips of a refresh: {max(trips)}; with nothing changed: "
        f"{max(_count(report['round_trips']) for report in again.values())}."
    )


def _cells(numbers: list[int]) -> list[str]:
    rows, changed, full, moved, idle = numbers
    return [
        *(f"{number:,}" for number in (rows, changed, full, moved)),
        f"{moved / full:.1%}",
        f"{idle:,}",
    ]


def _moved(report: dict[str, object]) -> int:
    return _count(report["bytes_sent"]) + _count(report["bytes_received"])


def _count(value: object) -> int:
    if not isinstance(value, int):
        raise InternalError(f"A report says {value!r} where a number was expected.", where="demo")
    return value


def _look_further(place: Place, shown: Path, *, postgres: bool) -> None:
    print(f"Everything is in {place.folder}. To look further:")
    ours, theirs = shown / _WAREHOUSE_TOML, shown / _SOURCE_TOML
    folder = Path(sys.executable).parent  # the environment need not be on the PATH
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    driftline, source = folder / "driftline", folder / "driftline-source"
    print(f"  {driftline} --config {ours} status")
    print(f"  {driftline} --config {ours} history orders")
    print(f"  {driftline} --config {ours} verify --all")
    if postgres:
        print("The PostgreSQL server is gone, and its data with it.")
        return
    print(f"  {source} --config {theirs} check")
    print(f"  {source} --config {theirs} serve")
    print(f"  # then change {shown / 'legacy.db'}, and")
    print(f"  {driftline} --config {ours} refresh --all")
