"""Cut the line at bytes all over a refresh: `python -m tests.faults.cuts [OFFSETS]`.

The relay resets every connection after a given byte of one direction; the command's own retry
continues, and no session is left in the database. `test_cut_sweep` takes 10 offsets, the command
200 on each engine.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.harness.fault_rig import Rig, Violation, expect
from tests.harness.legacy import PostgresLegacy, ServedLegacy, SqliteLegacy
from tests.harness.relay import Relay
from tests.harness.servers import PostgreSQL
from warehouse_agent.refresh.job import Options
from warehouse_agent.tasks.staging import FrameWriter

OFFSETS = 200
WIDE_ROWS, WIDE_BYTES = 1000, 4000  # random, so that a refresh sends four frames
SHORTER = 0.95  # of the bytes that go up: they vary with the size of the sketch
SHARE_MAX = 1.10  # of the bytes of a refresh that nothing cuts
STAGED_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class FaultFree:
    """Bytes of a refresh that nothing cuts: up, down, of its frames, of the largest frame."""

    up: int
    down: int
    frames: int
    frame_max: int

    @property
    def most(self) -> float:
        """Return the most bytes of a refresh that is cut once: a share more, and a frame.

        The share pays for another comparison, which is small beside rows of several frames.
        """
        return SHARE_MAX * (self.up + self.down) + self.frame_max


class Received:
    """The bytes of the frames that the warehouse agent has taken from the line."""

    def __init__(self) -> None:
        self.bytes = self.largest = 0
        self._changed = threading.Condition()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what is staged, from now on."""
        add = FrameWriter.add

        def counted(writer: FrameWriter, frame: bytes) -> None:
            add(writer, frame)
            with self._changed:
                self.bytes += len(frame)
                self.largest = max(self.largest, len(frame))
                self._changed.notify_all()

        with patch.object(FrameWriter, "add", counted):
            yield

    def wait(self, least: int) -> None:
        """Wait for so many bytes: a reset drops what gRPC holds, and the agent has not read."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.bytes >= least, STAGED_S_MAX)


class CutRig(Rig):
    """A rig whose line goes through a relay."""

    def __init__(self, legacy: ServedLegacy, folder: Path) -> None:
        super().__init__(legacy, folder / "pair", seed=4)
        self.relay = Relay(self.pair.address)
        self.pair.address = self.relay.address
        self.rows = [(i, "") for i in range(WIDE_ROWS)]
        self.change()
        self.converge()

    def __exit__(self, *error: object) -> None:
        self.relay.close()
        super().__exit__(*error)

    def change(self) -> None:
        """Give every wide row another text, so that all are sent."""
        draw = self.random
        self.legacy.execute("DELETE FROM t WHERE id < ?", WIDE_ROWS)
        rows = [(i, draw.randbytes(WIDE_BYTES).hex()) for i in range(WIDE_ROWS)]
        self.legacy.many("INSERT INTO t VALUES (?, ?)", rows)

    def fault_free(self) -> FaultFree:
        """Measure a refresh that nothing cuts."""
        self.change()
        up, down, received = self.relay.up_bytes, self.relay.down_bytes, Received()
        with received.counted():
            self.converge()
        up, down = self.relay.up_bytes - up, self.relay.down_bytes - down
        return FaultFree(up, down, received.bytes, received.largest)

    def cut(self, usual: FaultFree, *, up: int | None = None, down: int | None = None) -> int:
        """Refresh over a line that is cut after a byte; return the bytes sent. Raises Violation.

        What goes up varies: if a refresh sends less than `up`, the next one is cut a little before.
        """
        while True:
            cuts = self.relay.cuts
            sent = self._refresh(usual, up, down)
            if self.relay.cuts > cuts:
                return sent
            expect(up is not None, "the line was not cut")
            up = int(SHORTER * (up or 0))

    def _refresh(self, usual: FaultFree, up: int | None, down: int | None) -> int:
        """Refresh, with a cut if as much is sent; return the bytes sent. Raises Violation."""
        self.change()
        before, sent = self.pair.version("t"), self.relay.total_bytes
        assert before is not None
        received = Received()
        whole = 0 if down is None else down - (usual.down - usual.frames) - usual.frame_max

        with received.counted():
            self.relay.cut_after(up=up, down=down, then=lambda: received.wait(max(whole, 0)))
            options = Options(allow_shrink=True)
            (report,) = self.pair.reports("t", options=options, attempts=3)
        expect(report.error is None, f"the refresh: {report.error}")
        expect(report.version == before + 1, "the version")
        expect(self.published() == self.source(), "the rows")
        sent = self.relay.total_bytes - sent
        self.await_no_session()
        expect(sent <= usual.most, f"{sent:,} bytes, at most {usual.most:,.0f}: {usual}")
        return sent


def offsets(usual: FaultFree, count: int) -> Iterator[dict[str, int]]:
    """Yield offsets all over a refresh, a fifth of them in what goes to the source."""
    ups = count // 5
    for i in range(ups):
        yield {"up": 1 + int(SHORTER * usual.up) * i // ups}
    for i in range(count - ups):
        yield {"down": 1 + (usual.down - 2) * i // (count - ups)}


def main() -> None:
    """Run the sweep on each engine; exit with 1 if a promise did not hold."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else OFFSETS
    violations = 0
    with tempfile.TemporaryDirectory() as name, PostgreSQL() as server:
        folder = Path(name)
        for legacy in (SqliteLegacy(folder / "erp.db"), PostgresLegacy(server)):
            with CutRig(legacy, folder / legacy.engine) as rig:
                violations += _sweep(rig, count)
    sys.exit(bool(violations))


def _sweep(rig: CutRig, count: int) -> int:
    """Cut at so many offsets, print what did not hold and a summary; return the violations."""
    usual, sent, violations = rig.fault_free(), 0, 0
    for offset in offsets(usual, count):
        try:
            sent = max(sent, rig.cut(usual, **offset))
        except Violation as violation:
            violations += 1
            print(f"{offset}: {violation}", flush=True)
    whole = usual.up + usual.down
    print(
        f"{rig.legacy.engine}: {count} cuts, {violations} violations, {whole:,} bytes without a"
        f" cut, {whole - usual.frames:,} of them of the comparison, {sent:,} at most with one"
        f" ({sent / whole:.2f} times)"
    )
    return violations


if __name__ == "__main__":
    main()
