"""What one client can take from the others: streams, places for scans, descriptions.

Over real mutual TLS, with two certificates of two authorities. The one who is refused speaks with
the warehouse's own `SourceChannel`, which must find the refusal worth another try.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline import wire_pb2_grpc
from driftline.errors import DriftlineError, LimitExceeded, NotNow
from driftline.limits import (
    DESCRIBE_RPCS_PER_CLIENT_MAX,
    EXCHANGE_RPCS_PER_CLIENT_MAX,
    RECEIVE_BYTES_MAX_WAREHOUSE,
)
from driftline.rows.digests import Digest

from source_agent.budgets import audit_limit, places
from source_agent.budgets.budget import Governor
from source_agent.budgets.places import Places
from source_agent.config.file import load
from source_agent.enrolment import enroll
from source_agent.server import conversation, service
from source_agent.server.service import Server, start
from tests.harness.agents import Peer, Recorded, channel, configuration, make_orders, opening
from tests.harness.servers import PostgreSQL
from tests.source_agent.server.test_service import RECIPE, ROWS, independent_total
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel
from warehouse_agent.transport.reply_validation import refusal

pytestmark = pytest.mark.slow  # waits for deadlines

LAKE, MART = "spiffe://driftline/warehouse/lake", "spiffe://driftline/warehouse/mart"


@dataclass
class Shared:
    """A running agent, and the certificates of two clients of it."""

    server: Server
    engine: Recorded
    lake: Path
    mart: Path

    def link(self, certs: Path) -> SourceChannel:
        address = f"127.0.0.1:{self.server.port}"
        ca, certificate, key = (certs / f for f in ("ca.pem", "warehouse.pem", "warehouse.key"))
        return SourceChannel(Source("erp", address, ca=ca, certificate=certificate, key=key))

    def audit(self) -> list[tuple[str, str, str]]:
        """Client, relation and outcome of each line; all are written once it is stopped."""
        self.server.stop()
        lines = (self.lake.parent / "audit.jsonl").read_text().splitlines()
        return [(x["client"], x["relation"], x["outcome"]) for x in map(json.loads, lines)]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lake` and `mart` in a folder: the certificates of each, and the one source's."""
    folder = tmp_path_factory.mktemp("sets")
    for name in ("lake", "mart"):
        enroll(folder / name, source_names=["127.0.0.1"], warehouse_name=name)
    own = folder / "own"
    shutil.copytree(folder / "lake", own)
    both = b"".join((folder / name / "ca.pem").read_bytes() for name in ("lake", "mart"))
    (own / "ca.pem").write_bytes(both)
    shutil.copy(own / "ca.pem", folder / "mart" / "ca.pem")  # the source's is lake's
    return folder


Begin = Callable[..., Shared]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def running(tmp_path: Path, sets: Path) -> Iterator[Begin]:
    for name in ("lake", "mart", "own"):
        shutil.copytree(sets / name, tmp_path / name)
    make_orders(tmp_path / "erp.db", ROWS)
    with ExitStack() as stack:

        def begin(more: str = "", *, url: str = "", slot_wait_s: float = 10.0) -> Shared:
            config = configuration(tmp_path, tmp_path / "erp.db", certs=tmp_path / "own", more=more)
            if url:
                text = config.path.read_text().replace(config.database.url, url)
                text = text.replace("[database]\n", "[database]\nlock_timeout_s = 60\n")
                config.path.write_text(text)
                config = load(config.path)
            engine = Recorded(config)
            governor = Governor(config.budget, slot_wait_s=slot_wait_s)
            server = start(config, engine=engine, governor=governor, heartbeat_s=0.05)
            stack.callback(server.stop)
            return Shared(server, engine, tmp_path / "lake", tmp_path / "mart")

        yield begin


@contextmanager
def silent(shared: Shared, certs: Path, count: int) -> Iterator[list[Peer]]:
    """Streams over connections of their own that say nothing after a name that is not published:
    its refusal tells that they are there."""
    with ExitStack() as stack:
        peers = []
        for _ in range(count):
            over = stack.enter_context(channel(shared.server.port, certs))
            peers.append(stack.enter_context(Peer(over)))
            peers[-1].send(opening(RECIPE, relation="nothing"))
            assert peers[-1].reply().refused.code == "NOT_FOUND"
        yield peers


def refused(shared: Shared, certs: Path) -> DriftlineError:
    """What a warehouse makes of it that its exchange is refused, by whichever way."""
    with shared.link(certs) as link, link.stream() as stream:
        try:
            stream.send(opening(RECIPE))
            while (reply := stream.receive()).WhichOneof("message") == "progress":
                pass
            return refusal(reply.refused)
        except DriftlineError as error:
            return error
        finally:
            stream.abandon()


def equal(shared: Shared, certs: Path) -> None:
    """An exchange that finds nothing to do."""
    with shared.link(certs) as link, link.stream() as stream:
        stream.send(opening(RECIPE, ours=independent_total(ROWS)))
        while (reply := stream.receive()).WhichOneof("message") == "progress":
            pass
        assert reply.finished.equal


def test_silent_streams_take_the_places_of_their_own_client_alone(running: Begin) -> None:
    """Eight of anybody's shut everybody out for two minutes, with LIMIT."""
    shared = running()
    with silent(shared, shared.mart, EXCHANGE_RPCS_PER_CLIENT_MAX):
        equal(shared, shared.lake)
        error = refused(shared, shared.mart)
        assert (error.code, error.exit_code, error.is_retryable) == ("NOT_NOW", 75, True)
        with shared.link(shared.mart) as link:  # its other calls have places of their own
            assert list(link.describe("").relations) == ["orders"]
    found = shared.audit()
    assert (LAKE, "orders", "equal") in found
    assert (MART, "", "NOT_NOW") in found


def test_a_stream_says_soon_what_it_wants(running: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "OPEN_S", 0.3)
    shared = running()
    with silent(shared, shared.mart, 1) as (peer,):
        assert peer.reply().refused.code == "LIMIT"
        with pytest.raises(AssertionError, match="ended"):
            peer.reply()
    assert shared.engine.opened == 0
    assert (MART, "", "LIMIT") in shared.audit()


def test_a_place_for_a_scan_is_not_held_by_silence(
    running: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "WAITED_S_MAX", 0.3)
    shared = running("[limits]\nscans_at_once = 1\n")
    with channel(shared.server.port, shared.mart) as over, Peer(over) as holder:
        holder.send(opening(RECIPE, ours=Digest(1, 1)))
        assert holder.reply().WhichOneof("message") == "verdict"
        equal(shared, shared.lake)
        ended = holder.reply().refused
        assert ended.code == "NOT_NOW"
        assert "another client waits" in ended.message
    assert (MART, "orders", "NOT_NOW") in shared.audit()


def test_a_place_for_a_scan_is_not_held_by_who_takes_nothing(
    running: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "WAITED_S_MAX", 0.3)
    shared = running("[limits]\nscans_at_once = 1\n")
    _many(shared)
    with channel(shared.server.port, shared.mart) as over, Peer(over) as holder:
        holder.send(opening(RECIPE))
        while not shared.engine.opened:
            holder.reply(progress=True)
        with shared.link(shared.lake) as link, link.stream() as stream:
            stream.send(opening(RECIPE, ours=Digest(1, 1)))
            while stream.receive().WhichOneof("message") == "progress":
                pass
            stream.abandon()
    assert (MART, "orders", "NOT_NOW") in shared.audit()


def _many(shared: Shared) -> None:
    """Make `orders` larger than what lies between a source and a client that takes nothing."""
    noise = random.Random(7)
    with sqlite3.connect(shared.lake.parent / "erp.db") as writer:
        many = ((n, noise.randbytes(2_000).hex()) for n in range(1000, 21_000))
        writer.executemany("INSERT INTO orders VALUES (?, ?)", many)
    writer.close()


def _slowly(peer: Peer, ended: dict[Peer, str], is_over: threading.Event) -> None:
    """Take a reply now and then: a sign of life each time."""
    while not is_over.wait(0.4):
        reply = peer.reply(progress=True)
        if (kind := reply.WhichOneof("message")) in ("finished", "refused"):
            ended[peer] = reply.refused.code or str(kind)
            return


@pytest.mark.parametrize("at_once", [1, 2])
def test_places_are_not_held_by_signs_of_life(
    running: Begin, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Two streams that each took a reply every 12 s held both places for good."""
    monkeypatch.setattr(places, "WAITED_S_MAX", 0.5)
    monkeypatch.setattr(places, "WAITED_BESIDE_S_MAX", 0.5)
    shared = running(f"[limits]\nscans_at_once = {at_once}\n")
    _many(shared)
    ended: dict[Peer, str] = {}
    is_over = threading.Event()
    small = (("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0))
    with channel(shared.server.port, shared.mart, small) as over, ExitStack() as stack:
        holders = [stack.enter_context(Peer(over)) for _ in range(at_once)]
        for holder in holders:
            holder.send(opening(RECIPE))
            while holder.reply(progress=True).WhichOneof("message") != "rows":
                pass
        taking = [threading.Thread(target=_slowly, args=(h, ended, is_over)) for h in holders]
        for thread in taking:
            thread.start()
        with shared.link(shared.lake) as link, link.stream() as stream:
            stream.send(opening(RECIPE, ours=Digest(1, 1)))
            while stream.receive().WhichOneof("message") == "progress":
                pass
            stream.abandon()
        until(lambda: bool(ended) or not any(thread.is_alive() for thread in taking))
        is_over.set()
        for thread in taking:
            thread.join()
        assert [*ended.values()] == ["NOT_NOW"], "one place was wanted, and one was given up"
    found = shared.audit()
    assert found.count((MART, "orders", "NOT_NOW")) == 1


def test_a_scan_that_advances_keeps_its_place(
    running: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "WAITED_S_MAX", 0.3)
    rate = len(ROWS) // 2
    shared = running(f"[limits]\nscans_at_once = 1\nrows_per_second = {rate}\n", slot_wait_s=0.5)
    with channel(shared.server.port, shared.mart) as over, Peer(over) as holder:
        holder.send(opening(RECIPE, ours=independent_total(ROWS)))
        while not shared.engine.opened:
            holder.reply(progress=True)
        assert refused(shared, shared.lake).code == "NOT_NOW"
        assert holder.reply().finished.equal


def test_one_client_has_as_many_sessions_as_scans(running: Begin) -> None:
    """Streams keep theirs between relations, silent ones too: the login has four connections."""
    shared = running("[limits]\nscans_at_once = 1\n", slot_wait_s=0.3)
    with channel(shared.server.port, shared.mart) as over, Peer(over) as holder:
        holder.send(opening(RECIPE, ours=independent_total(ROWS)))
        assert holder.reply().finished.equal
        assert refused(shared, shared.mart).code == "NOT_NOW"
        equal(shared, shared.lake)
        holder.send(opening(RECIPE, ours=independent_total(ROWS)))
        assert holder.reply().finished.equal
    equal(shared, shared.mart)
    assert shared.engine.opened == 3


def test_silence_is_borne_while_nobody_else_waits(
    running: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "WAITED_S_MAX", 0.0)
    shared = running("[limits]\nscans_at_once = 1\n", slot_wait_s=0.5)
    with channel(shared.server.port, shared.mart) as over, Peer(over) as holder:
        holder.send(opening(RECIPE, ours=Digest(1, 1)))
        assert holder.reply().WhichOneof("message") == "verdict"
        assert refused(shared, shared.mart).code == "NOT_NOW", "its own next one is no other"
        holder.send(pb.Request(whole=pb.Whole()))
        assert holder.until("finished")


# The audit.


def test_a_flood_of_refusals_is_counted(running: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four streams of refused openings wrote 4 to 17 GB an hour."""
    monkeypatch.setattr(audit_limit, "RATION_BYTES", 20_000)
    shared = running()
    with channel(shared.server.port, shared.mart) as over, Peer(over) as flood:
        for _ in range(300):
            flood.send(opening(RECIPE, relation="nothing"))
            assert flood.reply().refused.code == "NOT_FOUND"
        equal(shared, shared.lake)
        equal(shared, shared.mart)
    found = shared.audit()
    refused = found.count((MART, "nothing", "NOT_FOUND"))
    assert found.count((LAKE, "orders", "equal")) == found.count((MART, "orders", "equal")) == 1
    file = shared.lake.parent / "audit.jsonl"
    assert file.stat().st_size < 25_000
    counts = [json.loads(line).get("lines", 0) for line in file.read_text().splitlines()]
    assert 0 < refused < 300
    assert refused + sum(counts) == 300


# Describe.


def test_a_description_leaves_a_line(running: Begin) -> None:
    shared = running()
    with shared.link(shared.lake) as link:
        link.describe("")
        link.describe("orders")
        with pytest.raises(DriftlineError):
            link.describe("nothing")
    assert shared.audit() == [
        (LAKE, "", "described"),
        (LAKE, "orders", "described"),
        (LAKE, "nothing", "NOT_FOUND"),
    ]


@pytest.fixture
def locked(postgresql: PostgreSQL) -> Iterator[tuple[str, threading.Event]]:
    """A URL whose `orders` nobody can describe until the event is set: it is locked."""
    database = postgresql.create_database("described")
    with postgresql.superuser(database) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id bigint PRIMARY KEY, comment text)")
        cursor.execute("BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        released = threading.Event()
        watching = threading.Thread(target=lambda: released.wait() and cursor.execute("ROLLBACK"))
        watching.start()
        yield postgresql.url("postgres", database), released
        released.set()
        watching.join()
    postgresql.drop_database(database)


@pytest.mark.postgresql
def test_descriptions_are_bounded_for_each_client(
    running: Begin, locked: tuple[str, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DESCRIBE_WAIT_S", 0.2)
    url, released = locked
    shared = running(url=url)

    def ask(certs: Path) -> str:
        with shared.link(certs) as link:
            try:
                return link.describe("orders").relations[0]
            except DriftlineError as error:
                return error.code

    with ThreadPoolExecutor(8) as pool:
        marts = [pool.submit(ask, shared.mart) for _ in range(DESCRIBE_RPCS_PER_CLIENT_MAX + 2)]
        first = list(itertools.islice(as_completed(marts), len(marts) - 1))
        assert [future.result() for future in first] == ["NOT_NOW"] * (len(marts) - 1)
        lake = pool.submit(ask, shared.lake)
        while shared.engine.opened < 2:  # it asks the database, beside the other one
            assert not lake.done(), lake.result()
        released.set()
        assert lake.result() == "orders"
        assert [future.result() for future in marts].count("orders") == 1


@pytest.mark.postgresql
def test_a_description_takes_its_time_and_no_more(
    running: Begin, locked: tuple[str, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CONTROL_S", 0.5)
    shared = running(url=locked[0])
    with shared.link(shared.lake) as link, pytest.raises(DriftlineError) as caught:
        link.describe("orders")
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert "0.5 s" in caught.value.message
    assert shared.engine.closed.acquire(timeout=5)


@pytest.mark.postgresql
def test_a_description_ends_when_its_client_leaves(
    running: Begin, locked: tuple[str, threading.Event]
) -> None:
    shared = running(url=locked[0])
    with channel(shared.server.port, shared.lake) as over:
        stub = wire_pb2_grpc.SourceStub(over)
        with pytest.raises(grpc.RpcError):
            stub.Describe(pb.DescribeRequest(protocol=1, relation="orders"), timeout=0.5)
    assert shared.engine.closed.acquire(timeout=5)


# What gRPC itself refuses, of an agent of before, or of a proxy.


class Stuck(wire_pb2_grpc.SourceServicer):
    """Answers with more than anybody takes, when it is allowed to."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def Describe(self, request: pb.DescribeRequest, context: object) -> pb.DescribeReply:
        self.entered.set()
        self.leave.wait(20)
        return pb.DescribeReply(agent="x" * (RECEIVE_BYTES_MAX_WAREHOUSE + 1))


def test_a_refusal_by_grpc_is_busy_or_a_limit() -> None:
    stuck = Stuck()
    server = grpc.server(ThreadPoolExecutor(2), maximum_concurrent_rpcs=1)
    wire_pb2_grpc.add_SourceServicer_to_server(stuck, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        source = Source("erp", address, insecure=True)
        with (
            ThreadPoolExecutor(1) as pool,
            SourceChannel(source) as link,
            SourceChannel(source) as other,
        ):
            first = pool.submit(link.describe, "")
            assert stuck.entered.wait(10)
            with pytest.raises(NotNow, match="taken"):
                other.describe("")
            stuck.leave.set()
            with pytest.raises(LimitExceeded):
                first.result()
    finally:
        server.stop(0)


# The places themselves.


def test_places_of_one_client_and_of_all() -> None:
    held = Places(lambda: 2, lambda: NotNow("no place"), of_one=lambda: 1)
    with held.taken("a"):
        with pytest.raises(NotNow), held.taken("a"):
            pass
        with held.taken("b"), pytest.raises(NotNow), held.taken("c"):
            pass
        with held.taken("c") as place:
            assert not place.is_wanted(1e9)


@dataclass
class Waiters:
    """Clients that wait for a place in threads of their own, and hold it until `leave`."""

    places: Places
    stack: ExitStack
    got: queue.SimpleQueue[str]
    leave: threading.Event

    def add(self, client: str) -> None:
        waits = threading.Event()

        def check() -> None:
            waits.set()
            if self.leave.is_set():
                raise NotNow("the test is over")

        def wait() -> None:
            with suppress(NotNow), self.places.taken(client, wait_s=20, check=check):
                self.got.put(client)
                self.leave.wait(20)

        thread = threading.Thread(target=wait)
        thread.start()
        self.stack.callback(thread.join)
        assert waits.wait(5)


@contextmanager
def waiters(held: Places) -> Iterator[Waiters]:
    with ExitStack() as stack:
        leave = threading.Event()
        stack.callback(leave.set)
        yield Waiters(held, stack.enter_context(ExitStack()), queue.SimpleQueue(), leave)
        leave.set()


LITTLE, MUCH = places.WAITED_BESIDE_S_MAX, places.WAITED_S_MAX


def test_a_place_is_given_up_for_a_client_that_holds_fewer() -> None:
    held = Places(lambda: 2, lambda: NotNow("no place"))
    with ExitStack() as stack, waiters(held) as waiting:
        one, other = (stack.enter_context(held.taken("a")) for _ in range(2))
        assert not one.is_wanted(MUCH), "nobody waits"
        waiting.add("a")
        assert not one.is_wanted(MUCH), "its own next one waits"
        waiting.add("b")
        assert not one.is_wanted(LITTLE - 1)
        assert one.is_wanted(LITTLE)
        assert one.is_wanted(0), "it stays given up"
        assert not other.is_wanted(MUCH), "there is a place for who waits"
        waiting.add("c")
        assert not other.is_wanted(MUCH - 1)
        assert other.is_wanted(MUCH)
        stack.close()
        assert {waiting.got.get(timeout=5) for _ in range(2)} == {"a", "b"}
        assert one.is_wanted(0), "a place that was left counts no more"
        assert not held._given_up


def test_a_place_that_became_free_is_for_who_waits_before_it_has_noticed() -> None:
    """Between one holder's end and the waiting client's next look, a second place was given up."""
    held = Places(lambda: 2, lambda: NotNow("no place"))
    asked: list[bool] = []
    with ExitStack() as stack, waiters(held) as waiting:
        leaving = stack.enter_context(ExitStack())
        one = leaving.enter_context(held.taken("a"))
        other = stack.enter_context(held.taken("a"))
        waiting.add("b")
        assert one.is_wanted(MUCH)
        with held._changed:  # nobody can notice anything while this is held
            leaving.close()
            asked.append(other.is_wanted(MUCH))
        assert waiting.got.get(timeout=5) == "b"
    assert asked == [False]


def test_a_place_is_not_given_up_for_a_client_that_holds_as_many() -> None:
    held = Places(lambda: 2, lambda: NotNow("no place"))
    with held.taken("a") as one, held.taken("b") as other, waiters(held) as waiting:
        waiting.add("b")
        assert not one.is_wanted(MUCH)
        assert not other.is_wanted(MUCH)


def test_the_fewest_places_then_the_longest_wait_goes_first() -> None:
    held = Places(lambda: 2, lambda: NotNow("no place"))
    with waiters(held) as waiting, ExitStack() as stack:
        stack.enter_context(held.taken("a"))
        leaving = stack.enter_context(ExitStack())
        leaving.enter_context(held.taken("b"))
        for client in ("a", "c", "d"):
            waiting.add(client)
        leaving.close()
        assert waiting.got.get(timeout=5) == "c"
        with pytest.raises(queue.Empty):
            waiting.got.get(timeout=0.6)
        stack.close()
        assert waiting.got.get(timeout=5) == "a", "it holds none any more, and has waited longer"
