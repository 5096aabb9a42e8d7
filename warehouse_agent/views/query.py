"""Read a view's query: its tables, its columns, and the places in its text.

Spark evaluates the user's text. sqlglot only reads it, and writes nothing that runs, because it
rewrites what it read (`a::int`, `<=>`): what is put into the text is spliced by offsets.

A query is SELECT, FROM, inner joins and WHERE. Everything in it must be on a list: classes of the
syntax tree, functions by the name that is written, words in front of a parenthesis (`words`). So
what sqlglot or Spark learns later is refused until somebody has looked at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import sqlglot
from driftline.errors import ConfigurationError
from driftline.settings.declarations import nearest
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from warehouse_agent.columns.view_layout import LINEAGE
from warehouse_agent.views.words import refusals

OCCURRENCES_MAX = 16  # a join of more is rather a mistake
TEXT_MAX = 64 << 10  # characters
_DIALECT = "spark"
_NAME_REFUSED = re.compile(r"[ ,;{}()\n\t=]")  # by Delta
_NAMES_OF_FEED = ("_op", "_version")

# Classes of expressions beside functions.
_EXPRESSIONS = (
    exp.Add, exp.Alias, exp.And, exp.Between, exp.BitwiseAnd, exp.BitwiseNot, exp.BitwiseOr,
    exp.BitwiseXor, exp.Boolean, exp.Case, exp.Cast, exp.Column, exp.DataType, exp.DataTypeParam,
    exp.Div, exp.DPipe, exp.EQ, exp.Escape, exp.GT, exp.GTE, exp.Identifier, exp.If, exp.ILike,
    exp.In, exp.IntDiv, exp.Interval, exp.IntervalSpan, exp.Is, exp.Like, exp.Literal, exp.LT,
    exp.LTE, exp.Mod, exp.Mul, exp.NEQ, exp.Neg, exp.Not, exp.Null, exp.NullSafeEQ,
    exp.NullSafeNEQ, exp.Or, exp.Paren, exp.RawString, exp.RegexpLike, exp.Sub, exp.TryCast,
    exp.Var,
)  # fmt: skip
_STRUCTURE = (exp.Select, exp.From, exp.Join, exp.Table, exp.TableAlias, exp.Where)
_BEHIND_TABLE = (
    TokenType.COMMA, TokenType.CROSS, TokenType.INNER, TokenType.JOIN, TokenType.ON,
    TokenType.WHERE,
)  # fmt: skip
_SETS = (TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT)
_REFUSED = {
    exp.Star: ("`*` is refused: name what the view is to have", "Name the columns."),
    exp.Subquery: ("a subquery is refused", "Make it a view of its own, and join that."),
    exp.Window: ("a window function is refused: it depends on other rows", ""),
    exp.AggFunc: ("an aggregate is refused: GROUP BY comes with a later release", ""),
    exp.Placeholder: ("a parameter is refused", "Write the value."),
    exp.Parameter: ("a parameter is refused", "Write the value."),
    exp.Lambda: ("a lambda is refused", ""),
    exp.Collate: ("COLLATE is refused: texts are compared by their bytes", "Leave it out."),
    exp.Distinct: ("DISTINCT is refused", "The rows of a view are as many as its joins give."),
}  # fmt: skip
_CLAUSES = {
    "with_": ("WITH is refused", "Make it a view of its own, and join that."),
    "distinct": ("DISTINCT is refused: it is a GROUP BY, which comes with a later release", ""),
    "group": ("GROUP BY is refused: it comes with a later release", ""),
    "having": ("HAVING is refused", ""),
    "order": ("ORDER BY is refused: a table has no order", "Order the rows where they are read."),
    "limit": ("LIMIT is refused: which rows it takes is not determined", ""),
    "offset": ("OFFSET is refused: which rows it leaves out is not determined", ""),
    "hint": ("a hint is refused", "Leave it out."),
    "laterals": ("LATERAL VIEW is refused", ""),
    "windows": ("WINDOW is refused", ""),
    "qualify": ("QUALIFY is refused", ""),
    "sample": ("TABLESAMPLE is refused: its rows are not determined", ""),
    "pivots": ("PIVOT is refused", ""),
    "version": ("time travel is refused: a view reads the versions that belong together", ""),
    "joins": ("parentheses around joins are refused", "Write the joins one after the other."),
    "using": ("USING is refused", "Write ON with both columns."),
}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A table in the FROM clause; one table may occur twice.

    Attributes:
        reference: parts of its name: `("erp", "orders")`, or `("orders",)`.
        alias: the name by which columns are qualified.
        start, end: offsets in the text of the reference with its alias, `end` exclusive.
    """

    reference: tuple[str, ...]
    alias: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A column as the query writes it, and the offset where it begins."""

    qualifier: str | None
    name: str
    start: int


@dataclass(frozen=True, slots=True)
class Query:
    """A query that is select, project and inner joins only.

    Attributes:
        text: as written, without a final semicolon.
        occurrences: in the order of the text.
        columns: names of the result, in order.
        uses: every column in it.
        lineage_at: the offset before the FROM, where lineage columns are put.
        equalities: `column = column` that every row of the result fulfils.
        conditions: WHERE and every ON; each row of the result fulfils them all.
        select: the whole of it.
    """

    text: str
    occurrences: tuple[Occurrence, ...]
    columns: tuple[str, ...]
    uses: tuple[ColumnUse, ...] = field(repr=False)
    lineage_at: int = field(repr=False)
    equalities: tuple[tuple[ColumnUse, ColumnUse], ...] = field(repr=False)
    conditions: tuple[exp.Expr, ...] = field(default=(), repr=False, compare=False)
    select: exp.Expr = field(default_factory=exp.Select, repr=False, compare=False)

    def place(self, node: exp.Expr) -> str:
        """Return where a part of the query begins, such as `line 2, column 7`."""
        return _position(self.text, _start(node) or 0)

    def spliced(self, tables: Sequence[str], lineage: Sequence[Sequence[str]]) -> str:
        """Return the text that Spark gets.

        Args:
            tables: for each occurrence, the name of the temporary view that takes its place.
            lineage: for each occurrence, its lineage columns; they follow the columns of the
                result, as `_driftline_k1`, `_driftline_k2` … over all occurrences.
        """
        names = [(o.alias, c) for o, cs in zip(self.occurrences, lineage, strict=True) for c in cs]
        added = "".join(
            f", {_quoted(alias)}.{_quoted(column)} AS {LINEAGE}{number}"
            for number, (alias, column) in enumerate(names, 1)
        )
        parts = [(self.lineage_at, self.lineage_at, f"{added} ")]
        parts += [
            (o.start, o.end, f"{_quoted(table)} AS {_quoted(o.alias)}")
            for o, table in zip(self.occurrences, tables, strict=True)
        ]
        text, end = "", 0
        for start, stop, new in parts:  # in the order of the text: FROM comes before its tables
            text += self.text[end:start] + new
            end = stop
        return text + self.text[end:]


@dataclass(frozen=True, slots=True)
class ResolvedColumns:
    """Columns that a query uses, in the tables' own spelling.

    Attributes:
        used: for each occurrence.
        equalities: those of the query; each side is the index of an occurrence, and a column.
    """

    used: tuple[frozenset[str], ...]
    equalities: tuple[tuple[tuple[int, str], tuple[int, str]], ...] = ()


def read_query(text: str, *, where: str) -> Query:
    """Read a query.

    Args:
        where: the place in the configuration, for errors.

    Raises:
        ConfigurationError: it does not parse, or has something that is not on the list; with the
            reason, line and column.
    """
    reader = _Reader(text, where)
    try:
        return reader.read()
    except RecursionError:
        raise reader.too_deep() from None


def resolve(query: Query, columns: Sequence[Sequence[str]], *, where: str) -> ResolvedColumns:
    """Resolve every column of the query from the columns of its occurrences.

    Args:
        columns: for each occurrence, the names of its columns.
        where: the place in the configuration, for errors.

    Raises:
        ConfigurationError: an unknown or ambiguous column, with the nearest name and the place.
    """
    known = [{name.lower(): name for name in names} for names in columns]
    used: list[set[str]] = [set() for _ in columns]
    meant: dict[ColumnUse, tuple[int, str]] = {}
    for use in query.uses:
        place = f"{where}, {_position(query.text, use.start)}"
        among = [
            number
            for number, occurrence in enumerate(query.occurrences)
            if use.qualifier is None or use.qualifier.lower() == occurrence.alias.lower()
        ]
        if not among:
            aliases = [occurrence.alias for occurrence in query.occurrences]
            raise ConfigurationError(
                f"No table of the query is called {use.qualifier!r}.",
                where=place,
                remedy=nearest(str(use.qualifier), aliases),
            )
        matches = [number for number in among if use.name.lower() in known[number]]
        if not matches:
            names = [name for number in among for name in known[number].values()]
            raise ConfigurationError(
                f"There is no column {use.name!r}.", where=place, remedy=nearest(use.name, names)
            )
        if len(matches) > 1:
            tables = " and ".join(query.occurrences[number].alias for number in matches)
            raise ConfigurationError(
                f"The column {use.name!r} is in {tables}.",
                where=place,
                remedy=f"Write which is meant, such as {query.occurrences[matches[0]].alias}"
                f".{use.name}.",
            )
        meant[use] = matches[0], known[matches[0]][use.name.lower()]
        used[matches[0]].add(meant[use][1])
    equalities = tuple((meant[left], meant[right]) for left, right in query.equalities)
    return ResolvedColumns(tuple(frozenset(names) for names in used), equalities)


class _Reader:
    """Reads one text; its errors name the place in it."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where

    def read(self) -> Query:
        if len(self._text) > TEXT_MAX:
            raise self._error(f"it has more than {TEXT_MAX:,} characters", "")
        tokens = self._tokens()
        select = self._parsed(tokens)
        self._check_clauses(select)
        for node in select.walk():
            self._check_kind(node, select)
        for refusal in refusals(self._text, tokens, select):
            raise self._error(refusal.why, refusal.remedy, refusal.at)
        for node in select.walk():
            self._check_node(node)
        occurrences = self._occurrences(select)
        self._check_tables(tokens, occurrences)
        first = occurrences[0].start
        start = next(a.start for a, b in pairwise(tokens) if b.start == first)  # FROM
        columns = self._columns(select)
        uses = tuple(map(_use, select.find_all(exp.Column)))
        equalities, conditions = tuple(_equalities(select)), tuple(_conditions(select))
        return Query(self._text, occurrences, columns, uses, start, equalities, conditions, select)

    def _tokens(self) -> list[Token]:
        """Return the tokens; cut the text behind the last one that is no semicolon."""
        try:
            tokens = sqlglot.tokenize(self._text, dialect=_DIALECT)
        except SqlglotError as error:
            raise self._unreadable(error) from None
        while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
            tokens.pop()
        for token in tokens:
            if token.token_type is TokenType.SEMICOLON:
                raise self._error("there are several statements", "Leave one.", token.start)
        if tokens and tokens[0].token_type is TokenType.WITH:
            raise self._refused(_CLAUSES["with_"], tokens[0].start)
        if not tokens or tokens[0].token_type is not TokenType.SELECT:
            at = tokens[0].start if tokens else 0
            raise self._error("it does not begin with SELECT", "Write SELECT … FROM ….", at)
        self._text = self._text[: tokens[-1].end + 1]
        return tokens

    def _parsed(self, tokens: list[Token]) -> exp.Select:
        for before, token in pairwise(tokens):
            if token.token_type in _SETS and before.token_type is not TokenType.STAR:
                raise self._no_select(token.start)
            if token.token_type is TokenType.SELECT:
                raise self._refused(_REFUSED[exp.Subquery], token.start)
        try:
            parsed = sqlglot.parse_one(self._text, dialect=_DIALECT)
        except SqlglotError as error:
            raise self._unreadable(error) from None
        if not isinstance(parsed, exp.Select):
            raise self._no_select(None)
        if parsed.args.get("from_") is None:
            raise self._error("it has no FROM", "Name the tables that it reads.")
        return parsed

    def _no_select(self, at: int | None) -> ConfigurationError:
        return self._error(
            "it is no plain SELECT (UNION and other set operations are refused)",
            "Make each part a view of its own.",
            at,
        )

    def _check_clauses(self, select: exp.Select) -> None:
        from_ = select.args["from_"]
        joins = select.args.get("joins") or []
        self._check_parts(select, ("expressions", "from_", "joins", "where"))
        self._check_parts(from_, ("this",))
        for join in joins:
            words = " ".join(join.args.get(key) or "" for key in ("method", "side", "kind"))
            if words.strip().upper() not in ("", "INNER", "CROSS"):
                raise self._error(
                    f"{words.strip().upper()} JOIN is refused: a view has inner joins"
                    " (outer joins come with a later release)",
                    "",
                    _start(join),
                )
            self._check_parts(join, ("this", "on", "kind"))
        tables = [from_.this, *(join.this for join in joins)]
        for table in tables:
            if isinstance(table, exp.Paren | exp.Subquery):  # a SELECT in it was refused
                raise self._refused(_CLAUSES["joins"], _start(table))
            if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
                raise self._error(
                    "a view reads tables by name", "Make it a view of its own.", _start(table)
                )
            self._check_parts(table, ("this", "db", "alias", "catalog"))
            if table.args.get("catalog"):
                raise self._error(
                    "a table's name has at most two parts", "Write source.relation.", _start(table)
                )
            if alias := table.args.get("alias"):
                self._check_parts(alias, ("this",))
        if len(tables) > OCCURRENCES_MAX:
            raise self._error(
                f"it joins {len(tables)} tables, and at most {OCCURRENCES_MAX} are allowed",
                "Make a part of it a view of its own.",
            )

    def _check_parts(self, node: exp.Expr, allowed: tuple[str, ...]) -> None:
        """Refuse a part of a node that is not on its list."""
        for part, value in node.args.items():
            if value and part not in allowed:
                at = value[0] if isinstance(value, list) else value
                place = _start(at) if isinstance(at, exp.Expr) else None
                why = _CLAUSES.get(part, (f"{part.strip('_').upper()} is refused", ""))
                raise self._refused(why, _start(node) if place is None else place)

    def _check_tables(self, tokens: list[Token], occurrences: Sequence[Occurrence]) -> None:
        """Refuse what sqlglot drops behind a table: an AS without a name, or a star."""
        for one in occurrences:
            after = next((token for token in tokens if token.start >= one.end), None)
            if after is not None and after.token_type not in _BEHIND_TABLE:
                raise self._error(
                    f"{after.text!r} is refused behind a table", "Leave it out.", after.start
                )

    def _check_kind(self, node: exp.Expr, select: exp.Select) -> None:
        """Refuse what has a reason of its own."""
        if node is not select and isinstance(node, exp.Query):
            raise self._refused(_REFUSED[exp.Subquery], _start(node))
        for kind, why in _REFUSED.items():
            if isinstance(node, kind):
                raise self._refused(why, _start(node))

    def _check_node(self, node: exp.Expr) -> None:
        """Refuse what is not on the list."""
        if isinstance(node, exp.Column) and (node.args.get("db") or node.args.get("catalog")):
            raise self._error(
                f"the column {node.name!r} has more than one qualifier",
                "Give the table an alias, and write alias.column.",
                _start(node),
            )
        if isinstance(node, exp.DataType) and node.this is exp.DType.TIME:
            raise self._error(
                "the type TIME is refused: as a timestamp it has the date on which Spark reads it",
                "Use a text, or a timestamp.",
                _start(node.parent or node),
            )
        if isinstance(node, (*_STRUCTURE, *_EXPRESSIONS)):
            return
        if isinstance(node, exp.Func) and self._is_written(node):
            return
        raise self._error(f"{node.key.upper()} is refused: it is not on the list", "", _start(node))

    def _is_written(self, node: exp.Func) -> bool:
        """Return True if a function is one that takes arguments; its name was checked already.

        Without parentheses stand `current_date` and its kin, which depend on the clock and the
        session.
        """
        return not re.match(r"current|local|session|system|utc|user", node.key)

    def _occurrences(self, select: exp.Select) -> tuple[Occurrence, ...]:
        occurrences: list[Occurrence] = []
        for table in (select.args["from_"].this, *(j.this for j in select.args.get("joins") or ())):
            names = [part for part in (table.args.get("db"), table.this) if part]
            alias = table.args["alias"].this if table.args.get("alias") else table.this
            start, end = names[0].meta["start"], alias.meta["end"] + 1
            one = Occurrence(tuple(n.name for n in names), alias.name, start, end)
            if any(one.alias.lower() == other.alias.lower() for other in occurrences):
                raise self._error(
                    f"two tables are called {one.alias!r}", "Give one another alias.", start
                )
            if "`" in one.alias:
                raise self._error("an alias has a backtick", "Choose another.", start)
            occurrences.append(one)
        return tuple(occurrences)

    def _columns(self, select: exp.Select) -> tuple[str, ...]:
        names: dict[str, str] = {}
        for item in select.expressions:
            name = item.alias if isinstance(item, exp.Alias) else ""
            name = name or (item.name if isinstance(item, exp.Column) else "")
            at = _start(item)
            if not name:
                raise self._error("an expression has no name", "Give it one: AS name.", at)
            if _NAME_REFUSED.search(name):
                raise self._error(
                    f"a column cannot be called {name!r}: Delta refuses it", "Use AS.", at
                )
            if name.lower().startswith("_driftline") or name.lower() in _NAMES_OF_FEED:
                raise self._error(f"the name {name!r} is Driftline's own", "Use AS.", at)
            if name.lower() in names:
                raise self._error(f"two columns are called {name!r}", "Use AS.", at)
            names[name.lower()] = name
        return tuple(names.values())

    def too_deep(self) -> ConfigurationError:
        """Return the error of a query that Python's stack does not hold."""
        return self._error("its expressions are nested too deeply", "Make it simpler.")

    def _unreadable(self, error: Exception) -> ConfigurationError:
        errors = getattr(error, "errors", None)
        if errors:
            first = errors[0]
            place = f"line {first['line']}, column {first['col']}"
            why = f"it cannot be read: {first['description']}".rstrip(".")
            return ConfigurationError(
                f"The query is refused: {why}.", where=f"{self._where}, {place}"
            )
        return self._error(f"it cannot be read: {str(error).splitlines()[0].rstrip('.')}", "")

    def _refused(self, why: tuple[str, str], at: int | None) -> ConfigurationError:
        return self._error(*why, at)

    def _error(self, why: str, remedy: str, at: int | None = None) -> ConfigurationError:
        place = self._where if at is None else f"{self._where}, {_position(self._text, at)}"
        return ConfigurationError(f"The query is refused: {why}.", where=place, remedy=remedy)


def _use(node: exp.Column) -> ColumnUse:
    qualifier = node.args.get("table")
    return ColumnUse(qualifier.name if qualifier else None, node.name, _start(node) or 0)


def _conditions(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield ON of every join, and WHERE: all joins are inner ones."""
    for join in select.args.get("joins") or ():
        if on := join.args.get("on"):
            yield on
    if where := select.args.get("where"):
        yield where.this


def _equalities(select: exp.Select) -> Iterator[tuple[ColumnUse, ColumnUse]]:
    """Yield the equalities of two columns that ON and WHERE demand."""
    left = list(_conditions(select))
    while left:
        node = left.pop(0)
        if isinstance(node, exp.Paren):
            left.append(node.this)
        elif isinstance(node, exp.And):
            left += [node.left, node.right]
        elif isinstance(node, exp.EQ):
            sides = [side.unnest() for side in (node.left, node.right)]
            if isinstance(sides[0], exp.Column) and isinstance(sides[1], exp.Column):
                yield _use(sides[0]), _use(sides[1])


def _start(node: exp.Expr) -> int | None:
    """Return the least offset that a node or a part of it has, or else what it is a part of; None
    if none has one."""
    around: exp.Expr | None = node
    while around is not None:
        if starts := [n.meta["start"] for n in around.walk() if "start" in n.meta]:
            return int(min(starts))
        around = around.parent
    return None


def _position(text: str, offset: int) -> str:
    """Return an offset as `line 2, column 7`."""
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - (before.rfind(chr(10)) + 1) + 1}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
