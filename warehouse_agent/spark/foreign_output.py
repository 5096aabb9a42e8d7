"""What other programs write to stderr, kept from a user who did not ask for it.

Spark's JVM, its Python workers, gRPC's core and delta-rs write to file descriptor 2, each in its
own words: a bad value is a stack of 25 lines in a cron log. Without `--debug` the descriptor leads
to a temporary file without a name, which children inherit, and `sys.stderr` to where it led before.
With `--debug` nothing is diverted.

Rejected: settings of each (log4j, GRPC_VERBOSITY, the workers' logging). They miss what a crash
writes, differ by version, and gRPC reads its own when it is imported.
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

_HEAD_BYTES = 16_384  # that are searched for a reason
# What Java and Spark say when all is well, and the head of a stack.
_NOTICE = re.compile(
    r"WARNING: |NOTE: |Picked up |Using Spark's default |Setting default log |To adjust logging "
    r"|[\d/ :]+ (WARN|INFO) "
)
_IN_MAIN = re.compile(r'Exception in thread "main" ([\w.$]+: )?')
_diverted: list[IO[bytes]] = []


def divert() -> None:
    """Lead file descriptor 2 to a temporary file, and `sys.stderr` to where it led.

    Once for a process; nothing happens where stderr is closed or has been replaced.
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
    _quiet_pyspark()


def is_ours(record: logging.LogRecord) -> bool:
    """Return True for a log record of this agent; a filter for `logging`."""
    return record.name.split(".")[0] == "driftline"


def diverted_bytes() -> int:
    """Return how many bytes were diverted so far, 0 if nothing is."""
    with contextlib.suppress(OSError):
        return os.fstat(_diverted[0].fileno()).st_size if _diverted else 0
    return 0


def reason(after: int) -> str:
    """Return why a JVM ended, in the first line that says so of what it wrote.

    `after`: how many bytes had been diverted before it was started. Empty if nothing is found.
    """
    if not _diverted:
        return ""
    with contextlib.suppress(OSError):
        data = os.pread(_diverted[0].fileno(), _HEAD_BYTES, after)
        lines = (line.strip() for line in data.decode(errors="replace").splitlines())
        first = next((line for line in lines if line and not _NOTICE.match(line)), "")
        return _IN_MAIN.sub("", first)
    return ""


def _quiet_pyspark() -> None:
    """Log what PySpark's server of accumulators prints when its JVM is gone."""
    from pyspark import accumulators

    def log(_self: object, _request: object, _address: object) -> None:
        logging.getLogger("pyspark.accumulators").debug("the JVM is gone", exc_info=True)

    accumulators.AccumulatorTCPServer.handle_error = log  # type: ignore[assignment, method-assign]
