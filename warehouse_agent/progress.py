"""What a person sees while a command runs: a bar on a terminal, a line now and then elsewhere.

Everything goes to stderr; stdout belongs to the answer. Rate and time left follow from the rows
that the source reports against the rows it expects.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from driftline import wire_pb2 as pb
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TaskID as Bar

LINE_EVERY_S = 10.0


class Display:
    """Shows progress by fragment name. Use as a context manager."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._bars: dict[str, Bar] = {}
        self._said: dict[str, float] = {}
        self._began: dict[str, tuple[str, float]] = {}
        self._progress: Progress | None = None

    def __enter__(self) -> Display:
        if not self._quiet and self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:,.0f} rows, {task.fields[rate]:,.0f}/s"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
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
        """A line that stays."""
        if self._progress is not None:
            self._progress.console.print(text)
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def __call__(self, name: str, progress: pb.Progress) -> None:
        """Progress of one fragment, as the source tells it."""
        now = time.monotonic()
        phase, began = self._began.get(name, ("", now))
        if phase != progress.phase:
            began = now
            self._began[name] = (progress.phase, began)
        rate = progress.rows / (now - began) if now > began else 0.0
        if self._progress is not None:
            self._bar(name, progress, rate)
        elif not self._quiet and now - self._said.setdefault(name, now) >= LINE_EVERY_S:
            self._said[name] = now
            self.note(f"{name}: {progress.phase}, {_rows(progress)}{_left(progress, rate)}")

    def _bar(self, name: str, progress: pb.Progress, rate: float) -> None:
        assert self._progress is not None
        total = float(progress.rows_expected) or None
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, rate=rate)
        self._progress.update(
            self._bars[name],
            description=f"{name}: {progress.phase}",
            completed=float(progress.rows),
            total=total,
            rate=rate,
        )


def _rows(progress: pb.Progress) -> str:
    expected = f" of about {progress.rows_expected:,}" if progress.rows_expected else ""
    return f"{progress.rows:,}{expected} rows"


def _left(progress: pb.Progress, rate: float) -> str:
    left = progress.rows_expected - progress.rows
    if rate <= 0 or left <= 0:
        return ""
    return f", {rate:,.0f} rows/s, about {left / rate:,.0f} s left"
