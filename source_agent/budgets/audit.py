"""The audit: one JSON line for every call about a relation, with client, amounts and outcome.

A line without client and relation says that the DBA's file was read again, or could not be.

It is for the DBA, not for debugging: no SQL, no keys of rows, and no values but the literals of a
derivation, which say what a warehouse chose. Text from the network is escaped by JSON and cut, and
lines of one client are limited (`audit_limit`); a line LEFT_OUT counts those that are missing.
Lines go to `server.audit_file`, which is opened for each line so that it may be rotated, or to
stderr. A line that cannot be written is logged and does not end an exchange.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError
from driftline.relations.derivations import Derivation, canonical, text_of

from source_agent.budgets.audit_limit import AuditLimit

_log = logging.getLogger("driftline.source")
NAME_CHARACTERS_MAX = 200
DERIVATION_CHARACTERS_MAX = 2000  # of the columns, and of the predicate
_MODE = 0o640
CLIENT_CHARACTERS_MAX = 1000
RELOADED, NOT_RELOADED = "reloaded", "not_reloaded"
LEFT_OUT = "left_out"
RECENT_BYTES_MAX = 1 << 20  # of the end of the file: some 3,000 lines
_RARE = ("chosen_columns", "chosen_rows", "relations", "held_back_s", "snapshot_s", "lines")


@dataclass(slots=True)
class AuditEntry:
    """One request. `outcome`: `equal`, `sent`, `cancelled`, `described`, `probed`, an error code;
    of the DBA's file RELOADED or NOT_RELOADED; LEFT_OUT: `lines` of this client are missing.

    `relation` is empty for a list of relations, for a stream that ended before it named one, and
    for a question about the activity of several; `relations` is their number, 0 elsewhere.
    `held_back_s`: for how long the read was held back to spare the database.
    `snapshot_s`: how long the session had held its snapshot at the end.
    `chosen_columns` and `chosen_rows` are those of a derivation; empty: all.
    """

    client: str
    relation: str
    outcome: str = "cancelled"
    rows_read: int = 0
    scans: int = 0
    rows_shipped: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    chosen_columns: str = ""
    chosen_rows: str = ""
    relations: int = 0
    held_back_s: float = 0.0
    snapshot_s: float = 0.0
    lines: int = 0

    def choose(self, derivation: Derivation) -> None:
        """Note what a derivation chooses."""
        self.chosen_columns = ", ".join(derivation.columns or ())
        self.chosen_rows = "" if derivation.rows is None else text_of(canonical(derivation.rows))

    def count(self, reply: pb.Reply) -> None:
        """Count a reply that is sent; `Finished` decides the outcome."""
        self.bytes_out += reply.ByteSize()
        kind = reply.WhichOneof("message")
        if kind == "rows":
            self.rows_shipped += int.from_bytes(reply.rows.frame[4:8], "little")
        elif kind == "finished":
            self.outcome = "equal" if reply.finished.equal else "sent"


class AuditLog:
    """The audit file, or stderr. Thread-safe."""

    def __init__(
        self,
        path: Path | None,
        limit: AuditLimit | None = None,
        *,
        told: Callable[[AuditEntry], None] = lambda _: None,
    ) -> None:
        """Raise ConfigurationError if the file cannot be written.

        told: gets each entry, also one whose line is left out.
        """
        self._path, self._limit, self._told = path, limit or AuditLimit(), told
        self._lock = threading.Lock()
        try:
            self._append(b"")
        except OSError as error:
            raise ConfigurationError(
                f"The audit file {path} cannot be written: {error.strerror}.",
                where="server.audit_file",
            ) from None

    def write(self, entry: AuditEntry) -> None:
        """Append one line with the time of now, or count it; log it if that fails."""
        self._told(entry)
        line = self._line(entry)
        if not entry.client or self._limit.admits(
            entry.client, len(line), read_rows=entry.rows_read > 0
        ):
            self._write(line)

    def write_left_out(self, *, at_once: bool = False) -> None:
        """Append the counts of lines that were left out; call it every few seconds."""
        for client, lines in self._limit.left_out(at_once=at_once).items():
            self._write(self._line(AuditEntry(client, "", LEFT_OUT, lines=lines)))

    @staticmethod
    def _line(entry: AuditEntry) -> str:
        facts = asdict(entry)
        facts["client"] = facts["client"][:CLIENT_CHARACTERS_MAX]
        facts["relation"] = facts["relation"][:NAME_CHARACTERS_MAX]
        facts["seconds"] = round(entry.seconds, 3)
        for seconds in ("held_back_s", "snapshot_s"):
            facts[seconds] = round(facts[seconds], 3)
        for chosen in ("chosen_columns", "chosen_rows"):
            facts[chosen] = facts[chosen][:DERIVATION_CHARACTERS_MAX]
        for rare in _RARE:
            if not facts[rare]:
                del facts[rare]
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, **facts}) + "\n"

    def _write(self, line: str) -> None:
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


def recent_snapshots(path: Path | None) -> list[float]:
    """Return for how many seconds snapshots were held, of the last lines of an audit file.

    Lines that are damaged, or of an older release, are skipped; so is a file that is not there.
    """
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - RECENT_BYTES_MAX, 0))
            lines = file.read().splitlines()
    except OSError:
        return []
    durations_s = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            if held_s := json.loads(line).get("snapshot_s"):
                durations_s.append(float(held_s))
    return durations_s
