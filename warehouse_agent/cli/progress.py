"""What a person sees while a command runs: a bar on a terminal, a line now and then elsewhere.

One bar, because one fragment is worked on at a time: the fragment, the step of its refresh, and,
where rows are counted, how many of how many. Rate and time left follow from the rows that the
source reports against the rows it expects. Whatever stays (answers, notes) is printed above the
bar, so that a finished fragment leaves its line.

Everything but the answer goes to stderr. Only a terminal gets control characters; the environment
(`FORCE_COLOR`) is not asked.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from driftline.peer_text import one_line
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from warehouse_agent.events import (
    Event,
    PhaseStarted,
    RefreshCommitted,
    RefreshFailed,
    RefreshRetried,
    RowsRead,
)
from warehouse_agent.report import counted

LINE_EVERY_S = 10.0
PHASE_CHARACTERS_MAX = 20  # of what the source calls its work
STEPS = ("reduce", "exchange", "apply", "prove", "publish")


class Display:
    """Shows what is being done to which of some fragments. Use as a context manager."""

    def __init__(self, fragments: int = 1) -> None:
        """`fragments`: how many there are."""
        self._fragments, self._done = fragments, 0
        self._name = self._step = self._phase = ""
        self._began: dict[str, float] = {}  # fragments
        self._phase_began = self._said = time.monotonic()
        self._bar: TaskID | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> Display:
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
                    redirect_stdout=False,  # it may be a file, and lines of an answer stay whole
                )
                self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def note(self, text: str) -> None:
        """Print a line that stays, on stderr."""
        if self._progress is not None:
            self._progress.console.print(text, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def answer(self, text: str) -> None:
        """Print on stdout, which may be the terminal of the bar."""
        if self._progress is None or not sys.stdout.isatty():
            print(text, flush=True)
            return
        self._progress.stop()
        print(text, flush=True)
        self._progress.start()

    def __call__(self, event: Event) -> None:
        """Show an event. A phase that is none of STEPS lies within a step and is not shown."""
        match event:
            case PhaseStarted(name, phase) if phase in STEPS:
                self._show(name, phase, phase)
            case RowsRead(name, phase):
                step = self._step if name == self._name else "exchange"
                self._show(name, step, one_line(phase, PHASE_CHARACTERS_MAX), event)
            case RefreshRetried():
                self.note(event.text)
            case RefreshCommitted(report) | RefreshFailed(report):
                self._finish(report.name)

    def _finish(self, name: str) -> None:
        """Count a fragment as done, well or not, and remove its bar."""
        self._done += 1
        self._began.pop(name, None)
        if self._progress is not None and self._bar is not None:
            self._progress.remove_task(self._bar)
            self._bar = None

    def _show(self, name: str, step: str, phase: str, rows: RowsRead | None = None) -> None:
        now = time.monotonic()
        self._began.setdefault(name, now)
        is_new = (name, step, phase) != (self._name, self._step, self._phase)
        if is_new:
            self._name, self._step, self._phase, self._phase_began = name, step, phase, now
        amount = "" if rows is None else _amount(rows, now - self._phase_began)
        if self._progress is not None:
            self._draw(self._progress, rows, amount, is_new=is_new)
        elif now - max(self._said, self._began[name]) >= LINE_EVERY_S:
            self._said = now
            self.note(self._doing() + (f", {amount}" if amount else ""))

    def _doing(self) -> str:
        """Return such as `orders: apply, step 3 of 5`, or `orders: scan` for a part of a step."""
        is_step = self._phase == self._step
        which = f", step {STEPS.index(self._step) + 1} of {len(STEPS)}" if is_step else ""
        before = f"{self._done} of {self._fragments} done, " if self._fragments > 1 else ""
        return f"{before}{self._name}: {self._phase}{which}"

    def _draw(
        self, progress: Progress, rows: RowsRead | None, amount: str, *, is_new: bool
    ) -> None:
        """The bar: of rows, or, where none are counted, one that moves."""
        total = float(rows.rows_expected) or None if rows is not None else None
        if is_new and self._bar is not None:
            progress.remove_task(self._bar)
            self._bar = None
        if self._bar is None:
            self._bar = progress.add_task(self._doing(), total=total, amount=amount)
        completed = float(rows.rows) if rows is not None else 0.0
        progress.update(self._bar, total=total, completed=completed, amount=amount, refresh=is_new)


def _amount(rows: RowsRead, seconds: float) -> str:
    """Rows, of how many, how fast, and how long the others will take."""
    expected = f" of about {rows.rows_expected:,}" if rows.rows_expected else ""
    text = f"{rows.rows:,}{expected} rows" if expected else counted(rows.rows, "row")
    rate = rows.rows / seconds if seconds > 0 else 0.0
    left = rows.rows_expected - rows.rows
    if rate <= 0:
        return text
    after = f", about {left / rate:,.0f} s left" if left > 0 else ""
    return f"{text}, {rate:,.0f} rows/s{after}"
