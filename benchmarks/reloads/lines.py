"""Lines between the agents, and the compressed copy that goes over the same one.

    loopback      both agents side by side
    100ms,10mbit  two network namespaces behind a link of `tests.wan.link`: round trip and rate

The copy is `psql -c "COPY …" | zstd -3` at the source, for whoever connects; at the other end its
lines are counted, and not kept.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.theirs import SERVE
from benchmarks.peers.tool import end
from benchmarks.reloads.place import Cost, FailedError, Source, run
from tests.harness.servers import free_port
from tests.wan.link import SOURCE_ADDRESS, Link

LEVEL = 3


@dataclass(frozen=True, slots=True)
class Line:
    """Where the agents are.

    Attributes:
        name: as on the command line.
        address: of the source.
        at_source, at_warehouse: the words before a command there.
    """

    name: str
    address: str = "127.0.0.1"
    at_source: tuple[str, ...] = ()
    at_warehouse: tuple[str, ...] = ()


LOOPBACK = Line("loopback")


@contextmanager
def line_of(name: str) -> Iterator[Line]:
    """Make the line of a name."""
    if name == LOOPBACK.name:
        yield LOOPBACK
        return
    rtt_ms, rate_mbit = shape(name)
    with Link(rtt_ms=rtt_ms, rate_mbit=rate_mbit) as link:
        source, warehouse = (tuple(words) for words in link.enter)
        yield Line(name, SOURCE_ADDRESS, source, warehouse)


def shape(name: str) -> tuple[float, float]:
    """Return milliseconds and Mbit/s of a name.

    Raises:
        ValueError: it is no such name.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)ms,(\d+(?:\.\d+)?)mbit", name)
    if found is None:
        raise ValueError(f"{name!r} is neither {LOOPBACK.name!r} nor like '100ms,10mbit'")
    return float(found[1]), float(found[2])


class CompressedCopy:
    """The copy over a line; a context manager around what stands at the source."""

    def __init__(self, source: Source, line: Line) -> None:
        self._source, self._line = source, line

    @staticmethod
    def missing() -> str | None:
        """Return why it cannot run here, or None."""
        return None if shutil.which("zstd") else "no zstd (Debian: zstd)"

    def __enter__(self) -> CompressedCopy:
        psql = " ".join(self._source.psql)
        copy = f'{psql} -c "COPY {self._source.table} TO STDOUT (FORMAT csv)" | zstd -c -{LEVEL}'
        self._port = free_port()
        where = [self._line.address, str(self._port)]
        self._server = subprocess.Popen(
            [
                *self._line.at_source,
                *(sys.executable, "-S", "-E", "-c", SERVE, *where),
                *("bash", "-o", "pipefail", "-c", copy),
            ],
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"listening\n":
            raise FailedError(f"nothing listens on port {self._port}")
        return self

    def __exit__(self, *_: object) -> None:
        end(self._server)
        assert self._server.stdout is not None
        self._server.stdout.close()

    def copy(self, folder: Path) -> tuple[Cost, int]:
        """Copy once; return the cost and the rows."""
        receive = f"exec 3<>/dev/tcp/{self._line.address}/{self._port}; zstd -dc <&3 | wc -l"
        cost, out = run(
            [*self._line.at_warehouse, "bash", "-o", "pipefail", "-c", receive],
            folder=folder,
            source_pids=[self._source.pid, self._server.pid],
        )
        return cost, int(out)
