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
import sys
import tempfile
import warnings
from typing import IO

_TAIL_BYTES = 16_384
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


def last_line() -> str:
    """Return the last line that was diverted, empty if there is none."""
    if not _diverted:
        return ""
    with contextlib.suppress(OSError):
        handle = _diverted[0].fileno()
        size = os.fstat(handle).st_size
        data = os.pread(handle, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")
    return ""


def _quiet_pyspark() -> None:
    """Log what PySpark's server of accumulators prints when its JVM is gone."""
    from pyspark import accumulators

    def log(self: object, request: object, client_address: object) -> None:
        logging.getLogger("pyspark.accumulators").debug("the JVM is gone", exc_info=True)

    accumulators.AccumulatorTCPServer.handle_error = log  # type: ignore[method-assign]
