"""The display of a refresh: a bar on a real (pseudo-)terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from driftline.errors import Locked

from warehouse_agent.cli import progress
from warehouse_agent.cli.answers import total_of
from warehouse_agent.cli.progress import ProgressDisplay
from warehouse_agent.events import (
    PhasesExpected,
    PhaseStarted,
    RefreshCommitted,
    RefreshRetried,
    RowsRead,
)
from warehouse_agent.planning.time_left import STEPS, RowsSoFar
from warehouse_agent.report import Report

LONG = '{"name": "orders", "note": "' + "[red]x[/red] " * 40 + '"}'


class Terminal:
    """A pseudo-terminal: what is written to `file` is collected."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        self.file = os.fdopen(slave, "w")
        self._said: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end was closed
                return
            self._said.append(data)

    def said(self) -> str:
        """Everything that came, once."""
        self.file.close()
        self._reader.join()
        os.close(self._master)
        return b"".join(self._said).decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Tests make it their stderr themselves: pytest puts its own there between two phases."""
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    yield made
    if not made.file.closed:
        made.said()


def refresh(display: ProgressDisplay) -> None:
    """What a refresh of two fragments shows."""
    display(PhaseStarted("orders", "reduce"))
    display(PhaseStarted("orders", "exchange"))
    display(RowsRead("orders", "scan", 500, 1000))
    display(PhaseStarted("orders", "list"))
    for step in STEPS[2:]:
        display(PhaseStarted("orders", step))
    display(RefreshCommitted(Report("orders")))
    display.answer(LONG)
    display(RefreshRetried(("items",), Locked("not now.")))
    display(PhaseStarted("items", "reduce"))


def test_a_terminal_shows_every_step(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.file)
    with ProgressDisplay(2) as display:
        refresh(display)
    said = terminal.said()
    for step, number in (("reduce", 1), ("exchange", 2), ("apply", 3), ("prove", 4)):
        assert f"0 of 2 done, orders: {step}, step {number} of 5" in said
    assert "orders: scan" in said
    assert "500 of about 1,000 rows" in said
    assert "orders: list" not in said, "a part of the exchange is no step"
    assert "1 of 2 done, items: reduce, step 1 of 5" in said
    assert "items: not now. Trying again.\r\n" in said
    # stdout is no terminal here: the answer is whole, on stdout alone.
    assert capsys.readouterr().out == f"{LONG}\n"
    assert "[red]" not in said


def test_a_load_goes_on_where_it_stood() -> None:
    """The rate is that of the rows that come now."""
    at_first = RowsRead("orders", "ship", 6_200, 10_000, 0.0, 6_200)
    assert progress._amount(at_first, 1.0) == "6,200 of about 10,000 rows"
    later = replace(at_first, rows=7_200)
    assert progress._amount(later, 10.0) == "7,200 of about 10,000 rows, 100 rows/s"
    read = RowsSoFar.of(later, 10.0)
    assert read is not None
    assert read.left_s == pytest.approx(28.0)


def test_an_answer_on_the_terminal_of_the_bar_stays_whole(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.file)
    monkeypatch.setattr(sys, "stdout", terminal.file)
    with ProgressDisplay(2) as display:
        refresh(display)
    said = terminal.said()
    assert f"{LONG}\r\n" in said
    assert said.endswith("\x1b[2K"), "the last bar is removed"


def test_a_source_cannot_paint_the_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.file)
    with ProgressDisplay() as display:
        display(PhaseStarted("orders", "exchange"))
        display(RowsRead("orders", "\x1b]0;owned\x07", 5, 0))
        display(RowsRead("orders", "scan" * 100, 6, 0))
    said = terminal.said()
    assert "\x1b]0;" not in said
    assert "\x07" not in said
    assert "orders: scanscanscanscansca… " in said


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_elsewhere_there_are_plain_lines(
    seconds: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as many CI systems set it
    monkeypatch.setattr(progress, "LINE_EVERY_S", seconds)
    with ProgressDisplay(2) as display:
        refresh(display)
    said = capsys.readouterr()
    assert said.out == f"{LONG}\n"
    assert all(c.isprintable() or c == "\n" for c in said.err)
    lines = said.err.splitlines()
    assert "items: not now. Trying again." in lines
    if seconds:
        assert len(lines) == 1, "a line now and then, not one for each step"
    else:
        assert [line.split(": ")[1].split(",")[0] for line in lines] == [
            "reduce", "exchange", "scan", "apply", "prove", "publish", "not now. Trying again.",
            "reduce",
        ]  # fmt: skip


def test_a_dumb_terminal_gets_plain_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.file)
    monkeypatch.setenv("TERM", "dumb")
    with ProgressDisplay() as display:
        display(PhaseStarted("orders", "apply"))
        display.note("done")
    assert terminal.said() == "done\r\n"


def test_the_total_of_all_fragments() -> None:
    good = Report("orders", rows_inserted=1, bytes_sent=600, bytes_received=600)
    bad = Report("items", rows_updated=7, bytes_sent=34)  # found, but not published
    bad.fail(Locked("Another agent works on it."))
    assert total_of([good], 0.25) == ("1 table in 0.2 s: 1 row changed, 1.2 kB, none failed")
    assert total_of([good, bad], 61) == (
        "2 tables in 61.0 s: 1 row changed, 1.2 kB, 1 failed (items)"
    )
    many = total_of([bad] * 12, 1)
    assert many.endswith("12 failed (" + "items, " * 10 + "…)")


def test_a_line_says_how_long_it_will_take_by_its_history(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with ProgressDisplay() as display:
        display(PhasesExpected("orders", {"reduce": 60.0, "exchange": 30.0, "apply": 40.0}))
        for step in STEPS[:4]:
            display(PhaseStarted("orders", step))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "orders: reduce, step 1 of 5, about 2 min left",
        "orders: exchange, step 2 of 5, about 70 s left",
        "orders: apply, step 3 of 5, about 40 s left",
        "orders: prove, step 4 of 5, less than 10 s left",
    ]
