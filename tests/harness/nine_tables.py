"""Nine small tables of one SQLite source behind a relay, and a log of what a command does to them.

Rows are marked, so that a table says at which of the source's instants it was read.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from tests.harness.relay import Relay
from warehouse_agent.config import load, select
from warehouse_agent.events import (
    Event,
    Listener,
    PhaseStarted,
    RefreshCommitted,
    RefreshFailed,
)
from warehouse_agent.refresh import whole
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.report import Report
from warehouse_agent.runs.attempt import Attempt
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession

NAMES = [f"t{number}" for number in range(9)]
ROWS = 50
S_MAX = 30.0  # for another thread


@dataclass
class Log:
    """A listener that keeps events and does what a test wants at some of them."""

    then: Callable[[Event], None] = lambda _event: None
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.then(event)

    @property
    def phases(self) -> list[tuple[str, str]]:
        return [(e.name, e.phase) for e in self.events if isinstance(e, PhaseStarted)]

    @property
    def ends(self) -> list[str]:
        ended = (RefreshCommitted, RefreshFailed)
        return [e.report.name for e in self.events if isinstance(e, ended)]


@dataclass
class Served:
    """A pair behind a relay, and the file of its database."""

    pair: Pair
    relay: Relay
    database: Path

    def refresh(
        self,
        listener: Listener,
        *,
        more: str = "",
        sleep: Callable[[float], None] = lambda _seconds: None,
        spark: SparkSession | None = None,
    ) -> list[Report]:
        """Refresh all fragments, where no Spark can start, or with a session."""
        self.pair.source_lines = f'address = "{self.relay.address}"\ninsecure = true'
        config = load(self.pair.warehouse_toml(more))
        runner = Runner(spark or nowhere(), config, (listener,), sleep=sleep)
        return runner.refresh(select(config, [], True), Options())

    def change(self) -> None:
        """Give all rows of all tables the next mark, in one transaction, from any thread."""
        with contextlib.closing(sqlite3.connect(self.database, 10)) as connection, connection:
            for name in NAMES:
                connection.execute(f"UPDATE {name} SET mark = mark + 1")

    def mark(self, name: str) -> int:
        """Return the mark of a published table, which all of its rows have."""
        table = self.pair.delta(name).to_pyarrow_table()
        assert sorted(table["id"].to_pylist()) == list(range(ROWS))
        (mark,) = set(table["mark"].to_pylist())
        return int(mark)

    def check(self, *names: str) -> None:
        """Compare what is published with the source, which must not have changed since."""
        for name in names:
            table = self.pair.delta(name).to_pyarrow_table()
            ours = sorted(zip(table["id"].to_pylist(), table["mark"].to_pylist(), strict=True))
            assert ours == sorted(self.pair.legacy.rows(name)), name


def nowhere() -> DeferredSession:
    return DeferredSession({"spark.master": "no such master"})


@contextlib.contextmanager
def nine_tables(folder: Path, *, like: Path | None = None) -> Iterator[Served]:
    """Serve nine tables of ROWS rows each, all of mark 0, where no Spark can start.

    `like`: the folder of another one, whose tables and warehouse are copied.
    """
    if like is not None:
        shutil.copytree(like, folder, dirs_exist_ok=True)
    legacy = SqliteLegacy(folder / "erp.db")
    for name in NAMES if like is None else []:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, mark INTEGER)")
        legacy.many(f"INSERT INTO {name} VALUES (?, 0)", [(key,) for key in range(ROWS)])
    relations = {name: f'table = "{name}"' for name in NAMES}
    with (
        contextlib.closing(legacy),
        Pair(nowhere(), legacy, folder / "pair", relations) as pair,
        Relay(pair.address) as relay,
    ):
        pair.small_bytes = 32 << 20
        yield Served(pair, relay, folder / "erp.db")


Mark = tuple[str, str, str]  # a phase, a fragment (the first of a run), and "begin" or "end"


class Phases:
    """The phases of runs in the order in which they begin and end; a test can hold them.

    The phases are `prepare`, `compare` and `finish` of a run, and `exchange` of a fragment, within
    an open stream.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.marks: list[Mark] = []
        self.then: Callable[[Mark], None] = lambda _mark: None
        self._holds: dict[Mark, Mark] = {}
        self._changed = threading.Condition()
        for phase in ("prepare", "compare", "finish"):
            patch.setattr(Attempt, phase, self._of_run(phase))
        patch.setattr(whole, "exchange", self._of_fragment(whole.exchange))

    def hold(self, mark: Mark, until: Mark) -> None:
        """Let no thread pass `mark` before another one has passed `until`."""
        self._holds[mark] = until

    def index(self, *mark: str) -> int:
        """Return the place of a mark in the order."""
        return self.marks.index((mark[0], mark[1], mark[2]))

    def _pass(self, mark: Mark) -> None:
        with self._changed:
            self.marks.append(mark)
            self._changed.notify_all()
            if (until := self._holds.get(mark)) is not None:
                came = self._changed.wait_for(lambda: until in self.marks, S_MAX)
                assert came, f"{mark} waited for {until} in vain: {self.marks}"
        self.then(mark)

    def _of_run(self, phase: str) -> Callable[..., Any]:
        real = getattr(Attempt, phase)

        def run(attempt: Attempt, *rest: object) -> object:
            name = attempt.fragments[0].name
            self._pass((phase, name, "begin"))
            found = real(attempt, *rest)
            self._pass((phase, name, "end"))
            return found

        return run

    def _of_fragment(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(job: Job, *rest: object) -> object:
            self._pass(("exchange", job.name, "begin"))
            found = real(job, *rest)
            self._pass(("exchange", job.name, "end"))
            return found

        return exchange
