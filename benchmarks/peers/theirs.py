"""The peers, each with its best settings.

A family's name alone stands for its line in `SETTINGS`: the best known for few bytes and those for
few seconds, swept on orders from where the peers' own documentation begins.

None of the peers applies the change here. None of them encrypts unless it is behind ssh: that
favours them, by a handshake and some 30 bytes per record, against Driftline's mutual TLS, which is
never off. None is charged for what an operator does once: functions, logins, a standing tunnel.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import environments
from benchmarks.meter import Meter
from benchmarks.peers.sites import (
    DATABASE,
    READER,
    WRITER,
    Engine,
    Side,
    Sites,
    debian_server,
    drop_rights,
)
from benchmarks.peers.tool import TUNNELLED, Cell, Delivers, Outcome, Tool, ToolError, end
from benchmarks.peers.tunnel import Tunnel
from tests.harness.servers import find_program
from tests.wan.link import SOURCE_ADDRESS

RELADIFF = "reladiff[postgresql]==0.6.0"
COPY_PORT = 7450  # and the level, so that each level has its own

# Serves a command's output to whoever connects; one at a time, like an operator's pipe over ssh.
SERVE = """
import socket, subprocess, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    subprocess.run(sys.argv[3:], stdin=subprocess.DEVNULL, stdout=peer, check=True)
    peer.close()
"""


class FullCopy(Tool):
    """`psql -c "COPY … TO STDOUT (FORMAT csv)" | zstd -L`, `full-copy:L`; 0 is uncompressed.

    The rows are counted at the warehouse, not stored. It needs a program at the source, as any
    compression does that a database's own protocol lacks.
    """

    needs = "SELECT, zstd beside it"
    finds_changes = False
    compares = False
    _server: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("zstd") else "no zstd (Debian: zstd)"

    def prepare(self, cell: Cell) -> None:
        (level,) = self.numbers(3)
        source = self.sites.postgresql(Side.SOURCE)
        psql = f"{source.programs / 'psql'} -X -h {source.folder} -p {source.port} -U {READER}"
        copy = f'{psql} -d {DATABASE} -c "COPY {cell.table.name} TO STDOUT (FORMAT csv)"'
        self._unpack = "zstd -dc" if level else "cat"
        pipe = f"{copy} | zstd -c -{level}" if level else copy
        self._port = COPY_PORT + level
        command = [sys.executable, "-S", "-E", "-c", SERVE, SOURCE_ADDRESS, str(self._port)]
        self._server = self.sites.link.popen_source(
            [*drop_rights(None, "KILL"), *command, "bash", "-o", "pipefail", "-c", pipe],
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"listening\n":
            raise ToolError(f"nothing listens on port {self._port}")

    def run(self, cell: Cell, meter: Meter) -> Outcome:
        receive = f"exec 3<>/dev/tcp/{SOURCE_ADDRESS}/{self._port}; {self._unpack} <&3 | wc -l"
        out = self.at_warehouse(["bash", "-o", "pipefail", "-c", receive], meter)
        return Outcome(int(out.read_text()))

    def source_pids(self) -> list[int]:
        return [self.source.pid, *([self._server.pid] if self._server else [])]

    def finish(self, cell: Cell) -> None:
        if self._server is not None:
            assert self._server.stdout is not None
            end(self._server)
            self._server.stdout.close()
            self._server = None


class Comparer(Tool):
    """A peer that talks to both databases, to the source's through a tunnel if its name says so."""

    def __init__(self, name: str, sites: Sites, timeout_s: float) -> None:
        super().__init__(name, sites, timeout_s)
        self._tunnel: Tunnel | None = None
        if name.endswith(TUNNELLED):
            self.needs = f"{self.needs}, an ssh login"

    def prepare(self, cell: Cell) -> None:
        if self.name.endswith(TUNNELLED) and self._tunnel is None:
            try:
                self._tunnel = Tunnel(self.sites.link, self.sites.folder, self.source.port)
            except OSError as error:
                raise ToolError(str(error)) from None

    def finish(self, cell: Cell) -> None:
        if self._tunnel is not None:
            self._tunnel.close()
            self._tunnel = None

    def source_pids(self) -> list[int]:
        return [self.source.pid, *([self._tunnel.source_pid] if self._tunnel else [])]

    @property
    def reached(self) -> tuple[str, int]:
        """Host and port of the source, from the warehouse."""
        where = self._tunnel or self.source
        return where.host, where.port


class Reladiff(Comparer):
    """`reladiff:FACTOR:THRESHOLD:THREADS`, all columns, in a virtual environment of its own."""

    @classmethod
    def missing(cls) -> str | None:
        return environments.missing("reladiff", [RELADIFF])

    def run(self, cell: Cell, meter: Meter) -> Outcome:
        factor, threshold, threads = self.numbers(32, 16384, 1)
        table = cell.table
        (host, port), warehouse = self.reached, self.warehouse
        out = self.at_warehouse(
            [
                environments.program("reladiff", "reladiff"),
                f"postgresql://{READER}@{host}:{port}/{DATABASE}",
                table.name,
                f"postgresql://postgres@{warehouse.host}:{warehouse.port}/{DATABASE}",
                table.name,
                *(word for key in table.key for word in ("-k", key)),
                *("-c", "%", "--json", "--assume-unique-key", "--skip-sort-results"),
                *("--bisection-factor", str(factor), "--bisection-threshold", str(threshold)),
                *("-j", str(threads)),
            ],
            meter,
        )
        keys = set()
        with out.open() as lines:
            for line in lines:
                _, row = json.loads(line)
                keys.add(tuple(row[: len(table.key)]))
        return Outcome(len(keys))


class PgComparator(Comparer):
    """`pg_comparator:FOLD`, log2 of the rows per group; by key where that is one integer."""

    needs = "SELECT, temporary tables, functions in C"
    delivers = Delivers.KEYS

    @classmethod
    def missing(cls) -> str | None:
        if shutil.which("pg_comparator") and debian_server():
            return None
        return "no pg_comparator with its extension (Debian: postgresql-comparator, postgresql)"

    def run(self, cell: Cell, meter: Meter) -> Outcome:
        (fold,) = self.numbers(3)
        table, key = cell.table, ",".join(cell.table.key)
        (host, port), warehouse = self.reached, self.warehouse
        out = self.at_warehouse(
            [
                "pg_comparator",
                *("-f", str(fold), "--max-ratio=2.0", "--no-lock"),
                *(["--use-key"] if table.has_integer_key else []),
                f"pgsql://{WRITER}@{host}:{port}/{DATABASE}/{table.name}?{key}",
                f"pgsql://postgres@{warehouse.host}:{warehouse.port}/{DATABASE}/{table.name}",
            ],
            meter,
        )
        return Outcome(count_lines(out, ("UPDATE", "INSERT", "DELETE")))


class PtTableSync(Comparer):
    """`pt-table-sync:ROWS`, rows per chunk; prints the statements that would repair the copy.

    Chunks of a text key would need a table at the source; nibbles do not.
    """

    engine = Engine.MARIADB

    @classmethod
    def missing(cls) -> str | None:
        if shutil.which("pt-table-sync") is None:
            return "no pt-table-sync (Debian: percona-toolkit)"
        program = find_program("mariadb-install-db")
        return None if program else "no MariaDB server (Debian: mariadb-server)"

    def run(self, cell: Cell, meter: Meter) -> Outcome:
        (chunk,) = self.numbers(1000)
        (host, port), warehouse = self.reached, self.warehouse
        out = self.at_warehouse(
            [
                *("pt-table-sync", "--print", "--no-version-check", "--no-check-slave"),
                *("--no-check-triggers", "--chunk-size", str(chunk)),
                *("--algorithms", "Nibble" if cell.table.has_text_key else "Chunk,Nibble"),
                f"h={host},P={port},u={READER},D={DATABASE},t={cell.table.name}",
                f"h={warehouse.host},P={warehouse.port},u=root",
            ],
            meter,
            statuses=(0, 2),  # nothing differed; something did
        )
        return Outcome(count_lines(out, ("REPLACE", "INSERT", "UPDATE", "DELETE")))


def count_lines(file: Path, beginnings: tuple[str, ...]) -> int:
    with file.open(errors="replace") as lines:
        return sum(line.startswith(beginnings) for line in lines)


PEERS: dict[str, type[Tool]] = {
    "full-copy": FullCopy,
    "reladiff": Reladiff,
    "pg_comparator": PgComparator,
    "pt-table-sync": PtTableSync,
}
# A family's name stands for these: settings, and the largest rate at which they are worth a run.
# Swept on orders: the first has the fewest bytes at few changes, later ones the fewest seconds.
RELADIFF_SETTINGS = (
    ("4:50:4", 0.001),  # many small statements
    ("8:200:16", 0.01),
    ("32:16384:4", 1.0),  # as it comes, but for the threads
    ("2:1000000000:1", 1.0),  # both tables at once
)
PG_COMPARATOR_SETTINGS = (("2", 1.0), ("5", 1.0))
PT_TABLE_SYNC_SETTINGS = (("100", 0.01), ("1000", 1.0), ("10000", 1.0))
SETTINGS = {
    "full-copy": (("3", 1.0), ("19", 1.0)),
    "reladiff": RELADIFF_SETTINGS,
    "reladiff+ssh": RELADIFF_SETTINGS,
    "pg_comparator": PG_COMPARATOR_SETTINGS,
    "pg_comparator+ssh": PG_COMPARATOR_SETTINGS,
    "pt-table-sync": PT_TABLE_SYNC_SETTINGS,
    "pt-table-sync+ssh": PT_TABLE_SYNC_SETTINGS,
}
