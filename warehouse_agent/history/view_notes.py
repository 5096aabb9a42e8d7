"""Notes of a view between refreshes: a typed value in the place where fragments have theirs.

They may be lost or damaged at any time, as those of a fragment (`notes`), and name the versions
that they speak of by stamps, which no other version has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from warehouse_agent.history.notes import place
from warehouse_agent.json_values import number
from warehouse_agent.planning import view_cost
from warehouse_agent.storage.store import Store, json_of
from warehouse_agent.storage.table import VersionRecord


@dataclass(frozen=True, slots=True)
class ValidInputsNote:
    """The inputs for which the published version of a view is still right.

    Attributes:
        version: what tells it from another of the same number (`views.evaluate.stamp_of`).
        java: by which it was found right; None: that of the version.
        inputs: versions, by name; `made_of` tells each from others of the same number.
        times: how often versions of the view were found right for newer inputs.
    """

    version: str
    java: str | None
    inputs: Mapping[str, int]
    made_of: Mapping[str, str]
    times: int


@dataclass(frozen=True, slots=True)
class ViewNotes:
    """The notes of a view; None, empty: not noted.

    Attributes:
        distrusted: the version whose incremental maintenance failed (`views.evaluate.stamp_of`).
        factors: what phases take, over what the defaults say, by phase (`planning.view_cost`).
        others: what this release does not know, as JSON.
    """

    distrusted: str | None = None
    current: ValidInputsNote | None = None
    factors: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, name: str) -> Self:
        """Return the notes of a view. Raises WarehouseUnavailable."""
        return cls.from_json(store.read_json(*place(name)))

    def write(self, store: Store, name: str, before: ViewNotes) -> None:
        """Write what differs in these notes from those `before`. Raises WarehouseUnavailable."""
        names = [one.name for one in fields(ViewNotes)]
        changed = {n: getattr(self, n) for n in names if getattr(self, n) != getattr(before, n)}

        def over(now: bytes) -> bytes:
            return json.dumps(
                replace(ViewNotes.from_json(json_of(now)), **changed).to_json()
            ).encode()

        if changed:
            store.change(over, *place(name))

    def record(self, version: VersionRecord, stamp: str) -> VersionRecord:
        """Return the record of the published version, with the newest inputs it is right for.

        Args:
            stamp: of the version.
        """
        noted = self.current
        if noted is None or noted.version != stamp:
            return version
        java = version.java if noted.java is None else noted.java
        inputs, stamps = dict(noted.inputs), dict(noted.made_of)
        return replace(version, inputs=inputs, made_of=stamps, java=java)

    @property
    def times_current(self) -> int:
        """Return how often published versions were found right for newer inputs."""
        return 0 if self.current is None else self.current.times

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Return the notes that `to_json` wrote; what is not possible is missing."""
        distrusted, factors = body.get("distrusted"), body.get("phase_factors")
        return cls(
            distrusted if isinstance(distrusted, str) else None,
            _current(body.get("current")),
            _factors(factors) if isinstance(factors, dict) else {},
            {key: body[key] for key in body if key not in _VIEW_KEYS},
        )

    def to_json(self) -> dict[str, object]:
        """Return the notes as JSON."""
        current = None if self.current is None else asdict(self.current)
        noted = {"distrusted": self.distrusted, "current": current}
        said = {key: value for key, value in noted.items() if value is not None}
        factors = {"phase_factors": dict(self.factors)} if self.factors else {}
        return dict(self.others) | said | factors


_VIEW_KEYS = frozenset(("distrusted", "current", "phase_factors"))


def _current(body: object) -> ValidInputsNote | None:
    if not isinstance(body, dict):
        return None
    version, java, times = (body.get(name) for name in ("version", "java", "times"))
    inputs, stamps = body.get("inputs"), body.get("made_of")
    if not isinstance(version, str) or not isinstance(inputs, dict):
        return None
    if not isinstance(stamps, dict) or inputs.keys() != stamps.keys():
        return None
    is_sound = all(type(one) is int for one in inputs.values())
    if not is_sound or not all(isinstance(one, str) for one in stamps.values()):
        return None
    return ValidInputsNote(
        version,
        java if isinstance(java, str) else None,
        inputs,
        stamps,
        times if type(times) is int and times >= 0 else 0,
    )


def _factors(body: Mapping[str, object]) -> dict[str, float]:
    factors = {
        phase: number(body, phase) for phases in view_cost.PHASES.values() for phase in phases
    }
    return {phase: view_cost.bounded(one) for phase, one in factors.items() if one is not None}
