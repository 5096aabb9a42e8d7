"""A Spark session that cannot start, as on a machine without Java."""

from __future__ import annotations

from typing import NoReturn

from driftline.errors import ConfigurationError

from warehouse_agent.spark.session import DeferredSession


class NoSpark(DeferredSession):
    """Refuse to start, also where another test of the process has a session."""

    def __init__(self) -> None:
        super().__init__({})

    def begin(self) -> NoReturn:
        """Raise ConfigurationError."""
        self.get()

    def get(self) -> NoReturn:
        """Raise ConfigurationError."""
        raise ConfigurationError("There is no Spark here.", where="[spark]")
