"""MariaDB: what it has and does that MySQL does not.

It writes a negative zero as `0` in every numeric form (tried on 10.11.19, where a FLOAT has one
only through underflow): its sign is read with ATAN2(x, -1), which is π or −π.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.mysql_family.product import Product

_NUMBER_WIDTH: Final = 40  # the longest text of a DOUBLE has 33 characters
# Variables, with the release that has them.
_SINCE: Final = {
    "system_versioning_asof": 100300,
    "old_mode": 100601,
    "default_regex_flags": 100601,
    "standard_compliant_cte": 100601,
    "character_set_collations": 110201,
    "block_encryption_mode": 110201,
}


def _number(quoted: str) -> str:
    # As wide as a number can be: a temporary table cuts longer ones to the width of the IF.
    negative = f"{quoted} = 0 AND ATAN2({quoted}, -1e0) < 0"
    return f"IF({negative}, RPAD('-0', {_NUMBER_WIDTH}, ' '), {quoted} * 1e0)"


def _number_text(quoted: str) -> str:
    return f"TRIM({_number(quoted)})"


MARIADB: Final = Product(
    name="MariaDB",
    scheme="mariadb",
    settings=(
        # Rows of the past.
        "SET SESSION /*M!100300 system_versioning_asof = DEFAULT, */ sql_auto_is_null = 0",
        # Behaviour of older releases, regular expressions and WITH RECURSIVE.
        "SET SESSION /*M!100601 old_mode = 'UTF8_IS_UTF8MB3', */ sql_auto_is_null = 0",
        "SET SESSION /*M!100601 default_regex_flags = '', */ sql_auto_is_null = 0",
        "SET SESSION /*M!100601 standard_compliant_cte = 1, */ sql_auto_is_null = 0",
        # What CONVERT and AES_DECRYPT give.
        "SET SESSION /*M!110201 character_set_collations = '', */ sql_auto_is_null = 0",
        "SET SESSION /*M!110201 block_encryption_mode = 'aes-128-ecb', */ sql_auto_is_null = 0",
    ),
    watched={
        name: f"COALESCE(/*M!{release} @@SESSION.{name}, */ '')" for name, release in _SINCE.items()
    },
    statement_timeout="SET SESSION max_statement_time = "
    "LEAST(COALESCE(NULLIF(@@SESSION.max_statement_time, 0), %s), %s)",
    units_per_s=1,
    grants_timeout="MAX_STATEMENT_TIME",
    identity={
        "host": "@@hostname",
        "port": "@@port",
        "server id": "@@server_id",
        "data directory": "@@datadir",
        "database": "DATABASE()",
    },
    number=_number,
    number_text=_number_text,
    ended_at_once="ROWS EXAMINED 1",
    fields={},
    grants_of_all=(
        "-- What PUBLIC may do (SHOW GRANTS FOR PUBLIC) stays; REVOKE … FROM PUBLIC takes it from",
        "-- every account.",
    ),
    refused_logins=frozenset((1862, 4151)),
    plans_by_running=False,
    catalogue_opens=False,
)
