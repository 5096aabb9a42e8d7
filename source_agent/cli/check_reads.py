"""`check --reads`: compare a sample of a relation with what the database's driver itself returns.

For a server on which Driftline was never run. What is compared, and what cannot be found so, says
`engines.own_values.comparison`. Values are shown, shortened, on the terminal of the DBA; none goes
to a warehouse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from driftline.errors import NotFound
from driftline.settings.declarations import nearest

from source_agent.config.file import SourceConfig
from source_agent.engines.interface import Engine
from source_agent.engines.own_values.comparison import (
    ColumnReads,
    ValueComparison,
    compare,
    not_compared,
)
from source_agent.engines.own_values.reading import own_values_of, why_none
from source_agent.printable import VALUE_CHARACTERS_MAX, counted

_SHOWN = 3  # differences of a column


def check_reads(
    config: SourceConfig, engine: Engine, names: Sequence[str], rows: int
) -> dict[str, ValueComparison]:
    """Compare about `rows` rows of each relation.

    Raises NotFound without such a relation, and what describing or scanning it raises.
    """
    for name in names:
        if name not in config.relations:
            raise NotFound(
                f"{config.path.name} does not publish {name!r}.",
                remedy=nearest(name, tuple(config.relations)),
            )
    comparisons = {}
    for name in names:
        session = engine.open()
        try:
            shape = session.describe(config.relations[name].relation)
            own = own_values_of(engine, session)
            if own is None:
                comparisons[name] = not_compared(shape, why_none(engine))
            else:
                comparisons[name] = compare(session, own, shape, rows)
        finally:
            session.close()
    return comparisons


def failed(comparisons: dict[str, ValueComparison]) -> bool:
    """Return True if a value differs, or a relation has none that could be compared."""
    return any(one.differs or not one.is_compared for one in comparisons.values())


def as_json(comparisons: dict[str, ValueComparison]) -> dict[str, object]:
    """Return the report for `--json`."""
    relations = [{"name": name, **asdict(one)} for name, one in comparisons.items()]
    return {"ok": not failed(comparisons), "relations": relations}


def as_text(comparisons: dict[str, ValueComparison]) -> str:
    """Return the report for people."""
    lines = []
    for name, one in comparisons.items():
        lines += [name, *(f"  {line}" for line in _relation_lines(one)), ""]
    return "\n".join(lines).rstrip()


def _relation_lines(result: ValueComparison) -> list[str]:
    lines = [f"{counted(result.rows, 'row')}: {result.how}"] if result.how else []
    if result.unpaired:
        lines.append(
            f"{counted(result.unpaired, 'row')} not compared: not found again by their key, or with"
            " a key that others have, too"
        )
    for column in result.columns:
        lines += _column_lines(column)
    lines += [f"DIFFERS  row {_short(row)}" for row in result.missing]
    return [*lines, _verdict(result)]


def _column_lines(column: ColumnReads) -> list[str]:
    lines = []
    what = f"{column.name} {column.type}"
    if column.differing:
        lines.append(f"DIFFERS  {what}: in {counted(column.differing, 'row')}")
        for sample in column.samples[:_SHOWN]:
            read, own = (_short(v) for v in (sample.published, sample.driver))
            lines.append(f"         {_short(sample.key)}: read {read}, the driver has {own}")
    elif column.equal:
        values = column.equal - column.nulls
        of = "NULL in all of them" if not values else counted(values, "value")
        lines.append(f"equal    {what}: {of}")
    for reason, count in column.not_compared.items():
        of = f"{counted(count, 'value')}: " if count else ""
        lines.append(f"not compared  {what}: {of}{reason}")
    if not lines:
        lines.append(f"not compared  {what}: no row")
    return lines


def _verdict(result: ValueComparison) -> str:
    if result.differs:
        return (
            "What Driftline reads is not what the driver returns. Do not publish these columns:"
            " leave them out with `columns`, or report this to Driftline's authors."
        )
    if not result.is_compared:
        return "Nothing could be compared."
    left_out = sum(not column.is_compared for column in result.columns)
    if result.rows == 0:
        return "There is no row."
    more = f"; {counted(left_out, 'column')} not compared" if left_out else ""
    return f"All values that were compared are equal{more}."


def _short(value: str | None) -> str:
    if value is None:
        return "NULL"
    text = value if value.isprintable() else ascii(value)[1:-1]
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}…"
