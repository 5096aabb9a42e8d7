"""Dump files: the engine, made from a URL; it opens sessions and answers the DBA's commands.

There is no login and no SQL: least privilege is that the agent's account reads the folder and
writes nothing in it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from driftline.errors import ConfigurationError
from driftline.relations.activity import UnknownActivity

from source_agent.engines.dump.folder import DeliveryFolder
from source_agent.engines.dump.session import DumpSession
from source_agent.engines.interface import Engine, Limits, Listed, Privilege
from source_agent.engines.own_values.dump import DumpValues
from source_agent.engines.relations.column_warnings import column_warnings, spark_warning
from source_agent.engines.relations.shapes import Relation, Shape

if TYPE_CHECKING:  # the warehouse's reader of files needs no URL
    from sqlalchemy.engine import URL

_NO_COUNTERS: Final = UnknownActivity("files keep no counters")


class DumpEngine:
    """Implement `interface.Engine`."""

    name = "dump"

    def __init__(self, path: str, limits: Limits) -> None:
        self._path, self._limits = Path(path), limits

    def open(
        self,
        probed: Sequence[Relation] = (),
        named: Sequence[Relation] = (),  # noqa: ARG002
    ) -> DumpSession:
        session = DumpSession(self._path, self._limits)
        session.activities = {relation.name: _NO_COUNTERS for relation in probed}
        return session

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:  # noqa: ARG002
        DeliveryFolder(self._path).close()
        privileges = [Privilege(f"list {self._path}", excess=False)]
        if os.access(self._path, os.W_OK):
            privileges.append(Privilege(f"create and replace files in {self._path}", excess=True))
        return privileges

    def scan_cost(self, shape: Shape) -> str:
        with contextlib.closing(self.open()) as session:
            delivery = session.delivery_of(shape)
            what = "a file" if len(delivery.files) == 1 else f"{len(delivery.files)} files"
            return f"rows unknown in {what} of {delivery.size / 2**20:,.1f} MiB: {delivery.name}"

    def warnings(self, shape: Shape) -> list[str]:
        return column_warnings(shape, lambda c, _: spark_warning(c, has_nan=True))

    def grants(
        self,
        relations: Sequence[Relation],  # noqa: ARG002 - grants are those of the folder
        *,
        login: str,
        connections: int,  # noqa: ARG002
    ) -> str:
        folder, user = shlex.quote(str(self._path)), shlex.quote(login)
        return "\n".join(
            (
                "# Least privilege for driftline-source. Run as root; it can be run again. The",
                "# agent's account may list the folder and read its files, also those to come, and",
                "# nothing else. The default ACL counts for the files of all accounts there, in",
                "# place of their umask.",
                f"id -u {user} >/dev/null 2>&1 ||",
                f"  useradd --system --no-create-home --shell /usr/sbin/nologin {user}",
                f"setfacl --modify u:{user}:rx {folder}",
                f"setfacl --default --modify u:{user}:r {folder}",
                f"find {folder} -maxdepth 1 -type f -exec setfacl --modify u:{user}:r {{}} +",
                "",
            )
        )

    def listed(self) -> list[Listed]:
        raise ConfigurationError(
            "Files do not say which columns and types they have, so `init` cannot propose them.",
            remedy="Write source.toml and the formats yourself: docs/dba/dump-files.md.",
        )

    def attempts(self, relation: Relation) -> list[str]:  # noqa: ARG002 - there is no SQL
        return []

    def own_values(self, session: DumpSession) -> DumpValues:
        """Return what `own_values_of` asks for."""
        return DumpValues(session.fields, session.format_of)

    def templates(self, shapes: Sequence[Shape]) -> list[str]:  # noqa: ARG002 - there is no SQL
        return []


def from_url(url: URL, _password: str | None, limits: Limits) -> Engine:
    """Return the engine that a URL names. Raises ConfigurationError if it names no folder."""
    if not url.database:
        raise ConfigurationError(
            "The URL names no folder.",
            remedy="Write it as dump:////path/to/folder.",
            where="database.url",
        )
    return DumpEngine(url.database, limits)
