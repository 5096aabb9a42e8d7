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

from driftline.wire.negotiation import CHECKSUM, CLAIMED, SINCE

from warehouse_agent.json_values import number
from warehouse_agent.planning.marker_state import MarkerAudit, MarkerState

if TYPE_CHECKING:  # commands that ask nobody do not load it
    from driftline import wire_pb2 as pb

TIME = "time"  # kind of a marker


@dataclass(frozen=True, slots=True)
class KeptMark:
    """The mark of a version, as it is kept: see `MarkerState`.

    `warnings`: what the exchange found that gave the mark. Not kept: `gone`, our rows that are gone
    by a flag behind the mark, and `lied`, the audit if more were deleted.
    """

    mark: bytes = b""
    why: str = ""
    hashes: bool = False
    audit: MarkerAudit | None = None
    changes: int = 0
    again: int = 0
    warnings: tuple[str, ...] = ()
    checksum: str = ""
    gone: int = 0
    lied: MarkerAudit | None = None

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
    def from_json(cls, body: object) -> KeptMark:
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
            MarkerAudit.from_json(body.get("audit")),
            int(number(body, "changes") or 0),
            int(number(body, "again") or 0),
            tuple(map(str, told)) if isinstance(told, list) else (),
            checksum if isinstance(checksum, str) else "",
        )


def time_column(description: pb.Description) -> str:
    """Return the column of a time marker; empty: the relation has none."""
    marker = description.marker
    return marker.column if marker.kind == TIME else ""


def state(
    marking: KeptMark,
    keys_per_s: float | None,
    *,
    audit_s: float,
    features: Collection[str] | None,
    is_trusted: bool = False,
    claims: bool = False,
) -> MarkerState:
    """Return what is known of a fragment's marker.

    Args:
        marking: the mark of the published version.
        keys_per_s: how fast the source found changes by the marker.
        audit_s: seconds between two audits.
        features: of the source; None: they are not known.
        is_trusted: somebody confirms the marker, whatever earlier audits found.
        claims: the fragment accepts rows that are claimed alone. An older source compares keys.
    """
    audit = marking.audit
    if audit is not None and is_trusted:
        audit = replace(audit, in_row=0, is_sample=False)
    is_known = features is None or SINCE in features
    if not is_known:
        marking = replace(marking, mark=b"", why="the source's agent is older than markers")
    elif features is not None and marking.checksum and CHECKSUM not in features:
        marking = replace(marking, mark=b"", why="the source's agent is older than checksums")
    return MarkerState(
        marking.mark,
        marking.why,
        marking.hashes,
        audit,
        audit_s,
        is_known,
        marking.changes,
        marking.again,
        keys_per_s,
        marking.checksum,
        claims and features is not None and CLAIMED in features,
    )
