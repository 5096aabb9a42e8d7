"""Tables of text that fit a terminal: a line for each row, under headings.

The first column has names, which are shortened in the middle, because the begin and the end of a
name tell tables apart; the last one has words, which are cut at their end. All others are whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from typing import Final

import click

NAME_CHARACTERS_MIN: Final = 8
_GAP: Final = "  "


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    numbers: Collection[str] = (),
    colours: Sequence[str] = (),
    last_min: int = 0,
) -> list[str]:
    """Return the headings and a line for each row, in at most `width` characters.

    Args:
        numbers: headings of columns that are aligned on the right.
        last_min: characters of the last column that are never cut: a terminal that has too few
            goes on in its next line.
        colours: of the last cell of each row, by names of click; none: no line has a colour.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    left = width - sum(widths[1:-1]) - len(_GAP) * (len(widths) - 1)
    if widths[0] + widths[-1] > left:
        widths[-1] = min(widths[-1], max(left // 2, left - widths[0], last_min))
        widths[0] = max(left - widths[-1], NAME_CHARACTERS_MIN)
    if last_min:
        width = max(width, width - left + widths[0] + last_min)

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(size) if heading in numbers else cell.ljust(size)
            for cell, size, heading in zip(
                (shortened(cells[0], widths[0]), *cells[1:]), widths, headings, strict=True
            )
        ]
        return clipped(_GAP.join(aligned).rstrip(), width)

    lines = [line(row) for row in rows]
    for number, colour in enumerate(colours):
        state = rows[number][-1]
        if state and lines[number].endswith(state):
            plain = lines[number].removesuffix(state)
            lines[number] = f"{plain}{click.style(state, fg=colour)}"
    return [line(headings), *lines]


def shortened(name: str, width: int) -> str:
    """Return a name of at most `width` characters, at least 2: its begin and its end."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def clipped(line: str, width: int) -> str:
    """Return a line of at most `width` characters: its begin."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def has_colour() -> bool:
    """Return True if stdout is a terminal that shows colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
