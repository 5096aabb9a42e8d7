"""Compare a sample of a relation with what the database's driver itself returns.

For a server on which Driftline was never run. What is compared, and what cannot be found so, says
`engines.own_values.comparison`.
"""

from __future__ import annotations

from collections.abc import Sequence

from source_agent.checks.relations import refuse_unknown
from source_agent.config.file import SourceConfig
from source_agent.engines.interface import Engine
from source_agent.engines.own_values.comparison import ValueComparison, compare, not_compared
from source_agent.engines.own_values.reading import own_values_of, why_none


def check_reads(
    config: SourceConfig, engine: Engine, names: Sequence[str], rows: int
) -> dict[str, ValueComparison]:
    """Compare about `rows` rows of each relation.

    Raises NotFound without such a relation, and what describing or scanning it raises.
    """
    refuse_unknown(config, names)
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
