"""MySQL: what it has and does that MariaDB does not.

A FLOAT or DOUBLE is exact where the server sends it as a number: with all digits, and the sign of a
zero. As the text of an expression it is cut to 22 characters (tried on 9.7.4).
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.mysql_family.product import Product, SessionVariable

_VARIABLES: Final = (
    SessionVariable("block_encryption_mode", 50717, "'aes-128-ecb'"),
    SessionVariable("windowing_use_high_precision", 80002, "ON"),
    # A login may not set it: owners who change it in a read are refused.
    SessionVariable("default_collation_for_utf8mb4", 80011, ""),
    SessionVariable(
        "use_secondary_engine", 80013, "OFF"
    ),  # the tables, not a copy that follows them
    # Of the catalogue: statistics as they are now, and a generated key is a key.
    SessionVariable("information_schema_stats_expiry", 80003, "0", is_watched=False),
    SessionVariable(
        "show_gipk_in_create_table_and_information_schema", 80030, "ON", is_watched=False
    ),
)


def _number(quoted: str) -> str:
    return f"{quoted} * 1e0"


MYSQL: Final = Product(
    name="MySQL",
    scheme="mysql",
    comment="!",
    variables=_VARIABLES,
    statement_timeout="SET SESSION max_execution_time = "
    "CAST(LEAST(COALESCE(NULLIF(@@SESSION.max_execution_time, 0), %s), %s) AS UNSIGNED)",
    units_per_s=1000,
    grants_timeout="",
    server=("server uuid", "@@server_uuid"),
    number=_number,
    number_text=_number,
    ended_at_once="",
    fields={242: "vector"},
    grants_of_all=("-- What the roles of the variable mandatory_roles may do, every account may.",),
    refused_logins=frozenset((3118, 3159, 3955)),
    plans_by_running=True,
    catalogue_opens=True,
)
