"""MariaDB: what it has and does that MySQL does not.

It writes a negative zero as `0` in every numeric form (tried on 10.11.19, where a FLOAT has one
only through underflow): its sign is read with ATAN2(x, -1), which is π or −π.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.mysql_family.product import Product, SessionVariable

_NUMBER_WIDTH: Final = 40  # the longest text of a DOUBLE has 33 characters
_VARIABLES: Final = (
    SessionVariable("system_versioning_asof", 100300, "DEFAULT"),  # else rows of the past
    # Behaviour of older releases, regular expressions and WITH RECURSIVE.
    SessionVariable("old_mode", 100601, "'UTF8_IS_UTF8MB3'"),
    SessionVariable("default_regex_flags", 100601, "''"),
    SessionVariable("standard_compliant_cte", 100601, "1"),
    # What CONVERT and AES_DECRYPT give.
    SessionVariable("character_set_collations", 110201, "''"),
    SessionVariable("block_encryption_mode", 110201, "'aes-128-ecb'"),
)


def _number(quoted: str) -> str:
    # As wide as a number can be: a temporary table cuts longer ones to the width of the IF.
    negative = f"{quoted} = 0 AND ATAN2({quoted}, -1e0) < 0"
    return f"IF({negative}, RPAD('-0', {_NUMBER_WIDTH}, ' '), {quoted} * 1e0)"


def _number_text(quoted: str) -> str:
    return f"TRIM({_number(quoted)})"


MARIADB: Final = Product(
    name="MariaDB",
    scheme="mariadb",
    comment="M!",
    variables=_VARIABLES,
    statement_timeout="SET SESSION max_statement_time = "
    "LEAST(COALESCE(NULLIF(@@SESSION.max_statement_time, 0), %s), %s)",
    units_per_s=1,
    grants_timeout="MAX_STATEMENT_TIME",
    server=("server id", "@@server_id"),
    number=_number,
    number_text=_number_text,
    ended_at_once="ROWS EXAMINED 1",
    fields={},
    grants_of_all=(
        "-- What PUBLIC may do (SHOW GRANTS FOR PUBLIC) stays; REVOKE … FROM PUBLIC takes it from",
        "-- every account.",
    ),
    refused_logins=frozenset((4151,)),
    plans_by_running=False,
    catalogue_opens=False,
)
