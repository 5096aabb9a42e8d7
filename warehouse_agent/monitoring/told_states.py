"""What a receiver was told of each table, and what waits to be told: decided without I/O.

A table is well, or it has failed with some codes since it last was, or is stale; each of these is
told once, however many refreshes see it. An event waits in the same file until it was delivered, so
a lost message is sent again, and a table that fails and recovers meanwhile is told of twice. Who
sends an event claims it first for CLAIM_S: of two commands at once one sends it, and the event of a
command that was killed while it sent is free again soon.

Rejected: only the last state that was told; a failure that a lost message tells and that is over
before the next one would be told by nobody.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from warehouse_agent.storage.store import json_of

CLAIM_S: Final = 10.0  # more than a delivery takes
WAITING_MAX: Final = 2_000  # events; beyond, the oldest are only counted
_STALE: Final = "stale"  # among the codes of errors, which are upper case
_SCHEMA: Final = 1


class ToldKind(Enum):
    """Kinds of what is told of a table."""

    FAILED = "failed"
    SHRANK = "shrank"
    SCHEMA_CHANGED = "schema_changed"
    STALE = "stale"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a command saw of a table.

    Attributes:
        at: in seconds since 1970.
        source: its name; empty: a view.
        code, column, remedy: of an error; empty: there is none, or it names no column.
        changes: of columns and the key, a phrase each.
        version: that has the changes; None: they were refused.
        message, details: of an error, with keys and values; empty where these are not told.
    """

    kind: ToldKind
    table: str
    at: float
    source: str = ""
    code: str = ""
    column: str = ""
    remedy: str = ""
    changes: tuple[str, ...] = ()
    version: int | None = None
    message: str = ""
    details: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, without what is empty."""
        body = {name: getattr(self, name) for name in self.__slots__}
        body |= {"kind": self.kind.value, "changes": list(self.changes)}
        return {name: one for name, one in body.items() if one not in ("", None, [], {})}

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Event:
        """Return the event. Raises ValueError, KeyError, TypeError, AttributeError: it is none."""
        texts = {name: str(body.get(name, "")) for name in ("source", "code", "column", "remedy")}
        return cls(
            ToldKind(body["kind"]),
            str(body["table"]),
            float(body["at"]),
            changes=tuple(map(str, body.get("changes", ()))),
            version=body.get("version"),
            message=str(body.get("message", "")),
            details={str(name): str(text) for name, text in body.get("details", {}).items()},
            **texts,
        )


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table: facts, and what was told.

    Attributes:
        well_at: when a refresh went well, in seconds since 1970; None: not known.
        told: codes of errors since then, and `stale`.
    """

    well_at: float | None = None
    told: tuple[str, ...] = ()

    @property
    def is_stale(self) -> bool:
        """Return True if it was told that the table is stale."""
        return _STALE in self.told

    def after(self, seen: Event) -> tuple[TableState, bool]:
        """Return the state after an event, and True if it is to be told."""
        if seen.kind is ToldKind.RECOVERED:
            return TableState(seen.at), bool(self.told)  # earlier, if a clock went back
        if seen.kind is ToldKind.SCHEMA_CHANGED and seen.version is not None:
            return self, True
        mark = _STALE if seen.kind is ToldKind.STALE else seen.code
        if mark in self.told:
            return self, False
        return replace(self, told=(*self.told, mark)), True


@dataclass(frozen=True, slots=True)
class WaitingEvent:
    """An event that is not delivered yet; `claimed_at`: somebody began to send it."""

    number: int
    event: Event
    claimed_at: float | None = None

    def is_free(self, now: float) -> bool:
        """Return True if nobody sends it; a claim of the future is of a clock that was wrong."""
        return self.claimed_at is None or not 0 <= now - self.claimed_at < CLAIM_S


@dataclass(frozen=True, slots=True)
class Told:
    """Knowledge of one receiver about all tables, and the events that wait for it.

    Attributes:
        tables: by name.
        waiting: the oldest first.
        next_number: of an event.
        left_out: events that were more than WAITING_MAX, and are only counted.
    """

    tables: Mapping[str, TableState] = field(default_factory=dict)
    waiting: tuple[WaitingEvent, ...] = ()
    next_number: int = 0
    left_out: int = 0

    def seeing(self, seen: Iterable[Event], configured: Collection[str]) -> Told:
        """Return what is known after events, in their order; other tables are forgotten.

        What waits of a table that is gone from the configuration is still told.
        """
        tables = {name: one for name, one in self.tables.items() if name in configured}
        waiting, number = list(self.waiting), self.next_number
        for event in seen:
            if event.table not in configured:
                continue
            before = tables.get(event.table, TableState())
            tables[event.table], is_told = before.after(event)
            if is_told:
                waiting.append(WaitingEvent(number, event))
                number += 1
        many = max(len(waiting) - WAITING_MAX, 0)
        return Told(tables, tuple(waiting[many:]), number, self.left_out + many)

    def claimed(self, now: float) -> tuple[Told, Sequence[WaitingEvent]]:
        """Claim all events that nobody sends; return them, too."""
        mine = [one for one in self.waiting if one.is_free(now)]
        numbers = {one.number for one in mine}
        return self._marked(numbers, now), mine

    def released(self, events: Iterable[WaitingEvent]) -> Told:
        """Give claimed events free again: they were not delivered."""
        return self._marked({one.number for one in events}, None)

    def delivered(self, events: Iterable[WaitingEvent], left_out: int) -> Told:
        """Remove events that were delivered, and the number of others that was told with them."""
        numbers = {one.number for one in events}
        waiting = tuple(one for one in self.waiting if one.number not in numbers)
        return replace(self, waiting=waiting, left_out=max(self.left_out - left_out, 0))

    def _marked(self, numbers: Collection[int], claimed_at: float | None) -> Told:
        waiting = (
            replace(one, claimed_at=claimed_at) if one.number in numbers else one
            for one in self.waiting
        )
        return replace(self, waiting=tuple(waiting))

    def to_json(self) -> bytes:
        """Return it as the bytes of its file."""
        tables = {
            name: [one.well_at and round(one.well_at, 3), *one.told]
            for name, one in self.tables.items()
        }
        waiting = [[one.number, one.claimed_at, one.event.to_json()] for one in self.waiting]
        body = {"schema": _SCHEMA, "next_number": self.next_number, "left_out": self.left_out}
        return json.dumps({**body, "tables": tables, "waiting": waiting}).encode()

    @classmethod
    def of_json(cls, data: bytes) -> Told:
        """Return what a file says; what is damaged in it is left out."""
        body: dict[str, Any] = json_of(data)
        tables, waiting = body.get("tables"), body.get("waiting")
        states, events = {}, []
        for name, one in tables.items() if isinstance(tables, dict) else ():
            with contextlib.suppress(*_DAMAGED):
                well_at, *told = one
                known = None if well_at is None else float(well_at)
                states[name] = TableState(known, tuple(map(str, told)))
        for one in waiting if isinstance(waiting, list) else ():
            with contextlib.suppress(*_DAMAGED):
                number, claimed_at, event = one
                at = None if claimed_at is None else float(claimed_at)
                events.append(WaitingEvent(int(number), Event.of_json(event), at))
        counts = [body.get(name) for name in ("next_number", "left_out")]
        first, left_out = (one if isinstance(one, int) and one > 0 else 0 for one in counts)
        following = max((one.number + 1 for one in events), default=0)
        return cls(states, tuple(events), max(first, following), left_out)


_DAMAGED: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
