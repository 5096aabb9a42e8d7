"""The script of the privileges that the login needs, and no others.

The engine writes the script, because each database spells privileges differently. The DBA runs it
as herself; the agent never does, and needs no login to print it.
"""

from __future__ import annotations

from driftline.errors import UsageError
from driftline.limits import DESCRIBE_RPCS_READING_MAX
from sqlalchemy.engine import make_url

from source_agent.config.file import Budget, SourceConfig
from source_agent.engines.interface import Engine
from source_agent.engines.registry import is_file

ACCOUNT = "driftline"  # of the operating system, for a database that is a file


def grants(config: SourceConfig, engine: Engine, *, login: str | None = None) -> str:
    """Return the script for `login`, else for the login of the URL, else for ACCOUNT (SQLite).

    Raises UsageError if there is no login and the engine needs one.
    """
    url = make_url(config.database.url)
    named = login or url.username or (ACCOUNT if is_file(url) else "")
    if not named:
        raise UsageError("database.url names no login.", remedy="Add --login NAME.")
    relations = [published.relation for published in config.relations.values()]
    return engine.grants(relations, login=named, connections=connections(config.budget))


def connections(budget: Budget) -> int:
    """Return the number of connections that the login needs for all that is read at once.

    Each exchange and description has a session, which may open a second, short connection: for row
    security on PostgreSQL, for KILL or a probe on MariaDB. Further readers have one each.
    """
    return 2 * (budget.scans_at_once + DESCRIBE_RPCS_READING_MAX) + budget.readers - 1
