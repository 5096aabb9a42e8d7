"""Warnings about columns that can hold values which a refresh refuses, for `Engine.warnings`.

Such a value ends a refresh, perhaps after months. The catalogue tells which columns could hold one;
no row is read. `docs/types.md` lists the types in Spark, and what each refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from driftline.values.types import Column

from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Shape

DATES: Final = frozenset({"date", "timestamp", "timestamptz"})
READ_AS_TEXT: Final = 'as_text = ["{name}"] here takes it'
_SPARK_DATES: Final = "Spark's dates and timestamps hold the years 0001 to 9999 and no infinity"
_STRING: Final = 'carriers = {{"{name}" = "string"}} at the warehouse takes it'


def column_warnings(shape: Shape, warning: Callable[[Column, str], str]) -> list[str]:
    """Return the notes on columns that can hold a refused value, in published order.

    Args:
        shape: the relation.
        warning: takes a column and its form (see `Plan`), and returns a text with `{name}` for the
            column's name; empty if every value is accepted.
    """
    forms = {c.name: f for c, f in zip(shape.recipe.columns, plan_of(shape).forms, strict=True)}
    notes = [(c.name, warning(c, forms[c.name])) for c in shape.recipe.published_order]
    return [f"{name}: {note.format(name=name)}" for name, note in notes if note]


def spark_warning(column: Column, *, has_nan: bool) -> str:
    """Return the note on a column that can hold a value which Spark's type cannot, or "".

    `has_nan`: a numeric column can hold NaN.
    """
    if column.type.kind in DATES:
        return f"can hold infinity and years before 1 or after 9999; {_SPARK_DATES}; {_STRING}"
    if has_nan and column.type.kind == "numeric" and column.type.precision is not None:
        return f"can hold NaN; Spark's decimal holds none; {_STRING}"
    return ""
