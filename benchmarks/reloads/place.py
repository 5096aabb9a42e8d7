"""The source of a comparison, and what a command beside it costs.

A PostgreSQL on loopback, without vacuum by itself: it is vacuumed after every load and change, or
whoever reads first would pay for all. Its fsync is off, which nobody here waits for.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psycopg

from benchmarks import meter, tpch
from benchmarks.peers.changes import ChangeSet
from benchmarks.peers.sites import write_changes
from benchmarks.reloads.contents import Contents, columns, of_source
from tests.harness.servers import PostgreSQL

DATABASE, READER = "bench", "reader"
ERROR_CHARACTERS_MAX = 2000
READ_BYTES = 1 << 18
# What an update writes, so that as many bytes change in each row of both.
_UPDATES = {
    "orders": (
        "o_totalprice = o_totalprice + 1.01, o_comment = left('changed ' || o_comment, 79)",
        "o_orderkey",
    ),
    "lineitem": (
        "l_extendedprice = l_extendedprice + 1.01, l_comment = left('changed ' || l_comment, 44)",
        "l_orderkey * 8 + l_linenumber",
    ),
}
_PARTS = 1_000_000  # in which the rows are cut by a hash of the key


class FailedError(Exception):
    """A command ended badly."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command cost.

    Attributes:
        wall_s: from its start to its exit.
        cpu_s: of all processes that it started, also of those that ended after it.
        source_cpu_s: of the database's processes and of those beside it that the tool needs.
    """

    wall_s: float
    cpu_s: float
    source_cpu_s: float


class Source:
    """A table of TPC-H in a database, and the reader that may SELECT."""

    def __init__(self, server: PostgreSQL, scale: float) -> None:
        self._server, self.scale = server, scale
        server.create_database(DATABASE)
        self.connection: psycopg.Connection[Any] = server.superuser(DATABASE)
        self.connection.execute(f"CREATE ROLE {READER} LOGIN")
        self.table = ""
        self.types: dict[str, str] = {}
        self.contents = Contents(0, 0)

    def load(self, table: str) -> int:
        """Make the table anew as it was generated; return its rows."""
        rows = tpch.load(self.connection, tpch.generate(tpch.DATA, self.scale, table), table)
        self.connection.execute(f"GRANT SELECT ON {table} TO {READER}")
        self.table, self.types = table, columns(self.connection, table)
        self._settle()
        return rows

    def update(self, share: float) -> int:
        """Update a share of the rows, scattered by a hash of their keys; return how many."""
        what, key = _UPDATES[self.table]
        done = self.connection.execute(
            f"UPDATE {self.table} SET {what}"
            f" WHERE (hashint8({key})::bigint + 2147483648) % {_PARTS} < {round(share * _PARTS)}"
        )
        self.connection.execute(f"VACUUM (ANALYZE) {self.table}")
        self._settle()
        return done.rowcount

    def apply(self, changes: ChangeSet) -> None:
        """Change the table as a value says."""
        write_changes(self.connection, changes)
        self._settle()

    def _settle(self) -> None:
        """Let the server write now what it would write later, and look at what the table holds."""
        self.connection.execute("CHECKPOINT")
        self.contents = of_source(self.connection, self.table)

    @property
    def url(self) -> str:
        """Return what the source agent is told: by the socket, as the reader."""
        return self._server.url(READER, DATABASE)

    @property
    def tcp(self) -> tuple[str, int]:
        """Return host and port for the peers, whose user is the superuser: no password."""
        return self._server.host, self._server.port

    @property
    def psql(self) -> list[str]:
        """Return the words of the server's own client, by the socket."""
        server = self._server
        where = ["-h", str(server.folder), "-p", str(server.port), "-U", READER, "-d", DATABASE]
        return [str(server.tool("psql")), "-X", "-q", *where]

    @property
    def pid(self) -> int:
        """Return the server's process."""
        assert self._server._process is not None
        return self._server._process.pid

    @property
    def version(self) -> str:
        """Return the server's release."""
        return f"PostgreSQL {self.connection.info.parameter_status('server_version')}"


def run(
    command: Sequence[str | Path],
    *,
    folder: Path,
    source_pids: Sequence[int],
    env: Mapping[str, str] | None = None,
    read: Callable[[IO[bytes]], bytes] = lambda out: out.read(),
) -> tuple[Cost, bytes]:
    """Run a command in a folder; return its cost, and what `read` makes of its standard output.

    Raises:
        FailedError: it ended badly.
    """
    os.sync()  # what was written before is not this command's to wait for
    before, errors = meter.own_children(), folder / "errors"
    began, source_began = meter.ended_children_cpu_s(), meter.cpu_s(source_pids)
    start = time.perf_counter()
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=dict(os.environ if env is None else env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert process.stdout is not None
        with process.stdout as out:
            told = read(out)
        process.wait()
    wall_s = time.perf_counter() - start
    source_cpu_s = meter.cpu_s(source_pids) - source_began
    meter.reap(but=before)
    if process.returncode != 0:
        said = errors.read_text(errors="replace").strip() or told.decode(errors="replace").strip()
        raise FailedError(f"status {process.returncode}: {said[-ERROR_CHARACTERS_MAX:]}")
    return Cost(wall_s, meter.ended_children_cpu_s() - began, source_cpu_s), told


def count_lines(out: IO[bytes]) -> bytes:
    """Read all, and keep the number of line feeds."""
    lines = 0
    while piece := out.read(READ_BYTES):
        lines += piece.count(b"\n")
    return str(lines).encode()
