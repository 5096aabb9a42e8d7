"""One table kept equal by two agents, with a fault in each refresh: a kill, a cut, a full disk.

After every fault it is checked that a reader sees the version before or the next one, equal to what
the source's owner read at that moment; that the next refresh converges; that the agents leave no
session in the database; and that every file below the warehouse is part of what is published, or
found by `gc`.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from driftline.errors import NotFound
from driftline.failpoints import VARIABLE, Failpoint
from pyspark.sql import SparkSession

from source_agent.failpoints import SourceFailpoint as SourcePoint
from tests.harness.forks import SOURCE, WAREHOUSE, Fork, run
from tests.harness.legacy import ServedLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import on_disk
from tests.harness.pair import Pair, environment
from tests.harness.places import remove
from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.table_maintenance.garbage import kept_flips, unreferenced
from warehouse_agent.visible_versions import freshness_table, warehouse_versions
from warehouse_agent.visible_versions.members import Member, MemberKind

ROWS = 1200
SESSION_S_MAX = 60.0
START_S_MAX = 60.0
WIDE = 8000  # characters: 600 such rows are two frames
# Files of a warehouse that no version names: log, notes, history.
_LOG = re.compile(
    r"(t|_driftline/warehouse|driftline_freshness)/_delta_log/([0-9]{20}(\.checkpoint)?\.(json|parquet)|_last_checkpoint)"
)
_NOTES = {
    f"{PRIVATE}/{place}"
    for place in (
        *("keys/t.key", "locks/t", "fragments/t.json", "schedule/t.json"),
        *("runs/t.jsonl", "sources/erp.json", "conditions/checked.json"),
    )
}

KEEP_HOURS = 24  # less is refused in a bucket

Rows = Counter[tuple[Any, ...]]


class Violation(AssertionError):
    """What was promised did not hold after a fault."""


class Rig:
    """A source, a warehouse with the table `t`, and their oracle. A context manager."""

    def __init__(
        self,
        legacy: ServedLegacy,
        folder: Path,
        *,
        seed: int = 0,
        spark: SparkSession | None = None,
    ) -> None:
        """`spark`: runs every step; None: all steps run in the warehouse agent's process."""
        self.legacy = legacy
        self.random = random.Random(seed)
        legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note VARCHAR(16000))")
        legacy.many("INSERT INTO t VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
        self.pair = Pair(spark or NoSpark(), legacy, folder, {"t": 'table = "t"'})
        self.pair.small_bytes = 0 if spark else 256 << 20
        self.pair.fragment_lines["t"] = 'method = "sketch"'  # a copy would rewrite nothing
        self.refreshes = 1  # after so many, what is published is the source
        self.log = folder / "log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pair.stop()
        self.legacy.close()

    # What is refreshed

    def prepare(self, what: str) -> None:
        """Bring source and warehouse to where the refresh begins that is killed."""
        if what == "load":
            remove(self.pair.root)
            return
        if self.pair.version("t") is None:
            self.converge()
        if what == "flip" and not warehouse_versions.exists(self.pair.store):
            self._begin_versions()
        self.edit(what)

    def edit(self, what: str) -> None:
        """Change the source: `wide` adds rows of two frames, `many` changes more than expected."""
        draw, execute = self.random, self.legacy.execute
        some = draw.randrange(ROWS // 40, ROWS // 7)
        word = f"edit {draw.getrandbits(60):x}"
        execute("UPDATE t SET note = ? WHERE id < ?", word, ROWS // 2 if what == "many" else some)
        execute("DELETE FROM t WHERE id = ?", draw.randrange(ROWS))
        execute("DELETE FROM t WHERE id >= ?", 2 * ROWS)
        rows = [(ROWS + draw.randrange(ROWS), word)]
        if what == "wide":
            rows = [(2 * ROWS + i, draw.randbytes(WIDE // 2).hex()) for i in range(600)]
        execute("DELETE FROM t WHERE id = ?", rows[0][0])
        self.legacy.many("INSERT INTO t VALUES (?, ?)", rows)

    def _begin_versions(self) -> None:
        """Make the table of versions, as the first view would; no view reads `t`."""
        found = head(self.pair.store, "t")
        assert found is not None
        record = found.record
        member = Member(
            name="t", kind=MemberKind.FRAGMENT, folder="t", version=found.version,
            as_of=record.as_of, consistency=record.consistency, proof=record.proof,
            moved_at=record.checked_at,
        )  # fmt: skip
        warehouse_versions.flip(self.pair.store, lambda _: {"t": member})

    # What holds after a fault

    def check(self, before: tuple[int | None, Rows]) -> None:
        """Check what a fault left, and that the next refresh makes everything well."""
        self.pair.end_leases()
        version, rows = self.pair.version("t"), self.published()
        expect(version in (before[0], (-1 if before[0] is None else before[0]) + 1), "the version")
        expect(rows == (before[1] if version == before[0] else self.source()), "the rows")
        self.edit("after")
        self.converge()
        self.await_no_session()
        if strays := self.strays():
            raise Violation(f"files that gc does not find: {strays}")

    def converge(self) -> None:
        """Refresh by an agent that is well; the result is equal to the source."""
        for _ in range(self.refreshes):
            (report,) = self.pair.reports("t", options=Options(allow_shrink=True))
            expect(report.error is None, f"the next refresh: {report.error}")
        expect(self.published() == self.source(), "the rows after the next refresh")

    # What is there

    def published(self) -> Rows:
        """Return what a reader without Driftline sees."""
        if self.pair.version("t") is None:
            return Counter()
        table = self.pair.delta("t").to_pyarrow_table()
        return Counter(zip(*(table[name].to_pylist() for name in ("id", "note")), strict=True))

    def source(self) -> Rows:
        """Return what the source's owner reads."""
        return Counter(map(tuple, self.legacy.rows("t")))

    def await_no_session(self) -> None:
        """Wait until the database has no session of the agent's login."""
        deadline = time.monotonic() + SESSION_S_MAX
        while self.legacy.sessions():
            if time.monotonic() > deadline:
                raise Violation("a database session is left")
            time.sleep(0.02)

    def strays(self) -> list[str]:
        """Remove what `gc` finds; return the files that are left and belong to nothing."""
        store, later = self.pair.store, datetime.now(UTC) + timedelta(hours=KEEP_HOURS + 1)
        flips = kept_flips(store, KEEP_HOURS, later)
        found = unreferenced(store, "t", keep_hours=KEEP_HOURS, now=later, flips=flips)
        for place in found.places:
            store.remove_file(*place)
        for file in freshness_table.garbage(store, later - timedelta(hours=KEEP_HOURS))[1]:
            store.remove_file(*file.place)
        newest = head(store, "t")
        assert newest is not None
        named = {f"t/{f.path}" for f in newest.files} | _NOTES
        changes = newest.record.changes
        named |= {f"{PRIVATE}/changes/t/{changes}/{f}" for f in newest.record.changes_files or ()}
        for flip in flips[-1:]:
            uris = flip.pin.file_uris()
            named |= {f"{PRIVATE}/warehouse/{uri.rsplit('/', 1)[-1]}" for uri in uris}
        with suppress(NotFound):
            named.add(f"{FRESHNESS}/{freshness_table.data_file(store).path}")
        files = ("/".join(entry.place) for entry in store.walk())
        # What a killed command says of itself: the next one takes it up, and this rig runs none.
        told = (f"{PRIVATE}/commands/", f"{PRIVATE}/locks/run-")
        left = (file for file in files if not file.startswith(told))
        return [file for file in left if file not in named and not _LOG.fullmatch(file)]


def reachable(point: Failpoint) -> None:
    """Skip the test if the point is one of disks, and the warehouse is in a bucket."""
    if point.value.startswith("warehouse.small_file"):
        on_disk("a bucket has no half of a small file")


class KillRig(Rig):
    """A rig in which agents are processes that can be killed."""

    def kill(self, point: Failpoint, what: str, *, action: str = "kill", nth: int = 1) -> bool:
        """Refresh with an agent that is killed at a point, then check everything.

        Returns:
            False if the point was not reached so often: then the refresh went well.

        Raises:
            Violation: a promise does not hold.
        """
        self.prepare(what)
        before = self.pair.version("t"), self.published()
        armed = {VARIABLE: f"{point.value}:{action}:{nth}"}
        if isinstance(point, SourcePoint):
            code = self._refresh_from(armed)
        else:
            command = ["refresh", "t", "--allow-shrink"]
            if what == "gc":  # of what earlier versions left
                command = ["gc", "t", "--keep-hours", "0", "--yes"]
                self.converge()
                self.edit(what)
                self.converge()
                before = self.pair.version("t"), self.published()
            words = [*WAREHOUSE, "--config", str(self.pair.warehouse_toml()), *command]
            with self.log.open("a") as log:
                done = run(words, env=environment(**armed), stdout=log, stderr=log)
            code = done.returncode
        is_reached = code == -signal.SIGKILL
        if not is_reached and code != 0:
            raise Violation(f"exit code {code}: {self.log.read_text()[-2000:]}")
        self.check(before)
        return is_reached

    def _refresh_from(self, armed: dict[str, str]) -> int:
        """Refresh from a source agent with a failpoint; return how that process ended."""
        self.pair.stop()
        with self.serving(**armed) as process:
            (report,) = self.pair.reports("t", options=Options(allow_shrink=True))
        code = process.wait()
        self.pair.serve()
        if code == -signal.SIGKILL:
            if report.error is not None:
                expect(report.error["code"] == "UNREACHABLE", f"the error: {report.error}")
            return code
        expect(report.error is None, f"the refresh: {report.error}")
        return 0

    @contextmanager
    def serving(self, **more: str) -> Iterator[Fork]:
        """Serve by a process of its own. It is asked to end, but not waited for."""
        port = self.pair.folder / "port"
        port.unlink(missing_ok=True)
        words = ["--config", str(self.pair.source_toml()), "serve", "--port-file", str(port)]
        with self.log.open("a") as log:
            process = Fork([*SOURCE, *words], env=environment(**more), stdout=log, stderr=log)
        deadline = time.monotonic() + START_S_MAX
        while not port.exists():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        self.pair.address = f"127.0.0.1:{int(port.read_text())}"
        try:
            yield process
        finally:
            process.terminate()


def expect(is_so: bool, what: str) -> None:
    """Raise Violation if a promise does not hold."""
    if not is_so:
        raise Violation(what)
