"""The tools that take part, step for step and round for round, and that they were right."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import tpch
from benchmarks.peers.changes import LINEITEM, Pattern, draw, lines_of
from benchmarks.reloads.contents import Contents, compare
from benchmarks.reloads.lines import CompressedCopy, Line
from benchmarks.reloads.ours import Checkout, Refreshed
from benchmarks.reloads.peers import Reload
from benchmarks.reloads.place import Cost, Source
from benchmarks.reloads.results import COPY_ON_LINE, LOAD, NOTHING, OURS, Run, half, updated

HALF = 0.5
KNOWN_AFTER = 2  # refreshes of as many changes: then the forecast expects them
Turn = Callable[[str], Run]  # a tool that runs once in a step


class Comparison:
    """The tools that take part, and what they did with one table."""

    def __init__(
        self, source: Source, folder: Path, trees: dict[str, Path], peers: Sequence[Reload]
    ) -> None:
        self._source, self._folder = source, folder
        self._trees, self._peers = trees, peers
        self.runs: list[Run] = []

    def measure(self, table: str, shares_percent: Sequence[float], rounds: int) -> int:
        """Run all steps of a table; return its rows."""
        rows = self._source.load(table)
        with ExitStack() as stack:
            sides = [
                stack.enter_context(Checkout(name, tree, self._folder / name, self._source))
                for name, tree in self._trees.items()
            ]
            for peer in self._peers:
                (self._folder / peer.name).mkdir()
                stack.callback(shutil.rmtree, self._folder / peer.name)
            peers = [self._reload_of(peer) for peer in self._peers]
            self._step(LOAD, [*(self._load_of(side) for side in sides), *peers], rounds)
            for share in (0.0, *shares_percent):
                changed = 0
                if share:
                    self._source.load(table)
                    changed = self._source.update(share / 100)
                turns = [*(self._refresh_of(side, changed) for side in sides), *peers]
                self._step(updated(share) if share else NOTHING, turns, rounds)
        return rows

    def measure_halves(self, line: Line, patterns: Sequence[Pattern], rounds: int) -> int:
        """Change half of lineitem, and again until it is expected; return the rows of the table.

        The other checkout takes no part, nor do the peers, but for the copy over the same line.
        """
        rows = 0
        for pattern in patterns:
            rows = self._source.load(LINEITEM.name)
            lines = lines_of(LINEITEM, tpch.DATA, self._source.scale)
            with (
                Checkout(OURS, self._trees[OURS], self._folder / OURS, self._source, line) as side,
                CompressedCopy(self._source, line) as copy,
            ):
                side.load()
                for seed in range(KNOWN_AFTER + 1):
                    changes, lines = draw(LINEITEM, lines, rate=HALF, pattern=pattern, seed=seed)
                    self._source.apply(changes)
                    if seed in (0, KNOWN_AFTER):
                        step = half(pattern.value, is_known=seed > 0)
                        turns = [self._refresh_of(side, changes.changed), self._copy_of(copy)]
                        self._step(step, turns, rounds)
                    else:
                        side.refresh(changes.changed)
                    side.keep()
        return rows

    def _step(self, step: str, turns: Sequence[Turn], rounds: int) -> None:
        for number in range(rounds):
            first = number % len(turns)
            for turn in (*turns[first:], *turns[:first]):
                ran = turn(step)
                self.runs.append(ran)
                held_s = ran.report.get("held_back_s")
                print(
                    f"{ran.table}, {step}: {ran.tool} {ran.cost.wall_s:.2f} s, processor"
                    f" {ran.cost.cpu_s:.2f} s, source's {ran.cost.source_cpu_s:.2f} s"
                    + (f", held back {held_s:.2f} s" if held_s else ""),
                    file=sys.stderr,
                    flush=True,
                )

    def _load_of(self, side: Checkout) -> Turn:
        return lambda step: self._ours(side, step, side.load())

    def _refresh_of(self, side: Checkout, changed: int) -> Turn:
        return lambda step: self._ours(side, step, side.refresh(changed))

    def _ours(self, side: Checkout, step: str, done: Refreshed) -> Run:
        compare(f"{step}: {side.name}", done.contents, self._source.contents)
        return Run(self._source.table, step, side.name, done.cost, done.report)

    def _reload_of(self, peer: Reload) -> Turn:
        def reload(step: str) -> Run:
            cost, written = peer.reload(self._source, self._folder / peer.name)
            return self._theirs(peer.name, step, cost, written)

        return reload

    def _copy_of(self, copy: CompressedCopy) -> Turn:
        return lambda step: self._theirs(COPY_ON_LINE, step, *copy.copy(self._folder))

    def _theirs(self, name: str, step: str, cost: Cost, written: Contents | int) -> Run:
        source = self._source.contents
        if isinstance(written, int):  # it kept nothing to hash
            written = Contents(written, source.hashes)
        compare(f"{step}: {name}", written, source)
        return Run(self._source.table, step, name, cost)
