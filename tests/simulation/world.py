"""One world: a source, a line, a disk, and refreshes of a few tables while faults happen.

Each operation of the disk and each message of the line is a step of the process that makes it. A
plan names the steps of a refresh at which something happens to it: its process ends, the disk is
full, the line is cut, another coordinator runs a whole refresh between two steps of ours, somebody
edits the source. When the faults stop, one refresh must make every table equal to its source.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, cast

from source_agent.config.file import Budget, Endpoint, SourceConfig
from source_agent.config.file import Database as DatabaseConfig
from source_agent.engines.interface import Limits
from tests.simulation import clock
from tests.simulation.checker import Checker, InDelta, InMemory, Published, Violation
from tests.simulation.clock import Clock
from tests.simulation.database import INTEGER, LOOSE, SCHEMAS, Engine, History, Isolation
from tests.simulation.disk import ROOT, Disk, Folder, mounted
from tests.simulation.memory_log import MemoryLog, SteppedDelta
from tests.simulation.network import Lost, SimulatedLink, SourceAgent
from warehouse_agent.config import Fragment, Proof, Require, Source, WarehouseConfig
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import PassSettings
from warehouse_agent.refresh.job import Options as RefreshOptions
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.scheduler.due import look
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.timetable.decision import CLOCK_S
from warehouse_agent.timetable.retry import RETRY_S_MAX
from warehouse_agent.timetable.timing import Timing
from warehouse_agent.views.selection import of_fragments
from warehouse_agent.visible_versions import warehouse_versions
from warehouse_agent.visible_versions.members import Member, MemberKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_S = 3600.0
# Errors that a refresh may end with while faults happen; anything else is a mistake of ours.
EXPECTED = frozenset(
    ["WAREHOUSE", "UNREACHABLE", "DATABASE_UNAVAILABLE", "SNAPSHOT_LOST", "LOCKED", "SHRANK"]
)
# A table of versions is one with a member; this one never moves.
OTHER = Member(
    "other", MemberKind.FRAGMENT, "other", 0, "", "exact", "total", "2026-01-01T00:00:00Z"
)
SPOILED = ("misdirected", "garbled")
LYING, LIES = 0.1, 0.4  # shares of the worlds whose notes lie, and of their commands with a lie
WRITES = ("open", "write", "commit", "committed")


class Crashed(BaseException):
    """The process of a warehouse agent has ended at this step; nothing of it may tidy up."""


@dataclass(frozen=True)
class Options:
    """What a world is like; drawn from its seed."""

    tables: int
    rows: int
    isolation: Isolation
    method: Method | None
    require: Require
    read_at_most: int | None
    tile_rows: int | None
    faults: float  # probability of each kind in a refresh
    rivals: bool
    scheduled: bool
    attempts: int
    edits: float  # probability of an edit at a step of the database

    @classmethod
    def of(cls, seed: int) -> Options:
        """Return the options of the world of a seed."""
        return cls.drawn(_rng(seed))

    @classmethod
    def drawn(cls, rng: random.Random) -> Options:
        isolation = rng.choice([Isolation.SNAPSHOT] * 4 + [Isolation.PAUSES, Isolation.NONE])
        is_fuzzy = isolation is Isolation.NONE or rng.random() < 0.3
        part = rng.choice((6, 20)) if is_fuzzy and rng.random() < 0.3 else None
        tiles = rng.choice((10, 25)) if is_fuzzy and not part and rng.random() < 0.2 else None
        methods = (None, None, None, Method.SKETCH, Method.RANGE, Method.GROUP, Method.FULL)
        return cls(
            tables=1 if tiles else rng.choice((1, 2, 3, 4)),
            rows=rng.choice((0, 1, 7, 40, 40, 100)),
            isolation=isolation,
            method=None if part or tiles else rng.choice(methods),
            require=Require.FUZZY if is_fuzzy else Require.EXACT,
            read_at_most=part,
            tile_rows=tiles,
            faults=rng.choice((0.0, 0.1, 0.3, 0.6)),
            rivals=rng.random() < 0.5,
            scheduled=rng.random() < 0.2,
            attempts=rng.choice((1, 2, 4)),
            edits=rng.choice((0.0, 0.0, 0.05, 0.3)),
        )


@dataclass
class Process:
    """A warehouse agent: its steps so far, and what happens at which of them."""

    plan: dict[int, list[str]] = field(default_factory=dict)
    steps: int = 0
    is_dead: bool = False
    full_for: int = 0  # writes that find no space
    dies_after: int = 0  # commits; 0: it does not
    loses_answer: bool = False  # the next commit is made, and its writer is told of an error


@dataclass
class Tally:
    """What happened in worlds, to show that everything does."""

    refreshes: int = 0
    versions: int = 0
    happened: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1


class World:
    """A world of a seed; `run` it once."""

    def __init__(self, seed: int, tally: Tally, *, folder: Path | None = None) -> None:
        """`folder`: of a warehouse of Delta tables; None: one in memory."""
        self.seed, self.tally, self._root = seed, tally, ROOT if folder is None else str(folder)
        self.rng = _rng(seed)
        self.answers = random.Random(f"answers {seed}")  # apart: other faults do not depend on it
        self.lies = None if folder is not None else lies_of(seed)
        self.options = self.drawn = Options.drawn(self.rng)
        self.clock = Clock(seed)
        self.trace = blake2b(digest_size=8)
        self.disk = Disk() if folder is None else Folder()
        self.disk.step = self._on_disk
        names = [f"t{i}" for i in range(self.options.tables)]
        known = SCHEMAS if self.options.read_at_most is None else (INTEGER, LOOSE)
        schemas = {name: self.rng.choice(known) for name in names}
        self.history = History(schemas, [{name: {} for name in names}], self.rng)
        clock.run_by(self.clock)
        self._fill(names)
        self.engine = Engine(self.history, self.options.isolation, self.rng)
        self.agent = SourceAgent(_template(), self.engine, {name: name for name in names})
        self.config = self._configured(names)
        self.store = Store.of(self.config)
        self.process = Process()
        self.last_steps = 120
        self.restored: dict[str, int] = {}  # versions that are to be published again, by table
        self.kept_notes: dict[str, bytes] = {}
        self.has_versions = folder is not None and self.rng.random() < 0.7
        self.checker = self._checker()

    def _checker(self) -> Checker:
        published: Published = InDelta(self._root)
        if self._root == ROOT:
            published = InMemory(self.disk.files, ROOT.removeprefix("sim://"))
        return Checker(self.history, self.config.fragments, published, self.store)

    def _fill(self, names: list[str]) -> None:
        state = {}
        for name in names:
            schema, rows = self.history.schemas[name], {}
            for _ in range(self.options.rows):
                row = self.history.row(schema, self.history.new_key(schema))
                rows[schema.key(row)] = row
            state[name] = rows
        self.history.states.append(state)

    def _configured(self, names: list[str]) -> WarehouseConfig:
        o, source = self.options, Source("erp", "127.0.0.1:1", insecure=True)
        fragments = {
            name: Fragment(
                name,
                source,
                name,
                method=o.method,
                require=o.require,
                proof=Proof.TOTAL if o.read_at_most is None else Proof.PART,
                read_at_most=o.read_at_most,
                incremental=None if o.tile_rows is None else PassSettings(o.tile_rows, 0.1),
                timing=Timing(name, interval_max_s=int(6 * HOUR_S)),
            )
            for name in names
        }
        return WarehouseConfig(
            file=Path("warehouse.toml"),
            path=self._root,
            small_bytes=32 << 20,
            spark={},
            sources={"erp": source},
            fragments=fragments,
            ahead=None,
        )

    # What happens at a step.

    def _on_disk(self, operation: str, path: str) -> None:
        process = self.process
        self._step(f"{operation} {path}")
        if operation in SPOILED:
            self.tally.count(operation)
            return
        if operation == "committed" and process.dies_after:
            process.dies_after -= 1
            if not process.dies_after:
                process.plan.setdefault(process.steps + 1, []).append("crash")
        for what in process.plan.get(process.steps, ()):
            if what == "unreadable":
                self.tally.count(what)
                raise OSError(errno.EIO, "Input/output error", path)
            if what == "full":
                process.full_for = self.rng.choice((1, 1, 3, 50))
        if process.loses_answer and operation == "committed":
            process.loses_answer = False
            self.tally.count("answer lost")
            raise OSError(errno.EIO, "Input/output error", path)
        if process.full_for and operation in WRITES:
            process.full_for -= 1
            self.tally.count(f"full at {operation}")
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def _on_line(self, message: str) -> None:
        self.clock.sleep(self.rng.choice((0.0, 0.02, 0.3)))
        self._step(message)
        process = self.process
        for what in process.plan.get(process.steps, ()):
            if what == "down":
                self.agent.down_until_s = self.clock.now_s + self.rng.choice((0.1, 5.0, 500.0))
            if what in ("cut", "down"):
                self.tally.count(what)
                raise Lost
            if what == "silent":
                self.tally.count(what)
                raise Lost if message.startswith("describe") else TimeoutError

    def _step(self, what: str) -> None:
        process = self.process
        if process.is_dead:
            raise Crashed
        process.steps += 1
        self.trace.update(f"{what}\n".encode())
        for event in process.plan.get(process.steps, ()):
            if event == "crash":
                self.tally.count("crash")
                process.is_dead = True
                raise Crashed
            if event == "rival":
                self.tally.count("rival")
                self._beside()
            if event == "edit":
                self.history.edit(0.2)
            if event in SPOILED:
                self.disk.spoils = event
            if event == "lost":
                self.engine.fail_in = self.rng.randrange(4)
            if event == "clock":
                self.clock.error_s += self.rng.choice((-86400, -3600, 3600, 86400))

    def _beside(self) -> None:
        """Let another coordinator run a whole refresh between two steps of ours."""
        ours, self.process = self.process, Process(self._plan(rivals=False))
        try:
            with contextlib.suppress(Crashed):
                self._run(list(self.config.fragments.values()), attempts=1)
        finally:
            self.process = ours

    def _plan(self, *, rivals: bool) -> dict[int, list[str]]:
        plan: dict[int, list[str]] = {}
        kinds = ("crash", "full", "unreadable", "cut", "down", "silent", "edit", "lost", "clock")
        for kind in (*SPOILED, *kinds, *(("rival", "rival") if rivals else ())):
            if self.rng.random() < self.options.faults:
                at = self.rng.randrange(1, max(self.last_steps, 2))
                # A fault of the line happens at the next message.
                for step in range(at, at + (12 if kind in ("cut", "down", "silent") else 1)):
                    plan.setdefault(step, []).append(kind)
        return plan

    # Refreshes.

    def _run(
        self,
        fragments: list[Fragment],
        *,
        attempts: int,
        options: RefreshOptions | None = None,
    ) -> list[Report]:
        self.tally.refreshes += len(fragments)
        self.engine.edits = self.options.edits
        links: list[SimulatedLink] = []

        def link(source: Source) -> SimulatedLink:
            links.append(SimulatedLink(source, self.agent, self._on_line))
            return links[-1]

        runner = Runner(
            cast("SparkSession", None),
            self.config,
            sleep=self._sleep,
            attempts=attempts,
            link=link,
        )
        may_shrink = self.rng.random() < 0.7
        shrinks = RefreshOptions(allow_shrink=may_shrink, accept_restored=self.lies is not None)
        try:
            return runner.refresh(fragments, options or shrinks)
        finally:
            for one in links:
                one.hang_up()

    def _sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def refresh(self) -> None:
        """Let something happen, refresh under faults, and check what is published then."""
        rng = self.rng
        self.clock.sleep(rng.choice((1.0, HOUR_S, 5 * HOUR_S, 30 * HOUR_S)))
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            self.history.edit(rng.choice((0.02, 0.2, 0.9)))
        if rng.random() < 0.03:
            self.history.empty(rng.choice(sorted(self.history.newest)))
        if rng.random() < 0.03:
            self.history.restore()
        if rng.random() < 0.05:
            self.history.clock_error_s += rng.choice((-86400.0, -60.0, 3600.0))
        if rng.random() < 0.02:
            self._damage()
        if self.lies is not None:
            self._lie(self.lies)
        chosen = self._due() if self.options.scheduled else list(self.config.fragments.values())
        loses = self.answers.random() < self.options.faults / 2
        self.process = Process(self._plan(rivals=self.options.rivals), loses_answer=loses)
        if self.restored and self.lies is not None and self.lies.random() < 0.5:
            self.process.dies_after = self.lies.choice((1, 1, 2))
        is_crashed, spoiled = False, self._spoiled()
        try:
            reports = self._run(chosen, attempts=self.options.attempts)
        except Crashed:
            is_crashed = True
        self.last_steps = max(self.process.steps, 20)
        self.process = Process()
        self.engine.fail_in = None
        self.checker.look()
        self._check_given(converged=False)
        if not is_crashed:
            self._check_reports(reports, spoiled)

    def _spoiled(self) -> int:
        return sum(self.tally.happened.get(what, 0) for what in SPOILED)

    def _due(self) -> list[Fragment]:
        """Return the fragments that the schedule says are due, by the decision of `refresh --due`.

        Raises Violation if it leaves out one that was never published, unless that failed and is
        tried again before long.
        """
        self.process = Process()
        every = list(self.config.fragments.values())
        now = datetime.fromtimestamp(self.clock.time(), UTC)
        found = look(self.config, of_fragments(self.config, every), now)
        names = found.due + found.undecided
        held = {one.name for one in found.later if one.held is not None}
        for one in found.later:
            if one.name in held and one.decision.at > now.timestamp() + RETRY_S_MAX + CLOCK_S:
                raise Violation(f"{one.name} is not tried again before long: {one.decision}")
        for fragment in every:
            seen = self.checker.seen.get(fragment.name)
            if not seen and fragment.name not in {*names, *held}:
                raise Violation(f"{fragment.name} was never published, and is not due")
        self.tally.count("scheduled")
        if held:
            self.tally.count("held")
        return [f for f in every if f.name in names]

    def _damage(self) -> None:
        """Remove a data file of a newest version, as a bad disk does; refreshes pull it again."""
        name = self.rng.choice(sorted(self.config.fragments))
        known = self.checker.seen.get(name)
        if known and len(known[-1].files) > 2 and name not in self.checker.lost:
            self.tally.count("damaged")
            self.checker.lost.add(name)
            path = f"{self._root.removeprefix('sim://')}/{self.rng.choice(known[-1].files)}"
            if self._root == ROOT:
                del self.disk.files[path]
            else:
                Path(path).unlink()

    def _lie(self, lies: random.Random) -> None:
        """Let notes say more than the table holds, whose newest version is gone; or less."""
        name, what = lies.choice(sorted(self.config.fragments)), lies.random()
        newest = self.checker.published.newest(name) or 0
        root = self._root.removeprefix("sim://")
        notes = f"{root}/_driftline/fragments/{name}.json"
        if newest > self.restored.get(name, newest):
            del self.restored[name]
        is_new = newest and name not in self.restored
        if what < LIES and is_new and self._is_whole(name, newest - 1):
            self.tally.count("restored")
            del self.disk.files[f"{root}/{name}/_delta_log/{newest:020d}.json"]
            del self.checker.seen[name][newest:]
            self.restored[name] = newest
            self.kept_notes.pop(name, None)  # they would say of its rows what was said of others
        elif what < 2 * LIES and name in self.kept_notes:
            self.tally.count("older notes")
            self.disk.files[notes] = (self.kept_notes[name], self.clock.now_s)
        elif notes in self.disk.files and name not in self.restored:
            self.kept_notes[name] = self.disk.files[notes][0]

    def _is_whole(self, name: str, version: int) -> bool:
        """Return True if no file of a version was damaged: a backup has them all."""
        root = self._root.removeprefix("sim://")
        files = self.checker.seen[name][version].files
        return all(f"{root}/{file}" in self.disk.files for file in files)

    def _check_reports(self, reports: list[Report], spoiled: int) -> None:
        """Check what a command said; `spoiled`: files that were, before it."""
        for report in reports:
            newest = self.checker.published.newest(report.name)
            if report.error is not None:
                self.tally.count(report.error["code"])
                allowed = EXPECTED if self.options.read_at_most is None else EXPECTED | {"LIMIT"}
                if self._spoiled() > spoiled:
                    allowed |= {"PROOF", "DUPLICATE_KEY"}
                if self.options.isolation is Isolation.NONE and self.options.edits:
                    allowed |= {"PROOF"}  # rows changed between two reads of the exchange
                if report.error["code"] not in allowed:
                    raise Violation(
                        f"{report.name}: an error that nothing explains: {report.error}"
                    )
            elif report.not_started is None and (
                report.version is None or newest is None or report.version > newest
            ):
                raise Violation(f"{report.name}: version {report.version} is said, not {newest}")

    def _check_given(self, *, converged: bool) -> None:
        """Compare the table of versions with the tables. Raises Violation."""
        if not self.has_versions:
            return
        found = warehouse_versions.newest(self.store)
        assert found is not None, "it was made before the first refresh"
        for name in self.config.fragments:
            member, newest = found.members.get(name), self.checker.published.newest(name)
            if member is not None and (newest is None or member.version > newest):
                raise Violation(f"{name}: readers are given {member.version}, not yet committed")
            if converged and (member is None or member.version != newest):
                raise Violation(f"{name}: {newest} is committed, and readers are given {member}")

    def converge(self) -> None:
        """Stop all faults; one refresh must make every table equal to its source.

        A pass in tiles goes on behind the tiles that are finished, so it is the next one.
        """
        self.agent.down_until_s = self.engine.edits = 0.0
        self.disk.spoils = None
        self.options = replace(self.options, edits=0.0)
        fragments = {
            name: replace(f, read_at_most=None, proof=Proof.TOTAL)
            for name, f in self.config.fragments.items()
        }
        self.config = replace(self.config, fragments=fragments)
        is_begun = self.options.tile_rows is not None
        for number in range(3 if is_begun else 2):
            self.clock.sleep(HOUR_S)
            options = RefreshOptions(allow_shrink=True, accept_restored=self.lies is not None)
            reports = self._run(list(fragments.values()), attempts=1, options=options)
            for report in reports:
                if report.error is not None:
                    raise Violation(f"{report.name}: without faults: {report.error}")
            self.checker.look()
            self._check_given(converged=True)
            for report in reports:
                if number or not is_begun:
                    self.checker.check_newest(report.name)
                if report.version != self.checker.published.newest(report.name):
                    raise Violation(f"{report.name}: it says version {report.version}")
        for report in reports:
            if report.version != report.previous_version:
                raise Violation(f"{report.name}: a version without a change: {report}")

    def run(self, refreshes: int) -> str:
        """Run refreshes, then converge; return what identifies this run. Raises Violation."""
        clock.run_by(self.clock)
        with self._warehouse():
            for _ in range(refreshes):
                self.refresh()
            self.converge()
        self.tally.versions += self.checker.versions
        return self.trace.hexdigest()

    @contextlib.contextmanager
    def _warehouse(self) -> Iterator[None]:
        before = formats.FORMATS
        in_memory = self._root == ROOT
        formats.FORMATS = (MemoryLog(self.disk) if in_memory else SteppedDelta(self.disk),)
        try:
            with mounted(self.disk):
                if self.has_versions:
                    warehouse_versions.flip(self.store, lambda members: {OTHER.name: OTHER})
                yield
        finally:
            formats.FORMATS = before


def lies_of(seed: int) -> random.Random | None:
    """Return what draws the lies of a world's notes; None: they are as refreshes left them."""
    lies = random.Random(f"lies {seed}")  # apart, as answers
    return lies if lies.random() < LYING else None


def _rng(seed: int) -> random.Random:
    return random.Random(f"world {seed}")


def _template() -> SourceConfig:
    database = DatabaseConfig("simulated://", None, Limits(), None, lambda: None)
    endpoint = cast("Endpoint", None)
    return SourceConfig(Path("source.toml"), database, endpoint, Budget(), {})
