"""Tell a program or a webhook what happens to tables: once a state, and until it was delivered.

`_driftline/notified/CHANNEL.json` has for each channel what it was told and what waits
(`told_states`). A command adds what it saw, and claims and sends in one message all that waits;
then it removes that, or leaves it to the next command. So is told, too, what commands that were
killed left behind, and tables that are overdue, which this command did not touch.

That a table is overdue is decided by the time in this file. Its history is read only before that is
told, and only for CONFIRM_S in a command: another configuration may have refreshed it.

If nothing can be written, such as on a full disk, it is told what this command saw, each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from driftline.errors import (
    CommandKilled,
    ConfigurationError,
    RecipeChanged,
    TableShrank,
    WarehouseUnavailable,
)
from driftline.peer_text import one_line

from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.config.notify import read_address
from warehouse_agent.config.settings import MessageFormat, NotifySettings, SecretAddress
from warehouse_agent.history import alarms, failures, refresh_history
from warehouse_agent.monitoring.after_command import EndedCommand
from warehouse_agent.monitoring.messages import Message, grouped
from warehouse_agent.monitoring.told_states import Event, TableState, Told, ToldKind, WaitingEvent
from warehouse_agent.report import Report, utc_at
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX
from warehouse_agent.views.timings import longest_s

FOLDER: Final = "notified"
CONFIRM_S: Final = 0.3  # in which histories are read


@dataclass(frozen=True)
class Notifier:
    """A channel that is told. `send` delivers a message, and says who answered.

    `send` raises NotDelivered or ConfigurationError.
    """

    name: str
    send: Callable[[Message], str]

    def tell(self, ended: EndedCommand) -> None:
        """Tell what waits, and what a command saw.

        Raises:
            WarehouseUnavailable: what is told cannot be noted; so it was told without.
            NotDelivered, ConfigurationError: it is sent again by the next command.
        """
        place, store = (PRIVATE, FOLDER, f"{self.name}.json"), ended.store
        configured = {*ended.config.fragments, *ended.config.views}
        known = told = Told()
        mine: Sequence[WaitingEvent] = ()

        def add(before: Told, seen: Sequence[Event]) -> Told:
            nonlocal told, mine
            told, mine = before.seeing(seen, configured).claimed(time.time())
            return told

        try:
            known = Told.of_json(store.read(*place) or b"")
            seen = [*overdue(ended, known), *seen_by(ended)]
            _change(store, place, lambda before: add(before, seen))
        except WarehouseUnavailable:  # such as of a disk that is full
            add(known, [*seen_by(ended)])
            self._send(ended, told, mine)
            raise
        try:
            self._send(ended, told, mine)
        except BaseException:
            _change(store, place, lambda now: now.released(mine))
            raise
        if mine:
            _change(store, place, lambda now: now.delivered(mine, told.left_out))

    def _send(self, ended: EndedCommand, told: Told, mine: Sequence[WaitingEvent]) -> None:
        if mine:
            groups = grouped(one.event for one in mine)
            at = ended.now.timestamp()
            self.send(Message(ended.config.path, at, groups, told.left_out))


def _change(store: Store, place: tuple[str, ...], change: Callable[[Told], Told]) -> None:
    store.change(lambda data: change(Told.of_json(data)).to_json(), *place)


def seen_by(ended: EndedCommand) -> Iterator[Event]:
    """Yield what a command saw of tables, also of commands that were killed before it."""
    config, now = ended.config, ended.now.timestamp()
    for record, left in ended.killed:
        for name in left:
            source = config.fragments[name].source.name if name in config.fragments else ""
            remedy = CommandKilled.default_remedy
            yield Event(ToldKind.FAILED, name, record.said, source, CommandKilled.code, "", remedy)
    for report in ended.reports:
        fragment = config.fragments.get(report.name)
        if report.error is not None:
            if report.put_off_until is None:
                yield _failure(report, report.error, fragment, now, config.notify.has_values)
        elif report.stale is not None:
            yield Event(ToldKind.STALE, report.name, now)
        elif report.not_started is None:
            source = "" if fragment is None else fragment.source.name
            yield Event(ToldKind.RECOVERED, report.name, now, source)
            # A kept relation follows what its views need.
            if report.schema_changes and fragment is not None and not fragment.is_kept:
                yield Event(
                    ToldKind.SCHEMA_CHANGED,
                    report.name,
                    now,
                    source,
                    changes=tuple(report.schema_changes),
                    version=report.version,
                )


def _failure(
    report: Report,
    error: Mapping[str, Any],
    fragment: Fragment | None,
    now: float,
    has_values: bool,
) -> Event:
    code, where, details = str(error["code"]), str(error["where"]), dict(error["details"])
    kind, column, changes = ToldKind.FAILED, "", ()
    if code == TableShrank.code:
        kind = ToldKind.SHRANK
    if code == RecipeChanged.code:  # its details are names of columns and policies
        changes = tuple(text for name, text in details.items() if name.startswith("change "))
        kind = ToldKind.SCHEMA_CHANGED if changes else kind
    for name in () if fragment is None else (fragment.name, fragment.relation):
        if where.startswith(f"{name}."):
            column = where.removeprefix(f"{name}.")
    return Event(
        kind,
        report.name,
        now,
        "" if fragment is None else fragment.source.name,
        code,
        one_line(column, LINE_CHARACTERS_MAX),
        one_line(str(error["remedy"]), LINE_CHARACTERS_MAX),
        changes,
        message=one_line(str(error["message"]), LINE_CHARACTERS_MAX) if has_values else "",
        details=details if has_values else {},
    )


def overdue(ended: EndedCommand, known: Told) -> Iterator[Event]:
    """Yield which fragments are overdue, as `alarms.late_s` says, beside what a command refreshed;
    and which others have refreshed since it was noted here.

    Raises:
        WarehouseUnavailable: a history cannot be read.
    """
    config, now, until = ended.config, ended.now, time.monotonic() + CONFIRM_S
    well = {report.name for report in ended.reports if report.error is None}
    doubted = []
    for fragment in config.fragments.values():
        if fragment.name in well:
            continue
        state = known.tables.get(fragment.name, TableState())
        unseen_s = None if state.well_at is None else now.timestamp() - state.well_at
        if unseen_s is not None and unseen_s < 0:  # by a clock that was wrong
            unseen_s = None
        interval_s = longest_s(config, fragment)
        if interval_s is not None and (unseen_s is None or unseen_s > alarms.LATE * interval_s):
            doubted.append((state.is_stale, unseen_s is None, fragment.name, interval_s, state))
    # Of what is not told yet first, should the time not suffice for all.
    for _, _, name, interval_s, state in sorted(doubted, key=lambda one: one[:3]):
        if time.monotonic() > until:
            return
        history = refresh_history.read(ended.store, name, failures.until_success())
        at = history.refreshed_at
        if at is not None and at.timestamp() > (state.well_at or 0.0):
            yield Event(ToldKind.RECOVERED, name, at.timestamp())
        elif at is None and state.well_at is None:
            continue  # it was never published
        facts = alarms.known(
            history,
            now,
            version=0,
            checked_at=utc_at(state.well_at or 0.0),
            interval_s=interval_s,
            damaged=0,
            stale=None,
        )
        if alarms.late_s(facts) is not None:
            source = config.fragments[name].source.name
            yield Event(ToldKind.STALE, name, now.timestamp(), source)


def of(config: WarehouseConfig) -> Sequence[Notifier | Heartbeat]:
    """Return who is told by the configuration."""
    settings, made = config.notify, list[Notifier | Heartbeat]()
    if settings.command is not None:
        made.append(Notifier("command", partial(_to_program, config, settings.command)))
    if settings.webhook is not None:
        made.append(Notifier("webhook", partial(_to_webhook, settings, settings.webhook)))
    if settings.heartbeat is not None:
        made.append(Heartbeat(settings.heartbeat, settings.timeout_s))
    return made


def trials(config: WarehouseConfig, now: float) -> list[tuple[str, Callable[[], str]]]:
    """Return what sends a test message to each who is told, by name, and says who answered.

    Args:
        now: seconds since 1970.

    Raises:
        ConfigurationError: nobody is named.
    """
    message = Message(config.path, now, (), is_test=True)
    made: list[tuple[str, Callable[[], str]]] = [
        (one.name, one.fetch if isinstance(one, Heartbeat) else partial(one.send, message))
        for one in of(config)
    ]
    if not made:
        raise ConfigurationError(
            "[notify] names nobody to whom a message is sent.",
            where=f"{config.file.name}: notify",
            remedy="Set a `webhook`, a `command` or a `heartbeat`.",
        )
    return made


def _to_program(config: WarehouseConfig, argv: Sequence[str], message: Message) -> str:
    from warehouse_agent.monitoring import delivery  # which most commands do not need

    body = message.body(MessageFormat.JSON)
    return delivery.to_program(argv, body, config.notify.timeout_s, config.file.parent)


def _to_webhook(settings: NotifySettings, where: SecretAddress, message: Message) -> str:
    from warehouse_agent.monitoring import delivery

    body, key, headers = message.body(settings.format), settings.webhook_secret_file, {}
    if key is not None:
        headers = delivery.signature(key, "notify.webhook_secret_file", body, time.time())
    return delivery.to_address(read_address(where), body, settings.timeout_s, headers)


@dataclass(frozen=True)
class Heartbeat:
    """An address that is fetched after each command in which nothing failed."""

    where: SecretAddress
    timeout_s: float
    name: str = "heartbeat"

    def tell(self, ended: EndedCommand) -> None:
        """Fetch it. Raises NotDelivered, ConfigurationError."""
        if not ended.has_failed:
            self.fetch()

    def fetch(self) -> str:
        """Fetch it, and say who answered. Raises NotDelivered, ConfigurationError."""
        from warehouse_agent.monitoring import delivery

        return delivery.to_address(read_address(self.where), None, self.timeout_s)
