"""Note columns that may hold what their declared type or their carrier cannot: for `check`.

A value that does not fit ends a refresh, perhaps after months in which none came. The catalogue
tells which columns could hold one; no row is read, so a note says "can" and not "does".
`docs/types.md` has the carriers, and what each refuses.
"""

from __future__ import annotations

from driftline.types import Column

from source_agent.engines.interface import Shape
from source_agent.engines.relations import plan_of

_SPARK_DATES = "Spark's dates and timestamps hold the years 0001 to 9999 and no infinity"
_STRING = 'carriers = {{"{name}" = "string"}} at the warehouse takes it'
_TEXT = 'as_text = ["{name}"] here takes it'


def warnings(engine: str, shape: Shape) -> list[str]:
    """Return a note for each column that can hold what a refresh refuses, in published order.

    Args:
        engine: the name of the engine that described the relation.
    """
    found = []
    columns = shape.recipe.columns
    forms = {c.name: form for c, form in zip(columns, plan_of(shape).forms, strict=True)}
    for column in shape.recipe.published_order:
        note = _warning(engine, column, forms[column.name])
        if note:
            found.append(f"{column.name}: {note.format(name=column.name)}")
    if engine == "sqlite":
        found.append(
            "SQLite holds no column to its declaration, unless the table is STRICT: a value of "
            "another class is refused by name; as_text takes every value"
        )
    return found


def _warning(engine: str, column: Column, form: str) -> str:
    kind = column.type.kind
    is_date = kind in {"date", "timestamp", "timestamptz"}
    if engine == "mariadb":
        dates = "can hold a date that no calendar has, such as '0000-00-00', which is refused"
        return f"{dates}; {_TEXT}" if is_date else ""
    if is_date:
        return f"can hold infinity and years before 1 or after 9999; {_SPARK_DATES}; {_STRING}"
    # SQLite's numbers are none, but in TEXT everything is allowed that the type can say.
    has_nan = form == "string" if engine == "sqlite" else form != "money"
    if kind == "numeric" and column.type.precision is not None and has_nan:
        return f"can hold NaN; Spark's decimal holds none; {_STRING}"
    return ""
