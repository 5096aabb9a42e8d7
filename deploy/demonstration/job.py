"""The main job on generated data, with both agents as processes.

A legacy system with three TPC-H tables, a view over two of them, certificates, and two agents over
mutual TLS: initial load, a day's changes, plan, refresh, a refresh that finds nothing, an
independent comparison, and a receipt that the source's side recomputes. At the end it prints how
many bytes crossed the line.

Everything stays in one folder; nothing stays running. A folder that the demonstration did not make
is never touched. It is no test and no benchmark: loopback has no delay. Rejected: to call the
agents as functions, because users run command lines, files and processes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import rich.box
from deltalake import DeltaTable
from driftline.errors import InternalError, ProofFailed, UsageError
from rich.console import Console
from rich.table import Table as Grid

from deploy.demonstration import postgresql
from deploy.demonstration import source as demo_source
from deploy.demonstration.processes import agent, answer, running, terminable
from deploy.demonstration.source import TABLES, Legacy

MARKER = ".driftline-demo"  # in every folder that we made
_WAREHOUSE_TOML, _SOURCE_TOML = "warehouse.toml", "source.toml"
_KINDS = ("inserted", "updated", "deleted")
Reports = dict[str, dict[str, Any]]  # by table or view
_VIEW = "open_orders"
_VIEW_COLUMNS = ("o_orderkey", "o_orderdate", "o_totalprice", "c_name")
_VIEW_TOML = f"""\
[views.{_VIEW}]
query = \"\"\"SELECT {", ".join(_VIEW_COLUMNS)}
           FROM orders o JOIN erp.customer c ON c.c_custkey = o.o_custkey
           WHERE o.o_orderstatus = 'O'\"\"\"
"""
_SERVER = """\
[database]
{database}
[server]
listen = "127.0.0.1:{port}"
certificate = "certs/source.pem"
key = "certs/source.key"
client_ca = "certs/ca.pem"
audit_file = "audit.jsonl"
[limits]
feedback = false    # both agents share this machine; leave it on beside a live database
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


def run(directory: Path, *, postgres: bool, scale: float) -> None:
    """Run the demonstration in `directory`.

    Raises:
        UsageError: the folder was not made by the demonstration, or the scale is out of range.
        ConfigurationError: a package of the extra `demo` is not installed.
        ChildFailed: an agent failed.
        ProofFailed: the published tables differ from the source's.
    """
    if not 0 < scale <= 10:
        raise UsageError(f"Scale {scale} is not between 0 and 10.")
    folder = directory.absolute()
    _make_folder(folder)
    began = time.monotonic()
    with terminable(), contextlib.ExitStack() as stack:
        legacy: Legacy
        if postgres:
            with _step("starting PostgreSQL"):
                legacy = stack.enter_context(postgresql.postgresql(folder))
        else:
            legacy = demo_source.SQLite(folder)
        _prepare(folder, legacy, scale)
        with _agent(folder, legacy):
            reports = _show(folder, legacy)
    _summary(*reports)
    print(f"\nDone in {time.monotonic() - began:.0f} s. ", end="")
    _look_further(directory, postgres=postgres)


def _make_folder(folder: Path) -> None:
    if folder.exists():
        if not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER).is_file()):
            raise UsageError(
                f"{folder} exists and was not made by the demonstration.",
                remedy="Choose another --directory.",
            )
        shutil.rmtree(folder)
    try:
        (folder / "log").mkdir(parents=True)
        (folder / MARKER).write_text("Made by `deploy/demo`, which may remove it.\n")
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be made: {error.strerror}.",
            remedy="Choose another --directory.",
        ) from None


def _warehouse(folder: Path, log: str, *words: str) -> str:
    return answer(agent("warehouse_agent", folder / _WAREHOUSE_TOML, *words), log=_log(folder, log))


def _source(folder: Path, log: str, *words: str) -> str:
    return answer(agent("source_agent", folder / _SOURCE_TOML, *words), log=_log(folder, log))


def _log(folder: Path, name: str) -> Path:
    return folder / "log" / f"{name}.log"


def _prepare(folder: Path, legacy: Legacy, scale: float) -> None:
    """Make the legacy system with its tables, the certificates and source.toml."""
    with _step(f"making a legacy system: TPC-H at scale {scale:g} in {legacy.label}"):
        generated = folder / "generated"
        demo_source.generate(generated, scale)
        for table in TABLES:
            legacy.load(table, generated / f"{table.name}.csv")
        shutil.rmtree(generated)
    with _step("enrolling: certificates for both agents, a login that may only read"):
        words = ["enroll", "--directory", str(folder / "certs"), "--source-name", "127.0.0.1"]
        _source(folder, "enroll", *words)
        _write_source(folder, legacy, 0)
        legacy.grant(lambda: _source(folder, "grants", "grants"))


def _write_source(folder: Path, legacy: Legacy, port: int) -> None:
    relations = "".join(f'[relations.{t.name}]\ntable = "{t.name}"\n' for t in TABLES)
    text = _SERVER.format(database=legacy.database_toml(), port=port)
    (folder / _SOURCE_TOML).write_text(text + relations, encoding="utf-8")


@contextlib.contextmanager
def _agent(folder: Path, legacy: Legacy) -> Iterator[None]:
    """Run the source agent, and write a warehouse.toml with its address."""
    file = folder / "port"
    command = agent("source_agent", folder / _SOURCE_TOML, "serve", "--port-file", str(file))
    with running(command, log=_log(folder, "source"), is_ready=file.exists):
        port = int(file.read_text())
        file.unlink()
        fragments = "".join(f'[fragments.{t.name}]\nsource = "erp"\n' for t in TABLES)
        text = _WAREHOUSE.format(port=port)
        (folder / _WAREHOUSE_TOML).write_text(text + fragments + _VIEW_TOML, encoding="utf-8")
        _write_source(folder, legacy, port)  # for a user who starts it again
        yield


def _show(folder: Path, legacy: Legacy) -> tuple[Reports, Reports, Reports]:
    """Load, change, plan, refresh twice, compare, receipt; return the reports of the refreshes."""
    with _step("driftline refresh --all: the initial load"):
        load = _refresh(folder, "load")
    with _step("changing about 1 % of the rows at the source"):
        changed = demo_source.change(legacy)
    with _step("driftline plan --all"):
        planned = _warehouse(folder, "plan", "plan", "--all")
    print("".join(f"      {line}\n" for line in planned.splitlines()), end="")
    with _step("driftline refresh --all"):
        refreshed = _refresh(folder, "refresh")
    with _step("driftline refresh --all, with nothing changed"):
        again = _refresh(folder, "again")
    for name, counts in changed.items():
        report = refreshed[name]
        ours = tuple(report[f"rows_{kind}"] for kind in _KINDS)
        if ours != counts or again[name]["version"] != report["version"]:
            raise ProofFailed(f"{counts} rows changed and {ours} were found.", where=name)
    with _step("comparing every published value with the source, without Driftline's code"):
        _compare(folder, legacy)
    receipt = str(folder / "orders.receipt.json")
    with _step("driftline receipt orders, and driftline-source total on the other side"):
        _warehouse(folder, "receipt", "receipt", "orders", "--output", receipt)
        total = _source(folder, "total", "total", "--receipt", receipt)
    print(f"      {total.strip()}")
    return load, refreshed, again


def _refresh(folder: Path, log: str) -> Reports:
    lines = _warehouse(folder, log, "refresh", "--all", "--json").splitlines()
    reports: Reports = {body["name"]: body for body in map(json.loads, lines)}
    if set(reports) != {_VIEW, *(table.name for table in TABLES)}:
        raise InternalError(f"There are reports of {', '.join(reports)} alone.", where="demo")
    return reports


def _compare(folder: Path, legacy: Legacy) -> None:
    """Compare the published rows with the source's, without Driftline's code and its mistakes.

    The view is compared with a join of the source's rows.
    """
    source = {table.name: legacy.texts(table) for table in TABLES}
    for table in TABLES:
        ours = _published(folder / "warehouse" / table.name, table.names)
        theirs = source[table.name]
        if not are_same_rows(ours, theirs):
            raise ProofFailed(
                f"{ours.num_rows} rows are published and {theirs.num_rows} are at the source, or "
                "their values differ.",
                where=table.name,
            )
        print(f"      {table.name}: {ours.num_rows:,} rows, equal")
    orders = source["orders"].filter(pc.equal(source["orders"]["o_orderstatus"], "O"))
    joined = orders.join(source["customer"], "o_custkey", "c_custkey", "inner")
    ours = _published(folder / "warehouse" / _VIEW, _VIEW_COLUMNS)
    if not are_same_rows(ours, joined.select(_VIEW_COLUMNS)):
        raise ProofFailed("Its rows are not those of the source's tables, joined.", where=_VIEW)
    print(f"      {_VIEW}: {ours.num_rows:,} rows, equal to the source's tables, joined")


def _published(path: Path, names: Sequence[str]) -> pa.Table:
    """Return columns of the newest version of a Delta table, every value as text."""
    files = DeltaTable(path).file_uris()
    schema = pa.schema([(name, pa.string()) for name in names])
    parts = [pq.ParquetFile(file).read(list(names)).cast(schema) for file in files]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def are_same_rows(ours: pa.Table, theirs: pa.Table) -> bool:
    """Return True if both tables are the same multiset of rows."""
    order = [(name, "ascending") for name in ours.column_names]
    return bool(ours.sort_by(order).equals(theirs.sort_by(order)))


@contextlib.contextmanager
def _step(text: str) -> Iterator[None]:
    print(f"{text} …", flush=True)
    began = time.monotonic()
    yield
    print(f"      {time.monotonic() - began:.1f} s", flush=True)


def _summary(load: Reports, refreshed: Reports, again: Reports) -> None:
    """Print the bytes on the line, compared with a full copy."""
    grid = Grid(box=rich.box.SIMPLE, title="bytes on the line, both directions, after compression")
    grid.add_column("table")
    for heading in ("rows", "changed", "full copy", "refresh", "share", "nothing changed"):
        grid.add_column(heading, justify="right")
    totals = [0, 0, 0, 0, 0]
    for table in TABLES:
        report = refreshed[table.name]
        numbers = [
            report["rows_total"],
            sum(report[f"rows_{kind}"] for kind in _KINDS),
            *(
                reports[table.name]["bytes_sent"] + reports[table.name]["bytes_received"]
                for reports in (load, refreshed, again)
            ),
        ]
        totals = [a + b for a, b in zip(totals, numbers, strict=True)]
        grid.add_row(table.name, *_cells(*numbers))
    grid.add_section()
    grid.add_row("all", *_cells(*totals))
    Console(width=100, highlight=False).print(grid)
    trips, idle = (max(r["round_trips"] for r in done.values()) for done in (refreshed, again))
    print(f"The initial load is the full copy. Round trips of a refresh: {trips}; ", end="")
    print(f"with nothing changed: {idle}.")
    for what, reports in (("load", load), ("refresh", refreshed), ("last refresh", again)):
        print(f"Steps of the {what} on Spark: {on_spark(reports)}.")
    print("The others were small, and ran in the command's own process.")


def on_spark(reports: Reports) -> str:
    """Return the phases that ran on Spark, of each table or view."""
    parts = []
    for name, report in reports.items():
        phases = [phase for phase, place in report["places"].items() if place == "spark"]
        if phases:
            parts.append(f"{name} ({', '.join(phases)})")
    return ", ".join(parts) or "none"


def _cells(rows: int, changed: int, full: int, moved: int, idle: int) -> list[str]:
    numbers = [f"{number:,}" for number in (rows, changed, full, moved)]
    return [*numbers, f"{moved / full:.1%}", f"{idle:,}"]


def _look_further(folder: Path, *, postgres: bool) -> None:
    print(f"Everything is in {folder.absolute()}. To look further:")
    programs = Path(sys.executable).parent  # the environment may not be on the PATH
    if programs.is_relative_to(Path.cwd()):
        programs = programs.relative_to(Path.cwd())
    driftline = f"  {programs / 'driftline'} --config {folder / _WAREHOUSE_TOML}"
    source = f"  {programs / 'driftline-source'} --config {folder / _SOURCE_TOML}"
    print(f"{driftline} status\n{driftline} history orders\n{driftline} verify --all")
    if postgres:
        print("The PostgreSQL server was stopped and its data removed.")
        return
    print(f"{source} check\n{source} serve")
    print(f"  # then change {folder / 'legacy.db'}, and run:\n{driftline} refresh --all")
