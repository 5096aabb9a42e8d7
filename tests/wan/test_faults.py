"""What the forwarder does to packets, without a network; then what TCP and TLS make of it."""

from __future__ import annotations

import hashlib
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.wan import link as wan
from tests.wan.link import Faults

PACKETS = 4000
DIGEST = """
import hashlib, socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
peer, _ = server.accept()
found = hashlib.sha256()
while data := peer.recv(1 << 16):
    found.update(data)
print(found.hexdigest(), flush=True)
"""
SEND = """
import random, socket, sys
peer = socket.create_connection((sys.argv[1], 5000))
peer.sendall(random.Random(1).randbytes(int(sys.argv[2])))
"""


def packet(payload: bytes, number: int = 0) -> bytes:
    """An IPv4 packet of TCP, with a right checksum of TCP."""
    ends = socket.inet_aton("10.91.0.1") + socket.inet_aton("10.91.0.2")
    tcp = struct.pack("!HHIIBBHHH", 7, 8, number, 0, 5 << 4, 16, 99, 0, 0) + payload
    total = 40 + len(payload)
    header = struct.pack("!BBHHHBBH", 0x45, 0, total, 0, 0, 64, socket.IPPROTO_TCP, 0) + ends
    return header + tcp[:16] + struct.pack("!H", checksum(header + tcp)) + tcp[18:]


def checksum(found: bytes) -> int:
    """The checksum of TCP (RFC 9293) of a packet, one bit of carry after the other."""
    segment = found[20:36] + bytes(2) + found[38:]
    words = found[12:20] + struct.pack("!HH", 6, len(segment)) + segment
    total = 0
    for first, second in zip(words[::2], (words + b"\0")[1::2], strict=False):
        total += first << 8 | second
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Forwarder:
    """One direction between two sockets, whose clock is moved by hand."""

    def __init__(self, faults: Faults, way: str = wan.TO_SOURCE, *, delay_s: float = 0.0) -> None:
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        self._ends = [*socket.socketpair(socket.AF_UNIX, kind)]
        self._ends += socket.socketpair(socket.AF_UNIX, kind)
        sender, receiver = self._ends[1], self._ends[2]
        self.counters = memoryview(bytearray(40)).cast("Q")
        self.way = wan._Direction(way, sender.fileno(), receiver.fileno(), self.counters, 0)
        self.way.shape(delay_s, 0.0, faults, 0.0)

    def carry(self, *packets: bytes, now: float = 0.0) -> list[bytes]:
        """Return what arrives until long after `now`, in its order."""
        found: list[bytes] = []
        for one in packets:
            self._ends[0].send(one)
            self.way.pull(now)
            self.way.push(now)
            found += self._arrived()
        self.way.push(now + 1e6)
        return [*found, *self._arrived()]

    def _arrived(self) -> Iterator[bytes]:
        while True:
            try:
                yield self._ends[3].recv(2000)
            except BlockingIOError:
                return

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end.close()


def carried(faults: Faults, way: str = wan.TO_SOURCE) -> list[bytes]:
    with Forwarder(faults, way) as forwarder:
        return forwarder.carry(*(packet(b"x" * 40, number) for number in range(PACKETS)))


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_the_share_of_packets_is_the_one_asked_for(share: float) -> None:
    near = pytest.approx(share, rel=0.3)
    assert 1 - len(carried(Faults(loss=share))) / PACKETS == near
    assert len(carried(Faults(duplicate=share))) / PACKETS - 1 == near
    whole = {packet(b"x" * 40, number) for number in range(PACKETS)}
    assert sum(one not in whole for one in carried(Faults(corrupt=share))) / PACKETS == near


def test_a_seed_replays() -> None:
    faults = Faults(loss=0.1, duplicate=0.1, corrupt=0.1, seed=3)
    assert carried(faults) == carried(faults)
    assert carried(faults) != carried(Faults(loss=0.1, duplicate=0.1, corrupt=0.1, seed=4))
    assert carried(faults) != carried(faults, wan.TO_WAREHOUSE), "each way has its own"


def test_a_reordered_packet_comes_later_and_none_is_lost() -> None:
    packets = [packet(b"x", number) for number in range(100)]
    with Forwarder(Faults(reorder=0.2, seed=1), delay_s=0.05) as forwarder:
        found = forwarder.carry(*packets)
    assert found != packets
    assert sorted(found) == sorted(packets)
    with Forwarder(wan.NO_FAULTS, delay_s=0.05) as forwarder:
        assert forwarder.carry(*packets) == packets


def test_a_damaged_packet_has_another_payload_and_a_right_checksum() -> None:
    generator = random.Random(2)
    for number in range(200):
        whole = packet(generator.randbytes(generator.randrange(1, 60)), number)
        assert int.from_bytes(whole[36:38]) == checksum(whole)
        with Forwarder(Faults(corrupt=1.0, seed=number)) as forwarder:
            (found,) = forwarder.carry(whole)
        assert found[:36] == whole[:36]
        bits = int.from_bytes(found[38:]) ^ int.from_bytes(whole[38:])
        assert bits.bit_count() == 1
        assert int.from_bytes(found[36:38]) == checksum(found)
    bare = packet(b"")
    with Forwarder(Faults(corrupt=1.0)) as forwarder:
        assert forwarder.carry(bare) == [bare], "it has no payload"


def test_a_flapping_line_is_up_and_down_by_turns() -> None:
    with Forwarder(Faults(up_s=3.0, down_s=1.0)) as forwarder:
        for now, is_up in ((0.0, True), (2.9, True), (3.1, False), (4.1, True), (7.5, False)):
            assert bool(forwarder.carry(packet(b"x"), now=now)) == is_up, now
        assert forwarder.counters[4] == 2


def test_one_way_can_be_cut() -> None:
    with Forwarder(wan.NO_FAULTS) as to_source, ExitStack() as stack:
        to_warehouse = stack.enter_context(Forwarder(wan.NO_FAULTS, wan.TO_WAREHOUSE))
        read, write = socket.socketpair()
        stack.enter_context(read)
        stack.enter_context(write)
        both = (to_source.way, to_warehouse.way)
        for line, cut in (
            ("cut to_warehouse", (False, True)),
            ("heal", (False, False)),
            ("cut both", (True, True)),
            ("heal", (False, False)),
            ("cut to_source", (True, False)),
        ):
            wan._obey(line, both, write.fileno())
            assert read.recv(9) == b"ok\n"
            assert tuple(way.is_cut for way in both) == cut


@pytest.mark.wan
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("wan_available")
def test_tcp_mends_all_but_damage() -> None:
    """Damage passes TCP's checksum and arrives: what TLS is needed for."""
    data = random.Random(1).randbytes(300_000)
    for faults, is_whole in (
        (Faults(loss=0.01, duplicate=0.02, reorder=0.05, seed=1), True),
        (Faults(corrupt=0.05, seed=1), False),
    ):
        with (
            wan.Link(rtt_ms=10, rate_mbit=50, faults=faults) as link,
            link.popen_warehouse(
                [sys.executable, "-S", "-c", DIGEST, wan.WAREHOUSE_ADDRESS], stdout=subprocess.PIPE
            ) as sink,
        ):
            assert sink.stdout is not None
            assert sink.stdout.readline() == b"listening\n"
            sent = link.popen_source(
                [sys.executable, "-S", "-c", SEND, wan.WAREHOUSE_ADDRESS, str(len(data))]
            )
            found = sink.stdout.readline().decode().strip()
            assert sent.wait() == 0
        assert (found == hashlib.sha256(data).hexdigest()) == is_whole
