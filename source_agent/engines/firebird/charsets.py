"""Firebird: the character sets of text that is not UTF-8, decoded here from the bytes of a column.

The server turns a byte that is no character into U+0000 or U+FFFD, and several characters of some
sets into one, so a change between two of them would be missed. Therefore the column is read as
OCTETS, and decoded by a codec of Python: a text must give the same bytes when it is encoded again,
or the value is refused by name. Sets without a codec are refused as columns.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, Final

from driftline.values.types import DeclaredType

from source_agent.engines.encoding import driver_values, rows
from source_agent.engines.encoding.plain_values import ColumnEncoder

NONE, OCTETS, UTF8 = 0, 1, 4
# Numbers of RDB$CHARACTER_SETS: the codec of Python, and the bytes of a character at most.
CODECS: Final[dict[int, tuple[str, int]]] = {
    2: ("ascii", 1),
    3: ("utf-8", 3),  # UNICODE_FSS
    5: ("shift_jis", 2),
    6: ("euc_jp", 2),
    9: ("cp737", 1),
    10: ("cp437", 1),
    11: ("cp850", 1),
    12: ("cp865", 1),
    13: ("cp860", 1),
    14: ("cp863", 1),
    15: ("cp775", 1),
    16: ("cp858", 1),
    17: ("cp862", 1),
    18: ("cp864", 1),
    21: ("iso8859-1", 1),
    22: ("iso8859-2", 1),
    23: ("iso8859-3", 1),
    34: ("iso8859-4", 1),
    35: ("iso8859-5", 1),
    36: ("iso8859-6", 1),
    37: ("iso8859-7", 1),
    38: ("iso8859-8", 1),
    39: ("iso8859-9", 1),
    40: ("iso8859-13", 1),
    44: ("euc_kr", 2),
    45: ("cp852", 1),
    46: ("cp857", 1),
    47: ("cp861", 1),
    48: ("cp866", 1),
    49: ("cp869", 1),
    51: ("cp1250", 1),
    52: ("cp1251", 1),
    53: ("cp1252", 1),
    54: ("cp1253", 1),
    55: ("cp1254", 1),
    56: ("big5", 2),
    57: ("gb2312", 2),
    58: ("cp1255", 1),
    59: ("cp1256", 1),
    60: ("cp1257", 1),
    63: ("koi8_r", 1),
    64: ("koi8_u", 1),
    65: ("cp1258", 1),
    66: ("tis_620", 1),
    67: ("gbk", 2),
    68: ("cp932", 2),
    69: ("gb18030", 4),
}


def form(charset: int) -> str:
    """Return the form of a column in a character set of `CODECS`, for `ENCODERS`."""
    return f"charset {charset}"


def decode(value: bytes, codec: str) -> str:
    """Return the text of some bytes. Raises UnicodeError if no text, or not it alone, has them."""
    text = codecs.decode(value, codec)
    if codecs.encode(text, codec) != value:
        raise UnicodeError("more than one form of a text in its character set")
    return text


def _encoder(codec: str) -> Callable[[DeclaredType], ColumnEncoder]:
    def encode(value: Any) -> bytes:
        return decode(value, codec).encode()

    return lambda _: rows.variable(encode)


ENCODERS: Final = driver_values.ENCODERS | {
    form(charset): _encoder(codec) for charset, (codec, _) in CODECS.items()
}
