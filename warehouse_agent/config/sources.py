"""The tables [sources.NAME]: where a source agent is, and how its certificate is checked."""

from __future__ import annotations

from driftline.settings import TomlTable, is_loopback, split_address

from warehouse_agent.config import schedule
from warehouse_agent.config.choices import choice
from warehouse_agent.config.settings import Source
from warehouse_agent.planning.network import Objective

SETTINGS = (
    *("address", "ca", "certificate", "key", "insecure", "server_name", "objective"),
    *schedule.SOURCE_SETTINGS,
)


def parse(name: str, table: TomlTable) -> Source:
    """Return the source of one table. Raises ConfigurationError, with the key."""
    host, port = split_address(table, "address")
    if port == 0:
        raise table.error("address", "Port 0 is no port of a server.")
    objective = choice(table, "objective", table.text("objective", default="seconds"), Objective)
    zone, hours = schedule.time_zone(table, schedule.UTC), schedule.refresh_hours(table)
    if not table.flag("insecure"):
        return Source(
            name,
            table.text("address"),
            ca=table.path("ca"),
            certificate=table.path("certificate"),
            key=table.path("key"),
            server_name=table.optional_text("server_name"),
            objective=objective,
            time_zone=zone,
            refresh_hours=hours,
        )
    if not is_loopback(host):
        raise table.error(
            "insecure",
            f"Plain text is allowed on loopback only, and {host} is another machine.",
            "Remove `insecure` and name the certificates of `driftline-source enroll`.",
        )
    for key in ("ca", "certificate", "key", "server_name"):
        if table.has(key):
            raise table.error(
                key, "It has no effect beside `insecure = true`.", "Remove one of the two."
            )
    return Source(
        name,
        table.text("address"),
        insecure=True,
        objective=objective,
        time_zone=zone,
        refresh_hours=hours,
    )
