"""The mark of each published version, and the audits of its fragment.

The commit of a version has its mark; a refresh that publishes nothing moves it in the fragment's
notes. A note about another version is ignored, so that a restored table goes on from its own mark:
a later one would hide what changed in between.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driftline.negotiation import CHECKSUM, SINCE

from warehouse_agent.planning.markers.state import Audit, MarkerState
from warehouse_agent.planning.notes import number
from warehouse_agent.storage.table import Snapshot, VersionRecord

if TYPE_CHECKING:  # commands that ask nobody do not load it
    from driftline import wire_pb2 as pb

MARK = "mark"  # key of a fragment's notes
MARKER_TIME = "marker_time"  # the column of a time marker, as the source described it
KEYS_PER_S = "keys_per_s"
TIME = "time"  # kind of a marker


@dataclass(frozen=True, slots=True)
class Marking:
    """The mark of a version, as it is kept: see `MarkerState`.

    `warnings`: what the exchange found that gave the mark.
    """

    mark: bytes = b""
    why: str = ""
    hashes: bool = False
    audit: Audit | None = None
    changes: int = 0
    again: int = 0
    warnings: tuple[str, ...] = ()
    checksum: str = ""

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "mark": base64.b64encode(self.mark).decode(),
            "why": self.why,
            "hashes": self.hashes,
            "audit": None if self.audit is None else self.audit.to_json(),
            "changes": self.changes,
            "again": self.again,
            "warnings": list(self.warnings),
            "checksum": self.checksum,
        }

    @classmethod
    def from_json(cls, body: object) -> Marking:
        """Return what `to_json` wrote; nothing is known if it is damaged."""
        if not isinstance(body, Mapping):
            return cls()
        mark, why, told = body.get("mark"), body.get("why"), body.get("warnings")
        checksum = body.get("checksum")
        try:
            data = base64.b64decode(mark, validate=True) if isinstance(mark, str) else b""
        except (binascii.Error, ValueError):
            data = b""
        return cls(
            data,
            why if isinstance(why, str) else "",
            body.get("hashes") is True,
            Audit.from_json(body.get("audit")),
            int(number(body, "changes") or 0),
            int(number(body, "again") or 0),
            tuple(map(str, told)) if isinstance(told, list) else (),
            checksum if isinstance(checksum, str) else "",
        )


def new_time(notes: Mapping[str, object], description: pb.Description) -> dict[str, object]:
    """Return the note of the column of a time marker, empty text where the relation has none; no
    note if that is known."""
    found = description.marker
    column = found.column if found.kind == TIME else ""
    return {} if notes.get(MARKER_TIME, "") == column else {MARKER_TIME: column}


def marking(notes: Mapping[str, object], version: Snapshot) -> Marking:
    """Return the mark of a version."""
    noted = notes.get(MARK)
    if isinstance(noted, Mapping) and _is_of(noted, version):
        return Marking.from_json(noted)
    return Marking.from_json(version.record.marking)


def _is_of(noted: Mapping[str, object], version: Snapshot) -> bool:
    identity = (noted.get("version"), noted.get("published_at"))
    return identity == (version.version, version.record.published_at)


def note(version: int, record: VersionRecord, found: Marking | None) -> dict[str, object]:
    """Return the note that `marking` reads; None: the marker was not asked for."""
    if found is None:
        return {}
    body = {"version": version, "published_at": record.published_at, **found.to_json()}
    return {MARK: body}


def state(
    notes: Mapping[str, object],
    version: Snapshot | None,
    *,
    audit_s: float,
    features: Collection[str] | None,
    is_trusted: bool = False,
) -> MarkerState:
    """Return what is known of a fragment's marker.

    Args:
        version: the published one.
        audit_s: seconds between two audits.
        features: of the source; None: they are not known.
        is_trusted: somebody confirms the marker, whatever earlier audits found.
    """
    found = Marking() if version is None else marking(notes, version)
    audit = found.audit
    if audit is not None and is_trusted:
        audit = Audit(audit.at, audit.since, audit.changes, audit.missed, audit.keys)
    is_known = features is None or SINCE in features
    if not is_known:
        found = replace(found, mark=b"", why="the source's agent is older than markers")
    elif features is not None and found.checksum and CHECKSUM not in features:
        found = replace(found, mark=b"", why="the source's agent is older than checksums")
    return MarkerState(
        found.mark,
        found.why,
        found.hashes,
        audit,
        audit_s,
        is_known,
        found.changes,
        found.again,
        number(notes, KEYS_PER_S),
        found.checksum,
    )
