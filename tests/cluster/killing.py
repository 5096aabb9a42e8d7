"""A driver that refreshes a table while its executors are killed; it runs in a process of its own.

An executor is killed when one of its tasks stands at a known point (`held_daemon`). The task's
Python process may die with it; or live on, as it would where only the network was lost; or live on
until the refresh is over, and write then.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

from pyspark.sql import SparkSession

from tests.harness.held_daemon import HOLDS, Point, hold
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.processes import is_alive
from warehouse_agent.config import select
from warehouse_agent.events import Event, PhaseStarted
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark import session
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.table_maintenance.file_checks import check_files
from warehouse_agent.table_maintenance.garbage import unreferenced
from warehouse_agent.table_maintenance.verification import damaged, verified
from warehouse_agent.tasks.steps import Steps

ROWS = 400
SMALL_BYTES = 1 << 20  # more than the table has
ENDED_S_MAX = 60.0
# The phase in which the tasks of a module run: of a first load, and of a refresh.
LOAD = {"staged_rows": "apply"}
REFRESH = {"digests": "reduce", "replaced_rows": "apply", "proof": "prove", "change_feed": "prove"}
_sessions: list[SparkSession] = []


class Fate(Enum):
    """What becomes of a task's Python process when its executor is killed."""

    DIES = "dies"
    LIVES = "lives"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Kill:
    """Where an executor is killed: in a task of a module of `warehouse_agent.tasks`, at a point."""

    module: str
    point: Point
    fate: Fate


def kills_of(seed: int) -> list[Kill]:
    """Return a kill for each module, in an order of points and fates that the seed draws."""
    drawn = random.Random(seed)
    ways = [(point, fate) for point in Point for fate in Fate]
    drawn.shuffle(ways)
    modules = [*LOAD, *REFRESH]
    return [Kill(m, *ways[i % len(ways)]) for i, m in enumerate(modules)]


@dataclass
class Killer:
    """Kills executors as tasks stop at the holds; a listener of the refresh, and a thread."""

    folder: Path
    kills: list[Kill]
    phases: dict[str, str]
    done: list[Kill] = field(default_factory=list)
    _late: list[Path] = field(default_factory=list)
    _workers: list[int] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: Event) -> None:
        if isinstance(event, PhaseStarted):
            for kill in self.kills:
                if self.phases.get(kill.module) == event.phase and kill not in self.done:
                    hold(self.folder, kill.module, kill.point)

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Kill until the block ends; then let go of what is held, and wait until it has ended."""
        thread = threading.Thread(target=self._kill_all)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            for taken in self._late:
                taken.unlink()
            end = time.monotonic() + ENDED_S_MAX
            while any(map(is_alive, self._workers)):
                assert time.monotonic() < end, "a task outlives its executor"
                time.sleep(0.05)

    def _kill_all(self) -> None:
        while not self._over.wait(0.02):
            for kill in [kill for kill in self.kills if kill not in self.done]:
                held = self.folder / f"held.{kill.module}.{kill.point}"
                if held.exists():
                    self._kill(kill, held)

    def _kill(self, kill: Kill, held: Path) -> None:
        found = json.loads(held.read_text())
        taken = self.folder / f"{kill.module}.{kill.point}.{found['worker']}"
        os.kill(found["executor"], signal.SIGKILL)
        if kill.fate is Fate.DIES:
            os.kill(found["worker"], signal.SIGKILL)
        elif kill.fate is Fate.LIVES:
            taken.unlink()
        else:
            self._late.append(taken)
        self._workers.append(found["worker"])
        held.unlink()
        self.done.append(kill)


def load_and_refresh(settings: dict[str, str], folder: Path, seed: int) -> list[str]:
    """Load a table and refresh it once, while executors are killed in five steps.

    Returns:
        What was killed, and what the command said of it.
    """
    folder.mkdir()
    holds = Path(settings[f"spark.executorEnv.{HOLDS}"])
    if not _sessions:
        _sessions.append(session.start(settings))
    kills = kills_of(seed)
    with (
        closing(SqliteLegacy(folder / "erp.db")) as legacy,
        Pair(_sessions[0], legacy, folder, {"orders": 'table = "orders"'}) as pair,
    ):
        pair.small_bytes = 0
        legacy.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, price REAL, comment TEXT)"
        )
        legacy.many(
            "INSERT INTO orders VALUES (?, ?, ?)",
            [(i, i * 7 % 1000 / 8, f"{seed}-{i}" * (i % 9)) for i in range(ROWS)],
        )
        said = refresh_killed(pair, Killer(holds, kills[: len(LOAD)], LOAD))
        drawn = random.Random(seed)
        for key in drawn.sample(range(ROWS), 20):
            legacy.execute("UPDATE orders SET comment = ? WHERE id = ?", f"new {seed}", key)
        for key in drawn.sample(range(ROWS), 10):
            legacy.execute("DELETE FROM orders WHERE id = ?", key)
        legacy.many("INSERT INTO orders VALUES (?, 1, 'added')", [(ROWS + i,) for i in range(10)])
        said += refresh_killed(pair, Killer(holds, kills[len(LOAD) :], REFRESH))
    return said


def refresh_killed(pair: Pair, killer: Killer) -> list[str]:
    """Refresh under a killer: the source's rows are published, or the old version and then them."""
    before = pair.version("orders")
    with killer.killing():
        report = refreshed(pair, killer)
    assert len(killer.done) == len(killer.kills), (killer.kills, killer.done)
    if report.error is not None:
        assert pair.version("orders") == before, report
        again = refreshed(pair)
        assert again.error is None, again.error
    with read_here(pair):
        pair.check("orders")
        if before is not None:
            pair.check_feed("orders", before + 1)
    check_every_file(pair)
    outcome = "published" if report.error is None else report.error["code"]
    return [f"{kill.module} {kill.point} {kill.fate.value}: {outcome}" for kill in killer.done]


@contextmanager
def read_here(pair: Pair) -> Iterator[None]:
    """Let the oracle read files itself: executors, which have just been killed, are not needed."""
    pair.small_bytes, kept = SMALL_BYTES, pair.small_bytes
    yield
    pair.small_bytes = kept


def refreshed(pair: Pair, *listeners: Killer) -> Report:
    """Refresh once, without trying again."""
    config = pair.config()
    runner = Runner(pair.spark, config, listeners, attempts=1)
    (report,) = runner.refresh(select(config, [], all_=True), Options())
    return report


def check_every_file(pair: Pair) -> None:
    """Prove each file of the newest version; `gc` finds all others, and leaves no other."""
    store, version = pair.store, head(pair.store, "orders")
    assert version is not None
    check_files(store, "orders", version)
    here = Steps(NoSpark(), SMALL_BYTES)
    wrong = damaged(here, store, "orders", version, repair=False)
    assert verified(store, "orders", version, wrong) == version.rows
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for place in unreferenced(store, "orders", keep_hours=0, now=tomorrow).places:
        store.remove_file(*place)
    names = {f.path for f in version.files}
    left = {"/".join(f.place[1:]) for f in store.walk("orders") if f.place[-1].endswith("parquet")}
    assert left == names, left ^ names
    feed = (version.record.changes or "").split("/")
    files = store.files(PRIVATE, "changes", "orders", *feed) if version.record.changes else ()
    assert {file for file, _ in files} == set(version.record.changes_files or ())
    check_files(store, "orders", version)
