"""The simulated link is what it says: delay, rate, counters, cuts."""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import ROOT
from tests.wan import link as wan

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(64):
    peer.sendall(data)
"""
PING = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(1)
    print(time.perf_counter() - began, flush=True)
"""
# Prints (seconds since the first byte, bytes so far) about ten times a second.
SINK = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
peer, _ = server.accept()
total, began, said = 0, None, 0
while data := peer.recv(1 << 18):
    now = time.perf_counter()
    began = now if began is None else began
    total += len(data)
    if now - said > 0.1:
        print(now - began, total, flush=True)
        said = now
print(time.perf_counter() - began, total, flush=True)
"""
SEND = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 5000))
for _ in range(int(sys.argv[2])):
    peer.sendall(bytes(1 << 16))
"""

pytestmark = [
    pytest.mark.wan,
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("wan_available"),
]


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[Any]]]:
    started: list[subprocess.Popen[Any]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _serve(
    link: wan.Link, program: str, processes: list[subprocess.Popen[Any]]
) -> subprocess.Popen[Any]:
    process = link.popen_warehouse(
        [sys.executable, "-S", "-c", program, wan.WAREHOUSE_ADDRESS], stdout=subprocess.PIPE
    )
    processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"listening\n"
    return process


def _call(
    link: wan.Link, program: str, count: int, processes: list[subprocess.Popen[Any]]
) -> subprocess.Popen[Any]:
    process = link.popen_source(
        [sys.executable, "-S", "-c", program, wan.WAREHOUSE_ADDRESS, str(count)],
        stdout=subprocess.PIPE,
    )
    processes.append(process)
    return process


def _device_counters(link: wan.Link) -> tuple[int, int, int, int]:
    """As `wan.Counters`, from the two devices' own count of what they sent."""
    sent = []
    for popen in (link.popen_warehouse, link.popen_source):
        text = popen(["cat", "/proc/net/dev"], stdout=subprocess.PIPE, text=True).communicate()[0]
        words = next(line for line in text.splitlines() if wan.DEVICE in line).split()
        sent += [int(words[9]), int(words[10])]
    return sent[0], sent[1], sent[2], sent[3]


@pytest.mark.alone
@pytest.mark.parametrize("rtt_ms", [20, 100])
def test_round_trips_take_the_time_asked_for(
    rtt_ms: int, processes: list[subprocess.Popen[Any]]
) -> None:
    with wan.Link(rtt_ms=rtt_ms) as link:
        _serve(link, ECHO, processes)
        out, _ = _call(link, PING, 10, processes).communicate()
        times_ms = [float(line) * 1000 for line in out.split()]
        assert statistics.median(times_ms) == pytest.approx(rtt_ms, rel=0.1)
        assert min(times_ms) >= rtt_ms


@pytest.mark.alone
def test_the_rate_is_the_one_asked_for_and_can_be_changed(
    processes: list[subprocess.Popen[Any]],
) -> None:
    with wan.Link(rtt_ms=20, rate_mbit=10) as link:
        sink = _serve(link, SINK, processes)
        _call(link, SEND, 40, processes)  # 2.6 MB
        out, _ = sink.communicate()
        seconds, total = (float(word) for word in out.splitlines()[-1].split())
        assert total * 8 / seconds / 1e6 == pytest.approx(10, rel=0.15)

        link.shape(rtt_ms=20, rate_mbit=40)
        sink = _serve(link, SINK, processes)
        _call(link, SEND, 160, processes)
        out, _ = sink.communicate()
        seconds, total = (float(word) for word in out.splitlines()[-1].split())
        assert total * 8 / seconds / 1e6 == pytest.approx(40, rel=0.15)


@pytest.mark.alone
def test_unshaped_it_carries_100_mbit_and_counts_what_the_devices_count(
    processes: list[subprocess.Popen[Any]],
) -> None:
    with wan.Link() as link:
        assert link.counters() == wan.Counters(0, 0, 0, 0, 0)
        sink = _serve(link, SINK, processes)
        _call(link, SEND, 800, processes).wait()  # 52 MB
        out, _ = sink.communicate()
        seconds, total = (float(word) for word in out.splitlines()[-1].split())
        assert total == 800 << 16
        assert total * 8 / seconds / 1e6 >= 100
        counted = link.counters()
        assert _device_counters(link) == (
            counted.to_source_bytes,
            counted.to_source_packets,
            counted.to_warehouse_bytes,
            counted.to_warehouse_packets,
        )
        assert total < counted.to_warehouse_bytes < total * 1.05
        assert counted.to_warehouse_bytes / counted.to_warehouse_packets <= wan.MTU_BYTES


def test_a_cut_stalls_a_transfer_and_healing_resumes_it(
    processes: list[subprocess.Popen[Any]],
) -> None:
    with wan.Link(rtt_ms=10, rate_mbit=10) as link:
        sink = _serve(link, SINK, processes)
        assert sink.stdout is not None
        _call(link, SEND, 32, processes)
        assert sink.stdout.readline()
        link.cut()
        os.set_blocking(sink.stdout.fileno(), False)
        sink.stdout.read()  # what arrived before the cut
        os.set_blocking(sink.stdout.fileno(), True)
        readable, _, _ = select.select([sink.stdout], [], [], 1.0)
        assert not readable
        assert link.counters().dropped_packets > 0
        link.heal()
        out, _ = sink.communicate()
        assert int(out.split()[-1]) == 32 << 16


def test_the_forwarder_ends_with_its_parent_and_takes_the_network_along() -> None:
    program = (
        "import sys; from tests.wan import link as wan; link = wan.Link();"
        "print(link._forwarder.pid, flush=True); sys.stdin.read()"
    )
    root = str(ROOT)
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        forwarder = int(parent.stdout.readline())
        handle = os.pidfd_open(forwarder)
        parent.send_signal(signal.SIGKILL)
        readable, _, _ = select.select([handle], [], [], 10)  # readable when the process ended
        os.close(handle)
        assert readable


def test_counters_outlive_the_link() -> None:
    with wan.Link() as link:
        probe = link.popen_source(
            [sys.executable, "-S", "-c", PING, wan.WAREHOUSE_ADDRESS, "1"],
            stderr=subprocess.DEVNULL,
        )
        assert probe.wait() != 0  # refused: nobody listens
    assert link.counters().to_warehouse_packets == 1
    began = time.monotonic()
    link.close()  # twice is harmless
    assert time.monotonic() - began < 1
    with pytest.raises(wan.LinkError, match="gone"):
        link.cut()
