"""Inner joins of a DBA's query: which tables it reads, and which plain columns it selects; no I/O.

A row of a join is new if a marker of any of its tables is. That holds if each row of the result is
made of one row of each table, and of nothing else. So a query with `markers` is read here as far as
this needs, and refused by name where it does not hold, or cannot be told:

 1. one SELECT, without WITH, set operations, DISTINCT, groups, aggregates, windows and limits;
 2. tables by name, joined by commas, JOIN, INNER JOIN or CROSS JOIN; no derived tables, no
    functions in place of tables, no outer joins;
 3. a marker for each table, which the query selects as a plain column of that table.

What is not seen: what a view among the tables reads, and what functions read. Audits find it.

Rejected: a parser of SQL as a dependency of the source, for a check that needs names and commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--(?=\s|$)[^\n]*|/\*(?!!)(?:(?!/\*)[^*]|\*(?!/))*\*/)
    |(?P<text>'(?:[^'\\]|'')*')
    |(?P<name>"(?:[^"\\]|"")*"|`(?:[^`]|``)*`|[^\W\d]\w*)
    |(?P<number>\d[\w.]*)
    |(?P<sign>[(),.;]|[-+*/<>=!~|&%^?:\[\]@]+)""",
    re.VERBOSE,
)
# fmt: off
_REFUSED: Final = frozenset((
    "WITH", "UNION", "EXCEPT", "INTERSECT", "MINUS", "DISTINCT", "GROUP", "HAVING", "OVER",
    "WINDOW", "LIMIT", "OFFSET", "FETCH", "TOP", "LATERAL", "FULL", "OUTER", "NATURAL", "TABLE",
    "VALUES", "TABLESAMPLE", "FOR", "INTO", "PROCEDURE",
))
_AGGREGATES: Final = frozenset((
    "COUNT", "SUM", "MIN", "MAX", "AVG", "TOTAL", "GROUP_CONCAT", "STRING_AGG", "ARRAY_AGG",
    "JSON_AGG", "JSONB_AGG", "BOOL_AND", "BOOL_OR", "EVERY", "BIT_AND", "BIT_OR", "STDDEV",
    "VARIANCE", "JSON_ARRAYAGG", "JSON_OBJECTAGG",
))
# fmt: on
_SIDES: Final = frozenset(("LEFT", "RIGHT"))  # functions too, if a bracket follows
_COMMENTS: Final = ("--", "/*", "*/")  # that databases read differently
_ENDS: Final = ("WHERE", "ORDER")  # of FROM
_PARTS: Final = 3  # of a plain column: table, dot, name


class NotAnInnerJoin(Exception):
    """A query of which it cannot be told that it is one; the text says why."""


@dataclass(frozen=True, slots=True)
class InnerJoin:
    """Tables of a query by the names that it gives them, and the plain columns that it selects:
    table and column by their name in the result. All in the case of the query."""

    tables: tuple[str, ...]
    selected: dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The keyword that it may be, in capitals; empty: none."""
        is_word = self.kind == "name" and self.text[0] not in '"`'
        return self.text.upper() if is_word else ""

    @property
    def name(self) -> str:
        """The name that it is, without quotes."""
        mark = self.text[0]
        return self.text[1:-1].replace(mark * 2, mark) if mark in '"`' else self.text


def inner_join(query: str) -> InnerJoin:
    """Return what a query joins and selects. Raises NotAnInnerJoin."""
    tokens = list(_tokens(query))
    if tokens and tokens[-1].text == ";":
        tokens.pop()
    _check_words(tokens)
    at = [i for i, token in _top(tokens) if token.word == "FROM"]
    if not tokens or tokens[0].word != "SELECT" or len(at) != 1:
        raise NotAnInnerJoin("It is not one SELECT with one FROM.")
    ends = (i for i, token in _top(tokens) if token.word in _ENDS and i > at[0])
    tables = tuple(_table(piece) for piece in _joined(tokens[at[0] + 1 : next(ends, len(tokens))]))
    if len({name.lower() for name in tables}) < len(tables):
        raise NotAnInnerJoin("Two of its tables have one name.")
    selected = {}
    for item in _split(tokens[1 : at[0]], lambda token: token.text == ","):
        if (plain := _plain(item)) is not None:
            selected[plain[0]] = plain[1:]
    return InnerJoin(tables, selected)


def _tokens(query: str) -> Iterator[_Token]:
    at = 0
    while at < len(query):
        match = _TOKEN.match(query, at)
        sign = "" if match is None else match["sign"] or ""
        if match is None or match.lastgroup is None or any(mark in sign for mark in _COMMENTS):
            raise NotAnInnerJoin(f"What begins with {query[at : at + 20]!r} cannot be read.")
        if match.lastgroup != "space":
            yield _Token(match.lastgroup, match.group())
        at = match.end()


def _check_words(tokens: Sequence[_Token]) -> None:
    """Raise NotAnInnerJoin for a word that makes rows of more than one row of each table."""
    selects = 0
    for i, token in enumerate(tokens):
        word, after = token.word, tokens[i + 1].text if i + 1 < len(tokens) else ""
        if i and tokens[i - 1].text == ".":
            continue  # the name of a column
        selects += word == "SELECT"
        is_side = word in _SIDES and after != "("
        is_aggregate = word in _AGGREGATES and after == "("
        if word in _REFUSED or is_side or is_aggregate:
            raise NotAnInnerJoin(f"It has {word}.")
    if selects > 1:
        raise NotAnInnerJoin("It has a SELECT within it.")


def _top(tokens: Sequence[_Token]) -> Iterator[tuple[int, _Token]]:
    """Yield the tokens outside of brackets, with their numbers."""
    depth = 0
    for i, token in enumerate(tokens):
        depth -= token.text == ")"
        if not depth:
            yield i, token
        depth += token.text == "("


def _joined(tokens: Sequence[_Token]) -> list[Sequence[_Token]]:
    """Return each table of FROM with its condition."""

    def is_joint(token: _Token) -> bool:
        return token.text == "," or token.word in {"JOIN", "STRAIGHT_JOIN"}

    pieces = _split(tokens, is_joint)
    for i, piece in enumerate(pieces[:-1]):
        if piece and piece[-1].word in {"INNER", "CROSS"}:
            pieces[i] = piece[:-1]
    return pieces


def _split(tokens: Sequence[_Token], is_joint: Callable[[_Token], bool]) -> list[Sequence[_Token]]:
    """Cut tokens at joints outside of brackets, which are left out."""
    cuts = [i for i, token in _top(tokens) if is_joint(token)]
    starts, ends = [0, *(i + 1 for i in cuts)], [*cuts, len(tokens)]
    return [tokens[a:b] for a, b in zip(starts, ends, strict=True)]


def _table(piece: Sequence[_Token]) -> str:
    """Return the name of a table in the query. Raises NotAnInnerJoin: it is none."""
    ends = (i for i, token in enumerate(piece) if token.word in {"ON", "USING"})
    tokens = list(piece[: next(ends, len(piece))])
    names = []
    while tokens and tokens[0].kind == "name":
        names.append(tokens.pop(0).name)
        if not tokens or tokens[0].text != ".":
            break
        tokens.pop(0)
    if names and len(tokens) > 1 and tokens[0].word == "AS":
        tokens.pop(0)
    if names and len(tokens) == 1 and tokens[0].kind == "name":
        return tokens[0].name
    if not names or tokens:
        shown = " ".join(token.text for token in piece[:4])
        raise NotAnInnerJoin(f"{shown!r} is no table with a name of its own.")
    return names[-1]


def _plain(item: Sequence[_Token]) -> tuple[str, str, str] | None:
    """Return the name in the result, the table and the column of a plain column; None: it is not
    one."""
    tokens = [token for token in item if token.word != "AS"]
    is_plain = len(tokens) in {_PARTS, _PARTS + 1} and tokens[1].text == "."
    if not is_plain or any(token.kind != "name" for token in (tokens[0], *tokens[2:])):
        return None
    return tokens[-1].name, tokens[0].name, tokens[2].name
