"""What the pages say is so: commands run, files load, examples work, lists are complete.

A fenced block runs unless its info string says `no-run reason="…"`. Blocks of shell with
`scenario=NAME` run in one folder around an SQLite database, each command once (see `world`); the
others run in an empty folder. TOML goes to the loader of its side, a part of a file with the rest.
Python compiles, and runs where it may.
"""

from __future__ import annotations

import ast
import gzip
import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from deltalake import DeltaTable
from driftline import errors
from driftline.values.types import WIDTHS, parse_type

from source_agent.budgets.audit import AuditEntry
from source_agent.checks.configuration import check
from source_agent.config import file as source_configure
from source_agent.engines.conformance.reads import decoded, flat
from source_agent.engines.dump import formats
from source_agent.engines.registry import connect
from tests import ROOT
from tests.harness import forks
from tests.harness.object_stores import SeaweedFS
from tests.harness.pair import plain
from tests.harness.servers import PostgreSQL
from tests.harness.views import Sites
from tests.project.references import commands, whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)  # the first test of `world` waits for all of its commands

PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = {"driftline": "warehouse_agent.cli", "driftline-source": "source_agent.cli"}
ROWS = 20_000
COMMAND_S_MAX = 300
START_S_MAX = 60.0
LANGUAGES = {"sh", "console", "toml", "python", "text"}
COMMANDS = 55  # different ones that are run
EXAMPLES = {"toml": 16, "python": 4, "text": 9}  # different blocks
EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 75, 130}

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)
_ATTRIBUTE = re.compile(r'([a-z-]+)(?:=(?:"([^"]*)"|(\S+)))?')
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(([^)\s]+)\)")
_CITED = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")
_AGE = re.compile(r"just now|\d+ \w+ ago")
_NUMBER = re.compile(r"\d[\d,.:TZe+-]*")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    attributes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return "no-run" not in self.attributes

    @property
    def commands(self) -> list[str]:
        """The command lines of a shell block, without comments."""
        lines = self.text.splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [c for line in lines if (c := _COMMENT.sub("", line).strip())]


def _name(page: Path) -> str:
    """The name of a page: its path below docs, or below the root."""
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def _blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            attributes = {a: b or c for a, b, c in _ATTRIBUTE.findall(match[2])}
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(_name(page), line, match[1], match[3], attributes))
    return found


BLOCKS = _blocks()


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def page(name: str) -> str:
    path = ROOT / name if name == "README.md" else ROOT / "docs" / name
    return path.read_text(encoding="utf-8")


def rows_of_tables(text: str) -> list[list[str]]:
    """The cells of every row of every table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def coded(text: str) -> set[str]:
    """Everything between backticks, outside of fenced blocks."""
    return set(re.findall(r"`([^`\n]+)`", _FENCE.sub("", text)))


# The fences themselves.
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, "no language, or one that no test here knows"
    assert set(block.attributes) <= {"no-run", "reason", "scenario"}
    assert block.runs or len(block.attributes.get("reason") or "") > 10, "why is it not run?"


def test_no_example_is_lost() -> None:
    """Pages are cut and moved; what they show to be typed, or to be written, is still run."""
    commands = {c for block in of("sh", "console") if block.runs for c in block.commands}
    assert len(commands) >= COMMANDS
    for language, least in EXAMPLES.items():
        assert len({block.text for block in of(language)}) >= least, language


def test_few_blocks_are_not_run() -> None:
    assert len([b for b in of("sh", "console", "python") if not b.runs]) <= 7


# Shell.
def environment(folder: Path) -> dict[str, str]:
    """Both console scripts on the PATH, from this tree."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    for name, module in PROGRAMS.items():
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        script.chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(folder: Path, command: str) -> str:
    """Return what a command prints; it must succeed. Those of the agents are forked."""
    program, *words = shlex.split(command)
    variables = environment(folder)
    if program in PROGRAMS:
        forked = ["-m", PROGRAMS[program], *words]
        done = forks.run(forked, cwd=folder, env=variables, timeout=COMMAND_S_MAX)
    else:
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S_MAX,
        )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.starts
@pytest.mark.parametrize(
    "block", [b for b in of("sh") if b.runs and "scenario" not in b.attributes], ids=str
)
def test_commands_that_need_nothing(block: Block, tmp_path: Path) -> None:
    for command in block.commands:
        run(tmp_path, command)


def scenario(name: str) -> list[str]:
    """The commands of a scenario, from all pages, each once; those of the README come first."""
    chosen = [b for b in of("sh", "console") if b.attributes.get("scenario") == name]
    chosen.sort(key=lambda block: block.page != "README.md")
    return list(dict.fromkeys(command for block in chosen for command in block.commands))


def in_readme(language: str, beginning: str) -> str:
    return next(
        b.text for b in of(language) if b.page == "README.md" and b.text.startswith(beginning)
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def make_legacy(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(
            "CREATE TABLE orders (o_orderkey INTEGER PRIMARY KEY NOT NULL,"
            " o_totalprice DECIMAL(15,2), o_comment VARCHAR(79))"
        )
        rows = [
            (i, i * 1.25, f"comment {i} {'of some length ' * (i % 3)}") for i in range(1, ROWS + 1)
        ]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
        connection.commit()


def change_legacy(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE orders SET o_comment = 'x' WHERE o_orderkey % 100 = 7")
        connection.execute("DELETE FROM orders WHERE o_orderkey % 1000 = 5")
        connection.execute("INSERT INTO orders VALUES (30000, 1.5, 'new')")
        connection.commit()


@contextmanager
def served(folder: Path, command: str) -> Iterator[None]:
    with (folder / "serve.log").open("w+") as log:
        process = subprocess.Popen(
            shlex.split(command), cwd=folder, env=environment(folder), stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + START_S_MAX
            while "listening on" not in (said := (folder / "serve.log").read_text()):
                assert process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(timeout=START_S_MAX)


@dataclass
class World:
    """A folder in which the pages were followed, and what the commands printed."""

    folder: Path
    said: dict[str, str] = field(default_factory=dict)

    def follow(self, name: str) -> None:
        commands = scenario(name)
        assert commands, f"no page has a scenario {name}"
        for command in commands:
            self.said[command] = run(self.folder, command)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,  # noqa: ARG001 - marks the tests, and finds a Java for the commands
) -> World:
    """Follow the README, as DBA and as data engineer, and then the pages; with SQLite."""
    folder = tmp_path_factory.mktemp("pages")
    make_legacy(folder / "erp.db")
    port = free_port()
    ours = in_readme("toml", "[database]").replace(
        "postgresql+psycopg://driftline@localhost/erp", "sqlite:///erp.db"
    )
    ours = ours.replace("public.orders", "orders").replace("0.0.0.0:7443", f"127.0.0.1:{port}")
    (folder / "source.toml").write_text(ours)
    password = folder / "driftline.password"
    password.write_text("not needed by SQLite\n")
    password.chmod(0o600)
    theirs = in_readme("toml", "[warehouse]").replace(
        '"erp.example:7443"', f'"127.0.0.1:{port}"\nserver_name = "erp.example"'
    )
    settings = '[spark]\n"spark.master" = "local[2]"\n"spark.driver.memory" = "1g"\n'
    (folder / "warehouse.toml").write_text(f'{theirs}method = "sketch"\n{settings}')
    lived = World(folder)
    lived.follow("source")
    for name in ("ca.pem", "warehouse.pem", "warehouse.key"):
        shutil.copy2(folder / "certs" / name, folder)  # with its mode: the key is private
    (serve,) = scenario("serve")
    with served(folder, serve):
        lived.follow("warehouse")
        lived.follow("receipt")
        change_legacy(folder / "erp.db")
        for block in of("console"):
            for command in block.commands:
                lived.said[command] = run(folder, command)
    return lived


@pytest.mark.spark
def test_the_pages_can_be_followed(world: World) -> None:
    (total,) = scenario("receipt")
    assert "equal to the receipt" in world.said[total]
    assert re.search("^(relation     )?orders", world.said["driftline-source check"], re.M)
    assert "FAIL" not in world.said["driftline doctor"]


@pytest.mark.spark
@pytest.mark.parametrize("block", of("console"), ids=str)
def test_a_console_shows_what_comes(block: Block, world: World) -> None:
    shown = [line for line in block.text.splitlines() if line]
    printed = []
    for command in block.commands:
        printed += [f"$ {command}", *world.said[command].splitlines()]
    assert [_form(line) for line in shown] == [_form(line) for line in printed]


@pytest.mark.spark
def test_the_quick_start_can_be_followed(postgresql: PostgreSQL, tmp_path: Path) -> None:
    """On a PostgreSQL of somebody's own, with no file touched by hand."""
    database = postgresql.create_database("quickstart")
    with postgresql.superuser(database) as admin:
        admin.execute("CREATE TABLE customers (id INT PRIMARY KEY, name TEXT, since DATE)")
        admin.execute(
            "INSERT INTO customers SELECT n, 'c' || n, '2026-01-01' FROM generate_series(1, 500) n"
        )
        admin.execute("CREATE TABLE log (line TEXT)")
    port = free_port()

    def ours(command: str) -> str:
        listen = f"--url '{postgresql.url('postgres', database)}' --listen 127.0.0.1:{port}"
        command = command.replace("--url postgresql://you@localhost/erp", listen)
        return command.replace("localhost:7443", f"localhost:{port}")

    steps = [scenario(name) for name in ("quickstart", "quickstart-serve", "quickstart-warehouse")]
    assert sum(map(len, steps)) <= 5, "with the installation, at most six"
    for command in steps[0]:
        run(tmp_path, ours(command))
    (serve,) = steps[1]
    try:
        with served(tmp_path, serve):
            said = [run(tmp_path, ours(command)) for command in steps[2]]
    finally:
        postgresql.drop_database(database)
    assert (
        "is not published: The table or view has no primary key"
        in (tmp_path / "source.toml").read_text()
    )
    assert "customers" in said[-1]
    assert "500" in said[-1]
    assert "log" not in said[-1]


@pytest.mark.spark
def test_the_page_of_buckets_can_be_followed(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    """With another bucket and its keys, and a source in plain text on this machine."""
    make_legacy(tmp_path / "erp.db")
    bucket, port = seaweedfs.bucket(), free_port()
    (tmp_path / "source.toml").write_text(
        f'[database]\nurl = "sqlite:///erp.db"\n[server]\nlisten = "127.0.0.1:{port}"\n'
        'insecure = true\n[relations.orders]\ntable = "orders"\n'
    )
    (block,) = (b for b in of("toml") if b.page == "operating/s3.md")
    text = block.text.replace("s3://lake/erp", bucket.root)
    text = text.replace("https://minio.example:9000", bucket.endpoint)
    text = text.replace("keys.ini", str(bucket.credentials))
    text = text.replace("erp.example:7443", f"127.0.0.1:{port}")
    lines = [line for line in text.splitlines() if not re.match("(ca|certificate|key) = ", line)]
    text = "\n".join(lines).replace("[fragments", "insecure = true\n[fragments")
    settings = '[spark]\n"spark.master" = "local[2]"\n"spark.driver.memory" = "1g"\n'
    (tmp_path / "warehouse.toml").write_text(f"{text}\n{settings}")
    with served(tmp_path, "driftline-source serve"):
        doctor, refresh, verify = [run(tmp_path, command) for command in scenario("s3")]
    assert "FAIL" not in doctor
    assert f"with the profile 'default' of {bucket.credentials}" in doctor
    assert "orders" in refresh
    assert "orders" in verify


def _form(line: str) -> str:
    """A line without its numbers and ages, and without what they do to the width of a column."""
    return " ".join(_NUMBER.sub("0", _AGE.sub("then", line)).split())


# Python.
@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_compiles_and_what_it_imports_is_there(block: Block) -> None:
    tree = ast.parse(block.text, str(block))
    imports: list[ast.stmt] = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), str(block), "exec"), {})


@pytest.mark.spark
@pytest.mark.parametrize(
    "block", [b for b in of("python") if b.runs and b.page != "views.md"], ids=str
)
def test_reading_examples_run(block: Block, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.folder)
    names: dict[str, object] = {}
    exec(compile(block.text, str(block), "exec"), names)
    assert names["orders"].count() == ROWS - 20 + 1  # type: ignore[attr-defined]
    assert names["orders"].columns == ["o_orderkey", "o_totalprice", "o_comment"]  # type: ignore[attr-defined]
    if "feed" in names:
        counted = dict(names["feed"].groupBy("_op").count().collect())  # type: ignore[attr-defined]
        expected = {"update_before": 200, "update_after": 200, "delete": 20, "insert": 1}
        assert counted == expected


@pytest.fixture(scope="module")
def views_page(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """The page's configuration over two databases, refreshed."""
    folder = tmp_path_factory.mktemp("views")
    (block,) = (b for b in of("toml") if b.page == "views.md")
    wanted = tomllib.loads(block.text)
    tables = {
        "erp": {
            "orders": "id INTEGER PRIMARY KEY NOT NULL, placed TEXT, customer INT, status TEXT"
        },
        "crm": {
            "customer": "id INTEGER PRIMARY KEY NOT NULL, name TEXT, country TEXT, address TEXT,"
            " phone TEXT, note TEXT"
        },
    }
    views = {name: view["query"] for name, view in wanted["views"].items()}
    with Sites(spark, folder, tables, views, derive=("columns", "rows")) as sites:
        sites.fragment_lines = {
            name: f'source = "{lines["source"]}"' for name, lines in wanted["fragments"].items()
        }
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        sites.sql(
            "crm",
            f"{numbers} INSERT INTO customer (id, name, country)"
            " SELECT i, 'name ' || i, iif(i % 10, 'DE', 'CH') FROM n",
            1000,
        )
        sites.sql(
            "erp",
            f"{numbers} INSERT INTO orders"
            " SELECT i, '2026-01-02', 1 + i % 1000, iif(i % 3, 'F', 'O') FROM n",
            5000,
        )
        for source in tables:
            sites.sql(source, "ANALYZE")
        sites.well()
        sites.toml()
        yield sites


@pytest.mark.spark
def test_the_page_of_views_can_be_followed(
    spark: SparkSession, views_page: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = (b for b in of("python") if b.page == "views.md")
    monkeypatch.chdir(views_page.folder)
    before = {table.name for table in spark.catalog.listTables()}
    names: dict[str, object] = {}
    exec(compile(block.text, "views.md", "exec"), names)
    expected = views_page.expected("open_orders")
    assert expected
    for rows in (names["orders"], spark.table("open_orders")):
        assert Counter(tuple(map(plain, row)) for row in rows.collect()) == expected  # type: ignore[attr-defined]
    tables = {table.name for table in spark.catalog.listTables()}
    published = {"orders", "open_orders"}
    assert published <= tables
    assert tables - before <= published, "a kept relation is not registered"


def views_sql(beginning: str) -> list[str]:
    """The statements of one example of the page of views."""
    (text,) = (b.text for b in of("text") if b.page == "views.md" and b.text.startswith(beginning))
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def files_of(warehouse: Path, place: str, version: str | None) -> list[str]:
    """The files of a Delta table that an example names, at a version that it names."""
    table = warehouse / place.removeprefix("file://").removeprefix("/srv/warehouse/")
    return DeltaTable(table, version=None if version is None else int(version)).file_uris()


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["DuckDB", "Spark"])
def test_views_are_read_without_driftline(
    spark: SparkSession, views_page: Sites, engine: str
) -> None:
    """The examples name the right tables, columns and rows.

    Neither DuckDB's extension for Delta nor Spark's package is here: its table function is replaced
    by the files that the log of the named table has at the named version.
    """
    beginning, table_at = {
        "DuckDB": (
            "SELECT version FROM delta_scan",
            r"delta_scan\('([^']+)'(?:, version => (\d+))?\)",
        ),
        "Spark": ("SELECT version FROM delta.`", r"delta\.`([^`]+)`(?: VERSION AS OF (\d+))?"),
    }[engine]

    def answer(statement: str) -> list[tuple[object, ...]]:
        (found,) = re.finditer(table_at, statement)
        files = files_of(views_page.warehouse, found[1], found[2])
        if engine == "Spark":
            spark.read.parquet(*files).createOrReplaceTempView("named")
            asked = statement.replace(found[0], "named")
            return [tuple(row) for row in spark.sql(asked).collect()]
        with duckdb.connect() as db:
            return db.execute(statement.replace(found[0], f"read_parquet({files})")).fetchall()

    versions, rows = views_sql(beginning)
    ((version,),) = answer(versions)
    found = Counter(tuple(map(plain, row[:3])) for row in answer(rows.replace("12", str(version))))
    assert found == views_page.expected("open_orders")


@pytest.mark.spark
def test_the_page_shows_what_explain_prints(views_page: Sites) -> None:
    (command,) = re.findall(r"`(driftline explain \w+ --ask)`", page("views.md"))
    printed = run(views_page.folder, command)
    assert printed in {b.text for b in of("text") if b.page == "views.md"}


# TOML.
@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_is_accepted_by_its_agent(block: Block, tmp_path: Path) -> None:
    from warehouse_agent import config as warehouse_configure

    text = whole(block.text)
    parsed = tomllib.loads(text)
    for name in re.findall(r'"([\w/.-]+\.(?:pem|key|password))"', block.text):
        stand_in = tmp_path / name
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text("stand-in\n")
        stand_in.chmod(0o600)
    file = tmp_path / "file.toml"
    file.write_text(text)
    if "warehouse" in parsed:
        assert warehouse_configure.load(file).fragments
    elif "server" in parsed:
        assert source_configure.load(file).relations
    else:
        assert formats.load(file).names


def test_the_dump_files_of_the_guide_are_served(tmp_path: Path) -> None:
    """With a file as the guide's format describes it, in a folder of the test."""
    signs = ('format = "accounts.toml"', 'encoding = "cp1252"')
    source, format = (b.text for b in of("toml") if any(sign in b.text for sign in signs))
    (tmp_path / "source.toml").write_text(whole(source).replace("/data/erp", f"{tmp_path}"))
    (tmp_path / "accounts.toml").write_text(format)
    text = "id;name;balance;opened\n7;Müller;-1234,50;2024-02-29\n8;;;\n"
    (tmp_path / "accounts-1.csv.gz").write_bytes(gzip.compress(text.encode("cp1252")))
    config = source_configure.load(tmp_path / "source.toml")
    engine = connect(config.database.url, None, config.database.limits)
    report = check(config, engine)
    assert [r.error_code for r in report.relations] == ["DATABASE_UNAVAILABLE"]
    (tmp_path / "accounts-1.csv.gz.done").touch()
    (relation,) = check(config, engine).relations
    assert relation.error is None, relation.error
    assert [c.type for c in relation.columns] == ["int8", "text", "numeric(15,2)", "date"]
    assert relation.no_tiles
    assert "accounts-1.csv.gz" in relation.scan_cost
    published = config.relations["accounts"].relation
    with closing(engine.open()) as session:
        shape = session.describe(published)
        rows = [decoded(row, shape) for row in flat(session.scan(shape))]
    assert rows == [["7", "Müller", "-1234.50", "2024-02-29"], ["8", None, None, None]]


# Lists that must be complete, and not longer than the truth.
def test_every_error_is_documented() -> None:
    text = page("errors.md")
    listed = {}
    for cells in rows_of_tables(text):
        if match := re.fullmatch(r"\[([A-Z_]+)\]\(#([a-z_]+)\)", cells[0]):
            assert match[2] == match[1].lower()
            listed[match[1]] = (int(cells[1]), cells[2] == "yes")
    assert listed == {code: (e.exit_code, e.is_retryable) for code, e in errors.BY_CODE.items()}
    headings = set(re.findall(r"^### ([A-Z_]+)$", text, re.M))
    assert headings == set(listed)


def test_every_exit_code_is_documented() -> None:
    listed = {int(c[0]) for c in rows_of_tables(page("errors.md")) if c[0].isdigit()}
    assert listed == EXIT_CODES
    assert {e.exit_code for e in errors.BY_CODE.values()} <= listed


def test_every_field_is_documented() -> None:
    from warehouse_agent.inspection.published_state import PublishedState
    from warehouse_agent.report import Report

    listed = coded(page("reference/json.md"))
    for kind in (Report, PublishedState):
        assert {f.name for f in fields(kind)} <= listed
    failed = Report("orders")
    failed.fail(errors.Locked("…"))
    assert failed.error is not None
    assert set(failed.error) <= listed
    assert {f.name for f in fields(AuditEntry)} <= coded(page("dba/audit.md"))


def test_every_extra_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    section = page("operating/install.md").split("## Installing\n")[1].split("\n## ")[0]
    listed = [e for cells in rows_of_tables(section)[2:] for e in re.findall("`([^`]+)`", cells[0])]
    assert sorted(listed) == sorted(project["optional-dependencies"])


def test_every_command_is_documented() -> None:
    """On a page of its own that the index names; its options are generated (`test_references`)."""
    for program, group in commands().items():
        index = page(f"reference/{program}.md")
        pages = {p.stem: page(_name(p)) for p in PAGES if p.parent.name == program}
        assert set(pages) == set(group.commands)
        for name, text in pages.items():
            assert f"[`{name}`]({program}/{name}.md)" in index, name
            assert text.startswith(f"# {program} {name}\n`{program} {name}"), name
            assert len(text.split()) <= 600, name


def test_types_are_those_of_the_code() -> None:
    from warehouse_agent.columns.arrow import Carrier, spark_type

    section = page("types.md").split("## Declared types and Spark types")[1].split("\n### ")[0]
    listed: dict[str, str] = {}
    for cells in rows_of_tables(section)[2:]:
        names = re.findall(r"`([^`]+)`", cells[0])
        spark = [part.strip() for part in cells[1].split(", ")]
        spark = spark * len(names) if len(spark) == 1 else spark
        listed |= dict(zip(names, spark, strict=True))
    assert listed.pop("numeric(p,s)") == "decimal(p,s)"
    assert spark_type(parse_type("numeric(9,2)"), Carrier.NATIVE) == "decimal(9,2)"
    assert listed == {kind: spark_type(parse_type(kind), Carrier.NATIVE) for kind in WIDTHS}


def test_every_type_of_mariadb_is_listed() -> None:
    from source_agent.engines.mysql_family import values

    known = {
        *values._INTEGERS, *values.TEXT, *values._BYTES, *values._DATES, *values._AS_CHAR,
        "decimal", "float", "double", "bit", "year", "geometry",
    }  # fmt: skip
    section = page("types.md").split("## MariaDB and MySQL")[1].split("\n## ")[0]
    words = set(re.findall(r"[a-z0-9]+", " ".join(coded(section))))
    assert known <= words


# Links.
def _anchors(path: Path) -> set[str]:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_links_lead_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        place, _, anchor = target.partition("#")
        assert "://" not in place, f"{target}: the project speaks of itself alone"
        found = (path.parent / place).resolve() if place else path
        assert found.is_relative_to(ROOT), target
        assert found.exists(), target
        if anchor:
            assert anchor in _anchors(found), target


def test_what_code_cites_of_the_docs_is_there() -> None:
    """Errors, remedies and comments name a page, or a section of one by its anchor."""
    cited: dict[str, set[str]] = {}
    for folder in ("proto", "source_agent", "warehouse_agent", "deploy", "tests", "benchmarks"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".toml", ".service", ".timer", ".Containerfile", ".proto"}:
                for place in _CITED.findall(file.read_text(encoding="utf-8")):
                    cited.setdefault(place, set()).add(file.name)
    assert len(cited) >= 15
    for place, files in cited.items():
        target, _, anchor = place.partition("#")
        assert (ROOT / target).is_file(), (place, files)
        assert not anchor or anchor in _anchors(ROOT / target), (place, files)


def test_pictures_have_words() -> None:
    for path in PAGES:
        for words in re.findall(r"!\[([^\]]*)\]", path.read_text(encoding="utf-8")):
            assert len(words) > 40, path.name
    for name in ("flow.svg", "replay.svg"):
        picture = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert "<desc" in picture
        assert "prefers-color-scheme: dark" in picture


def test_the_two_commands_are_there() -> None:
    for name in ("deploy/demo", "tests/run"):
        assert os.access(ROOT / name, os.X_OK), name
        assert f"./{name}" in page("README.md")
