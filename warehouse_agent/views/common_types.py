"""Refuse expressions of a view in which Spark rounds numbers that SQL keeps as they are.

Where decimals meet (a comparison, a join, IN, BETWEEN, CASE, `coalesce`, arithmetic …) Spark
converts them to a common type. It has at most 38 digits, and if more are needed, Spark gives up
digits behind the point without a word: `CAST(1 AS DECIMAL(38,0)) = 1.10` is true. If a text meets a
decimal, both become doubles; if an integer is among them, too, the text may be rounded to the
decimal's digits: `'1.105' IN (1, 1.11)` is true. No setting turns that into an error.

The places are found in the syntax tree, so that the error can name one. Types of operands are
Spark's: it is asked for those that are no column and no literal. Explicit casts are the user's will
and remain. Rejected: to look for casts in Spark's plan, which Spark Connect does not show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

DIGITS_MAX = 38  # of a decimal of Spark
FRACTION_KEPT = 6  # digits behind the point that Spark's arithmetic keeps in any case
DOUBLE_DIGITS = 15  # any decimal of so many digits is a double of its own
_DIALECT = "spark"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_INT_MAX = 2**31 - 1  # greater literals are BIGINT

_COMPARISONS = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Nullif,
)  # fmt: skip
_SUMS = (exp.Add, exp.Sub, exp.SafeAdd, exp.SafeSubtract)
_PRODUCTS = (exp.Mul, exp.SafeMultiply)
_QUOTIENTS = (exp.Div, exp.SafeDivide, exp.IntDiv, exp.Mod)  # rounded anyway, or exact
_ZERO = exp.Literal.number(0)


@dataclass(frozen=True, slots=True)
class NumberDigits:
    """Digits of a number's type before and behind the point."""

    whole: int
    fraction: int


@dataclass(frozen=True, slots=True)
class ConvertedOperands:
    """Operands that Spark converts to a common type.

    Attributes:
        node: the expression, for the error.
        loses: returns True if the result cannot keep the digits of all.
        minimal: an integer literal counts with its own digits, not with those of its type.
    """

    node: exp.Expr
    operands: tuple[exp.Expr, ...]
    loses: Callable[[Sequence[NumberDigits]], bool]
    minimal: bool = True


@dataclass(frozen=True, slots=True)
class RoundedExpression:
    """An expression that Spark would round: why, and what to do."""

    node: exp.Expr
    why: str
    remedy: str


def meetings(select: exp.Expr) -> Iterator[ConvertedOperands]:
    """Yield the places of a query where numbers of several types may meet."""
    for node in select.walk():
        match node:
            case exp.Between():
                for end in (node.args["low"], node.args["high"]):
                    yield ConvertedOperands(node, (node.this, end), _common)
            case exp.In():
                yield ConvertedOperands(
                    node, (node.this, *node.expressions), _common, minimal=False
                )
            case exp.Case():
                yield from _of_case(node)
            case exp.If() if node.arg_key != "ifs":
                branches = (node.args["true"], node.args.get("false"))
                yield ConvertedOperands(node, _present(branches), _common, minimal=False)
            case exp.Nvl2():
                branches = (node.args["true"], node.args.get("false"))
                yield ConvertedOperands(node, _present(branches), _common, minimal=False)
            case exp.Coalesce() | exp.Greatest() | exp.Least():
                yield ConvertedOperands(
                    node, (node.this, *node.expressions), _common, minimal=False
                )
            case exp.DecodeCase():
                yield from _of_decode(node)
            case exp.Anonymous() if node.name.lower() in ("nullifzero", "zeroifnull"):
                is_compared = node.name.lower() == "nullifzero"
                yield ConvertedOperands(
                    node, (*node.expressions, _ZERO), _common, minimal=is_compared
                )
            case exp.Anonymous() if node.name.lower() in ("pmod", "try_mod"):
                yield ConvertedOperands(node, tuple(node.expressions), _never)
            case _ if isinstance(node, _QUOTIENTS):
                yield ConvertedOperands(node, (node.this, node.expression), _never)
            case _ if isinstance(node, _COMPARISONS):
                yield ConvertedOperands(node, (node.this, node.expression), _common)
            case _ if isinstance(node, _SUMS):
                yield ConvertedOperands(node, (node.this, node.expression), _sum)
            case _ if isinstance(node, _PRODUCTS):
                yield ConvertedOperands(node, (node.this, node.expression), _product)


def rounded(
    select: exp.Expr,
    columns: Callable[[exp.Column], str],
    asked: Callable[[Sequence[str]], Sequence[str]],
) -> RoundedExpression | None:
    """Return the first expression that Spark would round; None: there is none.

    Args:
        columns: returns the Spark type of a column, such as "decimal(10,2)".
        asked: returns the Spark types of expressions, given as text.
    """
    met = list(meetings(select))
    bare = dict.fromkeys(_bare(one) for meeting in met for one in meeting.operands)
    types: dict[exp.Expr, str] = {one: columns(one) for one in bare if isinstance(one, exp.Column)}
    others = [one for one in bare if one not in types and _integer(one) is None]
    if others:
        answers = asked([one.sql(dialect=_DIALECT) for one in others])
        types |= dict(zip(others, answers, strict=True))
    return next(filter(None, (_judged(meeting, types) for meeting in met)), None)


def _judged(meeting: ConvertedOperands, types: Mapping[exp.Expr, str]) -> RoundedExpression | None:
    operands = [_bare(one) for one in meeting.operands]
    named = [types.get(one, "") for one in operands]
    if {"float", "double"} & set(named):  # SQL computes with doubles, too
        return None
    digits = [
        _digits(one, kind, minimal=meeting.minimal)
        for one, kind in zip(operands, named, strict=True)
    ]
    known = [one for one in digits if one is not None]
    decimals = [kind for kind in named if _DECIMAL.fullmatch(kind)]
    if not decimals:
        return None
    shown = " and ".join(dict.fromkeys(kind.upper() for kind in named if kind)) or decimals[0]
    longest = max(int(_DECIMAL.sub(r"\1", kind)) for kind in decimals)
    if "string" in named and (longest > DOUBLE_DIGITS or len(known) > len(decimals)):
        return RoundedExpression(
            meeting.node,
            f"Spark would round {shown}: it makes doubles of them, or numbers of texts",
            "Make a number of the text: write it without quotes, or CAST(… AS DECIMAL(p,s)).",
        )
    if len(known) > 1 and meeting.loses(known):
        return RoundedExpression(
            meeting.node,
            f"Spark would round {shown}: {_needed(meeting, known)}, and a decimal has {DIGITS_MAX}",
            "CAST the operands to decimals of fewer digits: what does not fit in front of the"
            " point fails then, and you choose what is rounded behind it.",
        )
    return None


def _never(_: Sequence[NumberDigits]) -> bool:
    return False


def _common(digits: Sequence[NumberDigits]) -> bool:
    return max(d.whole for d in digits) + max(d.fraction for d in digits) > DIGITS_MAX


def _sum(digits: Sequence[NumberDigits]) -> bool:
    return _loses(max(d.whole for d in digits) + 1, max(d.fraction for d in digits))


def _product(digits: Sequence[NumberDigits]) -> bool:
    return _loses(sum(d.whole for d in digits) + 1, sum(d.fraction for d in digits))


def _needed(meeting: ConvertedOperands, digits: Sequence[NumberDigits]) -> str:
    """Return how many digits the result of a meeting would need."""
    if meeting.loses is _product:
        result = "their product"
    else:
        result = "their sum" if meeting.loses is _sum else "their common type"
    total = sum if meeting.loses is _product else max
    count = total(d.whole for d in digits) + total(d.fraction for d in digits)
    return f"{result} needs {count + (meeting.loses is not _common)} digits"


def _loses(whole: int, fraction: int) -> bool:
    """Return True if the result of arithmetic has fewer digits behind the point than its operands.

    `DecimalType.adjustPrecisionScale` of Spark: digits in front of the point come first, but
    `FRACTION_KEPT` stay behind it. Too great a number is an error.
    """
    left = DIGITS_MAX - whole
    return left < fraction and max(left, min(fraction, FRACTION_KEPT)) < fraction


def _of_case(node: exp.Case) -> Iterator[ConvertedOperands]:
    branches = [one.args["true"] for one in node.args["ifs"]]
    yield ConvertedOperands(
        node, _present((*branches, node.args.get("default"))), _common, minimal=False
    )
    if node.this is not None:
        for one in node.args["ifs"]:
            yield ConvertedOperands(node, (node.this, one.this), _common)


def _of_decode(node: exp.DecodeCase) -> Iterator[ConvertedOperands]:
    """`decode(x, search, result, …, default)`."""
    what, *rest = node.expressions
    for search in rest[: len(rest) - 1 : 2]:
        yield ConvertedOperands(node, (what, search), _common)
    results = [*rest[1::2], *(rest[-1:] if len(rest) % 2 else [])]
    yield ConvertedOperands(node, tuple(results), _common, minimal=False)


def _present(nodes: Sequence[exp.Expr | None]) -> tuple[exp.Expr, ...]:
    return tuple(node for node in nodes if node is not None)


def _bare(node: exp.Expr) -> exp.Expr:
    """Return an expression without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _integer(node: exp.Expr) -> int | None:
    """Return the value of an integer literal without sign; None: it is another expression."""
    if isinstance(node, exp.Neg):
        node = _bare(node.this)
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal():
        return int(node.name) if int(node.name) <= _INT_MAX else None
    return None


def _digits(node: exp.Expr, kind: str, *, minimal: bool) -> NumberDigits | None:
    """Return the digits that Spark counts; None: it is no number."""
    if (value := _integer(node)) is not None:
        return NumberDigits(len(str(value)) if minimal else _INTEGERS["int"], 0)
    if kind in _INTEGERS:
        return NumberDigits(_INTEGERS[kind], 0)
    if match := _DECIMAL.fullmatch(kind):
        return NumberDigits(int(match[1]) - int(match[2]), int(match[2]))
    return None
