"""Kill either agent at every failpoint, again and again: `python -m tests.faults.sweep [RUNS]`.

The table below says which refresh reaches a point. `test_kill_sweep` runs each of them once; the
command runs each RUNS times (50), over all engines, and prints how many runs there were and what
did not hold. Views and Spark's tasks need a JVM for each process, and have tests of their own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from driftline.failpoints import Failpoint

from source_agent.failpoints import SourceFailpoint as SourcePoint
from tests.harness.fault_rig import KillRig, Violation
from tests.harness.legacy import (
    MariaLegacy,
    MysqlLegacy,
    PostgresLegacy,
    ServedLegacy,
    SqliteLegacy,
)
from tests.harness.mysql_server import MySQL
from tests.harness.servers import MariaDB, PostgreSQL
from warehouse_agent.failpoints import WarehouseFailpoint as WarehousePoint

IN_EVERY_RUN = ("sqlite", "postgresql", "mariadb")  # they take turns
ENGINES = (*IN_EVERY_RUN, "mysql")
RUNS = 50


@dataclass(frozen=True, slots=True)
class Kill:
    """A point, the refresh that reaches it, and how often it is reached at least."""

    point: Failpoint
    what: str = "change"
    times: int = 1


S, W = SourcePoint, WarehousePoint
KILLS = (
    *(Kill(p) for p in (S.ACCEPTED, S.AUTHENTICATED, S.GRANTED, S.SNAPSHOT_OPENED)),
    Kill(S.BATCH_READ, "wide", times=2),
    Kill(S.VERDICT_SENT, "many"),
    Kill(S.FRAME_SENT, "wide", times=2),
    *(Kill(p) for p in (S.LAST_FRAME_SENT, S.FINISHED_SENT, S.SESSION_CLOSING)),
    Kill(W.KEY_WRITTEN, "load"),
    *(Kill(p) for p in (W.PREPARED, W.STAGING_BEGUN, W.FRAMES_STAGED, W.COMPARED)),
    Kill(W.ROWS_WRITTEN, times=2),
    Kill(W.FILE_WRITTEN, times=2),
    *(Kill(p) for p in (W.DATA_WRITTEN, W.FEED_WRITTEN, W.PROVEN, W.COMMITTING, W.COMMITTED)),
    *(Kill(p) for p in (W.STAGING_CLEARED, W.NOTES_WRITTEN, W.HISTORY_WRITING)),
    *(Kill(p) for p in (W.HISTORY_WRITTEN, W.MEMORY_WRITTEN)),
    Kill(W.SMALL_FILE_WRITING, "load", times=5),
    Kill(W.SMALL_FILE_WRITTEN, "load", times=5),
    Kill(W.SMALL_FILE_NAMED, "load", times=5),
    Kill(W.SMALL_FILE_WRITTEN, "flip", times=5),
    Kill(W.FLIP_WRITTEN, "flip"),
    Kill(W.FLIPPED, "flip"),
    Kill(W.GARBAGE_REMOVED, "gc", times=2),
)
ON_SPARK = frozenset({W.VIEW_COMPUTED, W.VIEW_COMMITTED})


def label(kill: Kill) -> str:
    """Return a kill as text."""
    return f"{kill.point.value}-{kill.what}"


@contextmanager
def rigs(
    legacies: Mapping[str, Callable[[Path], ServedLegacy]], folder: Path
) -> Iterator[Callable[[str], KillRig]]:
    """Yield what returns the rig of an engine, made at its first use by one of `legacies`."""
    with ExitStack() as stack:

        @cache
        def rig_of(engine: str) -> KillRig:
            below = folder / engine
            below.mkdir()
            rig = KillRig(legacies[engine](below), below / "pair", seed=ENGINES.index(engine))
            return stack.enter_context(rig)

        yield rig_of


def main() -> None:
    """Run the sweep; exit with 1 if a promise did not hold."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    began, counts, violations = time.monotonic(), Counter[str](), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgresql = stack.enter_context(PostgreSQL())
        mariadb = stack.enter_context(MariaDB())
        mysql = stack.enter_context(MySQL())
        legacies: Mapping[str, Callable[[Path], ServedLegacy]] = {
            "sqlite": lambda below: SqliteLegacy(below / "erp.db"),
            "postgresql": lambda _: PostgresLegacy(postgresql),
            "mariadb": lambda _: MariaLegacy(mariadb),
            "mysql": lambda _: MysqlLegacy(mysql),
        }
        rig_of = stack.enter_context(rigs(legacies, folder))
        for run in range(runs):
            for at, kill in enumerate(KILLS):
                engine = ENGINES[(at + run) % len(ENGINES)]
                nth = 1 + run // len(ENGINES) % kill.times
                try:
                    is_reached = rig_of(engine).kill(kill.point, kill.what, nth=nth)
                    counts[kill.point.value if is_reached else "not reached"] += 1
                except Violation as violation:
                    violations.append(f"{label(kill)}:{nth}, {engine}, run {run}: {violation}")
                    print(violations[-1], flush=True)
    reached = sum(n for name, n in counts.items() if name != "not reached")
    print(
        f"{len({k.point for k in KILLS})} failpoints, {reached} kills, "
        f"{counts['not reached']} runs that did not reach the point, "
        f"{len(violations)} violations, {time.monotonic() - began:,.0f} s"
    )
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
