"""Queries of one site in its own dialect, for people: a share of a view, and a join to publish.

Nothing here is ever sent. The first shows what a source is asked for; the source itself makes the
statement that it runs (`driftline-source explain`). The second is a relation that a DBA may publish
where tables of one site join: the join is then made at the site, and only joined rows travel.

A proposal has only what means the same at the site and in Spark: predicates that are pushed as they
are, and `=` of two columns of one type for which the source says so. All else stays in the view.
Texts are compared by their bytes, as the source agent's engines do and Spark does: a column's own
collation may ignore case or blanks, or sort by a language's rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
)
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.decomposition.view_needs import DerivationOffer, NeedShare

_NUMBERS = ("int2", "int4", "int8", "numeric")
_KEYWORDS = {"date": "DATE ", "timestamp": "TIMESTAMP "}
_INDENT = " " * 9


@dataclass(frozen=True, slots=True)
class Dialect:
    """Quoting of an engine, and how it compares texts.

    Attributes:
        by_bytes: a text, in place of `{}`, as an operand that is compared by its bytes in UTF-8;
            empty: not known.
        mark: around names.
        escapes: a backslash in a text is doubled.
    """

    by_bytes: str
    mark: str = '"'
    escapes: bool = False

    def name(self, name: str) -> str:
        """Return a quoted name."""
        return self.mark + name.replace(self.mark, 2 * self.mark) + self.mark

    def column(self, column: Column, alias: str | None = None) -> str:
        """Return a column's quoted name; `alias` qualifies it."""
        prefix = "" if alias is None else f"{self.name(alias)}."
        return prefix + self.name(column.name)

    def operand(self, column: Column, alias: str | None = None) -> str:
        """Return a column as it is compared with a value of its type."""
        name = self.column(column, alias)
        is_text = column.type.kind == "text" and self.by_bytes
        return self.by_bytes.replace("{}", name) if is_text else name

    def literal(self, column: Column, value: str) -> str:
        """Return a literal in the string form of a column's type as SQL."""
        if column.type.kind in _NUMBERS:
            return value
        text = value.replace("\\", "\\\\") if self.escapes else value
        return _KEYWORDS.get(column.type.kind, "") + "'" + text.replace("'", "''") + "'"


_FAMILY: Final = Dialect("CAST(CONVERT({} USING utf8mb4) AS BINARY)", "`", escapes=True)
_DIALECTS: Final = {
    "postgresql": Dialect('{} COLLATE "C"'),
    "mariadb": _FAMILY,
    "mysql": _FAMILY,
    "sqlite": Dialect("{} COLLATE BINARY"),
}
_UNKNOWN: Final = Dialect(by_bytes="")


def dialect_of(database: str) -> Dialect:
    """Return the dialect of a database, by its engine as the source names it."""
    return _DIALECTS.get(database.lower(), _UNKNOWN)


def share_query(relation: str, recipe: Recipe, rows: Predicate | None, dialect: Dialect) -> str:
    """Return the SELECT of the columns of a recipe, and of the rows that a predicate chooses."""
    names = ", ".join(dialect.name(column.name) for column in recipe.published_order)
    where = "" if rows is None else f" WHERE {predicate_text(rows, recipe.columns, dialect)}"
    return f"SELECT {names} FROM {relation}{where}"


def predicate_text(
    predicate: Predicate, columns: Iterable[Column], dialect: Dialect, alias: str | None = None
) -> str:
    """Return a predicate on these columns as SQL; `alias` qualifies them."""
    known = {column.name: column for column in columns}
    prefix = "" if alias is None else f"{dialect.name(alias)}."

    def text(node: Predicate) -> str:
        match node:
            case ColumnPredicate(name, Operator.IS_NULL, _):
                return f"{dialect.column(known[name], alias)} IS NULL"
            case ColumnPredicate(name, operator, values):
                literals = [dialect.literal(known[name], value) for value in values]
                right = f"({', '.join(literals)})" if operator is Operator.IN else literals[0]
                return f"{dialect.operand(known[name], alias)} {operator.value} {right}"
            case ReferencePredicate(own, relation, referenced, rows, types):
                names = ", ".join(f"{prefix}{dialect.name(name)}" for name in own)
                there = [Column(name, parse_type(type), True, 0) for name, type in types]
                keys = ", ".join(map(dialect.name, referenced))
                where = predicate_text(rows, there, dialect)
                return f"({names}) IN (SELECT {keys} FROM {relation} WHERE {where})"
            case NotPredicate(part):
                return f"NOT ({text(part)})"
            case AndPredicate(parts):
                return " AND ".join(map(within, parts))
            case OrPredicate(parts):
                return " OR ".join(map(within, parts))

    def within(node: Predicate) -> str:
        return f"({text(node)})" if isinstance(node, AndPredicate | OrPredicate) else text(node)

    return text(predicate)


@dataclass(frozen=True, slots=True)
class JoinedOccurrence:
    """An occurrence of a relation of the site, with what is pushed for it."""

    relation: str
    offer: DerivationOffer
    share: NeedShare

    @property
    def alias(self) -> str:
        """Return its alias in the view's query."""
        return self.share.wish.alias


def proposed(
    name: str,
    occurrences: Sequence[JoinedOccurrence],
    equal: Iterable[tuple[tuple[str, str], tuple[str, str]]],
    dialect: Dialect,
) -> str | None:
    """Return the lines of source.toml that publish the join of relations.

    None: they do not join, or it is not known how the database compares texts by their bytes.

    Args:
        name: of the relation to publish.
        equal: columns that the view's query compares with `=`, as alias and published name.
    """
    if not dialect.by_bytes:
        return None
    by_alias = {one.alias.lower(): one for one in occurrences}
    joins = []
    for left, right in equal:
        sides = [_column(by_alias, *side) for side in (left, right)]
        if (pair := [side for side in sides if side is not None])[1:]:
            (one, a), (other, b) = pair
            if one is not other and a.type == b.type and _has_equality(one, a, other, b):
                joins.append((one, a, other, b))
    joined = _connected(occurrences, [(one, other) for one, _, other, _ in joins])
    if len(joined) < 2:
        return None
    outputs, key = _outputs(joined, dialect)
    tables = ", ".join(f"{j.relation} AS {dialect.name(j.alias)}" for j in joined)
    conditions = [
        f"{dialect.operand(a, one.alias)} = {dialect.operand(b, other.alias)}"
        for one, a, other, b in joins
        if one in joined
    ]
    for one in joined:
        if one.share.rows is not None:
            rows = predicate_text(one.share.rows, one.offer.recipe.columns, dialect, one.alias)
            conditions.append(f"({rows})" if isinstance(one.share.rows, OrPredicate) else rows)
    where = f"\n{_INDENT}  AND ".join(conditions)
    columns = f",\n{_INDENT}       ".join(outputs)
    query = f"SELECT {columns}\n{_INDENT}FROM {tables}\n{_INDENT}WHERE {where}"
    return (
        f"[relations.{name}]\n"
        f'query = """{_escaped(query)}"""\n'
        f"key = [{', '.join(_toml(one) for one in key)}]\n"
    )


def _column(
    by_alias: Mapping[str, JoinedOccurrence], alias: str, name: str
) -> tuple[JoinedOccurrence, Column] | None:
    """Return the column that a query names; a name without alias must be of one relation alone."""
    if alias:
        among = [by_alias[alias.lower()]] if alias.lower() in by_alias else []
    else:
        among = list(by_alias.values())
    matches = [(j, known.column) for j in among if (known := j.offer.compares.get(name.lower()))]
    return matches[0] if len(matches) == 1 else None


def _has_equality(one: JoinedOccurrence, a: Column, other: JoinedOccurrence, b: Column) -> bool:
    nothing = Comparable.NOTHING
    sides = (one.offer.comparable.get(a.name, nothing), other.offer.comparable.get(b.name, nothing))
    return all(side.allows(Operator.EQUAL) for side in sides)


def _connected(
    occurrences: Sequence[JoinedOccurrence],
    joins: Sequence[tuple[JoinedOccurrence, JoinedOccurrence]],
) -> tuple[JoinedOccurrence, ...]:
    """Return the largest set of occurrences that joins connect, in order."""
    best: tuple[JoinedOccurrence, ...] = ()
    for start in occurrences:
        reached = [start]
        for one in reached:
            near = [b if a is one else a for a, b in joins if one in (a, b)]
            reached += [other for other in near if other not in reached]
        if len(reached) > len(best):
            best = tuple(one for one in occurrences if one in reached)
    return best


def _outputs(joined: Sequence[JoinedOccurrence], dialect: Dialect) -> tuple[list[str], list[str]]:
    """Return the columns of the SELECT with names that differ, and the names of the key."""
    outputs, key, taken = [], [], set[str]()
    for one in joined:
        keys = {column.name for column in one.offer.recipe.key}
        for column in one.offer.recipe.published_order:
            if column.name not in keys and column.name not in one.share.columns:
                continue
            name = free_name((column.name, f"{one.alias}_{column.name}"), taken)
            as_ = "" if name == column.name else f" AS {dialect.name(name)}"
            outputs.append(f"{dialect.column(column, one.alias)}{as_}")
            key += [name] if column.name in keys else []
    return outputs, key


def free_name(wanted: Sequence[str], taken: set[str]) -> str:
    """Return the first name that is free but for case, the last one numbered; and take it."""
    numbered = (f"{wanted[-1]}_{number}" for number in count(2))
    name = next(name for name in chain(wanted, numbered) if name.lower() not in taken)
    taken.add(name.lower())
    return name


def _toml(text: str) -> str:
    return f'"{_escaped(text, 1)}"'


def _escaped(text: str, quotes: int = 3) -> str:
    """Return a text as it stands in TOML between so many quotes."""
    return text.replace("\\", r"\\").replace('"' * quotes, r"\"" * quotes)
