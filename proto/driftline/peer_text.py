r"""Make text of other parties safe for a terminal, a log and a line of JSON.

Control characters can move the cursor, overwrite what was printed or fake a line of ours; marks of
direction change the order in which text is shown. Unprintable characters become escapes such as
`\x1b`. Names (of a relation, a column) are compared unchanged and made safe where they are shown.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import re
from typing import TextIO

_ESCAPING = "driftline.escaped"  # our error handler of codecs
_LINE_BEGIN = re.compile(r"\n(?! )")


def visible(text: str) -> str:
    """Return the text with every character escaped except printable ones and line ends."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def folded(text: str, characters_max: int) -> str:
    """Return the visible text, at most so long, with each line but the first indented, so that none
    of them can be taken for a line of ours."""
    shown = _LINE_BEGIN.sub("\n  ", visible(text[: characters_max + 1]))
    return shown if len(shown) <= characters_max else shown[: characters_max - 1] + "…"


def one_line(text: str, characters_max: int) -> str:
    """Return the text as one printable line of at most `characters_max` characters."""
    cut = text[: characters_max + 1]  # first, because the text may be long
    line = visible(" ".join(cut.splitlines()))
    return line if len(line) <= characters_max else line[: characters_max - 1] + "…"


class VisibleFormatter(logging.Formatter):
    """Formats a record of a log as visible text, each line but the first indented.

    The text of an exception may be another party's, such as a value that a library quotes.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the text, with tabs as blanks."""
        return _LINE_BEGIN.sub("\n  ", visible(super().format(record).expandtabs(4)))


def escape_in(*streams: TextIO) -> None:
    r"""Let streams escape what their encoding lacks, as `\u00e9`, instead of raising an error.

    So a terminal or a pipe in ASCII gets every answer, and JSON that is valid.
    """
    codecs.register_error(_ESCAPING, _escape)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # it is set; what was a file and is a pipe now
                stream.reconfigure(errors=_ESCAPING)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
