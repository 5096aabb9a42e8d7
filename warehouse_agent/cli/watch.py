"""`watch`: show what refresh commands do now, also those of other terminals.

It reads the records that commands keep (`history.command_records`), which have a new line every
10 s, and asks nobody. On a terminal the picture is drawn anew; else it is printed once.
"""

from __future__ import annotations

import shutil
import sys
import time

from driftline.text_tables import clipped, shortened
from rich.console import Console
from rich.live import Live
from rich.text import Text

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.history import command_records
from warehouse_agent.history.command_records import (
    DONE,
    FAILED,
    WORKING,
    CommandRecord,
    FragmentWork,
)
from warehouse_agent.planning.time_left import words
from warehouse_agent.report import counted, is_held_back_for_long
from warehouse_agent.storage.store import Store

DRAWN_S = 2.0  # between two readings
NOTHING = "No refresh runs."


def watch(config: WarehouseConfig) -> None:
    """Show the running commands until they have ended, or the user interrupts.

    Raises:
        WarehouseUnavailable: their records cannot be read.
    """
    store, width = Store.of(config), shutil.get_terminal_size().columns

    def lines() -> tuple[bool, list[str]]:
        now = time.time()
        running = [one for one in command_records.current(store, now) if one.is_running]
        return bool(running), [line for one in running for line in lines_of(one, now, width)]

    is_running, shown = lines()
    if not (is_running and sys.stdout.isatty()):
        print("\n".join(shown or [NOTHING]))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(Text("\n".join(shown)), console=console, auto_refresh=False) as live:
        while is_running:
            time.sleep(DRAWN_S)
            is_running, shown = lines()
            live.update(Text("\n".join(shown or [NOTHING])), refresh=True)


def lines_of(record: CommandRecord, now: float, width: int) -> list[str]:
    """Return a command as lines: who runs it, how far it is, and each fragment that is worked on
    or has failed.

    Args:
        now: in seconds since 1970.
        width: characters in a line.
    """
    states = [work.state for work in record.works.values()]
    failed, done = states.count(FAILED), states.count(DONE)
    head = (
        f"{record.who}, for {_seconds(now - record.began)}: {done:,} of"
        f" {counted(len(record.names), 'table')} done, {failed or 'none'} failed"
    )
    order = {FAILED: 0, WORKING: 1}
    shown = [(name, work) for name, work in record.works.items() if work.state in order]
    shown.sort(key=lambda one: order[one[1].state])
    size = min(max((len(name) for name, _ in shown), default=0), max(width // 3, 8))
    lines = [
        f"  {shortened(n, size).ljust(size)}  {_doing(work, now, record.said)}" for n, work in shown
    ]
    return [clipped(line, width) for line in (head, *lines)]


def _doing(work: FragmentWork, now: float, said: float) -> str:
    """Return what a command does with a fragment; `said`: when it wrote that."""
    if work.state == FAILED:
        return f"failed: {work.code}"
    doing = [f"{work.step or 'begins'} for {_seconds(now - work.since)}"]
    if work.left_s is not None:
        doing.append(words(max(work.left_s - max(now - said, 0.0), 0.0)))
    if work.rows_expected:
        doing.append(f"{work.doing} {work.rows:,} of about {work.rows_expected:,} rows")
    elif work.rows:
        doing.append(f"{work.doing} {counted(work.rows, 'row')}")
    if is_held_back_for_long(work.held_back_s):
        doing.append(f"held back by the source for {_seconds(work.held_back_s)}")
    return ", ".join(doing)


def _seconds(seconds: float) -> str:
    """Return a time in words of a terminal: `42 s`, `3 min`, `2 h 5 min`."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
