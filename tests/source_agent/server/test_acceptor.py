"""The agent's port under connections that prove nothing: idle ones, and handshakes left half done.

Over real TLS, against `driftline-source serve` in a process of its own, on loopback. Its memory and
its exit are the process's; how long a good client waits is measured with a channel of its own.
"""

from __future__ import annotations

import contextlib
import resource
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.wire_pb2_grpc import SourceStub

from source_agent.enrolment import enroll
from source_agent.server.acceptor import Acceptor
from source_agent.server.admission import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_CLIENT_MAX,
    FIRST_BYTES_S,
    PENDING_MAX,
    PENDING_PER_ADDRESS_MAX,
    Connection,
    ConnectionTable,
    has_begun,
    origin_of,
)
from tests.harness.agents import configuration, make_orders
from tests.harness.pair import SourceProcess

GOOD_S_MAX = 1.0
GROWTH_BYTES_MAX = 32 << 20
DESCRIPTORS = 1024  # of the agent: what a process has unless somebody gave it more


def hello() -> bytes:
    """A whole ClientHello, as the standard library makes it."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    reads, writes = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(reads, writes, server_hostname="localhost").do_handshake()
    return writes.read()


@dataclass
class Target:
    """A running agent, two sets of certificates that it may use, and a client of the first."""

    process: SourceProcess
    own: Path
    sets: tuple[Path, Path]
    authorities: bytes

    def rotate(self, number: int) -> None:
        for name in ("source.pem", "source.key"):
            shutil.copy(self.sets[number % 2] / name, self.own / name)

    def good(self) -> float:
        """Seconds that a client with a certificate waits for its first answer."""
        began = time.monotonic()
        pair = [(self.sets[0] / name).read_bytes() for name in ("warehouse.key", "warehouse.pem")]
        credentials = grpc.ssl_channel_credentials(self.authorities, *pair)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(self.process.address, credentials, options) as over:
            SourceStub(over).Describe(pb.DescribeRequest(protocol=1), timeout=10)
        return time.monotonic() - began

    def resident_bytes(self) -> int:
        assert self.process.process.poll() is None, "the agent is gone"
        status = Path(f"/proc/{self.process.process.pid}/status").read_text()
        return int(dict(x.split(":") for x in status.splitlines())["VmRSS"].split()[0]) << 10

    @contextmanager
    def connections(self, count: int, *first: bytes) -> Iterator[list[socket.socket]]:
        """So many, which say one of `first` and no more. The agent may close them at any time."""
        host, _, port = self.process.address.rpartition(":")
        with ExitStack() as stack:
            opened = []
            for _ in range(count):
                opened.append(stack.enter_context(socket.create_connection((host, int(port)), 10)))
                with contextlib.suppress(ConnectionError):
                    opened[-1].sendall(first[len(opened) % len(first)])
            yield opened


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    sets = tmp_path / "a", tmp_path / "b"
    for folder in sets:
        enroll(folder, source_names=["127.0.0.1"], warehouse_name="lake")
    own = tmp_path / "own"
    shutil.copytree(sets[0], own)
    authorities = b"".join((folder / "ca.pem").read_bytes() for folder in sets)
    (own / "ca.pem").write_bytes(authorities)
    make_orders(tmp_path / "erp.db", [(1, "one")])
    config = configuration(tmp_path, tmp_path / "erp.db", certs=own)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with SourceProcess(config.path) as process:
        resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, limits[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        try:
            yield Target(process, own, sets, authorities)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def storm(target: Target, count: int, rounds: int, first: tuple[bytes, ...]) -> None:
    """`rounds` times `count` connections, which say one of `first` each, while certificates are
    replaced and a good client calls again and again."""
    target.rotate(1)
    waits = [target.good() for _ in range(5)]
    before, grown = target.resident_bytes(), 0
    for number in range(rounds):
        with target.connections(count, *first) as opened:
            ends_at = time.monotonic() + FIRST_BYTES_S + 2
            while time.monotonic() < ends_at:
                target.rotate(number)
                waits.append(target.good())
                grown = max(grown, target.resident_bytes() - before)
                opened[-1].settimeout(0.3)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    opened[-1].recv(4096)
            for each in opened:  # nobody who proves nothing is kept
                each.settimeout(10)
                with contextlib.suppress(ConnectionError):
                    while each.recv(4096):
                        pass
    print(
        f"{count} connections x {rounds}, {[len(f) for f in first]} bytes: a good client waited "
        f"{max(waits):.3f} s at most, {len(waits)} times; growth {grown / 2**20:.1f} MiB"
    )
    assert max(waits) < GOOD_S_MAX
    assert grown < GROWTH_BYTES_MAX


@pytest.mark.alone
def test_connections_that_prove_nothing_harm_nobody(target: Target) -> None:
    """1,000 silent ones ended the agent with SIGABRT, 5 s later."""
    storm(target, 1000, 1, (b"", hello()[:100], hello()))


@pytest.mark.soak
@pytest.mark.parametrize("says", ["nothing", "hello"])
@pytest.mark.parametrize("count", [1000, 4000])
def test_storms_of_connections(target: Target, count: int, says: str) -> None:
    storm(target, count, 20, (hello() if says == "hello" else b"",))


# What is decided without I/O.


def arrive(admission: ConnectionTable, origin: str, *, spoken: bool = False) -> Connection:
    connection = Connection(origin, 0.0)
    assert admission.arrive(connection) is None
    connection.has_spoken = spoken
    return connection


def test_a_newcomer_is_taken_in_and_a_silent_one_gives_way() -> None:
    admission = ConnectionTable()
    quick = arrive(admission, "a", spoken=True)
    silent = [arrive(admission, "a") for _ in range(PENDING_PER_ADDRESS_MAX - 1)]
    newcomer = Connection("a", 1.0)
    assert admission.arrive(newcomer) is silent[0], "the oldest that has said nothing"
    assert admission.arrive(Connection("b", 1.0)) is None, "another address has places of its own"
    for each in [*silent[1:], newcomer]:
        each.has_spoken = True
    assert admission.arrive(Connection("a", 2.0)) is quick, "all have spoken: the oldest"


def test_who_has_spoken_is_heard_before_silent_ones_take_its_place() -> None:
    """All wait to be accepted; its first bytes are there, and theirs will never be."""
    name = f"driftline-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as backend, ExitStack() as stack:
        backend.bind("\0" + name)
        backend.listen()
        backend.settimeout(20)
        acceptor = Acceptor("127.0.0.1", 0, is_tls=True, backend=lambda: name)
        said = hello()
        for number in range(PENDING_PER_ADDRESS_MAX + 30):
            made = socket.create_connection(("127.0.0.1", acceptor.port), 20)
            stack.enter_context(made)
            if number == 0:
                made.sendall(said)
        acceptor.start()
        stack.callback(acceptor.close)
        relayed, _ = backend.accept()
        with relayed:
            relayed.settimeout(20)
            assert relayed.recv(len(said), socket.MSG_WAITALL) == said


def test_the_address_with_the_most_gives_way() -> None:
    admission = ConnectionTable()
    first = arrive(admission, "good")
    greedy = [arrive(admission, "bad") for _ in range(PENDING_PER_ADDRESS_MAX)]
    others = PENDING_MAX - PENDING_PER_ADDRESS_MAX - 1
    for number in range(others):
        arrive(admission, f"other {number}")
    assert admission.arrive(Connection("new", 1.0)) is greedy[0]
    admission.leave(greedy[1])
    assert admission.arrive(Connection("new", 1.0)) is None
    assert admission.silent(FIRST_BYTES_S)[0] is first
    assert admission.silent(FIRST_BYTES_S - 0.1) == []


def test_who_is_known_gives_way_to_nobody() -> None:
    admission = ConnectionTable()
    known = []
    for number in range(CONNECTIONS_MAX // CONNECTIONS_PER_CLIENT_MAX):
        for _ in range(CONNECTIONS_PER_CLIENT_MAX):
            known.append(arrive(admission, "a"))
            admission.establish(known[-1], f"client {number}")
    newcomer = Connection("b", 1.0)
    assert admission.arrive(newcomer) is newcomer, "there is no place that anybody could give up"
    admission.leave(known[0])
    late = arrive(admission, "b")
    assert admission.count == CONNECTIONS_MAX
    assert admission.arrive(Connection("b", 1.0)) is late
    for connection in known:
        admission.leave(connection)
        admission.leave(connection)
    assert admission.count == 1


def test_one_client_has_a_number_of_connections() -> None:
    admission = ConnectionTable()
    opened = [arrive(admission, "a") for _ in range(CONNECTIONS_PER_CLIENT_MAX + 1)]
    for connection in opened:
        admission.establish(connection, "lake")
    assert admission.shed() is opened[-1], "the one above its number is as good as unknown"
    assert admission.shed() is None
    # A place that is left is free again.
    admission.leave(opened[0])
    again = arrive(admission, "a")
    admission.establish(again, "lake")
    assert admission.shed() is None
    assert again.client == "lake"


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        (b"", False),
        (b"\x16\x03", False),
        (b"\x16\x03\x01\x00\x02\x01", False),
        (b"\x16\x03\x01\x00\x02\x01\x00", True),
        (b"\x16\x03\x01\x00\x00", None),  # an empty record
        (b"\x16\x03\x01\x40\x01", None),  # longer than a record may be
        (b"\x16\x03\x01\x00\x02\x02", None),  # a ServerHello
        (b"GET / HTTP/1.1\r\n", None),
        (b"\x17\x03", None),
    ],
)
def test_what_begins_a_handshake(said: bytes, whole: bool | None) -> None:
    assert has_begun(bytearray(said), is_tls=True) is whole


def test_what_begins_plain_text() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for length in range(len(preface)):
        assert has_begun(bytearray(preface[:length]), is_tls=False) is False
    assert has_begun(bytearray(preface + b"more"), is_tls=False) is True
    assert has_begun(bytearray(b"GET /"), is_tls=False) is None
    assert has_begun(bytearray(hello()), is_tls=False) is None
    assert has_begun(bytearray(hello()), is_tls=True) is True


def test_the_unit_in_which_addresses_are_counted() -> None:
    assert origin_of("192.0.2.7") == "192.0.2.7"
    assert origin_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert origin_of("2001:db8::1") == origin_of("2001:db8::ffff") == "2001:db8::/64"
    assert origin_of("fe80::1%eth0") == "fe80::/64"
