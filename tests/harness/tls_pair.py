"""Both agents with mutual TLS between them, and the conditions under which a refresh fails.

`TlsPair` is a `Pair` whose source agent listens with certificates from `enroll`. `attempt` runs one
refresh as the command does, with at most one retry, and returns its first error. No pytest here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from source_agent.budgets.budget import Governor
from source_agent.config import file as source_configure
from source_agent.enrolment import enroll
from source_agent.server.service import start
from tests.harness.legacy import Legacy
from tests.harness.pair import UNBRAKED, Pair
from warehouse_agent import config as configure
from warehouse_agent.events import Event, RefreshRetried
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession

ATTEMPTS = 2
SLOT_WAIT_S = 0.2  # for a place, at the source


@dataclass(frozen=True, slots=True)
class Failure:
    """The first error of a refresh, and what the command made of it.

    `notes`: what was said meanwhile.
    """

    error: dict[str, Any]
    was_retried: bool
    has_recovered: bool
    notes: tuple[str, ...]


class TlsPair(Pair):
    """The agents with certificates of `folder/certs`; `theirs` may hold the source's own."""

    def __init__(
        self,
        spark: SparkSession,
        legacy: Legacy,
        folder: Path,
        *,
        theirs: Path | None = None,
        limits: str = UNBRAKED,
        database: str = "",
        relations: dict[str, str] | None = None,
    ) -> None:
        """`limits` and `database`: more lines of these tables in source.toml."""
        self.certs = folder / "certs"
        self._database = database
        self.between: Callable[[], None] = lambda: None  # called before a retry
        enroll(self.certs, source_names=["127.0.0.1"])
        self._theirs = theirs or self.certs
        relations = relations or {"orders": 'table = "orders"'}
        super().__init__(spark, legacy, folder, relations, limits)

    def serve(self, port: int = 0) -> None:
        config = source_configure.load(self.source_toml(self.listen(port)))
        self.governor = Governor(config.budget, slot_wait_s=SLOT_WAIT_S)
        self._server = start(config, governor=self.governor)
        self.dial(f"127.0.0.1:{self._server.port}")

    def listen(self, port: int = 0) -> str:
        """Return the lines of [server]."""
        return (
            f'listen = "127.0.0.1:{port}"\ncertificate = "{self._theirs}/source.pem"\n'
            f'key = "{self._theirs}/source.key"\nclient_ca = "{self.certs}/ca.pem"'
        )

    def source_toml(self, server: str | None = None) -> Path:
        file = super().source_toml(server)
        text = file.read_text().replace("[server]", f"{self._database}\n[server]", 1)
        file.write_text(text)
        return file

    def dial(
        self,
        address: str,
        *,
        ca: Path | None = None,
        own: Path | None = None,
        more: Sequence[str] = (),
    ) -> None:
        """Connect the warehouse to an address, with other certificates or settings if given."""
        self.address = address
        self.source_lines = "\n".join(
            [
                f'address = "{address}"',
                f'ca = "{ca or self.certs}/ca.pem"',
                f'certificate = "{own or self.certs}/warehouse.pem"',
                f'key = "{own or self.certs}/warehouse.key"',
                *more,
            ]
        )

    def attempt(self, name: str = "orders") -> Failure:
        """Refresh with one retry and no waiting; it must meet an error."""
        config = self.config()
        notes: list[str] = []

        def note_retries(event: Event) -> None:
            if isinstance(event, RefreshRetried):
                notes.append(event.text)

        runner = Runner(
            DeferredSession(
                {}, self.spark
            ),  # as the command has it, but for the seconds of its start
            config,
            (note_retries,),
            attempts=ATTEMPTS,
            sleep=lambda seconds: self.between(),
        )
        chosen = configure.select(config, [name], False)
        (report,) = runner.refresh(chosen, Options())
        errors = [*report.retried, *([report.error] if report.error else [])]
        assert errors, "the refresh met no error"
        return Failure(errors[0], report.attempts > 1, report.error is None, tuple(notes))
