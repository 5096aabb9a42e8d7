"""Refuse what sqlglot and Spark read differently, and texts of the clock, by a query's tokens.

Measured with Spark 4 (ANSI, UTC): `+'05'` is a double, and sqlglot drops the plus; a comment goes
on behind a backslash at the end of its line; adjacent literals are one text. A special text such as
`'today'` is a moment of the clock, also with blanks, control characters, escapes or a zone, and a
time without a date is one of the day on which Spark reads it.

Not seen, because no type is known here: a time without a date that is compared with a timestamp,
and what Spark makes of a column's or a function's text. The slices of incremental maintenance and
`verify` notice that rows differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby, pairwise

from sqlglot import Token, TokenType, exp

# Functions that a view may call, by their Spark names: deterministic, of one row, of no session.
# One that is not listed is refused: every user's function, and every new one until somebody has
# read what it does. Missing on purpose: aggregates, generators, functions of the clock, of the
# session, of random numbers, of files, partitions or the catalogue, of time zones other than UTC
# (their rules change with Java), `format_string` and `printf` (which print where an object lies in
# memory, and times in the machine's zone), and JSON, XML and CSV parsers (whose errors depend on
# options).
_CONDITIONS = """
coalesce greatest if ifnull isnan isnotnull isnull least nullif nullifzero nvl nvl2 zeroifnull
"""
_NUMBERS = """
abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos
cosh cot csc degrees e exp expm1 factorial floor getbit hypot ln log log10 log1p log2 mod negative
pi pmod positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign
signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract width_bucket
"""
_TEXTS = """
ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains crc32
decode elt encode endswith find_in_set format_number hash hex initcap instr lcase left
len length levenshtein like locate lower lpad ltrim luhn_check mask md5 octet_length overlay
position regexp regexp_count regexp_extract regexp_instr regexp_like regexp_replace
regexp_substr repeat replace reverse right rlike rpad rtrim sha sha1 sha2 soundex split_part
startswith substr substring substring_index to_char to_number to_varchar translate trim
try_to_number ucase unbase64 unhex upper xxhash64
"""
_TIMES = """
add_months date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime hour last_day
make_date make_timestamp_ntz minute month monthname months_between next_day quarter second
timestamp_micros timestamp_millis timestamp_seconds to_date to_timestamp to_timestamp_ntz trunc
try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday weekofyear year
"""
_CAST_NAMES = """
bigint binary boolean cast date decimal double float int smallint string timestamp tinyint
"""

TIMES = frozenset(_TIMES.split())
FUNCTIONS = frozenset(" ".join((_CONDITIONS, _NUMBERS, _TEXTS, _TIMES, _CAST_NAMES)).split())

# Words that may stand in front of a parenthesis and are no function.
_WORDS = frozenset({
    "and", "as", "between", "both", "by", "case", "div", "else", "end", "escape", "from", "ilike",
    "in", "inner", "interval", "is", "join", "leading", "like", "not", "null", "on", "or", "regexp",
    "rlike", "select", "then", "trailing", "true", "false", "try_cast", "when", "where",
})  # fmt: skip
_TYPES = frozenset({"char", "character", "dec", "decimal", "numeric", "varchar"})  # with a length
_LITERALS = frozenset({TokenType.STRING, TokenType.RAW_STRING})
_OPERANDS = _LITERALS | {
    TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.R_PAREN, TokenType.VAR,
}  # fmt: skip
_COMMENTS = (  # what Spark and sqlglot end in different places
    (
        re.compile(r"--[^\n]*\\\n"),
        "a comment that ends with a backslash is refused: Spark continues it on the next line",
        "Leave the backslash out.",
    ),
    (
        re.compile(r"/\*(?:(?!\*/).)*/\*|\{#", re.DOTALL),
        "a comment within a comment is refused: Spark may end it earlier than it seems",
        "Leave the inner one out.",
    ),
)
_MOMENT = re.compile(
    r"[\0- ]*(now|today|yesterday|tomorrow)([ \t]+\S+|[+-]\S+)?[\0- ]*", re.IGNORECASE
)
_TIME = re.compile(r"[\0- ]*(T\d|\d\d?:\d).*", re.DOTALL)
_ZONED = frozenset({"timestamp", "timestamp_ltz"})  # types in which a time has a date
_CASTS = frozenset({"cast", "try_cast"})


@dataclass(frozen=True, slots=True)
class QueryRefusal:
    """A reason to refuse a query, what to do, and the offset in its text."""

    why: str
    remedy: str
    at: int


def refusals(text: str, tokens: Sequence[Token], select: exp.Select) -> Iterator[QueryRefusal]:
    """Yield what is refused in a query.

    Args:
        text: of the query.
        tokens: of the text.
        select: what sqlglot made of them.
    """
    yield from _comments(text, tokens)
    yield from _names(tokens)
    yield from _pluses(tokens, select)
    yield from _moments(tokens)
    yield from _times(tokens)


def _comments(text: str, tokens: Sequence[Token]) -> Iterator[QueryRefusal]:
    ends = [0, *(token.end + 1 for token in tokens)]
    starts = [*(token.start for token in tokens), len(text)]
    for end, start in zip(ends, starts, strict=True):
        for pattern, why, remedy in _COMMENTS:
            if match := pattern.search(text, end, start):
                yield QueryRefusal(why, remedy, match.start())


def _names(tokens: Sequence[Token]) -> Iterator[QueryRefusal]:
    """Yield what is called and not listed, by the name as written."""
    for before, token in pairwise(tokens):
        if token.token_type in (TokenType.HINT, TokenType.ARROW, TokenType.PIPE_GT):
            yield QueryRefusal(f"{token.text!r} is refused", "Leave it out.", token.start)
        is_name = before.text[:1].isalnum() or before.text[:1] == "_"
        is_text = before.token_type in _LITERALS
        if token.token_type is not TokenType.L_PAREN or not is_name or is_text:
            continue
        name = before.text.lower()
        is_quoted = before.token_type is TokenType.IDENTIFIER
        if is_quoted or name not in FUNCTIONS | _WORDS | _TYPES:
            yield QueryRefusal(
                f"the function {before.text!r} is not one that a view may call",
                _similar(name),
                before.start,
            )


def _similar(name: str) -> str:
    """Return which function may be meant, or where they are listed."""
    near = get_close_matches(name, sorted(FUNCTIONS), n=1)
    return f"Did you mean {near[0]!r}?" if near else "docs/views.md says which it may."


def _pluses(tokens: Sequence[Token], select: exp.Select) -> Iterator[QueryRefusal]:
    """Yield a plus without an operand on its left: sqlglot made no addition of it."""
    pluses = [(a, b) for a, b in pairwise(tokens) if b.token_type is TokenType.PLUS]
    if len(pluses) == sum(1 for _ in select.find_all(exp.Add)):
        return
    bare = [plus for before, plus in pluses if before.token_type not in _OPERANDS]
    at = (bare or [plus for _, plus in pluses])[0].start
    yield QueryRefusal(
        "a plus in front of an operand is refused: Spark makes a double of a text behind it",
        "Leave the plus out, or write CAST(… AS DOUBLE).",
        at,
    )


def _moments(tokens: Sequence[Token]) -> Iterator[QueryRefusal]:
    for kinds in (_LITERALS, _LITERALS | {TokenType.DPIPE}):
        for first, _, value in _texts(tokens, kinds):
            if _MOMENT.fullmatch(value):
                yield QueryRefusal(
                    f"the text {value!r} is a moment of the clock where Spark wants a date or time",
                    "",
                    tokens[first].start,
                )


def _times(tokens: Sequence[Token]) -> Iterator[QueryRefusal]:
    """Yield times without a date where a timestamp is made of them."""
    timed = _timed(tokens)
    for first, last, value in _texts(tokens, _LITERALS | {TokenType.DPIPE}):
        is_whole = TokenType.DPIPE not in (tokens[first].token_type, tokens[last].token_type)
        if not is_whole or not _TIME.fullmatch(value):
            continue
        before = tokens[first - 1].text.lower()
        after = [t for t in tokens[last + 1 :] if t.token_type is not TokenType.R_PAREN][:2]
        is_cast = [t.token_type for t in after[:1]] == [TokenType.DCOLON]
        is_cast &= [t.text.lower() in _ZONED for t in after[1:]] == [True]
        if before in _ZONED or is_cast or (first in timed and before != "interval"):
            yield QueryRefusal(
                f"the text {value!r} is a time of the day on which Spark reads it",
                "Write the date as well.",
                tokens[first].start,
            )


def _texts(tokens: Sequence[Token], kinds: frozenset[TokenType]) -> Iterator[tuple[int, int, str]]:
    """Yield the value of literals that follow each other, and the first and last of its tokens."""
    for is_text, group in groupby(enumerate(tokens), lambda one: one[1].token_type in kinds):
        if is_text:
            run = list(group)
            parts = (token.text for _, token in run if token.token_type in _LITERALS)
            yield run[0][0], run[-1][0], "".join(parts)


def _timed(tokens: Sequence[Token]) -> set[int]:
    """Return the tokens that are arguments, not of an inner call, of what makes a timestamp."""
    by_token: dict[int, bool] = {}
    opened: list[int] = []
    for number, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            opened.append(number)
        elif token.token_type is TokenType.R_PAREN and opened:
            first = opened.pop()
            name = tokens[first - 1].text.lower()
            is_timed = name in TIMES or name == "timestamp"
            is_timed |= name in _CASTS and tokens[number - 1].text.lower() in _ZONED
            if name in FUNCTIONS | _CASTS:
                for inner in range(first, number):
                    by_token.setdefault(inner, is_timed)
    return {number for number, is_timed in by_token.items() if is_timed}
