"""The interface of a compared tool: prepared for a cell of the matrix, then run for every change.

What a run found is held against the change by the matrix: a tool that is wrong is shown as wrong.
What differs between tools is said with every result: what one needs at the source, and what it
delivers. Settings are part of a name (`reladiff:32:16384:4`), so that a sweep is several tools of
one family; `+ssh` behind them is a compressing tunnel.
"""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from benchmarks.meter import Meter
from benchmarks.peers.changes import Pattern, Table
from benchmarks.peers.sites import Database, Engine, Side, Sites, drop_rights

TUNNELLED = "+ssh"
END_S_MAX = 5.0
ERROR_CHARACTERS_MAX = 300
# Without the first two, each connection asks for TLS and is refused: a round trip. reladiff breaks
# its JSON lines where it thinks that a terminal ends.
ENVIRONMENT = {"PGSSLMODE": "disable", "PGGSSENCMODE": "disable", "COLUMNS": "1000000"}


class Delivers(Enum):
    KEYS = "keys only"
    ROWS = "rows"
    COPY = "a proven copy"


@dataclass(frozen=True, slots=True)
class Cell:
    """A table with its changes: what a tool is prepared for."""

    table: Table
    pattern: Pattern
    rate: float

    @property
    def name(self) -> str:
        return f"{self.table.name}.{self.pattern.value}.{self.rate * 100:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool says of its run. `rows_found`: distinct rows that differ; for a full copy, rows.

    Of its own account, if it keeps one: round trips, the method it chose, where the seconds went.
    """

    rows_found: int
    round_trips: int | None = None
    method: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def family(name: str) -> str:
    """The name without settings: `reladiff+ssh` of `reladiff:32:16384:4+ssh`."""
    start = name.partition(":")[0].removesuffix(TUNNELLED)
    return start + TUNNELLED if name.endswith(TUNNELLED) else start


class ToolError(Exception):
    """The tool failed, or took too long. The message has no paths."""


class Tool(ABC):
    """One tool with one choice of settings."""

    engine = Engine.POSTGRESQL
    needs = "SELECT"  # at the source
    delivers = Delivers.ROWS
    learns = False  # from refresh to refresh: it is warmed up
    finds_changes = True  # else it brings every row
    compares = True  # with a database at the warehouse

    def __init__(self, name: str, sites: Sites, timeout_s: float) -> None:
        self.name, self.sites, self.timeout_s = name, sites, timeout_s

    @property
    def family(self) -> str:
        return family(self.name)

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run here, or None."""
        return None

    def prepare(self, cell: Cell) -> None:  # noqa: B027 - most need none
        """Make ready, off the record, also after a failure: both sides hold the same table, or
        will when this returns."""

    @abstractmethod
    def run(self, cell: Cell, meter: Meter) -> Outcome:
        """Find what has changed at the source.

        Raises:
            ToolError: it did not finish, or in time.
        """

    def finish(self, cell: Cell) -> None:  # noqa: B027 - likewise
        """End and remove what was prepared."""

    @property
    def source(self) -> Database:
        return self.sites.database(self.engine, Side.SOURCE)

    @property
    def warehouse(self) -> Database:
        return self.sites.database(self.engine, Side.WAREHOUSE)

    def source_pids(self) -> list[int]:
        return [self.source.pid]

    def warehouse_pids(self) -> list[int]:
        return [self.warehouse.pid] if self.compares else []

    def numbers(self, *defaults: int) -> tuple[int, ...]:
        """The settings in the name, the rest from the defaults."""
        given = [int(word) for word in self.name.removesuffix(TUNNELLED).split(":")[1:]]
        return (*given, *defaults[len(given) :])

    def at_warehouse(
        self, command: Sequence[str | Path], meter: Meter, statuses: Sequence[int] = (0,)
    ) -> Path:
        """Run it in the warehouse's namespace. Returns the file with its standard output."""
        out, errors = self.sites.folder / "out", self.sites.folder / "errors"
        with out.open("wb") as stdout, errors.open("wb") as stderr:
            words = [
                *drop_rights(None, "KILL"),
                "env",
                *(f"{k}={v}" for k, v in ENVIRONMENT.items()),
            ]
            process = self.sites.link.popen_warehouse(
                [*words, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.sites.folder,
            )
            meter.watch(process.pid)
            try:
                status = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                end(process)
                raise ToolError(f"not done after {self.timeout_s:g} s") from None
            except BaseException:
                end(process)
                raise
        said = errors.read_text(errors="replace").strip()
        if status not in statuses or "ERROR" in said:
            raise ToolError(f"status {status}: {self._brief(said)}")
        return out

    def _brief(self, said: str) -> str:
        last = said.splitlines()[-1] if said else "it said nothing"
        return last.replace(str(self.sites.folder), "…")[:ERROR_CHARACTERS_MAX]


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate it, and kill it if that is not enough."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
