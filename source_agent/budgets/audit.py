"""One JSON line for every call about a relation: who, what, how much, with what outcome.

For the DBA, not for debugging: no values, no SQL, no keys of rows. A name that came from the
network is escaped by JSON and cut. Lines go to the file of `server.audit_file`, opened anew for
each so that it may be rotated, or to stderr.

An audit line that cannot be written is an error of the log and does not end an exchange.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError

from source_agent.engines.interface import Shape
from source_agent.scan.reader import Tally

_log = logging.getLogger("driftline.source")
NAME_CHARACTERS_MAX = 200
_MODE = 0o640


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Outcome of one request for one relation.

    `outcome` is `equal`, `sent`, `cancelled`, `described`, or an error code. `relation` is empty
    for a list of what is published, and for a stream that ended before it named one.
    """

    client: str
    relation: str
    outcome: str
    rows_read: int = 0
    scans: int = 0
    rows_shipped: int = 0
    bytes_out: int = 0
    seconds: float = 0.0


class Answer:
    """The answer to one `Open`, as far as it is known."""

    def __init__(self, outcome: str = "cancelled") -> None:
        self.tally = Tally(phase="wait")
        self.shape: Shape | None = None
        self.outcome = outcome
        self.rows_shipped = self.bytes_out = 0

    def count(self, reply: pb.Reply) -> None:
        """Note what is sent."""
        self.bytes_out += reply.ByteSize()
        kind = reply.WhichOneof("message")
        if kind == "rows":
            self.rows_shipped += int.from_bytes(reply.rows.frame[4:8], "little")
        elif kind == "finished":
            self.outcome = "equal" if reply.finished.equal else "sent"

    def entry(self, client: str, relation: str, seconds: float) -> AuditEntry:
        """The line about it."""
        return AuditEntry(
            client=client,
            relation=relation,
            outcome=self.outcome,
            rows_read=self.tally.rows_read,
            scans=self.tally.scans,
            rows_shipped=self.rows_shipped,
            bytes_out=self.bytes_out,
            seconds=seconds,
        )


class Audit:
    """Where the lines go; thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigurationError when the file cannot be written."""
        self._path = path
        self._lock = threading.Lock()
        try:
            self._append(b"")
        except OSError as error:
            raise ConfigurationError(
                f"The audit file {path} cannot be written: {error.strerror}.",
                where="server.audit_file",
            ) from None

    def write(self, entry: AuditEntry) -> None:
        facts = asdict(entry)
        facts["relation"] = facts["relation"][:NAME_CHARACTERS_MAX]
        facts["seconds"] = round(entry.seconds, 3)
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, **facts}) + "\n"
        try:
            with self._lock:
                self._append(line.encode())
        except OSError as error:
            _log.error("an audit line cannot be written (%s): %s", error.strerror, line.rstrip())

    def _append(self, data: bytes) -> None:
        if self._path is None:
            sys.stderr.write(data.decode())
            sys.stderr.flush()
            return
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)
        try:
            os.write(file, data)
        finally:
            os.close(file)
