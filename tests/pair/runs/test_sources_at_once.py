"""Several sources in one command: each is served by a thread, and none waits for another.

Three SQLite databases with a source agent each, behind a relay each; one warehouse. No Spark is
needed or could start.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests import ROOT
from tests.harness.forks import WAREHOUSE, Fork
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair, environment
from tests.harness.places import InWarehouse
from tests.harness.relay import Relay
from warehouse_agent.config import WarehouseConfig, load, select
from warehouse_agent.events import (
    Event,
    Listener,
    PhaseStarted,
    RefreshCommitted,
    RefreshFailed,
    RefreshNotStarted,
    RefreshRetried,
)
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark import session
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.store import Store
from warehouse_agent.transport import channel, handshake

TABLES = ("one", "two", "three")
SOURCES = ("crm", "erp", "hr")
ROWS = 50
S_MAX = 30.0


@dataclass
class Sources(InWarehouse):
    """Three sources that can be told to fall silent, and the warehouse of all."""

    folder: Path
    pairs: dict[str, Pair] = field(default_factory=dict)
    relays: dict[str, Relay] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choose(self.folder)

    def toml(self, more: str = "") -> Path:
        parts = [f'[warehouse]\npath = "{self.root}"\n{more}\n']
        parts += [] if self.bucket is None else [self.bucket.toml]
        for source, relay in self.relays.items():
            parts.append(f'[sources.{source}]\naddress = "{relay.address}"\ninsecure = true\n')
            parts += [
                f'[fragments.{source}_{table}]\nsource = "{source}"\nrelation = "{table}"\n'
                for table in TABLES
            ]
        file = self.folder / "warehouse.toml"
        file.write_text("\n".join(parts))
        return file

    def config(self, more: str = "") -> WarehouseConfig:
        return load(self.toml(more))

    def refresh(
        self, listener: Listener, *, more: str = "", spark: SparkSession | None = None
    ) -> list[Report]:
        """Refresh all fragments, where no Spark can start, or with a session."""
        config = self.config(more)
        runner = Runner(spark or nowhere(), config, (listener,), attempts=1)
        return runner.refresh(select(config, [], True), Options())

    def change(self) -> None:
        for pair in self.pairs.values():
            for table in TABLES:
                pair.legacy.execute(f"UPDATE {table} SET mark = mark + 1 WHERE id % 7 = 0")

    def check(self) -> None:
        """Compare all that is published with the sources."""
        for source, pair in self.pairs.items():
            for name in TABLES:
                table = self.delta(f"{source}_{name}")
                ours = table.to_pyarrow_table(columns=["id", "mark"]).to_pylist()
                theirs = pair.legacy.rows(name)
                assert sorted((row["id"], row["mark"]) for row in ours) == sorted(theirs)

    @property
    def store(self) -> Store:
        return Store(str(self.root), storage=self.storage)


def nowhere() -> DeferredSession:
    return DeferredSession({"spark.master": "no such master"})


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Sources]:
    made = Sources(tmp_path)
    with ExitStack() as stack:
        for source in SOURCES:
            legacy = SqliteLegacy(tmp_path / f"{source}.db")
            stack.callback(legacy.close)
            for table in TABLES:
                legacy.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY NOT NULL, mark INT)")
                legacy.many(f"INSERT INTO {table} VALUES (?, 0)", [(i,) for i in range(ROWS)])
            relations = {table: f'table = "{table}"' for table in TABLES}
            pair = stack.enter_context(Pair(nowhere(), legacy, tmp_path / source, relations))
            made.pairs[source] = pair
            made.relays[source] = stack.enter_context(Relay(pair.address))
        yield made


def names(*sources: str) -> list[str]:
    return [f"{source}_{table}" for source in sources for table in TABLES]


def named(event: Event) -> str:
    """Return the fragment of an event, the first of several."""
    if isinstance(event, RefreshCommitted | RefreshFailed | RefreshNotStarted):
        return event.report.name
    return event.names[0] if isinstance(event, RefreshRetried) else event.name


@dataclass
class Alone:
    """A listener that refuses to be called twice at a time, and keeps what it was told."""

    then: Callable[[Event], None] = lambda _event: None
    events: list[Event] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: Event) -> None:
        assert self._lock.acquire(blocking=False), "two events at a time"
        try:
            self.events.append(event)
            self.then(event)
        finally:
            self._lock.release()

    @property
    def side_by_side(self) -> int:
        """Return how many sources were refreshed at a time, between their first and last events."""
        of_events = [named(event).partition("_")[0] for event in self.events]
        last = {source: at for at, source in enumerate(of_events)}
        begun = [set(of_events[: at + 1]) for at in range(len(of_events))]
        return max(sum(last[s] >= at for s in sources) for at, sources in enumerate(begun))

    @property
    def ends(self) -> list[tuple[str, bool]]:
        """Return the fragments in the order of their ends, and if they failed."""
        return [
            (e.report.name, isinstance(e, RefreshFailed))
            for e in self.events
            if isinstance(e, RefreshCommitted | RefreshFailed)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2, 3, 4])
def test_all_sources_are_refreshed(sources: Sources, at_once: int) -> None:
    for version in range(2):
        heard = Alone()
        reports = sources.refresh(heard, more=f"sources_at_once = {at_once}\nahead = 2")
        assert [r.name for r in reports] == names(*SOURCES), "in the order of the command"
        assert [(r.error, r.version) for r in reports] == [(None, version)] * 9
        assert sorted(heard.ends) == [(name, False) for name in sorted(names(*SOURCES))]
        assert heard.side_by_side <= at_once
        for name in names(*SOURCES):
            lines = sources.store.read("_driftline", "runs", f"{name}.jsonl") or b""
            assert len(lines.splitlines()) == version + 1
        sources.check()
        sources.change()


def test_sources_are_compared_side_by_side(sources: Sources) -> None:
    """Each of three waits, in its first exchange, until all three are in theirs."""
    meet = threading.Barrier(3, timeout=S_MAX)

    met: list[str] = []
    real = channel.SourceChannel.stream

    def stream(link: channel.SourceChannel, relations: Iterable[str] = ()) -> channel.Stream:
        if link.source.name not in met:
            met.append(link.source.name)
            meet.wait()
        return real(link, relations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel.SourceChannel, "stream", stream)
        reports = sources.refresh(Alone())
    assert sorted(met) == sorted(SOURCES)
    assert all(report.error is None for report in reports)
    sources.check()


@pytest.mark.slow
def test_a_source_that_does_not_answer_delays_nobody(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes what it is sent and says nothing; the others end before it is given up."""
    for module in (channel, handshake):
        monkeypatch.setattr(module, "CONTROL_S", 3.0)
    sources.refresh(Alone())
    sources.change()
    sources.relays["crm"].swallow()
    ended: dict[str, float] = {}

    def time_ends(event: Event) -> None:
        if isinstance(event, RefreshCommitted | RefreshFailed):
            ended[event.report.name] = time.monotonic() - began

    heard, began = Alone(time_ends), time.monotonic()
    reports = {r.name: r for r in sources.refresh(heard)}
    order = [name for name, _ in heard.ends]
    assert set(order[:6]) == set(names("erp", "hr"))
    assert set(order[6:]) == set(names("crm"))
    assert max(ended[name] for name in order[:6]) < min(ended[name] for name in order[6:])
    for name in names("crm"):
        error = reports[name].error
        assert error is not None
        assert error["code"] == "UNREACHABLE"
        assert (reports[name].version, reports[name].previous_version) == (0, 0)
    assert all(reports[name].version == 1 for name in names("erp", "hr"))
    sources.relays["crm"].heal()
    assert all(report.error is None for report in sources.refresh(Alone()))
    sources.check()


def test_a_source_that_falls_silent_in_its_exchange(sources: Sources) -> None:
    """It is healed only when the two others are done, so they cannot have waited for it."""
    sources.refresh(Alone())
    sources.change()

    fell: list[Event] = []

    def silence(event: Event) -> None:
        if event == PhaseStarted("hr_one", "exchange") and not fell:
            fell.append(event)
            sources.relays["hr"].swallow()
        done = [name for name, _ in heard.ends if not name.startswith("hr")]
        if isinstance(event, RefreshCommitted) and len(done) == 6:
            sources.relays["hr"].heal()

    heard = Alone(silence)
    config = sources.config()
    runner = Runner(nowhere(), config, (heard,), sleep=lambda _seconds: None)
    reports = runner.refresh(select(config, [], True), Options())
    assert [r.error for r in reports] == [None] * 9
    order = [name for name, _ in heard.ends]
    assert {name.partition("_")[0] for name in order[6:]} == {"hr"}
    sources.check()


def test_a_source_that_waits_for_its_next_attempt_leaves_its_place(sources: Sources) -> None:
    """One place: the first source waits until the others are done, in their only chance."""
    sources.refresh(Alone())
    sources.change()
    others_done, waited = threading.Event(), list[bool]()

    def look(event: Event) -> None:
        if event == PhaseStarted("crm_one", "exchange") and not waited:
            sources.relays["crm"].refuse()
        if len([name for name, _ in heard.ends if not name.startswith("crm")]) == 6:
            others_done.set()

    def wait(_seconds: float) -> None:
        waited.append(others_done.wait(S_MAX))
        sources.relays["crm"].heal()

    heard, config = Alone(look), sources.config("sources_at_once = 1")
    reports = Runner(nowhere(), config, (heard,), sleep=wait).refresh(
        select(config, [], True), Options()
    )
    assert waited == [True]
    assert [(r.error, r.version) for r in reports] == [(None, 1)] * 9
    assert [r.attempts for r in reports] == [2] * 3 + [1] * 6
    sources.check()


def test_answers_that_nobody_reads_end_the_command(sources: Sources, spark: SparkSession) -> None:
    """The other threads stop; what they had committed is kept in the history."""

    def unread(event: Event) -> None:
        if isinstance(event, RefreshCommitted):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        sources.refresh(Alone(unread))
    assert not [t for t in threading.enumerate() if t.name.startswith("driftline-source")]
    # A fragment that was stopped before its commit may have a folder of data files.
    options = sources.store.delta_options
    tables = {name: str(sources.root / name) for name in names(*SOURCES)}
    published = {name for name, at in tables.items() if DeltaTable.is_deltatable(at, options)}
    kept = {name.removesuffix(".jsonl") for name, _ in sources.store.files("_driftline", "runs")}
    assert kept == published
    assert len(published) < 9
    for name in names(*SOURCES):  # no lock is left behind
        with sources.store.lock(name):
            pass
    # What interrupted exchanges left is taken up by Spark.
    assert all(report.error is None for report in sources.refresh(Alone(), spark=spark))
    sources.check()


def test_an_unforeseen_error_in_a_thread_is_raised(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_store: Store, name: str) -> object:
        raise ZeroDivisionError(name)

    monkeypatch.setattr(Store, "lock", broken)
    with pytest.raises(ZeroDivisionError):
        sources.refresh(Alone())
    assert not [t for t in threading.enumerate() if t.name.startswith("driftline-source")]


@pytest.mark.slow
def test_an_interrupted_command(sources: Sources) -> None:
    """Ctrl-C while a source is silent: the command ends at once, and loses nothing."""
    sources.refresh(Alone())
    sources.change()
    out = sources.folder / "out"
    with out.open("w") as stdout, sources.folder.joinpath("err").open("w+") as stderr:
        sources.relays["hr"].swallow()
        words = ["--config", str(sources.toml("sources_at_once = 3")), "refresh", "--json"]
        process = Fork(
            [*WAREHOUSE, *words], cwd=ROOT, env=environment(), stdout=stdout, stderr=stderr
        )
        try:
            until = time.monotonic() + S_MAX
            while len(out.read_text().splitlines()) < 6:
                assert process.poll() is None, Path(stderr.name).read_text()
                assert time.monotonic() < until
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert process.wait(S_MAX) == 130
            assert time.monotonic() - began < 8
        finally:
            process.kill()
            process.wait()
        stderr.seek(0)
        assert stderr.read().strip() == "Interrupted. Nothing unproven was published."
    reports = [json.loads(line) for line in out.read_text().splitlines()]
    assert {r["name"] for r in reports} == set(names("crm", "erp"))
    assert {(r["version"], r["proof"]) for r in reports} == {(1, "total")}
    sources.relays["hr"].heal()
    assert [r.version for r in sources.refresh(Alone())] == [1] * 9
    sources.check()


def test_threads_start_one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    together = threading.Barrier(6, timeout=S_MAX)

    def start(*_settings: object) -> SparkSession:
        started.append(threading.get_ident())
        time.sleep(0.05)  # as long as another thread may take to come
        return spark

    monkeypatch.setattr(session, "start", start)
    shared, found = DeferredSession({}), list[SparkSession]()

    def get() -> None:
        together.wait()
        found.append(shared.get())

    threads = [threading.Thread(target=get) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [spark] * 6
    assert len(started) == 1
