"""`check --reads`: print how a sample of a relation compares with the driver's own values.

Values are shown, shortened, on the terminal of the DBA; none goes to a warehouse.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from source_agent.checks.reads import failed
from source_agent.engines.own_values.comparison import ColumnReads, ValueComparison
from source_agent.printable import VALUE_CHARACTERS_MAX, counted

_SHOWN = 3  # differences of a column


def as_json(comparisons: dict[str, ValueComparison]) -> str:
    """Return the report for `--json`."""
    relations = [{"name": name, **asdict(one)} for name, one in comparisons.items()]
    facts = {"ok": not failed(comparisons), "relations": relations}
    return json.dumps(facts, ensure_ascii=False)


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
