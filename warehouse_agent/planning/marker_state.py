"""What is known of a fragment's marker: its mark, its audits, and why it may not be used now.

Without I/O. A marker is a claim. Each audit, a comparison of all rows, counts the changes that it
missed. After AUDITS_MISSED audits in a row that found some, the marker is not used until somebody
confirms it, because what it claims is known to be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from warehouse_agent.report import counted

AUDITS_MISSED: Final = 2  # in a row, after which a marker is refused
KEYS_SHOWN: Final = 10  # of rows that a marker missed


def warnings(future: int, open_s: float) -> tuple[str, ...]:
    """Return the signs that a promise about a marker is not kept, as text.

    Args:
        future: rows with a time that is yet to come.
        open_s: a transaction has been open for so long, longer than `late` says; 0: none.
    """
    signs = []
    if future:
        has = "has a time" if future == 1 else "have times"
        signs.append(
            f"{counted(future, 'row')} {has} in the future: a clock of the writers is wrong, and"
            " they are read again each time"
        )
    if open_s:
        signs.append(
            f"a transaction of the source has been open for {open_s:,.0f} s or more, longer than"
            " `late` allows: updates that it commits may be missed until the next audit"
        )
    return tuple(signs)


@dataclass(frozen=True, slots=True)
class MarkerAudit:
    """A comparison of all rows of a fragment with a marker.

    Attributes:
        at: when, ISO 8601 in UTC. If no mark could be used then, the rest is of the audit before.
        since: when all rows had been compared before.
        changes: rows that were found changed since then, with those missed.
        missed: changed rows that the marker did not show; `keys` of some, as text.
        in_row: audits in a row, with this one, that found some.
        is_sample: not all rows were looked at that may have been missed; `missed` is an estimate.
        wrong_since: since when versions may be wrong: the last audit that found nothing missed;
            None: nothing was missed.
    """

    at: str
    since: str | None = None
    changes: int = 0
    missed: int = 0
    keys: tuple[str, ...] = ()
    in_row: int = 0
    is_sample: bool = False
    wrong_since: str | None = None

    @property
    def wrong_from(self) -> str:
        """Return since when versions may be wrong, if the next audit finds that some changes were
        missed."""
        return (self.wrong_since or self.since or self.at) if self.missed else self.at

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "at": self.at,
            "since": self.since,
            "changes": self.changes,
            "missed": self.missed,
            "keys": list(self.keys),
            "in_row": self.in_row,
            "is_sample": self.is_sample,
            "wrong_since": self.wrong_since,
        }

    @classmethod
    def from_json(cls, body: object) -> Self | None:
        """Return what `to_json` wrote; None if it is nothing like it."""
        if not isinstance(body, Mapping):
            return None
        counts = [body.get(name) for name in ("changes", "missed", "in_row")]
        texts, keys = [body.get("at"), body.get("since")], body.get("keys")
        is_sound = all(type(count) is int and count >= 0 for count in counts)
        if not is_sound or not isinstance(texts[0], str) or not isinstance(keys, list):
            return None
        since = texts[1] if isinstance(texts[1], str) else None
        changes, missed, in_row = (int(count or 0) for count in counts)
        shown = tuple(str(key) for key in keys[:KEYS_SHOWN])
        is_sample = body.get("is_sample") is True
        wrong = body.get("wrong_since")
        wrong_since = wrong if isinstance(wrong, str) else None
        return cls(texts[0], since, changes, missed, shown, in_row, is_sample, wrong_since)


@dataclass(frozen=True, slots=True)
class MarkerState:
    """The marker of a fragment that accepts `proof = "keys"` or `"claimed"`.

    Attributes:
        mark: the source's, of the published version; empty if there is none, and `why`.
        hashes: the source's database can add up hashes of keys.
        audit: the last one; None: never, and then there is no mark.
        audit_s: seconds between two audits.
        is_known: the source gives marks, if it is asked for them.
        changes: rows that were found changed since the last audit.
        again: rows that came by the mark the last time although they had not changed.
        keys_per_s: how fast the source found changes by the marker, in rows of the table a second.
        checksum: the column that is the marker; empty: that is another one.
        claims: rows are taken as the marker claims, and no keys are compared.
    """

    mark: bytes
    why: str
    hashes: bool
    audit: MarkerAudit | None
    audit_s: float
    is_known: bool
    changes: int = 0
    again: int = 0
    keys_per_s: float | None = None
    checksum: str = ""
    claims: bool = False

    def refused(self, now: datetime) -> str:
        """Return why the marker is not used now; empty: it may be."""
        if not self.mark or self.audit is None:
            return self.why or "there is no mark yet"
        if self.audit.in_row >= AUDITS_MISSED:
            return (
                f"{self.audit.in_row} audits in a row found changes that the marker had missed;"
                " confirm with `refresh --trust-marker` that this is mended"
            )
        if self.age_s(now) >= self.audit_s:
            return "an audit is due"
        return ""

    def age_s(self, now: datetime) -> float:
        """Return the seconds since the last audit; infinite if its time is not known, or later."""
        try:
            at = datetime.fromisoformat(self.audit.at if self.audit else "")
            age_s = (now - at).total_seconds()
        except (ValueError, TypeError):  # TypeError: it has no time zone
            return float("inf")
        return age_s if age_s >= 0 else float("inf")
