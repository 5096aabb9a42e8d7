"""Text that somebody else wrote, made safe for a terminal, a log and a line of JSON.

Control characters move the cursor, change what was printed before, or begin a line that looks like
one of ours; marks of direction show text in another order than it has. All that is not printable
is shown as an escape, such as `\\x1b`. What identifies something (a relation, a column) is compared
as it came and made safe where it is shown.
"""

from __future__ import annotations

from typing import Final

CUT: Final = "…"


def visible(text: str) -> str:
    """The text with every character escaped that is neither printable nor the end of a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def one_line(text: str, characters_max: int) -> str:
    """The text as one printable line of at most so many characters."""
    cut = text[: characters_max + 1]  # before anything is made of it: it may be long
    line = visible(" ".join(cut.splitlines()))
    return line if len(line) <= characters_max else line[: characters_max - 1] + CUT


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
