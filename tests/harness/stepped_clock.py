"""Real database servers whose clock a test steps, by libfaketime. No pytest here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.servers import MariaDB, PostgreSQL, Server


def faketime() -> Path | None:
    """Return the library that a program asks for the time in place of the system; None: none."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class _Stepped(Server):
    """A server with a wall clock of its own; time passes there as it does here."""

    def step(self, days: int) -> None:
        """Put the clock so many days before or after the true time, at once."""
        new = self.folder / "clock.new"
        new.write_text(f"{days:+d}d\n")
        new.chmod(0o644)
        new.replace(self.folder / "clock")  # the server reads it at each look at the clock

    def _launch(self, command: list[str], is_ready: Callable[[], None], **options: Any) -> None:
        self.step(0)
        own = {
            "LD_PRELOAD": str(faketime()),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # as when an administrator sets the clock
            "NO_FAKE_STAT": "1",
        }
        options["env"] = {**options.get("env", os.environ), **own}
        super()._launch(command, is_ready, **options)


class SteppedPostgreSQL(_Stepped, PostgreSQL):
    """PostgreSQL with a clock of its own."""


class SteppedMariaDB(_Stepped, MariaDB):
    """MariaDB with a clock of its own."""
