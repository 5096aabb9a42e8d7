"""MySQL: what it has and does that MariaDB does not.

A FLOAT or DOUBLE is exact where the server sends it as a number: with all digits, and the sign of a
zero. As the text of an expression it is cut to 22 characters (tried on 9.7.4).
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.mysql_family.product import Product

_GENERATED_KEY: Final = "show_gipk_in_create_table_and_information_schema"
# Variables, with the release that has them.
_SINCE: Final = {
    "block_encryption_mode": 50717,
    "windowing_use_high_precision": 80002,
    "default_collation_for_utf8mb4": 80011,
    "use_secondary_engine": 80013,
}


def _number(quoted: str) -> str:
    return f"{quoted} * 1e0"


MYSQL: Final = Product(
    name="MySQL",
    scheme="mysql",
    settings=(
        "SET SESSION /*!50717 block_encryption_mode = 'aes-128-ecb', */ sql_auto_is_null = 0",
        "SET SESSION /*!80002 windowing_use_high_precision = ON, */ sql_auto_is_null = 0",
        # Statistics as they are now, and a generated key is a key.
        "SET SESSION /*!80003 information_schema_stats_expiry = 0, */ sql_auto_is_null = 0",
        f"SET SESSION /*!80030 {_GENERATED_KEY} = ON, */ sql_auto_is_null = 0",
        # The tables themselves, not a copy that follows them.
        "SET SESSION /*!80013 use_secondary_engine = OFF, */ sql_auto_is_null = 0",
    ),
    watched={
        name: f"COALESCE(/*!{release} @@SESSION.{name}, */ '')" for name, release in _SINCE.items()
    },
    statement_timeout="SET SESSION max_execution_time = "
    "CAST(LEAST(COALESCE(NULLIF(@@SESSION.max_execution_time, 0), %s), %s) AS UNSIGNED)",
    units_per_s=1000,
    grants_timeout="",
    identity={
        "host": "@@hostname",
        "port": "@@port",
        "server": "@@server_uuid",
        "data directory": "@@datadir",
        "database": "DATABASE()",
    },
    number=_number,
    number_text=_number,
    ended_at_once="",
    fields={242: "vector"},
    grants_of_all=("-- What the roles of the variable mandatory_roles may do, every account may.",),
    refused_logins=frozenset((3118, 3159, 3955)),
    plans_by_running=True,
    catalogue_opens=True,
)
