"""`explain`: every SQL text that this agent can issue, for the DBA to read before it runs.

There is no other: identifiers and queries are those of her file, and what comes from the network is
bound as a value or not used at all. The templates come from the same functions that the sessions
execute from; the tests watch the servers' statement logs for any that is not among them.
"""

from __future__ import annotations

from source_agent.configure import SourceConfig
from source_agent.engine import Engine


def explain(config: SourceConfig, engine: Engine) -> list[str]:
    """The templates for all relations of the file. Describes them, so it contacts the database.

    Raises:
        ConfigurationError, DatabaseRefused, DatabaseUnavailable.
    """
    session = engine.open()
    try:
        shapes = [session.describe(p.relation) for p in config.relations.values()]
    finally:
        session.close()
    return engine.templates(shapes)
