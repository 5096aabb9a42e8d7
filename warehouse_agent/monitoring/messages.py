"""A message about events: grouped by cause, as JSON, as text, and in the forms of chat programs.

A source that is down is one group, of however many tables: NAMED_MAX of them are named. Names of
columns come from a source: in Slack's form nothing is read as markup, in Teams' form lines are runs
of text, which are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from driftline.errors import meaning
from driftline.peer_text import one_line

from warehouse_agent.config.settings import MessageFormat
from warehouse_agent.monitoring.told_states import Event, ToldKind
from warehouse_agent.report import counted, utc_at

NAMED_MAX: Final = 10  # tables of a group
GROUPS_MAX: Final = 20  # of a message; fewer if it had more than BYTES_MAX
BYTES_MAX: Final = 24_000  # Teams takes 28 kB
CHANGES_MAX: Final = 20  # of a group
_CHARACTERS_MAX: Final = 400  # of each part of a line
_SCHEMA: Final = 1
_NAME: Final = "\0"  # stands for the name of a table in a remedy
_HEADS: Final = {
    ToldKind.FAILED: "failed",
    ToldKind.SHRANK: "shrank",
    ToldKind.SCHEMA_CHANGED: "schema changed",
    ToldKind.STALE: "overdue",
    ToldKind.RECOVERED: "recovered",
}
# Slack: what it replaces by characters, in a text that it shows unchanged otherwise.
_SLACK: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Else Slack fetches an address that a source wrote into a name, and shows what is there.
_NO_PREVIEWS: Final = {"unfurl_links": False, "unfurl_media": False}


class NotDelivered(Exception):
    """A message was not delivered, and why."""


@dataclass(frozen=True, slots=True)
class Group:
    """Events of one cause: the first of them, and the names of all their tables."""

    first: Event
    tables: tuple[str, ...]

    @property
    def line(self) -> str:
        """Return it as one line."""
        one, named = self.first, ", ".join(self.tables[:NAMED_MAX])
        if more := len(self.tables) - NAMED_MAX:
            named += f" and {more:,} more" if more > 0 else ""
        head = _HEADS[one.kind]
        if one.kind is ToldKind.SCHEMA_CHANGED:
            head += " at the source" if one.version is None else f", now version {one.version}"
        why = [f"{one.code}: {one_line(meaning(one.code), _CHARACTERS_MAX)}"] if one.code else []
        if one.column:
            why.append(f"Column: {one_line(one.column, _CHARACTERS_MAX)}.")
        if one.changes:
            changes = "; ".join(one.changes[:CHANGES_MAX])
            why.append(one_line(f"{changes}.", _CHARACTERS_MAX))
        if one.message:
            why.append(one_line(one.message, _CHARACTERS_MAX))
        if one.kind is ToldKind.STALE:
            why.append("No refresh went well for longer than its timing allows.")
        if one.remedy:
            why.append(one_line(one.remedy, _CHARACTERS_MAX))
        return f"{head}: {named}{'' if not why else ': ' + ' '.join(why)}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        one = self.first
        body: dict[str, Any] = {
            "event": one.kind.value,
            "tables": list(self.tables[:NAMED_MAX]),
            "count": len(self.tables),
            "at": utc_at(one.at),
            "source": one.source or None,
            "code": one.code or None,
            "column": one.column or None,
            "remedy": one.remedy or None,
            "changes": list(one.changes[:CHANGES_MAX]),
            "version": one.version,
        }
        if one.message:
            body |= {"message": one.message, "details": dict(one.details)}
        return body


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        warehouse: its path.
        at: in seconds since 1970.
        groups: the most urgent first; of them GROUPS_MAX are told.
        left_out: events that are only counted.
        is_test: it tells nothing.
    """

    warehouse: str
    at: float
    groups: Sequence[Group]
    left_out: int = 0
    is_test: bool = False

    @property
    def title(self) -> str:
        """Return the subject, one line."""
        if self.is_test:
            return f"Driftline: a test message of {self.warehouse}"
        numbers: dict[ToldKind, int] = dict.fromkeys(ToldKind, 0)
        for group in self.groups:
            numbers[group.first.kind] += len(group.tables)
        said = [f"{number:,} {_HEADS[kind]}" for kind, number in numbers.items() if number]
        return f"Driftline: {', '.join(said) or 'events'} in {self.warehouse}"

    @property
    def lines(self) -> list[str]:
        """Return what it says, without the title."""
        return self._lines(GROUPS_MAX)

    def _lines(self, groups_max: int) -> list[str]:
        said = [group.line for group in self.groups[:groups_max]]
        if (more := len(self.groups) - groups_max) > 0:
            said.append(f"And {counted(more, 'other cause')}.")
        if self.left_out:
            said.append(f"And {counted(self.left_out, 'earlier event')}, not told in time.")
        return [*said, "What to do: driftline status"] if said else ["Nothing is wrong."]

    def body(self, form: MessageFormat) -> bytes:
        """Return it as JSON in a form."""
        told = GROUPS_MAX
        while len(made := self._body(form, told)) > BYTES_MAX and told > 1:
            told //= 2
        return made

    def _body(self, form: MessageFormat, groups_max: int) -> bytes:
        lines = self._lines(groups_max)
        match form:
            case MessageFormat.JSON:
                body: Mapping[str, Any] = {
                    "schema": _SCHEMA,
                    "warehouse": self.warehouse,
                    "at": utc_at(self.at),
                    "title": self.title,
                    "text": "\n".join(lines),
                    "test": self.is_test,
                    "events": [group.to_json() for group in self.groups[:groups_max]],
                    "left_out": self.left_out + max(len(self.groups) - groups_max, 0),
                }
            case MessageFormat.SLACK:
                text = "\n".join([self.title, *lines]).translate(_SLACK)
                body = {"text": text, "mrkdwn": False, **_NO_PREVIEWS}
            case MessageFormat.TEAMS:
                body = _card([self.title, *lines])
        return json.dumps(body).encode()


def grouped(events: Iterable[Event]) -> list[Group]:
    """Return events by cause, failures first."""
    order = list(ToldKind)
    groups: dict[tuple[object, ...], list[Event]] = {}
    for one in events:
        groups.setdefault(_cause(one), []).append(one)
    made = [
        Group(many[0], tuple(dict.fromkeys(one.table for one in many))) for many in groups.values()
    ]
    return sorted(made, key=lambda group: order.index(group.first.kind))


def without_name(remedy: str, table: str) -> str:
    """Return a remedy that is the same for all tables, without the name of its own."""
    return re.sub(rf"(?<![\w.-]){re.escape(table)}(?![\w-])", _NAME, remedy)


def _cause(one: Event) -> tuple[object, ...]:
    """Return what events of one cause share. A message with values names rows: each is its own."""
    remedy = without_name(one.remedy, one.table)
    alone = one.table if one.message or one.version is not None else None
    if one.kind is ToldKind.RECOVERED:
        return (one.kind,)
    return one.kind, one.source, one.code, one.column, remedy, one.changes, alone


def _card(lines: Sequence[str]) -> dict[str, Any]:
    """Return an adaptive card in the form that a workflow of Teams takes from a webhook."""
    rows = [
        {
            "type": "RichTextBlock",
            "inlines": [
                {"type": "TextRun", "text": line, "weight": "default" if number else "bolder"}
            ],
        }
        for number, line in enumerate(lines)
    ]
    content = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": rows,
    }
    card = {"contentType": "application/vnd.microsoft.card.adaptive", "content": content}
    return {"type": "message", "attachments": [{**card, "contentUrl": None}]}
