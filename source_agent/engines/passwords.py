"""An engine whose password may change while the agent runs: it is read at each connection.

An engine is made for one password. When another one is read, another engine is made, also that of
another package; sessions that are open keep theirs. A password that cannot be read is an error of
the DBA's file, so it is logged at the source, and the last one stays in use.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from driftline.errors import ConfigurationError

from source_agent.engines.interface import Engine, Listed, Privilege, Session
from source_agent.engines.relations.shapes import Relation, Shape

_log = logging.getLogger("driftline.source")


class CurrentPassword:
    """Implement `interface.Engine` by the engine that `made` returns for the current password."""

    def __init__(
        self, made: Callable[[str | None], Engine], password: Callable[[], str | None]
    ) -> None:
        self._made, self._read = made, password
        self._password = password()
        self._engine = made(self._password)
        self._lock = threading.Lock()

    def _now(self) -> Engine:
        with self._lock:
            try:
                password = self._read()
            except ConfigurationError as error:
                _log.error("%s The password that was read before stays in use.", error)
                return self._engine
            if password != self._password:
                self._engine, self._password = self._made(password), password
                _log.info("The password of the database is a new one.")
            return self._engine

    @property
    def name(self) -> str:
        return self._engine.name

    def open(self, probed: Sequence[Relation] = (), named: Sequence[Relation] = ()) -> Session:
        return self._now().open(probed, named)

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        return self._now().privileges(relations)

    def scan_cost(self, shape: Shape) -> str:
        return self._now().scan_cost(shape)

    def warnings(self, shape: Shape) -> list[str]:
        return self._now().warnings(shape)

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int) -> str:
        return self._now().grants(relations, login=login, connections=connections)

    def listed(self) -> list[Listed]:
        return self._now().listed()

    def attempts(self, relation: Relation) -> list[str]:
        return self._now().attempts(relation)

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        return self._now().templates(shapes)
