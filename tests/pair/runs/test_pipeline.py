"""Runs of a source overlap: one is prepared and another finished while one is compared.

What overlaps is proven by order: a phase is held until another has begun or ended, and would wait
in vain if runs followed each other. What is published is compared with the source.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from driftline.errors import DriftlineError, Locked, SnapshotLost

from tests.harness.nine_tables import NAMES, Log, Mark, Phases, Served, nine_tables
from warehouse_agent.config import Source
from warehouse_agent.events import Event, PhaseStarted, RefreshCommitted
from warehouse_agent.refresh import finish, whole
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared, PreparedWhole
from warehouse_agent.runs import attempt, batch
from warehouse_agent.runs.source_run import LINK_IDLE_S_MAX
from warehouse_agent.transport.channel import SourceChannel, Stream

RUNS = [NAMES[:4], NAMES[4:8], NAMES[8:]]
FIRST = [run[0] for run in RUNS]
LET_GO_S_MAX = 10.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with nine_tables(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def first_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nine tables of which all are published: to be copied."""
    folder = tmp_path_factory.mktemp("loaded")
    with nine_tables(folder) as made:
        assert [r.error for r in made.refresh(Log())] == [None] * 9
    return folder


@pytest.fixture
def loaded(first_load: Path, tmp_path: Path) -> Iterator[Served]:
    """Nine tables of which all are published, and of which all rows have changed since."""
    with nine_tables(tmp_path, like=first_load) as made:
        made.change()
        yield made


@pytest.fixture
def unseen() -> None:
    """Hide the objects of other tests from `gc.get_objects`, which is slow where there are many."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> Phases:
    return Phases(monkeypatch)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("driftline-source")]


def is_free(served: Served, name: str) -> bool:
    """Return True if nobody holds the lock of a fragment."""
    try:
        with served.pair.store.lock(name):
            return True
    except Locked:
        return False


def are_free(served: Served) -> bool:
    return all(is_free(served, name) for name in NAMES)


def test_the_next_run_is_prepared_and_the_one_before_finished_meanwhile(
    served: Served, phases: Phases
) -> None:
    """In a first load, where preparing asks for descriptions, and in a refresh."""
    for run, after in pairwise(RUNS):
        # The second fragment of a run is exchanged when the next run is prepared: the stream is
        # open meanwhile. The last run has one fragment.
        phases.hold(("exchange", run[1], "begin"), until=("prepare", after[0], "end"))
        phases.hold(("finish", run[0], "begin"), until=("exchange", after[0], "begin"))
        phases.hold(("exchange", after[0], "begin"), until=("finish", run[0], "begin"))
        phases.hold(("exchange", after[0], "end"), until=("finish", run[0], "end"))
    for version in range(2):
        phases.marks.clear()
        reports = served.refresh(Log())
        assert [(r.error, r.version, r.attempts) for r in reports] == [(None, version, 1)] * 9
        served.check(*NAMES)
        for phase in ("prepare", "compare", "finish"):
            of_phase = [(name, edge) for at, name, edge in phases.marks if at == phase]
            assert of_phase == [(name, edge) for name in FIRST for edge in ("begin", "end")]
        assert not threads()
        served.change()


def test_a_run_is_taken_when_the_one_before_is_compared(served: Served, phases: Phases) -> None:
    """Its locks are not taken before, and are free when it is done."""
    found: dict[str, list[str]] = {}

    def look(mark: Mark) -> None:
        if mark[0] == "prepare" and mark[2] == "end":
            found[mark[1]] = [name for name in FIRST if not is_free(served, name)]

    phases.then = look
    phases.hold(("compare", "t0", "end"), until=("prepare", "t4", "end"))
    phases.hold(("compare", "t4", "end"), until=("prepare", "t8", "end"))
    served.refresh(Log())
    assert found == {"t0": ["t0"], "t4": ["t0", "t4"], "t8": ["t4", "t8"]}
    assert are_free(served)


@pytest.mark.slow
@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("ahead", [1, 2])
def test_two_runs_are_in_memory(served: Served, phases: Phases, ahead: int) -> None:
    """However many there are: nine, or five."""
    most = 0

    def held() -> tuple[set[str], set[int]]:
        alive = {o.known.name for o in gc.get_objects() if isinstance(o, Prepared)}
        alive &= set(NAMES)  # other tests of this process hold theirs
        return alive, {NAMES.index(name) // ahead for name in alive}

    def count(mark: Mark) -> None:
        nonlocal most
        if mark[2] == "end":
            alive, runs = held()
            # On a busy machine the thread that ended a run may not have returned from it yet.
            until = time.monotonic() + LET_GO_S_MAX
            while len(runs) > 2 and time.monotonic() < until:
                time.sleep(0.01)
                alive, runs = held()
            assert len(runs) <= 2, f"{mark}: {sorted(alive)}"
            most = max(most, len(runs))

    phases.then = count
    for run in range(len(NAMES) // ahead - 1):
        name, after = NAMES[run * ahead], NAMES[(run + 1) * ahead]
        phases.hold(("exchange", name, "end"), until=("prepare", after, "end"))
    for version in range(2):
        phases.marks.clear()
        reports = served.refresh(Log(), more=f"ahead = {ahead}")
        assert [(r.error, r.version) for r in reports] == [(None, version)] * 9
        served.check(*NAMES)
        served.change()
    assert most == 2


@pytest.mark.slow
@pytest.mark.usefixtures("unseen")
def test_two_runs_are_in_memory_while_one_is_tried_again(
    loaded: Served, phases: Phases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failed attempt held is let go before the next one, not kept by its error."""
    real, tried, found = finish.write_and_prove, list[str](), list[int]()

    def fail(job: Job, *rest: object) -> object:
        if job.name == "t0" and len(tried) < 3:
            tried.append(job.name)
            try:
                raise Unforeseen(job.name)
            except Unforeseen as problem:
                raise SnapshotLost(job.name) from problem
        return real(job, *rest)  # type: ignore[arg-type]

    def count(mark: Mark) -> None:
        if mark == ("compare", "t0", "begin"):
            gc.collect()
            held = [o for o in gc.get_objects() if isinstance(o, Prepared)]
            found.append(sum(o.known.name == "t0" for o in held))

    phases.then = count
    monkeypatch.setattr(attempt, "write_and_prove", fail)
    reports = loaded.refresh(Log(), more="ahead = 1")
    assert [r.attempts for r in reports] == [4] + [1] * 8
    assert found == [1] * 4
    loaded.check(*NAMES)


def test_bytes_are_those_of_the_fragment(
    served: Served, phases: Phases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report counts what its own exchange carried, not what goes over the link beside it."""
    carried = dict.fromkeys(NAMES, 0)
    real = whole.exchange

    def exchange(job: Job, p: PreparedWhole, stream: Stream) -> object:
        send, receive = stream.send, stream.receive

        def counted_send(request: object) -> None:
            send(request)  # type: ignore[arg-type]  # which names what follows in the stream
            carried[job.name] += request.ByteSize() + 5  # type: ignore[attr-defined]

        def counted_receive() -> object:
            reply = receive()
            carried[job.name] += reply.ByteSize() + 5
            return reply

        stream.send, stream.receive = counted_send, counted_receive  # type: ignore[method-assign, assignment]
        try:
            return real(job, p, stream)
        finally:
            stream.send, stream.receive = send, receive  # type: ignore[method-assign]

    monkeypatch.setattr(whole, "exchange", exchange)
    for run, after in pairwise(RUNS):
        phases.hold(("exchange", run[1], "begin"), until=("prepare", after[0], "end"))
    for _ in range(2):
        phases.marks.clear()
        carried.update(dict.fromkeys(NAMES, 0))
        reports = served.refresh(Log())
        assert {r.name: r.bytes_sent + r.bytes_received for r in reports} == carried
        served.change()


def test_one_run_has_no_thread_of_its_own(served: Served) -> None:
    """Nothing of it overlaps."""
    found = set[int]()
    served.refresh(Log(lambda _event: found.add(threading.get_ident())), more='ahead = "all"')
    assert found == {threading.get_ident()}


@pytest.mark.parametrize("ahead", ["ahead = 4", "ahead = 1", 'ahead = "all"'])
def test_a_source_has_one_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    made: list[str] = []
    real = SourceChannel.__init__

    def make(link: SourceChannel, source: Source) -> None:
        made.append(source.name)
        real(link, source)

    monkeypatch.setattr(SourceChannel, "__init__", make)
    for commands in (1, 2):
        served.refresh(Log(), more=ahead)
        served.change()
        assert len(made) == commands


class Unforeseen(Exception):
    """No error of ours."""


def fail_once(
    monkeypatch: pytest.MonkeyPatch, step: str, names: tuple[str, ...], error: type[Exception]
) -> None:
    """Let a step of some fragments fail when it is done the first time."""
    place = whole if step == "exchange" else attempt
    real, failed = getattr(place, step), set[str]()

    def do(job: Job, *rest: object, **options: object) -> object:
        if job.name in names and job.name not in failed:
            failed.add(job.name)
            raise error(f"{step} of {job.name}")
        return real(job, *rest, **options)

    monkeypatch.setattr(place, step, do)


@pytest.mark.slow
@pytest.mark.parametrize("error", [SnapshotLost, Unforeseen])
@pytest.mark.parametrize("step", ["prepare", "exchange", "write_and_prove", "commit"])
def test_a_step_of_each_run_fails(
    loaded: Served,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: type[Exception],
) -> None:
    """It is tried again where that may help; no other fragment is, and none is lost."""
    broken = ("t1", "t6", "t8")
    is_retryable = issubclass(error, DriftlineError)
    with monkeypatch.context() as patch:
        fail_once(patch, step, broken, error)
        log = Log()
        reports = {r.name: r for r in loaded.refresh(log)}
    assert sorted(log.ends) == NAMES
    assert not threads()
    assert are_free(loaded)
    for name, report in reports.items():
        assert report.attempts == (2 if name in broken and is_retryable else 1)
        if name not in broken or is_retryable:
            assert (report.error, report.version) == (None, 1), name
        else:
            assert report.error is not None
            assert (report.error["code"], report.version) == ("INTERNAL", 0)
    loaded.check(*(name for name, report in reports.items() if report.error is None))
    assert [r.error for r in loaded.refresh(Log())] == [None] * 9
    loaded.check(*NAMES)


INTERRUPTED_AT = [
    ("prepare", "t0", "begin"),
    ("prepare", "t4", "end"),
    ("exchange", "t1", "begin"),
    ("compare", "t4", "begin"),
    ("exchange", "t6", "end"),
    ("finish", "t0", "begin"),
    ("finish", "t8", "begin"),
]


@pytest.mark.slow
@pytest.mark.parametrize("at", INTERRUPTED_AT, ids="-".join)
def test_an_interruption(
    loaded: Served, phases: Phases, at: Mark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in each phase: nothing is left running or locked, and what was committed is kept."""
    log, taken, stop = Log(), threading.Event(), batch._Announcer.stop

    def stopped(announcer: batch._Announcer) -> None:
        stop(announcer)
        taken.set()

    def interrupt(mark: Mark) -> None:
        if mark == at:
            os.kill(os.getpid(), signal.SIGINT)
            assert taken.wait(30)  # the main thread takes the signal

    monkeypatch.setattr(batch._Announcer, "stop", stopped)

    phases.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        loaded.refresh(log)
    assert not threads()
    assert are_free(loaded)
    committed = [e.report.name for e in log.events if isinstance(e, RefreshCommitted)]
    assert committed == NAMES[: len(committed)]
    assert [loaded.pair.version(n) for n in NAMES] == [int(n in committed) for n in NAMES]
    assert len(committed) < 9
    phases.then = lambda _mark: None
    assert [r.error for r in loaded.refresh(Log())] == [None] * 9
    loaded.check(*NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "name"),
    [("reduce", "t1"), ("exchange", "t5"), ("apply", "t1"), ("prove", "t5"), ("publish", "t5")],
)
def test_answers_that_nobody_reads(loaded: Served, phase: str, name: str) -> None:

    def unread(event: Event) -> None:
        if event == PhaseStarted(name, phase):
            raise BrokenPipeError

    log = Log(unread)
    with pytest.raises(BrokenPipeError):
        loaded.refresh(log)
    assert not threads()
    assert are_free(loaded)
    assert loaded.pair.version(name) == 0
    kept = [loaded.pair.version(n) for n in NAMES]
    assert kept == sorted(kept, key=lambda version: -(version or 0)), "in order"
    assert [r.error for r in loaded.refresh(Log())] == [None] * 9
    loaded.check(*NAMES)


@pytest.mark.parametrize("ahead", ["ahead = 4", 'ahead = "all"'])
def test_answers_that_nobody_reads_where_tidying_up_fails(
    served: Served, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    """An exception on the way out hides neither that the command ends nor why."""
    closed, real = list[Event](), finish.write_and_prove

    def unread(event: Event) -> None:
        if event == PhaseStarted("t1", "prove"):
            closed.append(event)
            raise BrokenPipeError

    def untidy(job: Job, *rest: object) -> object:
        try:
            return real(job, *rest)  # type: ignore[arg-type]
        finally:
            if closed:
                raise OSError("what was written cannot be removed")

    monkeypatch.setattr(attempt, "write_and_prove", untidy)
    with pytest.raises(BrokenPipeError):
        served.refresh(Log(unread), more=ahead)
    assert not threads()
    assert are_free(served)
    assert served.pair.version("t1") is None


def test_a_link_rests_while_a_run_is_prepared(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing may take long without a call; then the comparison gets another connection."""
    made: list[SourceChannel] = []
    real = SourceChannel.__init__

    def make(link: SourceChannel, source: Source) -> None:
        made.append(link)
        real(link, source)

    monkeypatch.setattr(SourceChannel, "__init__", make)
    prepared = attempt.Attempt.prepare

    def rest(one: attempt.Attempt, link: SourceChannel) -> None:
        prepared(one, link)
        link._called_at -= LINK_IDLE_S_MAX

    monkeypatch.setattr(attempt.Attempt, "prepare", rest)
    assert [r.error for r in served.refresh(Log(), more='ahead = "all"')] == [None] * 9
    assert len(made) == 2
    assert all(link._is_closed for link in made)
    served.check(*NAMES)
