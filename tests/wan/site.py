"""A legacy database, a folder of dump files and a warehouse on either side of a simulated link.

The two source agents and the warehouse agent are the commands that people run, over mutual TLS. The
warehouse's process stays, and runs one command after the other, so that Python and Spark start
once. `SCENARIOS` names each way in which a relation is kept equal; all of them read the same table,
so one edit and one command try every way. A new way is one more line there.

What is published is compared with what the owner's own connection reads, by duckdb over the files
that delta-rs names: neither knows an agent.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from tests import ROOT
from tests.harness.legacy import Legacy
from tests.harness.legacy_dump import DumpFolder
from tests.harness.pair import environment
from tests.wan import link as wan

ROWS = 1200
NOTE_CHARACTERS = 120  # random, so that they do not shrink on the line
START_S_MAX = 90.0
COMMAND_S_MAX = 400.0
TRIES_MAX = 12  # commands until all is equal: a part takes several
CUSTOMERS = 40

Row = tuple[Any, ...]
Rows = Counter[Row]

# Runs one command line after the other: arguments as a JSON list per line in, and after the
# command's own output a line with its exit code.
_COMMANDS = """
import json, sys
from warehouse_agent.cli.main import cli
for line in sys.stdin:
    code = 0
    try:
        code = cli.main(json.loads(line), standalone_mode=False) or 0
    except SystemExit as ended:
        code = ended.code
    print(f"exit {code}", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of line."""

    name: str
    rtt_ms: float
    rate_mbit: float | None = None
    faults: wan.Faults = wan.NO_FAULTS

    def link(self) -> wan.Link:
        return wan.Link(rtt_ms=self.rtt_ms, rate_mbit=self.rate_mbit, faults=self.faults)


def profiles(seed: int) -> dict[str, Profile]:
    """Every profile, by name."""
    lossy = wan.Faults(loss=0.02, duplicate=0.005, reorder=0.01, seed=seed)
    flapping = wan.Faults(up_s=6.0, down_s=2.0, seed=seed)
    found = (
        Profile("lan", 1, 100),
        Profile("dsl", 50, 10),
        Profile("satellite", 600, 2),
        Profile("lossy", 200, 10, lossy),
        Profile("flapping", 50, 10, flapping),
        # TCP lets these through, and TLS ends the connection at each.
        Profile("damaged", 20, 50, wan.Faults(corrupt=0.006, seed=seed)),
        Profile("worst", 300, 8, wan.Faults(loss=0.05, seed=seed)),
    )
    return {profile.name: profile for profile in found}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to keep a relation equal: the lines of its fragment, and where it is served.

    `relation`: further lines of what the source serves. `is_part`: one refresh may leave rows as
    they were.
    """

    name: str
    fragment: str = ""
    source: str = "erp"
    relation: str = ""
    is_part: bool = False


SCENARIOS = (
    Scenario("sketch", 'method = "sketch"'),
    Scenario("ranges", 'method = "range"'),
    Scenario("groups", 'method = "group"'),
    Scenario("whole", 'method = "full"'),
    Scenario("tiles", 'require = "fuzzy"\nincremental = { rows = 500, pause_s = 0.1 }'),
    Scenario("parts", 'require = "fuzzy"\nread_at_most = 1000', is_part=True),
    Scenario(
        "since", 'proof = "keys"\nmethod = "since"', relation='marker = { column = "changed" }'
    ),
    Scenario("dump", source="files"),
)
VIEW = "priced"
_INTEGERS = ("id", "customer", "amount", "changed")
_COLUMNS = "id, customer, amount, changed, note"
_VIEW_QUERY = (
    "SELECT i.id, i.note, c.name FROM sketch i JOIN customers c ON c.id = i.customer"
    " WHERE i.amount > 100"
)
_SPARK = """[spark]
"spark.master" = "local[1]"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.ui.enabled" = "false"
"""
_PORTS = {"erp": 7443, "files": 7444}


class Site:
    """Both sides of a link, and what is between. A context manager."""

    def __init__(
        self, folder: Path, link: wan.Link, legacy: Legacy, *, seed: int, with_view: bool = False
    ) -> None:
        self.folder, self.link, self.legacy, self.with_view = folder, link, legacy, with_view
        self._random = random.Random(seed)
        self._started: list[subprocess.Popen[Any]] = []
        self.dump = DumpFolder(folder / "files")
        self._changed = 0  # the newest version of a row
        self.dump.describe("items", dict.fromkeys(_INTEGERS, "int8") | {"note": "text"})
        key = "BIGINT NOT NULL PRIMARY KEY"
        legacy.execute(
            f"CREATE TABLE items (id {key}, customer BIGINT, amount BIGINT,"
            " changed BIGINT NOT NULL, note VARCHAR(200))"
        )
        legacy.execute(f"CREATE TABLE customers (id {key}, name VARCHAR(60))")
        legacy.many(
            "INSERT INTO customers VALUES (?, ?)", [(n, f"customer {n}") for n in range(CUSTOMERS)]
        )
        legacy.execute("CREATE INDEX items_changed ON items (changed)")
        self._insert(range(ROWS))
        self.before = Rows()
        self._configure()

    def _row(self, key: int) -> Row:
        note = self._random.randbytes(NOTE_CHARACTERS // 2).hex()
        self._changed += 1
        return key, key % CUSTOMERS, self._random.randrange(1000), self._changed, note

    def _insert(self, keys: Iterable[int]) -> None:
        rows = [self._row(key) for key in keys]
        self.legacy.many("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)

    def _configure(self) -> None:
        certs = self.folder / "certs"
        enroll = ["enroll", "--directory", str(certs), "--source-name", wan.SOURCE_ADDRESS]
        self._write_source("erp", self.legacy.url, 'table = "items"')
        subprocess.run(
            [*_agent(self._toml("erp")), *enroll],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env=environment(),
        )
        dump = 'files = "items-*.csv"\nformat = "files/items.toml"\ncomplete = "{file}.done"\n'
        self._write_source("files", self.dump.url, f'{dump}key = ["id"]')
        parts = [
            '[warehouse]\npath = "warehouse"\n',
            _SPARK,
            *(
                f'[sources.{name}]\naddress = "{wan.SOURCE_ADDRESS}:{port}"\nca = "certs/ca.pem"\n'
                'certificate = "certs/warehouse.pem"\nkey = "certs/warehouse.key"\n'
                for name, port in _PORTS.items()
            ),
            *(f'[fragments.{s.name}]\nsource = "{s.source}"\n{s.fragment}\n' for s in SCENARIOS),
        ]
        if self.with_view:
            parts.append('[fragments.customers]\nsource = "erp"\n')
            parts.append(f'[views.{VIEW}]\nquery = "{_VIEW_QUERY}"\n')
        (self.folder / "warehouse.toml").write_text("\n".join(parts))

    def _toml(self, source: str) -> Path:
        return self.folder / f"{source}.toml"

    def _write_source(self, source: str, url: str, relation: str) -> None:
        password = ""
        if source == "erp" and self.legacy.password is not None:
            secret = self.folder / "reader.password"
            secret.write_text(self.legacy.password)
            secret.chmod(0o600)
            password = 'password_file = "reader.password"\n'
        lines = (
            f'[database]\nurl = "{url}"\n{password}'
            f'[server]\nlisten = "{wan.SOURCE_ADDRESS}:{_PORTS[source]}"\n'
            'certificate = "certs/source.pem"\nkey = "certs/source.key"\n'
            f'client_ca = "certs/ca.pem"\naudit_file = "{source}.audit.jsonl"\n'
        )
        for scenario in SCENARIOS:
            if scenario.source == source:
                lines += f"[relations.{scenario.name}]\n{relation}\n{scenario.relation}\n"
        if source == "erp":
            lines += '[relations.customers]\ntable = "customers"\n'
        self._toml(source).write_text(lines)

    def __enter__(self) -> Site:
        try:
            self.deliver()
            for source in _PORTS:
                self._serve(source)
            with (self.folder / "warehouse.log").open("ab") as log:
                self._warehouse = self._start(
                    self.link.popen_warehouse,
                    [sys.executable, "-c", _COMMANDS],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self, popen: Callable[..., subprocess.Popen[Any]], words: Sequence[str], **options: Any
    ) -> subprocess.Popen[Any]:
        process = popen(words, cwd=ROOT, env=environment(), **options)
        self._started.append(process)
        return process

    def _serve(self, source: str) -> None:
        ready, said = self.folder / f"{source}.port", self.folder / f"{source}.log"
        words = [*_agent(self._toml(source)), "serve", "--port-file", str(ready)]
        with said.open("wb") as log:
            process = self._start(self.link.popen_source, words, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S_MAX
        while not ready.exists():
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def command(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """Run a command of `driftline`; return its exit code and its JSON lines."""
        config = ["--config", str(self.folder / "warehouse.toml")]
        asked, answers = self._warehouse.stdin, self._warehouse.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps([*config, *words]) + "\n")
        asked.flush()
        lines: list[dict[str, Any]] = []
        for line in answers:
            if line.startswith("exit "):
                return int(line.split()[1]), lines
            lines.append(json.loads(line))
        raise AssertionError((self.folder / "warehouse.log").read_text()[-4000:])

    def deliver(self) -> None:
        """Deliver the table, as it is now, as a dump file."""
        self.dump.deliver("items", sorted(self.source()))

    def edit(self) -> None:
        """Change a tenth of the rows, remove some and add some; deliver a file of it."""
        self.before = self.source()
        changed = [(*self._row(n)[3:], n) for n in range(0, ROWS, 10)]
        self.legacy.many("UPDATE items SET changed = ?, note = ? WHERE id = ?", changed)
        self.legacy.execute("DELETE FROM items WHERE id % 50 = 7")
        self._insert(range(ROWS, ROWS + 60))
        self.legacy.execute("UPDATE customers SET name = 'renamed' WHERE id = 3")
        self.deliver()

    def source(self, table: str = "items") -> Rows:
        """Return what the owner reads."""
        return Rows(tuple(row) for row in self.legacy.rows(table))

    def published(self, name: str, columns: str = _COLUMNS) -> Rows:
        """Return what a reader of the Delta table reads; nothing before the first version."""
        folder = self.folder / "warehouse" / name
        if not DeltaTable.is_deltatable(str(folder)):
            return Rows()
        files = DeltaTable(str(folder)).file_uris()
        if not files:
            return Rows()
        found = duckdb.execute(f"SELECT {columns} FROM read_parquet(?)", [files]).fetchall()
        return Rows(found)

    def joined(self) -> Rows:
        """Return the rows of the view, made by hand."""
        names = dict(self.legacy.rows("customers"))
        items = self.source()
        return Rows((i, note, names[c]) for i, c, amount, _, note in items if amount > 100)

    def converge(self) -> list[dict[str, Any]]:
        """Refresh until every fragment is equal to its source; return all reports.

        After each command a table is what it was, or equal; a part may be between. An error must
        be safe to retry.
        """
        reports: list[dict[str, Any]] = []
        left = list(SCENARIOS)
        for _ in range(TRIES_MAX):
            names = [scenario.name for scenario in left]
            if self.with_view:
                names += ["customers", VIEW]
            code, found = self.command("refresh", *names, "--json")
            reports += found
            failed = [report for report in found if report["error"]]
            assert all(report["error"]["safe_to_retry"] for report in failed), failed
            assert code in {0, 3} or failed, found
            left = [scenario for scenario in left if not self._is_equal(scenario)]
            if not left and not failed:
                break
            assert failed or all(scenario.is_part for scenario in left), (left, found)
        assert not left, (left, reports)
        if self.with_view:
            assert self.published("customers", "id, name") == self.source("customers")
            assert self.published(VIEW, "id, note, name") == self.joined()
        return reports

    def _is_equal(self, scenario: Scenario) -> bool:
        published, source = self.published(scenario.name), self.source()
        if scenario.is_part:
            assert not published - (self.before | source), "rows that never were"
        elif published != source:
            assert published == self.before, f"{scenario.name} is neither old nor new"
        return published == source


def _agent(config: Path) -> list[str]:
    return [sys.executable, "-m", "source_agent.cli", "--config", str(config)]
