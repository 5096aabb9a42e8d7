"""stderr of both commands has our lines and nobody else's, whatever goes wrong below them.

The commands run as processes of their own, with mutual TLS between them. What Spark's JVM, its
Python workers and gRPC's core write is shown by `--debug` alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from source_agent.enrolment import enroll
from tests.harness.legacy import PostgresLegacy
from tests.harness.pair import SourceProcess, environment
from tests.harness.servers import PostgreSQL

ROWS = 400
END_S_MAX = 300.0
# Nothing of these is ours.
FOREIGN = re.compile(
    r"^\s+at |Caused by|Exception|Traceback|WARN|ERROR|log4j|org\.apache|java\.|py4j|pyspark"
    r"|[EIW]\d{4} \d\d:|absl::|\.cc:\d"
)


class Site:
    """A source agent's file over PostgreSQL, and a warehouse of one fragment, `terms`."""

    def __init__(self, folder: Path, server: PostgreSQL) -> None:
        self.folder = folder
        enroll(folder / "certs", source_names=["127.0.0.1"])
        self.legacy = PostgresLegacy(server)
        self.legacy.execute("CREATE TABLE terms (id int PRIMARY KEY, until timestamptz, d date)")
        self.legacy.execute(
            "INSERT INTO terms SELECT i, '2024-02-29 12:00Z', '2024-02-29'"
            f" FROM generate_series(1, {ROWS}) i"
        )
        secret = folder / "reader.password"
        secret.touch(mode=0o600)
        secret.write_text(self.legacy.password or "")
        certs = folder / "certs"
        self.source_toml = folder / "source.toml"
        self.source_toml.write_text(
            f'[database]\nurl = "{self.legacy.url}"\npassword_file = "reader.password"\n[server]\n'
            'listen = "127.0.0.1:0"\n'
            f'certificate = "{certs}/source.pem"\nkey = "{certs}/source.key"\n'
            f'client_ca = "{certs}/ca.pem"\naudit_file = "audit.jsonl"\n'
            '[relations.terms]\ntable = "terms"\n'
        )
        self.warehouse_toml = folder / "warehouse.toml"

    def dial(self, address: str) -> None:
        certs = self.folder / "certs"
        self.warehouse_toml.write_text(
            f'[warehouse]\npath = "{self.folder}/warehouse"\nsmall_bytes = 0\n'
            '[spark]\n"spark.master" = "local[1]"\n"spark.driver.memory" = "1g"\n'
            f'[sources.erp]\naddress = "{address}"\nca = "{certs}/ca.pem"\n'
            f'certificate = "{certs}/warehouse.pem"\nkey = "{certs}/warehouse.key"\n'
            '[fragments.terms]\nsource = "erp"\n'
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`driftline` as a process."""
        command = [sys.executable, "-m", "warehouse_agent.cli", "--config", self.warehouse_toml]
        return subprocess.Popen(
            [*map(str, command), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=self.folder,
        )

    def run(self, *words: str) -> tuple[int, str, list[str]]:
        """Exit code, stdout, and the lines of stderr."""
        return ended(self.start(*words))


def ended(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    out, err = process.communicate(timeout=END_S_MAX)
    return process.returncode, out, err.splitlines()


@pytest.fixture
def site(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Site]:
    made = Site(tmp_path, postgresql)
    yield made
    made.legacy.close()


def test_a_bad_value_is_one_paragraph(site: Site) -> None:
    """Refused in a Spark task, whose stack is nobody's business without --debug."""
    site.legacy.execute("UPDATE terms SET until = 'infinity', d = '-infinity' WHERE id = 7")
    with SourceProcess(site.source_toml) as source:
        site.dial(source.address)
        code, out, lines = site.run("refresh", "terms")
        assert [line for line in lines if FOREIGN.search(line)] == []
        assert (code, out) == (1, "")
        says = (
            "error VALUE: terms: The timestamptz value 'infinity' of column 'until' does not fit "
            "into timestamp. Its row has the key 7. The date value '-infinity' of column 'd' does "
            'not fit into date. Its row has the key 7. Set carriers = {until = "string", d = '
            '"string"} in its section [fragments.…] of warehouse.toml; if it has a version, '
            "refresh it with --accept-schema."
        )
        assert lines == [
            says,
            "  1. value: infinity",
            "  1. key: 7",
            "  2. value: -infinity",
            "  2. key: 7",
        ]


def test_a_refused_certificate_is_one_line(site: Site) -> None:
    """At both ends: gRPC's core has its own words for it, on either side."""
    with SourceProcess(site.source_toml) as source:
        site.dial(source.address)
        enroll(site.folder / "other", source_names=["127.0.0.1"])
        text = site.warehouse_toml.read_text()
        site.warehouse_toml.write_text(text.replace("certs/warehouse", "other/warehouse"))
        code, _, lines = site.run("plan", "terms")
        assert code == 5
        assert [line for line in lines if FOREIGN.search(line)] == [], lines
        assert len(lines) == 1, lines
    log = (site.folder / "source.log").read_text().splitlines()
    assert [line for line in log if FOREIGN.search(line)] == []


@pytest.mark.parametrize("is_working", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_killed_jvm_is_started_again(site: Site, is_working: bool) -> None:
    """Killed while it starts or in its first job, after rows were staged; the same command goes on
    with another."""
    with SourceProcess(site.source_toml) as source:
        site.dial(source.address)
        command = site.start("refresh", "terms", "--json")
        staging = site.folder / "warehouse" / "_driftline" / "staging" / "terms"

        def is_due() -> bool:
            java = child_of(command.pid, "java")
            is_staged = bool(list(staging.rglob("*.frames")))
            return is_staged and bool(child_of(java, "python") if is_working else java)

        deadline = time.monotonic() + END_S_MAX
        while not is_due():
            assert command.poll() is None, command.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        java = child_of(command.pid, "java")
        assert java is not None
        os.kill(java, signal.SIGKILL)
        code, out, lines = ended(command)
    assert code == 0, lines
    assert [line for line in lines if FOREIGN.search(line)] == [], lines
    report = json.loads(out)
    assert report["rows_total"] == ROWS
    if not is_working and report["attempts"] == 1:  # no step waited for it yet
        return
    assert report["attempts"] == 2
    lost = report["retried"][0]
    assert (lost["code"], lost["exit_code"]) == ("SPARK", 75)
    assert [line for line in lines if "Trying again" in line], lines


def child_of(parent: int | None, name: str) -> int | None:
    """The process id of a child whose name holds `name`."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and name in (entry / "comm").read_text():
                return int(entry.name)
    return None
