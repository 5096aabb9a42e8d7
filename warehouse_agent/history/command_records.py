"""What a refresh command does now, for others to see: that it began, and how far it is.

`_driftline/commands/RUN.jsonl` is there while a command runs. Its first line says who runs it and
which fragments it is to refresh; each later one says where it is, at most once in BEAT_S. A command
that ends removes it. One that was killed leaves it behind: on a disk its lock is free then, and
elsewhere it has been silent for SILENT_S_MAX. The next command writes what it had not ended into
the histories of refreshes, as failures, and removes it; `status` says the same before.

The record decides nothing about a refresh, and a refresh does not depend on it: a line that cannot
be written is left out. Rejected: a thread that writes at fixed times; a step without events, as
a long job of Spark, then looks as if it moved.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from driftline.errors import CommandKilled, DriftlineError, Locked
from driftline.peer_text import one_line

from warehouse_agent.events import (
    Event,
    PhasesExpected,
    PhaseStarted,
    RefreshCommitted,
    RefreshEnded,
    RefreshFailed,
    RefreshNotStarted,
    RefreshStarted,
    RowsRead,
)
from warehouse_agent.history import refresh_history
from warehouse_agent.history.history_lines import (
    DAMAGED,
    HistoryLine,
    SuccessLine,
    parse,
)
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.planning.time_left import RowsSoFar, TimeLeft
from warehouse_agent.report import Report, age, utc_at
from warehouse_agent.storage import formats
from warehouse_agent.storage.locks import this_process
from warehouse_agent.storage.store import PRIVATE, Store

BEAT_S: Final = 10.0  # between two lines
SILENT_S_MAX: Final = 3600.0  # without a line, on storage without locks
LINES_BYTES_MAX: Final = 256 << 10
WORKING, DONE, FAILED, LEFT = "working", "done", "failed", "not started"
NAMED_MAX: Final = 10  # fragments in a sentence
_WORD_CHARACTERS_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class FragmentWork:
    """The place of a command in its work on a fragment.

    Attributes:
        state: WORKING, DONE, FAILED or LEFT.
        step: the phase of the refresh; empty before the first.
        since: when this phase began, or the fragment ended, in seconds since 1970.
        doing: the source's word for its work; empty: it reads nothing.
        rows, rows_expected: as it says; 0: not known.
        held_back_s: for which it read more slowly.
        code: of the error of a failure.
        left_s: for which it will still work, as it said then; None: not known.
    """

    state: str
    step: str = ""
    since: float = 0.0
    doing: str = ""
    rows: int = 0
    rows_expected: int = 0
    held_back_s: float = 0.0
    code: str = ""
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command that runs, or that was killed.

    Attributes:
        began: in seconds since 1970.
        who: process, user and host, in words.
        names: the fragments that it is to refresh.
        said: when it wrote its last line, in seconds since 1970.
        works: the fragments that it has begun, as it said then.
        is_running: False: it was killed.
    """

    run: str
    began: float
    who: str
    names: tuple[str, ...]
    said: float
    works: Mapping[str, FragmentWork]
    is_running: bool

    def killed(self, name: str, version: int | None) -> Report:
        """Return the report of a fragment that it had not ended; `version`: what is published."""
        error = CommandKilled(
            "The command was killed before this table had ended, or its machine stopped.",
            where=name,
            details={"command": f"{self.who}, begun {utc_at(self.began)}"},
        )
        began = utc_at(self.began)
        report = Report(name, version=version, previous_version=version, run=self.run)
        report.fail(error)
        report.started_at, report.failed_at = began, utc_at(self.said)
        return report

    def has_left(self, name: str, history: RefreshHistory, version_run: str | None) -> bool:
        """Return True if it was killed before a fragment had ended.

        Args:
            history: of the fragment, down to its last success at least.
            version_run: the command that published the newest version; None: not known.
        """
        if self.is_running or name not in self.names or version_run == self.run:
            return False
        return not any(self._tells(line) for line in history.lines)

    def _tells(self, line: HistoryLine) -> bool:
        """Return True if a line is its own, or a later success."""
        is_later = isinstance(line, SuccessLine) and line.at is not None
        return line.run == self.run or (
            is_later and line.at is not None and line.at.timestamp() > self.said
        )


def with_killed(
    killed: Sequence[CommandRecord], name: str, known: RefreshHistory, version: int | None,
    version_run: str | None,
) -> RefreshHistory:  # fmt: skip
    """Return the history of a fragment with a failure for each command that was killed meanwhile.

    Args:
        killed: the commands, the oldest first.
        known: down to the last success at least.
        version, version_run: what is published, and by which command; None: nothing, not known.
    """
    for record in killed:
        if record.has_left(name, known, version_run):
            line = parse(record.killed(name, version).to_json().encode())
            known = known if line is None else known.plus(line)
    return known


def current(store: Store, now: float) -> list[CommandRecord]:
    """Return the commands that run, or were killed and not noticed yet, the oldest first.

    Raises:
        WarehouseUnavailable: the records cannot be read.
    """
    runs = [name.removesuffix(_END) for name, _ in store.files(PRIVATE, _FOLDER)]
    records = (_read(store, run, now) for run in runs)
    return sorted((one for one in records if one is not None), key=lambda one: one.began)


def settle(store: Store, now: float) -> list[tuple[CommandRecord, list[str]]]:
    """Write what killed commands had not ended into the histories, and remove their records.

    Returns:
        The commands, and the fragments that each had not ended.

    Raises:
        WarehouseUnavailable: a record or a history cannot be read or written.
    """
    settled = []
    for record in current(store, now):
        if record.is_running:
            continue
        with contextlib.suppress(Locked), store.lock(_lock(record.run)):
            left = [name for name in record.names if _tell_killed(store, record, name)]
            _remove(store, record.run)
            settled.append((record, left))
    return settled


def _tell_killed(store: Store, record: CommandRecord, name: str) -> bool:
    """Append the failure of a fragment that a killed command had not ended; return True if so."""

    def enough(line: HistoryLine) -> bool:
        return line.run == record.run or (
            line.at is not None and line.at.timestamp() < record.began
        )

    known = refresh_history.read(store, name, enough)
    version = run = None
    with contextlib.suppress(DriftlineError):  # its own refresh says what is wrong
        if (head := formats.head(store, name)) is not None:
            version, run = head.version, (head.record.report or {}).get("run")
    if not record.has_left(name, known, run):
        return False
    refresh_history.append(store, name, record.killed(name, version).to_json())
    return True


@dataclass
class CommandJournal:
    """The record of this command. A context manager, and a listener that keeps it up to date.

    It holds the record's lock. An interrupted command removes its record: it was not killed.
    """

    store: Store
    run: str
    names: Sequence[str]
    clock: Callable[[], float] = time.time
    _works: dict[str, FragmentWork] = field(default_factory=dict)
    _left: dict[str, TimeLeft] = field(default_factory=dict)
    _said: float = 0.0
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        now = self.clock()
        with contextlib.suppress(DriftlineError):
            self._held.enter_context(self.store.lock(_lock(self.run)))
            begun = {"began": now, "who": this_process(), "names": list(self.names)}
            self._write(begun, now)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._held, contextlib.suppress(DriftlineError):
            _remove(self.store, self.run)

    def __call__(self, event: Event) -> None:
        """Note an event; write a line if the last one is BEAT_S old.

        Raises:
            WarehouseUnavailable: the line cannot be written.
        """
        now = self.clock()
        match event:
            case RefreshStarted(name):
                self._works[name] = FragmentWork(WORKING, since=now)
                self._left[name] = TimeLeft()
            case PhasesExpected(name, seconds):
                self._left[name] = left = TimeLeft(seconds)
                if (work := self._works.get(name)) is None:
                    return
                left_s = left.at(work.step, now - work.since)
                self._works[name] = replace(work, left_s=left_s)
            case PhaseStarted(name, phase):
                left_s = self._left.setdefault(name, TimeLeft()).at(phase, 0.0)
                self._works[name] = FragmentWork(WORKING, phase, now, left_s=left_s)
            case RowsRead(name, doing, rows, expected, held_s):
                before = self._works.get(name, FragmentWork(WORKING, since=now))
                spent_s = now - before.since
                read = RowsSoFar.of(event, spent_s)
                left_s = self._left.setdefault(name, TimeLeft()).at(before.step, spent_s, read)
                self._works[name] = FragmentWork(
                    *(WORKING, before.step, before.since, doing, rows, expected, held_s),
                    left_s=left_s,
                )
            case RefreshCommitted() | RefreshFailed() | RefreshNotStarted():
                self._works[event.report.name] = _ended(event, now)
            case _:
                return
        if not 0 <= now - self._said < BEAT_S:
            self._write({"works": {n: _to_json(work) for n, work in self._works.items()}}, now)

    def _write(self, body: Mapping[str, object], now: float) -> None:
        self._said = now
        line = json.dumps({"said": round(now, 3), **body})
        self.store.append_line(
            line, *_place(self.run), bytes_max=LINES_BYTES_MAX, shorten=_first_line
        )


_FOLDER, _END = "commands", ".jsonl"


def _place(run: str) -> tuple[str, str, str]:
    return PRIVATE, _FOLDER, f"{run}{_END}"


def _lock(run: str) -> str:
    return f"run-{run}"


def _remove(store: Store, run: str) -> None:
    """Remove the record of a command whose lock is held, and the lock's file."""
    store.remove_file(*_place(run))
    if store.has_locks:
        store.remove_file(PRIVATE, "locks", _lock(run))


def _first_line(lines: bytes) -> bytes:
    return lines.partition(b"\n")[0] + b"\n"


def _ended(event: RefreshEnded, now: float) -> FragmentWork:
    match event:
        case RefreshCommitted():
            return FragmentWork(DONE, since=now)
        case RefreshFailed(report):
            return FragmentWork(FAILED, since=now, code=str((report.error or {}).get("code", "")))
        case RefreshNotStarted():
            return FragmentWork(LEFT, since=now)


def _to_json(work: FragmentWork) -> dict[str, object]:
    body = {name: getattr(work, name) for name in FragmentWork.__slots__}
    return {name: value for name, value in body.items() if value or (name, value) == ("left_s", 0)}


def _read(store: Store, run: str, now: float) -> CommandRecord | None:
    """Return a record; None: its command has just ended, or it is damaged."""
    newest: dict[str, Any] | None = None
    for line in store.lines_backwards(*_place(run)):
        with contextlib.suppress(*DAMAGED):
            body = json.loads(line)
            newest = newest or body
            if "names" in body:
                said = float(newest["said"])
                return CommandRecord(
                    run,
                    float(body["began"]),
                    one_line(str(body["who"]), 3 * _WORD_CHARACTERS_MAX),
                    tuple(map(str, body["names"])),
                    said,
                    dict(_works(newest.get("works", {}))),
                    _is_running(store, run, now - said),
                )
    return None


def _works(body: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, FragmentWork]]:
    for name, work in body.items():
        yield (
            str(name),
            FragmentWork(
                one_line(str(work["state"]), _WORD_CHARACTERS_MAX),
                one_line(str(work.get("step", "")), _WORD_CHARACTERS_MAX),
                float(work.get("since", 0.0)),
                one_line(str(work.get("doing", "")), _WORD_CHARACTERS_MAX),
                int(work.get("rows", 0)),
                int(work.get("rows_expected", 0)),
                float(work.get("held_back_s", 0.0)),
                one_line(str(work.get("code", "")), _WORD_CHARACTERS_MAX),
                float(work["left_s"]) if "left_s" in work else None,
            ),
        )


def _is_running(store: Store, run: str, silent_s: float) -> bool:
    """Return True if a command holds its lock; without locks, if it was not silent for long."""
    if not store.has_locks:
        return silent_s < SILENT_S_MAX
    try:
        with store.lock(_lock(run)):
            return False
    except DriftlineError:  # it is locked, or who reads may not write
        return True


def killed_text(record: CommandRecord, left: Sequence[str], now: datetime) -> str:
    """Return in words that a command was killed, and what it had not ended."""
    began = datetime.fromtimestamp(record.began, UTC)
    named = ", ".join(left[:NAMED_MAX]) + (", …" if len(left) > NAMED_MAX else "")
    what = f"before these had ended: {named}" if left else "after all tables had ended"
    return f"A refresh ({record.who}), begun {age(began.isoformat(), now)}, was killed {what}."
