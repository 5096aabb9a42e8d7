"""SIGHUP: limits and relations of the DBA's file are read again, and nothing ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.rows.digests import Digest
from driftline.wire_pb2_grpc import SourceStub

from source_agent.budgets.budget import Governor
from source_agent.config.file import Budget, SourceConfig
from source_agent.enrolment import enroll
from source_agent.scan.workers import WorkerPool
from source_agent.server.service import start
from tests.harness.agents import Peer, channel, configuration, make_orders, opening
from tests.harness.pair import SourceProcess, environment
from tests.source_agent.server.test_service import RECIPE, ROWS, independent_total

pytestmark = pytest.mark.slow  # starts processes

LOOK_S_MAX = 20.0
# The command as it is run, which says when its part of the process begins.
STARTS = """import signal, sys
from source_agent.cli import main as cli
ignore = signal.signal
def signal_(number, action):
    before = ignore(number, action)
    if action is signal.SIG_IGN:
        print("begins", flush=True)
    return before
signal.signal = signal_
cli.cli(["--config", sys.argv[1], "serve"])
"""
LAKE = 'allow = ["spiffe://driftline/warehouse/lake"]\n'
ORDERS = '[relations.orders]\ntable = "orders"\n'


class Agent:
    """`driftline-source serve` in a process of its own, over mutual TLS."""

    def __init__(self, process: SourceProcess, folder: Path) -> None:
        self.process, self._folder = process, folder
        self.port = int(process.address.rpartition(":")[2])
        self.certs = folder / "certs"

    def write(self, *, more: str = "", relations: str = ORDERS) -> None:
        configuration(
            self._folder,
            self._folder / "erp.db",
            certs=self.certs,
            more=more,
            relations=relations,
        )

    def damage(self, text: str) -> None:
        (self._folder / "source.toml").write_text(text)

    def reload(self, said: str) -> None:
        """Send the signal; returns once the log says so, one time more than before."""
        before = self.log().count(said)
        self.process.process.send_signal(signal.SIGHUP)
        self.until(lambda: self.log().count(said) > before)

    def log(self) -> str:
        return (self._folder / "source.log").read_text()

    def until(self, holds: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + LOOK_S_MAX
        while not holds():
            assert self.process.process.poll() is None, self.log()
            assert time.monotonic() < ends_at, self.log()
            time.sleep(0.02)  # of another process there is nothing else to wait for

    def relations(self) -> list[str]:
        with channel(self.port, self.certs) as over:
            request = pb.DescribeRequest(protocol=1)
            return list(SourceStub(over).Describe(request, timeout=10).relations)

    @contextmanager
    def peer(self) -> Iterator[Peer]:
        with channel(self.port, self.certs) as over, Peer(over) as found:
            yield found


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("reload")
    enroll(folder / "certs", source_names=["127.0.0.1"], warehouse_name="lake")
    make_orders(folder / "erp.db", ROWS)
    config = configuration(folder, folder / "erp.db", certs=folder / "certs")
    with SourceProcess(config.path, is_forked=True) as process:
        yield Agent(process, folder)


def test_relations_and_who_may_have_them(agent: Agent) -> None:
    agent.write()
    agent.reload("was read again")
    with agent.peer() as conversation:
        conversation.send(opening(RECIPE, ours=independent_total(ROWS)))
        assert conversation.reply().finished.equal
        agent.write(
            relations=ORDERS + 'allow = ["another"]\n[relations.mine]\ntable = "orders"\n' + LAKE
        )
        agent.reload("was read again: 2 relations")
        assert agent.relations() == ["mine"]
        conversation.send(opening(RECIPE, ours=independent_total(ROWS)))
        assert conversation.reply().refused.code == "NOT_FOUND", "over the stream that is there"
        conversation.send(opening(RECIPE, relation="mine", ours=independent_total(ROWS)))
        assert conversation.reply().finished.equal


def test_a_budget_counts_for_what_is_running(tmp_path: Path) -> None:
    make_orders(tmp_path / "erp.db", ROWS)
    enroll(tmp_path / "certs", source_names=["127.0.0.1"], warehouse_name="lake")

    def write(limits: str) -> SourceConfig:
        return configuration(
            tmp_path, tmp_path / "erp.db", certs=tmp_path / "certs", more=f"[limits]\n{limits}\n"
        )

    server = start(write("scans_at_once = 1\nrows_per_second = 1"), heartbeat_s=0.05)
    try:
        with channel(server.port, tmp_path / "certs") as over, Peer(over) as slow:
            slow.send(opening(RECIPE, ours=Digest(1, 1)))
            while slow.reply(progress=True).progress.phase != "scan":
                pass
            with Peer(over) as other:
                other.send(opening(RECIPE, ours=Digest(1, 1)))
                assert other.reply(progress=True).progress.phase == "wait"
                write("scans_at_once = 2")
                server.reload()
                assert other.reply().WhichOneof("message") == "verdict", "there are two places"
            write('pause_file = "source.toml"')
            server.reload()
            refused = slow.reply().refused
            assert (refused.code, "pause_file" in refused.message) == ("NOT_NOW", True)
    finally:
        server.stop()


@pytest.mark.parametrize(
    "text", ["", "[database", "[database]\nurl = 1\n", "[limits]\nrows = 3\n", "\0", None]
)
def test_a_file_that_is_wrong_changes_nothing(agent: Agent, text: str | None) -> None:
    agent.write()
    agent.reload("was read again: 1 relation\n")
    if text is None:
        (agent.certs.parent / "source.toml").unlink()
    else:
        agent.damage(text)
    agent.reload("the previous settings stay in use")
    assert agent.relations() == ["orders"]


def test_what_counts_after_a_restart_is_said(agent: Agent) -> None:
    agent.write()
    text = (agent.certs.parent / "source.toml").read_text()
    agent.damage(text.replace("[database]\n", "[database]\nidle_timeout_s = 7\n"))
    agent.reload("[database] of")
    assert agent.relations() == ["orders"]


def test_a_thousand_signals_end_nothing_and_sigterm_does(agent: Agent) -> None:
    agent.write()
    with agent.peer() as conversation:
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        assert conversation.reply().WhichOneof("message") == "verdict"
        for _ in range(1000):
            agent.process.process.send_signal(signal.SIGHUP)
        conversation.send(pb.Request(whole=pb.Whole()))
        conversation.until("finished")
        agent.process.process.send_signal(signal.SIGTERM)
        conversation.finish()
        with pytest.raises((AssertionError, grpc.RpcError)):
            conversation.reply()
    assert agent.process.process.wait(LOOK_S_MAX) == 0


def test_signals_from_the_start_on_end_nothing(tmp_path: Path) -> None:
    """Those that come before the agent listens are taken when it does."""
    make_orders(tmp_path / "erp.db", ROWS)
    config = configuration(tmp_path, tmp_path / "erp.db", certs=None)
    with ThreadPoolExecutor(1) as executor:
        over = threading.Event()
        starting = subprocess.Popen(
            [sys.executable, "-c", STARTS, str(config.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            text=True,
        )
        assert starting.stdout is not None
        assert starting.stdout.readline() == "begins\n"

        def signals() -> None:
            while not over.wait(0.005):
                starting.send_signal(signal.SIGHUP)

        sending = executor.submit(signals)
        line = starting.stdout.readline()
        over.set()
        sending.result()
        assert line.startswith("listening on "), line + starting.stdout.read()
        starting.send_signal(signal.SIGTERM)
        starting.stdout.read()
        assert starting.wait(LOOK_S_MAX) == 0


def test_fewer_readers_are_kept_once_there_are_fewer_places() -> None:
    governor = Governor(Budget(readers=3))
    assert governor.pool.size == 2
    governor.adopt(Budget(readers=1, rows_per_second=5.0))
    assert (governor.pool.size, governor.budget.rows_per_second) == (0, 5.0)
    pool = WorkerPool(2)
    try:
        with pool.lent(2) as first:
            assert len(first) == 2
            pool.resize(1)
            with pool.lent(2) as second:
                assert second == [], "both are taken, which is more than there may be"
            kept = first[0].pid
        with pool.lent(2) as third:
            assert [process.pid for process in third] == [kept]
    finally:
        pool.close()
