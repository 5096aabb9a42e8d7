"""Read what each table of a view's query is needed for: its columns, and the conditions on it.

A row of a view fulfils each conjunct of WHERE and of every ON, because all joins are inner. What
refers to one table alone may be evaluated where the table is (`decomposition.conditions`); here
nothing is known of columns and types. Names without an alias may be of any table of the query.

Text literals that Spark may change before it reads them stay here: escapes, doubled quotes, and
`$`, which begins a variable where a session substitutes them (`evaluate` has that switched off).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftline.limits import DERIVATION_DEPTH_MAX, JOIN_REFERENCES_MAX
from driftline.relations.derivations import Operator
from sqlglot import exp

from warehouse_agent.decomposition.conditions import (
    ColumnTest,
    Condition,
    Conjunction,
    Disjunction,
    Literal,
    LiteralKind,
    Negation,
    WarehouseCondition,
)
from warehouse_agent.decomposition.view_needs import Conjunct, JoinNeed, OccurrenceNeed
from warehouse_agent.views.query import Query

_DIALECT = "spark"
_OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: Operator.EQUAL,
    exp.NEQ: Operator.NOT_EQUAL,
    exp.LT: Operator.LESS,
    exp.LTE: Operator.LESS_EQUAL,
    exp.GT: Operator.GREATER,
    exp.GTE: Operator.GREATER_EQUAL,
}
_TURNED = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_EQUAL: Operator.GREATER_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_EQUAL: Operator.LESS_EQUAL,
}
_TYPES = {
    exp.DType.DATE: LiteralKind.DATE,
    exp.DType.TIMESTAMPNTZ: LiteralKind.TIMESTAMP,
    exp.DType.TIMESTAMP: LiteralKind.TIMESTAMP,
    exp.DType.TIMESTAMPTZ: LiteralKind.TIMESTAMP,
}
_LEVELS_MAX = 4 * DERIVATION_DEPTH_MAX  # of AND, OR and NOT that are read; others stay here
_CHANGED = frozenset("\\'\"$")  # in a text, or, the first, anywhere in the query
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe)


Site = tuple[str, str]  # a source, and a relation that is kept of it


def site_of(name: str) -> Site | None:
    """Return source and relation of a kept relation's name; None where a dot in it hides them."""
    source, _, relation = name.partition(".")
    return (source, relation) if relation and "." not in relation else None


def wish_of(
    view: str, query: Query, number: int, sites: Sequence[Site | None] = ()
) -> OccurrenceNeed:
    """Return what an occurrence in a query, counted from 0, needs of its table.

    sites: of each occurrence, None for one that is not kept for views; none: nothing is joined.
    """
    alias, is_alone = query.occurrences[number].alias, len(query.occurrences) == 1
    ours = {u.name.lower() for u in query.uses if (u.qualifier or "").lower() == alias.lower()}
    free = {use.name.lower() for use in query.uses if use.qualifier is None}
    reader = _Reader(query, alias)
    return OccurrenceNeed(
        view,
        alias,
        frozenset(ours | free if is_alone else ours),
        frozenset() if is_alone else frozenset(free),
        tuple(reader.conjuncts()),
        tuple(_joins(query, sites, (number,))) if sites else (),
    )


def _joins(query: Query, sites: Sequence[Site | None], path: tuple[int, ...]) -> Iterator[JoinNeed]:
    """Yield the tables of the same source that the last one of a path of occurrences equals.

    Only names with an alias count, and only what leads to a condition.
    """
    own, alias = sites[path[-1]], query.occurrences[path[-1]].alias.lower()
    if own is None or len(path) > JOIN_REFERENCES_MAX:
        return
    for number, occurrence in enumerate(query.occurrences):
        there = sites[number]
        if number in path or there is None or there[0] != own[0]:
            continue
        ends = (alias, occurrence.alias.lower())
        sides = [(one, other) for pair in query.equalities for one, other in (pair, pair[::-1])]
        equal = frozenset(
            (one.name.lower(), other.name.lower())
            for one, other in sides
            if ((one.qualifier or "").lower(), (other.qualifier or "").lower()) == ends
        )
        if not equal:
            continue
        conjuncts = tuple(
            conjunct
            for conjunct in _Reader(query, occurrence.alias).conjuncts()
            if not isinstance(conjunct.condition, WarehouseCondition)
        )
        then = tuple(_joins(query, sites, (*path, number)))
        if conjuncts or then:
            yield JoinNeed(equal, there[1], conjuncts, then)


class _Reader:
    """Reads the conditions on one occurrence."""

    def __init__(self, query: Query, alias: str) -> None:
        self._conditions, self._alias = query.conditions, alias.lower()
        self._has_escapes = "\\" in query.text

    def conjuncts(self) -> Iterator[Conjunct]:
        """Yield the conjuncts that have a column which may be of this occurrence."""
        for condition in self._conditions:
            for node in _operands(condition, exp.And):
                columns = list(node.find_all(exp.Column))
                if any(self._may_be_ours(column) for column in columns):
                    yield Conjunct(node.sql(dialect=_DIALECT), self._read(node))

    def _may_be_ours(self, column: exp.Column) -> bool:
        return column.table.lower() in ("", self._alias)

    def _read(self, node: exp.Expr, level: int = 1) -> Condition:
        if level > _LEVELS_MAX:
            return WarehouseCondition("is nested too deeply")
        node = _bare(node)
        match node:
            case exp.And():
                parts = _operands(node, exp.And)
                return Conjunction(tuple(self._read(one, level + 1) for one in parts))
            case exp.Or():
                parts = _operands(node, exp.Or)
                return Disjunction(tuple(self._read(one, level + 1) for one in parts))
            case exp.Not():
                return Negation(self._read(node.this, level + 1))
            case exp.Is() if isinstance(node.expression, exp.Null):
                return self._tested(node.this, Operator.IS_NULL, [])
            case exp.In() if node.expressions:
                return self._tested(node.this, Operator.IN, node.expressions)
            case exp.Between() if not node.args.get("symmetric"):
                low, high = node.args["low"], node.args["high"]
                return Conjunction((
                    self._tested(node.this, Operator.GREATER_EQUAL, [low]),
                    self._tested(node.this, Operator.LESS_EQUAL, [high]),
                ))  # fmt: skip
        operator = _OPERATORS.get(type(node))
        if operator is None:
            return WarehouseCondition(_reason(node))
        left, right = _bare(node.this), _bare(node.expression)
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            left, right, operator = right, left, _TURNED.get(operator, operator)
        return self._tested(left, operator, [right])

    def _tested(self, left: exp.Expr, operator: Operator, right: list[exp.Expr]) -> Condition:
        """Return the test of a column; what it is tested with must be literals."""
        left = _bare(left)
        if not isinstance(left, exp.Column):
            return WarehouseCondition(_reason(left))
        for other in map(_bare, right):
            if isinstance(other, exp.Column):
                is_same = other.table.lower() == left.table.lower()
                return WarehouseCondition(
                    "compares two columns" if is_same else "compares two tables"
                )
        if not self._may_be_ours(left):
            return WarehouseCondition(f"is about {left.table}")
        literals = [self._literal(one) for one in map(_bare, right)]
        values = [one for one in literals if isinstance(one, Literal)]
        if len(values) < len(literals):
            return next(one for one in literals if isinstance(one, WarehouseCondition))
        return ColumnTest(left.name, operator, tuple(values))

    def _literal(self, node: exp.Expr) -> Literal | WarehouseCondition:
        match node:
            case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
                return Literal(LiteralKind.NUMBER, f"-{node.this.name}")
            case exp.Literal() if not node.is_string:
                return Literal(LiteralKind.NUMBER, node.name)
            case exp.Literal():
                if self._has_escapes or _CHANGED & set(node.name):
                    return WarehouseCondition("has a text with an escape, a quote or `$`")
                return Literal(LiteralKind.TEXT, node.name)
            case exp.Cast() if isinstance(node.this, exp.Literal) and node.this.is_string:
                kind = _TYPES.get(node.to.this)
                if kind is not None and not node.to.expressions:
                    return Literal(kind, node.this.name)
        return WarehouseCondition(_reason(node))


def _operands(node: exp.Expr, kind: type[exp.And | exp.Or]) -> Iterator[exp.Expr]:
    """Yield the operands of a chain of AND or OR, which may be longer than Python's stack."""
    left = [node]
    while left:
        one = _bare(left.pop())
        if isinstance(one, kind):
            left += [one.expression, one.this]
        else:
            yield one


def _bare(node: exp.Expr) -> exp.Expr:
    """Return an expression without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _reason(node: exp.Expr) -> str:
    """Return why an expression is not one that a source evaluates."""
    named: tuple[tuple[type[exp.Expr] | tuple[type[exp.Expr], ...], str], ...] = (
        ((exp.Like, exp.ILike, exp.RegexpLike), "has a pattern"),
        (exp.Cast, "has a cast"),
        ((exp.NullSafeEQ, exp.NullSafeNEQ), "compares null-safely"),
        (exp.Null, "compares with NULL"),
        (exp.Case, "has CASE"),
        (_ARITHMETIC, "has arithmetic"),
        ((exp.Boolean, exp.Column), "is a Boolean value"),
    )
    for kinds, why in named:
        if isinstance(node, kinds):
            return why
    if isinstance(node, exp.Func):
        return f"has the function {node.sql_name().lower()}"
    return f"has {node.key.upper()}"
