"""Keep what other programs write to stderr from a user who did not ask for it.

Spark's JVM, its Python workers, gRPC's core and delta-rs write to file descriptor 2: a bad value
is a stack of 25 lines in a cron log. Without `--debug` the descriptor points to an unnamed
temporary file, which children inherit, and `sys.stderr` to the former stderr.

Rejected: settings of each program. They miss what a crash writes, and differ by version.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import warnings
from typing import IO

_HEAD_BYTES = 16_384  # searched for a reason
# Lines that Java and Spark write although nothing failed, and those of gRPC, which runs beside.
_NOTICE = re.compile(
    r"WARNING: |NOTE: |Picked up |Using Spark's default |Setting default log |To adjust logging "
    r"|[\d/ :]+ (WARN|INFO) |[IWEF]\d{4} [\d:.]+ "
)
_IN_MAIN = re.compile(r'Exception in thread "main" ([\w.$]+: )?')
_diverted: list[IO[bytes]] = []


def divert() -> None:
    """Replace file descriptor 2 by a temporary file; `sys.stderr` keeps the former stderr.

    Do so once for a process, and not if stderr is closed or has been replaced.
    """
    if _diverted or sys.stderr is None or sys.stderr is not sys.__stderr__:
        return
    with contextlib.suppress(OSError):
        kept = os.dup(2)
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(kept, "w", buffering=1, errors="backslashreplace")
        _diverted.append(file)
    warnings.simplefilter("ignore")


def is_ours(record: logging.LogRecord) -> bool:
    """Return True for a log record of this agent; a filter for `logging`."""
    return record.name.split(".")[0] == "driftline"


def diverted_bytes() -> int:
    """Return the number of bytes diverted so far; 0 without `divert`."""
    with contextlib.suppress(OSError, IndexError):
        return os.fstat(_diverted[0].fileno()).st_size
    return 0


def reason(after: int) -> str:
    """Return the first line of a JVM's output that says why it ended; empty if there is none.

    `after` is the number of bytes that were diverted before the JVM started.
    """
    with contextlib.suppress(OSError, IndexError):
        data = os.pread(_diverted[0].fileno(), _HEAD_BYTES, after)
        lines = (line.strip() for line in data.decode(errors="replace").splitlines())
        first = next((line for line in lines if line and not _NOTICE.match(line)), "")
        return _IN_MAIN.sub("", first)
    return ""


def quiet_pyspark() -> None:
    """Make PySpark's accumulator server log, not print, that its JVM is gone; after `divert`."""
    if not _diverted:
        return
    from pyspark import accumulators

    def log(_self: object, _request: object, _address: object) -> None:
        logging.getLogger("pyspark.accumulators").debug("the JVM is gone", exc_info=True)

    accumulators.AccumulatorTCPServer.handle_error = log  # type: ignore[assignment, method-assign]
