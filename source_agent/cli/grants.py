"""`grants`: the least that the login needs, as a script that the DBA runs as herself.

The script comes from the engine, because privileges are spelt differently in each. The agent never
runs it, and needs no login to print it.
"""

from __future__ import annotations

from driftline.errors import UsageError
from driftline.limits import DESCRIBE_RPCS_READING_MAX
from sqlalchemy.engine import make_url

from source_agent.config import Budget, SourceConfig
from source_agent.engines.interface import Engine
from source_agent.engines.registry import is_file

ACCOUNT = "driftline"  # of the system, for a database that is a file


def grants(config: SourceConfig, engine: Engine, *, login: str | None = None) -> str:
    """The script, for `login`, else for the one in the DBA's URL, else for ACCOUNT (SQLite).

    Raises:
        UsageError: neither names a login, and the engine has logins.
    """
    url = make_url(config.database.url)
    # Who may read a file is an account of the system, and its URL names none.
    named = login or url.username or (ACCOUNT if is_file(url) else "")
    if not named:
        raise UsageError("The URL names no login to grant anything to.", remedy="Add --login NAME.")
    relations = [published.relation for published in config.relations.values()]
    return engine.grants(relations, login=named, connections=connections(config.budget))


def connections(budget: Budget) -> int:
    """Return how many connections the login may have: enough for all that is read at once.

    Each exchange that is answered and each description that asks the database has a session. It may
    open a second, short one: for the policies of row security on PostgreSQL, for KILL or to see
    whether the server still answers on MariaDB. Further readers have one connection each.
    Sessions of further clients that wait for a place are not counted.
    """
    return 2 * (budget.scans_at_once + DESCRIBE_RPCS_READING_MAX) + budget.readers - 1
