"""A simulated wide area link: two network namespaces and a process that carries packets between.

    source namespace                    forwarder                    warehouse namespace
    10.91.0.1 dl0 ── TUN ── read ─ serialise ─ delay ─ write ── TUN ── dl0 10.91.0.2

The forwarder owns both TUN devices (MTU 1500, no offload: a packet is what a link would carry) and
holds both namespaces open by descriptor, so they have no name, leave nothing behind and vanish with
the last process in them. It ends when its standard input does, which the kernel closes when the
parent dies, however it dies.

Invariants: without `Faults` a packet is carried unchanged or dropped, never re-ordered. It is
counted when it leaves the sender's device, so bytes that are dropped later count as sent, and so do
retransmissions.
Delay is one way (half of `rtt_ms`); at a given rate a packet waits for those before it, and one
that finds `QUEUE_PACKETS` full-sized packets or QUEUE_S_MAX waiting is dropped, as by a router.
`Faults` are drawn from a seeded generator for each direction, in the order of its packets: the same
seed and the same packets give the same faults. A damaged packet gets a right TCP checksum, as if
broken hardware had made it: otherwise the kernel drops it, which is a loss.

Works as root, else in a user namespace of its own. `available()` says why it does not. Needs
`nsenter` (util-linux) and /dev/net/tun; kernel packet schedulers are not used because kernels
without sch_netem exist. No pytest here: the benchmarks use it, too.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import gc
import heapq
import itertools
import mmap
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

SOURCE_ADDRESS = "10.91.0.1"
WAREHOUSE_ADDRESS = "10.91.0.2"
DEVICE = "dl0"
MTU_BYTES = 1500
QUEUE_PACKETS = 256  # before the link; 307 ms at 10 Mbit/s
QUEUE_S_MAX = 2.0  # shorter before a slower link, as where a router is made for one
FLIGHT_PACKETS_MAX = 65_536  # on the link; 100 MB, more than any delay here can hold
BATCH_PACKETS = 64  # read from one device before the other gets its turn
START_S_MAX = 10.0
REORDER_MS = 30.0  # by which a re-ordered packet is late

BOTH, TO_SOURCE, TO_WAREHOUSE = "both", "to_source", "to_warehouse"


@dataclass(frozen=True, slots=True)
class Faults:
    """What a bad line does to single packets, each way: shares from 0 to 1, and a seed.

    `up_s` and `down_s`: the line carries packets for so long, and then drops all for so long, over
    and over; 0: it is always up.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0
    seed: int = 0


NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True)
class Counters:
    """What has left the two devices since the link was made, headers included, from IP up."""

    to_source_bytes: int
    to_source_packets: int
    to_warehouse_bytes: int
    to_warehouse_packets: int
    dropped_packets: int

    def __sub__(self, before: Counters) -> Counters:
        return Counters(
            self.to_source_bytes - before.to_source_bytes,
            self.to_source_packets - before.to_source_packets,
            self.to_warehouse_bytes - before.to_warehouse_bytes,
            self.to_warehouse_packets - before.to_warehouse_packets,
            self.dropped_packets - before.dropped_packets,
        )


class LinkError(Exception):
    """The link cannot be made here, or its forwarder is gone."""


class Link:
    """Two namespaces and what lies between. A context manager.

    Args:
        rtt_ms: delay there and back, without serialisation.
        rate_mbit: 10^6 bits per second and direction; None is as fast as the forwarder can.
        faults: what it does to single packets.
    """

    def __init__(
        self, *, rtt_ms: float = 0, rate_mbit: float | None = None, faults: Faults = NO_FAULTS
    ) -> None:
        # Made by us so that the counters can be read while the forwarder works, or is gone.
        memory_fd = os.memfd_create("wan-counters")
        os.ftruncate(memory_fd, mmap.PAGESIZE)
        self._memory = mmap.mmap(memory_fd, mmap.PAGESIZE)
        try:
            self._forwarder = subprocess.Popen(
                [sys.executable, "-S", "-E", str(Path(__file__).resolve()), str(memory_fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(memory_fd,),
                start_new_session=True,  # Ctrl-C is the parent's business
            )
        finally:
            os.close(memory_fd)
        try:
            self.enter = self._started()
            self.shape(rtt_ms=rtt_ms, rate_mbit=rate_mbit, faults=faults)
        except BaseException:
            self.close()
            raise

    def _started(self) -> tuple[list[str], list[str]]:
        words = self._reply(START_S_MAX).split()
        if words[:1] != ["ready"]:
            raise LinkError(" ".join(words) or "the forwarder did not start")
        root = f"/proc/{self._forwarder.pid}"
        user = [] if words[3] == "0" else [f"--user={root}/ns/user", "--preserve-credentials"]
        source, warehouse = (["nsenter", *user, f"--net={root}/fd/{fd}", "--"] for fd in words[1:3])
        return source, warehouse

    def _reply(self, timeout_s: float) -> str:
        assert self._forwarder.stdout is not None
        readable, _, _ = select.select([self._forwarder.stdout], [], [], timeout_s)
        return self._forwarder.stdout.readline().decode().strip() if readable else ""

    def _command(self, line: str) -> None:
        assert self._forwarder.stdin is not None
        try:
            self._forwarder.stdin.write(line.encode() + b"\n")
            self._forwarder.stdin.flush()
        except (OSError, ValueError) as error:  # a broken pipe; a pipe that `close` has closed
            raise LinkError("the forwarder is gone") from error
        if self._reply(START_S_MAX) != "ok":
            raise LinkError(f"the forwarder did not answer to {line!r}")

    def popen_source(self, args: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process in the source's namespace; `options` are those of Popen. It is the
        caller's to end: `close` takes its network away, not its life."""
        return subprocess.Popen([*self.enter[0], *args], **options)

    def popen_warehouse(self, args: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """The same in the warehouse's namespace."""
        return subprocess.Popen([*self.enter[1], *args], **options)

    def shape(self, *, rtt_ms: float, rate_mbit: float | None, faults: Faults = NO_FAULTS) -> None:
        """Delay, rate and faults from the next packet on."""
        assert rtt_ms >= 0
        assert rate_mbit is None or rate_mbit > 0
        numbers = " ".join(str(number) for number in astuple(faults))
        self._command(f"shape {rtt_ms / 2000} {(rate_mbit or 0) * 125_000} {numbers}")

    def cut(self, way: str = BOTH) -> None:
        """From when this returns no packet arrives, or none of one way (TO_SOURCE, TO_WAREHOUSE):
        the line is half-open. Neither end is told. What was cut before stays so."""
        self._command(f"cut {way}")

    def heal(self) -> None:
        self._command("heal")

    def counters(self) -> Counters:
        """Now; also after `close`."""
        return Counters(*struct.unpack_from("=5Q", self._memory))

    def close(self) -> None:
        assert self._forwarder.stdin is not None
        assert self._forwarder.stdout is not None
        self._forwarder.stdin.close()
        try:
            self._forwarder.wait(5)
        except subprocess.TimeoutExpired:
            self._forwarder.kill()
            self._forwarder.wait()
        self._forwarder.stdout.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def available() -> str | None:
    """None if links can be made here, else the reason why not. Makes one to find out."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a Linux thing"
    if shutil.which("nsenter") is None:
        return "no nsenter (util-linux)"
    try:
        with Link() as link:
            probe = link.popen_source(["true"], stderr=subprocess.PIPE)
            _, message = probe.communicate(timeout=START_S_MAX)
            return None if probe.returncode == 0 else message.decode().strip()
    except LinkError as error:
        return str(error)


# From here on: the forwarder, a process of its own.

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.unshare is Python 3.12
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")


def _become_root_of_a_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    _unshare(_CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _ioctl(request: int, device: str, argument: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, request, struct.pack("16s24s", device.encode(), argument))


def _address(dotted: str) -> bytes:
    return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(dotted))


def _new_namespace(address: str) -> tuple[int, int]:
    """Moves this process into a new network namespace with one TUN device.

    Returns:
        Descriptors of the namespace and of the device.
    """
    _unshare(_CLONE_NEWNET)
    for scope in ("all", "default"):  # else router solicitations are counted
        switch = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if switch.exists():
            switch.write_text("1")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    _ioctl(_SIOCSIFADDR, DEVICE, _address(address))
    _ioctl(_SIOCSIFNETMASK, DEVICE, _address("255.255.255.252"))
    _ioctl(_SIOCSIFMTU, DEVICE, struct.pack("=i", MTU_BYTES))
    for device in ("lo", DEVICE):
        _ioctl(_SIOCSIFFLAGS, device, struct.pack("=H", _IFF_UP | _IFF_RUNNING))
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC), tun


class _Direction:
    """Packets one way. `now` is a parameter; times are those of the monotonic clock."""

    def __init__(
        self, way: str, sender: int, receiver: int, counters: memoryview, first: int
    ) -> None:
        self.way, self.sender, self.receiver = way, sender, receiver
        self.delay_s = 0.0
        self.rate_bytes_s = 0.0  # 0 is unlimited
        self.is_cut = False
        self.flight: list[tuple[float, int, bytes]] = []  # a heap: due, number, packet
        self._numbers = itertools.count()
        self._last_due = 0.0  # of those that are not re-ordered
        self._free_at = 0.0  # when the last accepted packet has been serialised
        self._since = 0.0  # of the flapping
        self._set_faults(NO_FAULTS)
        self._counters = counters
        self._first = first

    def pull(self, now: float) -> None:
        """Takes what the sender's device holds; what neither waits nor travels arrives at once."""
        counters, first = self._counters, self._first
        for _ in range(BATCH_PACKETS):
            try:
                packet = os.read(self.sender, MTU_BYTES + 64)
            except BlockingIOError:
                return
            counters[first] += len(packet)
            counters[first + 1] += 1
            if self.is_cut:
                counters[4] += 1
            elif self._has_faults:
                for carried in self._spoiled(packet, now):
                    self._accept(carried, now)
            elif self.rate_bytes_s or self.delay_s or self.flight:
                self._accept(packet, now)
            else:
                _deliver(self.receiver, packet)

    def shape(self, delay_s: float, rate_bytes_s: float, faults: Faults, now: float) -> None:
        self.delay_s, self.rate_bytes_s, self._since = delay_s, rate_bytes_s, now
        self._set_faults(faults)

    def _set_faults(self, faults: Faults) -> None:
        self._faults, self._has_faults = faults, faults != NO_FAULTS
        self._random = random.Random(f"{faults.seed} {self.way}")

    def _spoiled(self, packet: bytes, now: float) -> list[bytes]:
        """What the line makes of a packet: nothing, it, something like it, or two."""
        faults, draw = self._faults, self._random.random
        period_s = faults.up_s + faults.down_s
        is_down = period_s > 0 and (now - self._since) % period_s >= faults.up_s
        # Drawn for each packet, so that one fault does not move the others.
        is_lost, is_damaged, is_doubled = (
            draw() < share for share in (faults.loss, faults.corrupt, faults.duplicate)
        )
        if is_lost or is_down:
            self._counters[4] += 1
            return []
        if is_damaged:
            packet = _damaged(packet, self._random)
        return [packet, packet] if is_doubled else [packet]

    def _accept(self, packet: bytes, now: float) -> None:
        due = max(now, self._free_at)
        if self.rate_bytes_s:
            waiting_bytes = (due - now) * self.rate_bytes_s
            if waiting_bytes > min(QUEUE_PACKETS * MTU_BYTES, self.rate_bytes_s * QUEUE_S_MAX):
                self._counters[4] += 1
                return
            due += len(packet) / self.rate_bytes_s
            self._free_at = due
        if len(self.flight) >= FLIGHT_PACKETS_MAX:
            self._counters[4] += 1
            return
        if self._faults.reorder and self._random.random() < self._faults.reorder:
            due += self.delay_s + REORDER_MS / 1000
        else:  # a delay that was shortened must not let a packet overtake another
            due = self._last_due = max(due + self.delay_s, self._last_due)
        heapq.heappush(self.flight, (due, next(self._numbers), packet))

    def push(self, now: float) -> None:
        """Delivers what is due."""
        flight = self.flight
        while flight and flight[0][0] <= now:
            _deliver(self.receiver, heapq.heappop(flight)[2])

    def cut(self) -> None:
        self.is_cut = True
        self._counters[4] += len(self.flight)
        self.flight.clear()
        self._free_at = self._last_due = 0.0


def _damaged(packet: bytes, generator: random.Random) -> bytes:
    """A packet of IPv4 and TCP with one other bit in its payload, and the checksum to it."""
    header = (packet[0] & 15) * 4
    if packet[9] != socket.IPPROTO_TCP or len(packet) < header + 20:
        return packet
    payload = header + (packet[header + 12] >> 4) * 4
    if payload >= len(packet):
        return packet
    found = bytearray(packet)
    found[generator.randrange(payload, len(packet))] ^= 1 << generator.randrange(8)
    found[header + 16 : header + 18] = bytes(2)
    segment = bytes(found[header:])
    pseudo = found[12:20] + struct.pack("!HH", socket.IPPROTO_TCP, len(segment))
    words = bytes(pseudo) + segment + bytes(len(segment) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))  # RFC 9293, section 3.1
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    found[header + 16 : header + 18] = struct.pack("!H", ~total & 0xFFFF)
    return bytes(found)


def _deliver(receiver: int, packet: bytes) -> None:
    try:
        os.write(receiver, packet)
    except OSError as error:  # a full or closed device drops packets, as they do
        if error.errno not in (errno.EAGAIN, errno.EIO, errno.ENOBUFS, errno.EINVAL):
            raise


def _obey(line: str, directions: Sequence[_Direction], answers: int = 1) -> None:
    word, *arguments = line.split()
    for direction in directions:
        if word == "cut" and arguments[0] in (BOTH, direction.way):
            direction.cut()
        elif word == "heal":
            direction.is_cut = False
        elif word == "shape":
            delay_s, rate_bytes_s = (float(a) for a in arguments[:2])
            *shares, seed = arguments[2:]
            loss, duplicate, corrupt, reorder, up_s, down_s = map(float, shares)
            faults = Faults(loss, duplicate, corrupt, reorder, up_s, down_s, int(seed))
            direction.shape(delay_s, rate_bytes_s, faults, time.monotonic())
    os.write(answers, b"ok\n")


def _forward(directions: Sequence[_Direction]) -> None:
    """Until standard input ends."""
    senders = {direction.sender: direction for direction in directions}
    descriptors = [0, *senders]
    while True:
        due = [direction.flight[0][0] for direction in directions if direction.flight]
        # select, not poll: it waits for microseconds, not milliseconds.
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        readable, _, _ = select.select(descriptors, [], [], timeout_s)
        for descriptor in readable:
            if descriptor == 0:
                lines = os.read(0, 4096).decode()
                if not lines:
                    return
                for line in lines.splitlines():
                    _obey(line, directions)
            else:
                senders[descriptor].pull(time.monotonic())
        now = time.monotonic()
        for direction in directions:
            direction.push(now)


def _main() -> None:
    memory = memoryview(mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE)).cast("Q")
    try:
        is_root = os.geteuid() == 0
        if not is_root:
            _become_root_of_a_user_namespace()
        source_namespace, source_tun = _new_namespace(SOURCE_ADDRESS)
        warehouse_namespace, warehouse_tun = _new_namespace(WAREHOUSE_ADDRESS)
    except OSError as error:
        os.write(1, f"cannot make network namespaces: {error}\n".encode())
        return
    os.write(1, f"ready {source_namespace} {warehouse_namespace} {int(not is_root)}\n".encode())
    gc.disable()  # no cycles are made; no pauses either
    _forward(
        (
            _Direction(TO_SOURCE, warehouse_tun, source_tun, memory, 0),
            _Direction(TO_WAREHOUSE, source_tun, warehouse_tun, memory, 2),
        )
    )


if __name__ == "__main__":
    _main()
