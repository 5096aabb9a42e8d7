"""Progress of a command: a bar on a terminal, elsewhere a line every ten seconds at most.

There is one bar. It shows the fragment of which something happened last, the step, and the rows
where they are counted; fragments of several sources take turns in it. The rate follows from the
rows that the source reports; the remaining time also from earlier refreshes of the fragment
(`planning.time_left`). Answers and notes stay; they
are printed above the bar.

Everything but the answer goes to stderr. Only a terminal gets control characters, even if
`FORCE_COLOR` is set.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from driftline.peer_text import one_line
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from warehouse_agent.events import (
    Event,
    PhasesExpected,
    PhaseStarted,
    RefreshCommitted,
    RefreshFailed,
    RefreshNotStarted,
    RefreshRetried,
    RowsRead,
)
from warehouse_agent.planning.time_left import STEPS, RowsSoFar, TimeLeft, words
from warehouse_agent.report import counted, is_held_back_for_long

LINE_EVERY_S = 10.0
PHASE_CHARACTERS_MAX = 20  # of the source's word for its work


@dataclass(slots=True)
class _Work:
    """The step of a fragment, the source's word for its work, and the bar if one was drawn.

    Times are seconds of a monotonic clock.
    """

    began: float
    step: str = ""
    step_began: float = 0.0
    phase: str = ""
    phase_began: float = 0.0
    left: TimeLeft = field(default_factory=TimeLeft)
    bar: TaskID | None = None


class ProgressDisplay:
    """Listener that shows which fragment is refreshed, and the step. Use as a context manager."""

    def __init__(self, fragments: int = 1) -> None:
        """Show the progress of `fragments` fragments."""
        self._fragments, self._done = fragments, 0
        self._name = ""  # the fragment in the bar
        self._works: dict[str, _Work] = {}  # of fragments that have begun
        self._said = time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressDisplay:
        if sys.stderr.isatty():
            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            if not console.is_dumb_terminal:
                self._progress = Progress(
                    TextColumn("{task.description}", markup=False),
                    BarColumn(),
                    TextColumn("{task.fields[amount]}", markup=False),
                    TimeElapsedColumn(),
                    console=console,
                    transient=True,
                    redirect_stdout=False,  # stdout may be a file; lines of an answer stay whole
                )
                self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None  # a thread that ends late must not start it again

    def note(self, text: str) -> None:
        """Print a line that stays, on stderr."""
        if self._progress is not None:
            self._progress.console.print(text, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def answer(self, text: str) -> None:
        """Print on stdout; stop the bar meanwhile if stdout is its terminal."""
        if self._progress is None or not sys.stdout.isatty():
            print(text, flush=True)
            return
        self._progress.stop()
        print(text, flush=True)
        self._progress.start()

    def __call__(self, event: Event) -> None:
        """Show an event. A phase that is not one of STEPS is part of a step and is not shown."""
        match event:
            case PhasesExpected(name, seconds):
                work = self._works.setdefault(name, _Work(time.monotonic()))
                work.left = TimeLeft(seconds)
                if work.step:
                    self._show(name, work.step, work.phase)
            case PhaseStarted(name, phase) if phase in STEPS:
                self._show(name, phase, phase)
            case RowsRead(name, phase):
                step = self._works[name].step if name in self._works else "exchange"
                self._show(name, step, one_line(phase, PHASE_CHARACTERS_MAX), event)
            case RefreshRetried():
                self.note(event.text)
            case RefreshCommitted(report) | RefreshFailed(report) | RefreshNotStarted(report):
                self._finish(report.name)

    def _finish(self, name: str) -> None:
        self._done += 1
        work = self._works.pop(name, None)
        if self._progress is not None and work is not None and work.bar is not None:
            self._progress.remove_task(work.bar)

    def _show(self, name: str, step: str, phase: str, rows: RowsRead | None = None) -> None:
        now = time.monotonic()
        work = self._works.setdefault(name, _Work(now))
        is_new = (step, phase) != (work.step, work.phase)
        if step != work.step:
            work.step, work.step_began = step, now
        if is_new:
            work.phase, work.phase_began = phase, now
        read_s = now - work.phase_began
        read = None if rows is None else RowsSoFar.of(rows, read_s)
        left = words(work.left.at(step, now - work.step_began, read))
        said = [] if rows is None else [_amount(rows, read_s)]
        amount = ", ".join([*said, left] if left else said)
        if self._progress is not None:
            self._draw(self._progress, name, rows, amount, is_new=is_new)
        elif now - max(self._said, work.began) >= LINE_EVERY_S:
            self._said = now
            self.note(self._doing(name) + (f", {amount}" if amount else ""))

    def _doing(self, name: str) -> str:
        """Return `orders: apply, step 3 of 5`, or `orders: scan` for a part of a step."""
        work = self._works[name]
        is_step = work.phase == work.step
        which = f", step {STEPS.index(work.step) + 1} of {len(STEPS)}" if is_step else ""
        before = f"{self._done} of {self._fragments} done, " if self._fragments > 1 else ""
        return f"{before}{name}: {work.phase}{which}"

    def _draw(
        self, progress: Progress, name: str, rows: RowsRead | None, amount: str, *, is_new: bool
    ) -> None:
        """Draw a bar of rows, or one that only moves if no rows are counted; hide the other."""
        work, before = self._works[name], self._works.get(self._name)
        if name != self._name and before is not None and before.bar is not None:
            progress.update(before.bar, visible=False)
        total = float(rows.rows_expected) or None if rows is not None else None
        if is_new and work.bar is not None:
            progress.remove_task(work.bar)
            work.bar = None
        if work.bar is None:
            work.bar = progress.add_task(self._doing(name), total=total, amount=amount)
        completed = float(rows.rows) if rows is not None else 0.0
        is_new |= name != self._name
        self._name = name
        progress.update(
            work.bar,
            description=self._doing(name),
            total=total,
            completed=completed,
            amount=amount,
            visible=True,
            refresh=is_new,
        )


def _amount(rows: RowsRead, seconds: float) -> str:
    expected, read = rows.rows_expected, rows.rows
    text = f"{read:,} of about {expected:,} rows" if expected else counted(read, "row")
    if is_held_back_for_long(rows.held_back_s):
        text += f", held back by the source for {rows.held_back_s:,.0f} s"
    rate = (read - rows.rows_before) / seconds if seconds > 0 else 0.0
    return f"{text}, {rate:,.0f} rows/s" if rate > 0 else text
