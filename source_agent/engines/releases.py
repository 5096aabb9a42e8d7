"""The servers that the project's own tests run, and what `check` says of any other one."""

from __future__ import annotations

from typing import Final

# By product; the beginning of a release. SQLite's library comes with Python, or the machine.
RUN: Final = {
    "PostgreSQL": ("14", "15", "16", "17", "18"),
    "MariaDB": ("10.11", "11.8"),
    "MySQL": ("9.7",),
    "Firebird": ("3.0", "4.0", "5.0"),
}


def not_run(release: str) -> str:
    """Return a note on a server, such as `MySQL 8.0.36`, that no test runs; empty: one does."""
    product, _, number = release.partition(" ")
    known = RUN.get(product, ())
    if not known or any(f"{number}.".startswith(f"{one}.") for one in known):
        return ""
    return (
        f"{release} was never run by the tests of this project, which run "
        f"{product} {', '.join(known)}: compare what is read with `check --reads`"
    )
