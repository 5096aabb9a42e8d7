"""After a refresh command, those who watch are told: each in a thread of its own, all in WAIT_S.

A refresh neither fails nor waits because of them: what does not end in time is left behind, and one
warning names all that went wrong. A teller that an earlier command of this process left behind is
not started again before it has ended, so that there is at most one thread of each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.history.command_records import CommandRecord
from warehouse_agent.report import Report
from warehouse_agent.storage.store import Store

WAIT_S: Final = 2.0

_log = logging.getLogger("driftline")


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """A refresh command that has ended, for those who are to be told.

    Attributes:
        store: the warehouse's folder.
        reports: of the fragments and views that it was to refresh, in any order.
        now: with a time zone.
        killed: commands that were found killed, and the fragments that each had not ended.
        others_failed: fragments were not tried, because they failed a short while ago.
    """

    config: WarehouseConfig
    store: Store
    reports: Sequence[Report]
    now: datetime
    killed: Sequence[tuple[CommandRecord, Sequence[str]]] = ()
    others_failed: bool = False

    @property
    def has_failed(self) -> bool:
        """Return True if a fragment failed, or was not started; False if its source put it off."""
        now = self.now.timestamp()
        return self.others_failed or any(
            one.exit_code and not one.is_put_off(now) for one in self.reports
        )


class Teller(Protocol):
    """Somebody who is told."""

    @property
    def name(self) -> str:
        """Return the name of its thread, which the warning has, too."""

    def tell(self, ended: EndedCommand) -> None:
        """Tell it. Raises whatever goes wrong: it becomes a part of the warning."""


@dataclass
class AfterCommand:
    """The tellers of a process.

    Attributes:
        tellers: of a configuration, which may change from one command to the next.
        wait_s: for all of them together.
    """

    tellers: Callable[[WarehouseConfig], Sequence[Teller]]
    wait_s: float = WAIT_S
    _left: dict[str, threading.Thread] = field(default_factory=dict)

    def __call__(self, ended: EndedCommand, warn: Callable[[str], None]) -> None:
        """Tell everybody; return after `wait_s` at most. `warn` prints a warning."""
        wrong: dict[str, str] = {}
        until = time.monotonic() + self.wait_s

        def one(teller: Teller) -> None:
            try:
                teller.tell(ended)
            except Exception as error:
                _log.debug("%s failed", teller.name, exc_info=error)
                wrong[teller.name] = str(error).rstrip(".") or type(error).__name__

        for teller in self.tellers(ended.config):
            if (left := self._left.get(teller.name)) is not None and left.is_alive():
                continue
            thread = threading.Thread(
                target=one, args=(teller,), name=f"driftline-{teller.name}", daemon=True
            )
            self._left[teller.name] = thread
            thread.start()
        for thread in self._left.values():
            thread.join(max(until - time.monotonic(), 0))
        said = dict(wrong)
        for name, thread in self._left.items():
            if thread.is_alive():
                said[name] = f"it takes more than {self.wait_s:g} s"
        if said:
            told = "; ".join(f"{name}: {why}" for name, why in sorted(said.items()))
            warn(f"warning: not told of this command: {told}. The refresh is not affected.")
