"""Nothing of a refused call stays in the source agent, also if no garbage collector runs.

A real agent, as a process with its collector off, behind mutual TLS. One client is refused on one
connection, again and again, in each way that there is; another one, on a connection of its own,
asks and is answered meanwhile. A call that stays would fill the memory (its request is large) and
be counted by gRPC, which resets the streams of a connection beyond CONNECTION_RPCS_MAX.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.limits import (
    COUNTED_BYTES_MIN,
    EXCHANGE_RPCS_PER_CLIENT_MAX,
    MESSAGE_PARTS_MAX,
    WATCH_RPCS_PER_CLIENT_MAX,
)
from driftline.rows.digests import Digest
from driftline.wire_pb2_grpc import SourceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests import ROOT
from tests.faults.test_quotas import sets
from tests.harness.agents import Peer, channel, configuration, make_orders, opening
from tests.source_agent.server.test_service import RECIPE, ROWS, independent_total

__all__ = ["sets"]  # a fixture

CALLS, SOAK_CALLS = 70, 1000  # of each kind
WARM_CALLS = 20  # threads, buffers and caches
GROWTH_BYTES_MAX = 16 << 20
ANSWER_S_MAX = 1.0
LARGE = 256 << 10  # 70 that stay are more than the memory may grow
# What each relation has beside `orders`, which both clients may have.
RELATIONS = """
[relations.orders]
table = "orders"
[relations.gone]
table = "gone"
[relations.hers]
table = "private"
allow = ["nobody"]
"""
RAW = (bytes, bytes)  # requests and replies as they are on the wire
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
_NUMBERS = itertools.count()
AGENT = "import gc; gc.disable(); from source_agent.cli.main import main; main()"


@dataclass
class Agent:
    """An agent in a process of its own."""

    folder: Path
    pid: int
    port: int

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGESIZE"
        )


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, sets: Path) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("refused")
    for name in ("lake", "mart", "own"):
        shutil.copytree(sets / name, folder / name)
    make_orders(folder / "erp.db", ROWS)
    more = '[limits]\npause_file = "paused"\n'
    config = configuration(
        folder, folder / "erp.db", certs=folder / "own", more=more, relations=RELATIONS
    )
    words = [sys.executable, "-c", AGENT, "--config", str(config.path), "serve"]
    port = folder / "port"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [*words, "--port-file", str(port)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            while not port.exists():
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.05)
            yield Agent(folder, process.pid, int(port.read_text()))
        finally:
            process.terminate()


class Refused:
    """A client over one connection; each method is one call, and returns how it ended."""

    def __init__(self, over: grpc.Channel, agent: Agent) -> None:
        self._over, self._stub, self._paused = over, SourceStub(over), agent.folder / "paused"

    def described(self, relation: str, protocol: int = 1) -> str:
        request = pb.DescribeRequest(protocol=protocol, relation=relation)
        return self._unary(self._stub.Describe, request)

    def exchanged(self, *requests: pb.Request) -> str:
        return self._streamed(self._stub.Exchange(iter(requests), timeout=20))

    def unreadable(self, data: bytes) -> str:
        return self._unary(self._over.unary_unary("/driftline.Source/Describe", *RAW), data)

    def unreadable_stream(self, data: bytes) -> str:
        stream = self._over.stream_stream("/driftline.Source/Exchange", bytes, pb.Reply.FromString)
        return self._streamed(stream(iter([data]), timeout=20))

    def unreadable_probe(self) -> str:
        return self._unary(self._over.unary_unary(CHECK, *RAW), b"\xff" * LARGE)

    def no_request(self) -> str:
        return self._unary(self._over.stream_unary("/driftline.Source/Describe", *RAW), iter(()))

    def no_method(self) -> str:
        return self._unary(self._over.unary_unary("/driftline.Source/Nothing", *RAW), b"x" * LARGE)

    def probed(self) -> str:
        names = ["x" * 100] * (LARGE // 100)
        return self._unary(self._stub.Activity, pb.ActivityRequest(protocol=99, relations=names))

    def unknown_service(self) -> str:
        request = health_pb2.HealthCheckRequest(service="nothing").SerializeToString()
        return self._unary(self._over.unary_unary(CHECK, *RAW), request)

    def watched(self) -> str:
        """Until the first state, of a service whose name is its own."""
        name = f"{next(_NUMBERS)}{'x' * LARGE}"
        request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
        call = self._over.unary_stream(WATCH, *RAW)(request, timeout=20)
        try:
            return _first(call)
        finally:
            call.cancel()

    def unreadable_watch(self) -> str:
        call = self._over.unary_stream(WATCH, *RAW)(b"\xff" * LARGE, timeout=20)
        return _first(call)

    def paused(self) -> str:
        self._paused.touch()
        try:
            return self.exchanged(opening(RECIPE)) + self.described(relation="orders")
        finally:
            self._paused.unlink()

    def left(self) -> str:
        """Cancelled while the source waits for it, in the middle of a comparison."""
        with Peer(self._over) as peer:
            peer.send(opening(RECIPE, ours=Digest(1, 1)))
            return str(peer.reply().WhichOneof("message"))

    def many(self) -> str:
        """Beside as many streams as a client may have."""
        with contextlib.ExitStack() as stack:
            for _ in range(EXCHANGE_RPCS_PER_CLIENT_MAX):
                peer = stack.enter_context(Peer(self._over))
                stack.callback(peer.end)
                peer.send(opening(RECIPE, relation="nothing"))
                assert peer.reply().refused.code == "NOT_FOUND"
            return self.exchanged(opening(RECIPE))

    def _streamed(self, replies: grpc.CallIterator[pb.Reply]) -> str:
        try:
            return "".join(reply.refused.code for reply in replies)
        except grpc.RpcError as error:
            return code_of(error)

    def _unary(self, ask: Callable[..., object], request: object) -> str:
        try:
            ask(request, timeout=20)
        except grpc.RpcError as error:
            return code_of(error)
        return ""


def code_of(error: grpc.RpcError) -> str:
    """How a call was refused: the code of ours, else gRPC's."""
    assert isinstance(error, grpc.Call)
    found = dict(error.trailing_metadata() or ())
    return str(found.get("driftline-code", error.code().name))


def _first(call: grpc.CallIterator[bytes]) -> str:
    """The first state that a watch says, or how it was refused."""
    try:
        status = health_pb2.HealthCheckResponse.FromString(next(iter(call))).status
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))
    except grpc.RpcError as error:
        return code_of(error)


def _cells(count: int) -> pb.Request:
    return pb.Request(cells=pb.Cells(cells=bytes(count)))


def _in_parts(field: int, count: int) -> bytes:
    """An `Open` with an empty field, again and again."""
    body = bytes([field << 3 | 2, 0]) * count
    return pb.Request(open=pb.Open()).SerializeToString()[:1] + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


TABLE = opening(RECIPE, ours=independent_total(ROWS[:1]))
# How a call is made, and how it ends.
KINDS: dict[str, tuple[Callable[[Refused], str], str]] = {
    "a name too long": (lambda c: c.described(relation="x" * LARGE), "LIMIT"),
    "an unknown relation": (lambda c: c.described(relation="x"), "NOT_FOUND"),
    "another's relation": (lambda c: c.described(relation="hers"), "NOT_FOUND"),
    "a table that is gone": (lambda c: c.described(relation="gone"), "CONFIGURATION"),
    "another protocol": (lambda c: c.described(relation="x" * LARGE, protocol=99), "VERSION"),
    "no description": (lambda c: c.unreadable(b"\xff" * LARGE), "MALFORMED"),
    "no request": (Refused.no_request, "MALFORMED"),
    "no method": (Refused.no_method, "UNIMPLEMENTED"),
    "an activity": (Refused.probed, "VERSION"),
    "no probe": (Refused.unreadable_probe, "MALFORMED"),
    "a probe of nothing": (Refused.unknown_service, "NOT_FOUND"),
    "a watch of nothing": (Refused.watched, "SERVICE_UNKNOWN"),
    "no watch": (Refused.unreadable_watch, "MALFORMED"),
    "no opening": (lambda c: c.exchanged(_cells(LARGE)), "MALFORMED"),
    "no message": (lambda c: c.unreadable_stream(b"\xff" * LARGE), "MALFORMED"),
    "many parts": (lambda c: c.unreadable_stream(_in_parts(15, LARGE // 2)), "MALFORMED"),
    "an opening of nothing": (lambda c: c.exchanged(opening(RECIPE, relation="x")), "NOT_FOUND"),
    "a bad opening": (lambda c: c.exchanged(opening(RECIPE, strata=bytes(LARGE))), "MALFORMED"),
    "another recipe": (lambda c: c.exchanged(opening(bytes(16))), "RECIPE"),
    "a table that is gone, opened": (
        lambda c: c.exchanged(opening(RECIPE, relation="gone")), "CONFIGURATION",
    ),
    "what does not follow": (lambda c: c.exchanged(TABLE, _cells(LARGE)), "MALFORMED"),
    "paused": (Refused.paused, "NOT_NOWNOT_NOW"),
    "left": (Refused.left, "verdict"),
}  # fmt: skip


@contextlib.contextmanager
def answered(agent: Agent) -> Iterator[list[float]]:
    """The seconds of the calls of a client that may have what it asks for, on and on."""
    found: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        with channel(agent.port, agent.folder / "lake") as over:
            stub = SourceStub(over)
            while not found or not is_over.wait(0.02):
                began = time.monotonic()
                names = stub.Describe(pb.DescribeRequest(protocol=1), timeout=20).relations
                assert list(names) == ["orders", "gone"]
                found.append(time.monotonic() - began)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield found
    finally:
        is_over.set()
        asking.join()


def refuse(agent: Agent, kind: str, calls: int) -> None:
    call, ends = KINDS[kind]
    with channel(agent.port, agent.folder / "mart") as over:
        client = Refused(over, agent)
        for _ in range(WARM_CALLS):
            assert call(client) == ends
        before = agent.resident_bytes
        with answered(agent) as seconds:
            for _ in range(calls):
                assert call(client) == ends
        growth = agent.resident_bytes - before
    print(f"{kind}: {calls:,} calls, growth {growth:,} bytes, slowest answer {max(seconds):.3f} s")
    assert growth < GROWTH_BYTES_MAX, f"{growth:,} bytes"
    # A busy machine may stop a process for a moment.
    assert sorted(seconds)[len(seconds) * 19 // 20] < ANSWER_S_MAX


@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_refused_call_stays(agent: Agent, kind: str) -> None:
    refuse(agent, kind, CALLS)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_thousand_refused_calls_stays(agent: Agent, kind: str) -> None:
    refuse(agent, kind, SOAK_CALLS)


@pytest.mark.alone
def test_as_many_calls_as_a_client_may_have_reset_no_stream(agent: Agent) -> None:
    """gRPC counts a call until the source has dropped it, a little after it was answered."""
    with channel(agent.port, agent.folder / "mart") as over:
        client = Refused(over, agent)
        found: set[str] = set()

        def ask(number: int) -> None:
            for _ in range(25):
                is_stream = number < EXCHANGE_RPCS_PER_CLIENT_MAX
                found.add(
                    client.exchanged(opening(RECIPE, relation="x"))
                    if is_stream
                    else client.described(relation="x")
                )

        asking = [threading.Thread(target=ask, args=(n,)) for n in range(14)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    assert found <= {"NOT_FOUND", "NOT_NOW"}


def test_streams_beyond_those_of_a_client_are_refused_and_dropped(agent: Agent) -> None:
    with channel(agent.port, agent.folder / "mart") as over:
        client = Refused(over, agent)
        for _ in range(5):
            assert client.many() == "NOT_NOW"
        assert client.described(relation="x") == "NOT_FOUND"


@pytest.mark.alone
def test_a_message_of_many_parts_takes_little_memory(agent: Agent) -> None:
    """4 MB of a `oneof` that changes with every field took 217 MB in each place of a client."""
    changes = (b"\x0a\x00\x12\x00" * (1 << 20))[: 3 << 20]
    assert len(changes) > COUNTED_BYTES_MIN
    assert len(changes) // 2 > MESSAGE_PARTS_MAX
    with channel(agent.port, agent.folder / "mart") as over:
        client = Refused(over, agent)
        client.unreadable_stream(changes)
        peak = Path(f"/proc/{agent.pid}/clear_refs")
        peak.write_text("5")  # VmHWM begins anew
        before = agent.resident_bytes
        for _ in range(3):
            assert client.unreadable_stream(changes) == "MALFORMED"
        status = Path(f"/proc/{agent.pid}/status").read_text()
        highest = int(status.partition("VmHWM:")[2].split()[0]) << 10
    assert highest - before < GROWTH_BYTES_MAX


def test_watches_take_the_places_of_their_own_client_alone(agent: Agent) -> None:
    """Over connections of their own: each is a call that stays as long as its client likes."""
    request = health_pb2.HealthCheckRequest().SerializeToString()
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(3 * WATCH_RPCS_PER_CLIENT_MAX):
            over = stack.enter_context(channel(agent.port, agent.folder / "mart"))
            calls.append(over.unary_stream(WATCH, *RAW)(request, timeout=60))
            stack.callback(calls[-1].cancel)
        states = [_first(call) for call in calls]
        assert states.count("SERVING") == WATCH_RPCS_PER_CLIENT_MAX, states
        assert states.count("NOT_NOW") == 2 * WATCH_RPCS_PER_CLIENT_MAX, states
        with channel(agent.port, agent.folder / "lake") as over:
            stub = health_pb2_grpc.HealthStub(over)
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1
