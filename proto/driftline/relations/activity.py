"""Activity: what a source says, without a scan, of the changes of a relation.

It is a hint about *when* a relation may have changed, never about what: nothing is published or
proven from it. Two values of one relation are compared, an earlier and a later one; only equality
and, of counts, the difference mean something.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class CountedActivity:
    """Rows that were inserted, updated and deleted since counting began, `changes`.

    `identity`, in hex, differs if counting began anew. Changes that were rolled back may count.
    """

    identity: str
    changes: int


@dataclass(frozen=True, slots=True)
class FlaggedActivity:
    """A value, in hex, that differs if something changed; `identity` as in `CountedActivity`."""

    identity: str
    flag: str


@dataclass(frozen=True, slots=True)
class UnknownActivity:
    """Nothing can be told; `why` is a phrase, for people."""

    why: str


Activity = CountedActivity | FlaggedActivity | UnknownActivity
_KINDS: dict[str, type[CountedActivity | FlaggedActivity | UnknownActivity]] = {
    "counted": CountedActivity,
    "flagged": FlaggedActivity,
    "not_known": UnknownActivity,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(activity: Activity) -> dict[str, Any]:
    """Return an activity as JSON, for reports and notes."""
    return {"kind": _NAMES[type(activity)], **asdict(activity)}


def from_json(body: object) -> Activity | None:
    """Return the activity that `to_json` wrote; None if there is none, or if it is damaged."""
    try:
        assert isinstance(body, dict)
        activity = _KINDS[body["kind"]](**{k: v for k, v in body.items() if k != "kind"})
    except (AssertionError, KeyError, TypeError):
        return None
    texts = [getattr(activity, one.name) for one in fields(activity) if one.name != "changes"]
    is_sound = all(isinstance(text, str) for text in texts) and (
        not isinstance(activity, CountedActivity)
        or (type(activity.changes) is int and activity.changes >= 0)
    )
    return activity if is_sound else None
