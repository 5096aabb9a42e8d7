"""A line, or a peer, that says nothing more and closes nothing: noticed, said, and gone on with.

Measured from the cut to the line in which the command says what happened, and from the healing to
the first rows that come again. The command goes on by itself; what had arrived is kept.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.wan import link as wan
from tests.wan.test_pair import NOTE_BYTES, PORT, ROWS, Site

ERROR_S_MAX = 30.0
RESUMED_S_MAX = 5.0
RESUMED_BYTES = 20_000  # more than a handshake and an opening
LOOK_S = 0.02
ESTABLISHED = "01"  # in /proc/net/tcp

pytestmark = [
    pytest.mark.wan,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("wan_available"),
]


def _cut(way: str) -> Callable[[Site], Callable[[], None]]:
    def silence(site: Site) -> Callable[[], None]:
        site.link.cut(way)
        return site.link.heal

    return silence


def _stop(site: Site) -> Callable[[], None]:
    """The source's kernel still acknowledges what comes; its process does nothing."""
    source = site._started[0]
    source.send_signal(signal.SIGSTOP)
    return lambda: source.send_signal(signal.SIGCONT)


SILENCES = {
    "black hole": _cut(wan.BOTH),
    "deaf": _cut(wan.TO_WAREHOUSE),
    "mute": _cut(wan.TO_SOURCE),
    "stopped": _stop,
}


class Said:
    """What a process writes to stderr, line by line, as it comes."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._pipe = process.stderr
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._pipe is not None
        for line in self._pipe:
            self._lines.put(line)

    def error(self, within_s: float) -> str:
        """Return the first line that names an error. Raises queue.Empty."""
        ends_at = time.monotonic() + within_s
        while True:
            line = self._lines.get(timeout=max(ends_at - time.monotonic(), 0))
            if "Trying again." in line:
                return line


def _until(holds: Callable[[], bool], within_s: float) -> float:
    """Return how long it took until something held, in seconds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s
        time.sleep(LOOK_S)
    return time.monotonic() - began


def _cases() -> list[object]:
    """One without limits of time in every run, on cores that may be busy; all with, by --soak."""
    timed = [pytest.param(name, True, marks=pytest.mark.soak, id=name) for name in SILENCES]
    return [pytest.param("deaf", False, id="untimed"), *timed]


@pytest.mark.parametrize(("silence", "is_timed"), _cases())
def test_it_is_noticed_and_gone_on_with(silence: str, is_timed: bool, tmp_path: Path) -> None:
    with wan.Link(rtt_ms=100, rate_mbit=10) as link:
        site = Site(tmp_path, link)
        try:
            site.serve()
            process = site.start_refresh()
            said = Said(process)
            half = ROWS * NOTE_BYTES // 3
            _until(lambda: link.counters().to_warehouse_bytes > half, 90)
            heal = SILENCES[silence](site)
            began = time.monotonic()
            line = said.error(3 * ERROR_S_MAX)
            error_s = time.monotonic() - began
            heal()
            healed_bytes = link.counters().to_warehouse_bytes
            resumed_s = _until(
                lambda: link.counters().to_warehouse_bytes > healed_bytes + RESUMED_BYTES, 60
            )
            print(
                f"{silence}: error after {error_s:.1f} s, resumed after {resumed_s:.1f} s; {line}"
            )
            assert process.stdout is not None
            assert process.wait(120) == 0, process.stdout.read()
            assert site.published() == site.source()
            if is_timed:
                assert error_s <= ERROR_S_MAX
                assert resumed_s <= RESUMED_S_MAX
        finally:
            site.close()


@pytest.mark.soak
def test_a_warehouse_that_is_gone_is_left(tmp_path: Path) -> None:
    """Nothing is acknowledged; the connection ends, and with it the snapshot of the database."""
    with wan.Link(rtt_ms=100, rate_mbit=10) as link:
        site = Site(tmp_path, link)
        try:
            site.serve()
            process = site.start_refresh()
            _until(lambda: link.counters().to_warehouse_bytes > ROWS * NOTE_BYTES // 3, 90)
            link.cut(wan.BOTH)
            process.kill()
            sockets = Path(f"/proc/{site._started[0].pid}/net/tcp")
            end = f":{PORT:04X} "  # of this side of a connection; its state is before the queues

            def is_left() -> bool:
                lines = [line.split() for line in sockets.read_text().splitlines() if end in line]
                return not any(state == ESTABLISHED for _, _, _, state, *_ in lines)

            assert not is_left()
            left_s = _until(is_left, 2 * ERROR_S_MAX)
            print(f"left after {left_s:.1f} s")
            assert left_s <= ERROR_S_MAX
        finally:
            site.close()
