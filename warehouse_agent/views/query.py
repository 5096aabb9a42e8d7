"""Read a view's query: its tables, its columns, and the places in its text.

Spark evaluates the user's text; here it is only read, and spliced by offsets. sqlglot writes no
text that runs, because it rewrites what it read (`a::int`, `<=>`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
class Query:
    """A query that is select, project and inner joins only.

    Attributes:
        text: as written, without a final semicolon.
        occurrences: in the order of the text.
        columns: names of the result, in order.
    """

    text: str
    occurrences: tuple[Occurrence, ...]
    columns: tuple[str, ...]

    def spliced(self, tables: Sequence[str], lineage: Sequence[Sequence[str]]) -> str:
        """Return the text that Spark gets.

        Args:
            tables: for each occurrence, the name of the temporary view that takes its place.
            lineage: for each occurrence, its lineage columns; they follow the columns of the
                result, as `_driftline_k1`, `_driftline_k2` … over all occurrences.
        """
        raise NotImplementedError


def read_query(text: str, *, where: str) -> Query:
    """Read a query.

    Args:
        where: the place in the configuration, for errors.

    Raises:
        ConfigurationError: it does not parse, or has something that is not on the list; with the
            reason, line and column.
    """
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Resolved:
    """Columns that a query uses. `used`: for each occurrence, in the table's own spelling."""

    used: tuple[frozenset[str], ...]


def resolve(query: Query, columns: Sequence[Sequence[str]], *, where: str) -> Resolved:
    """Resolve every column of the query from the columns of its occurrences.

    Raises:
        ConfigurationError: an unknown or ambiguous column, with the nearest name and the place.
    """
    raise NotImplementedError
