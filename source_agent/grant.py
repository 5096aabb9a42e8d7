"""`grants`: the least that the login needs, as a script that the DBA runs as herself.

The script comes from the engine, because privileges are spelt differently in each. The agent never
runs it, and needs no login to print it.
"""

from __future__ import annotations

from driftline.errors import UsageError
from sqlalchemy.engine import make_url

from source_agent.configure import SourceConfig
from source_agent.engine import Engine

ACCOUNT = "driftline"  # of the system, for a database that is a file


def grants(config: SourceConfig, engine: Engine, *, login: str | None = None) -> str:
    """The script, for `login`, else for the one in the DBA's URL, else for ACCOUNT (SQLite).

    Raises:
        UsageError: neither names a login, and the engine has logins.
    """
    url = make_url(config.database.url)
    # SQLite's logins are the system's, and its URL names none.
    of_a_file = ACCOUNT if url.get_backend_name() == "sqlite" else ""
    named = login or url.username or of_a_file
    if not named:
        raise UsageError("The URL names no login to grant anything to.", remedy="Add --login NAME.")
    relations = [published.relation for published in config.relations.values()]
    budget = config.budget
    # One each, one for every further reader, one for a description, one to spare.
    connections = max(4, budget.scans_at_once + budget.readers + 1)
    return engine.grants(relations, login=named, connections=connections)
