"""After a refresh command, tellers are waited for a short time, and warned of once."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.monitoring.after_command import AfterCommand, EndedCommand
from warehouse_agent.storage.store import Store

WAIT_S = 0.2


@dataclass
class Told:
    """A teller that does something."""

    name: str
    does: Callable[[], object]
    times: int = 0

    def tell(self, ended: EndedCommand) -> None:
        """Count, and do it."""
        self.times += 1
        self.does()


@pytest.fixture
def ended(tmp_path: Path) -> EndedCommand:
    config = WarehouseConfig(tmp_path / "w.toml", str(tmp_path), None, {}, {}, {})
    return EndedCommand(config, Store.of(config), [], datetime.now(UTC))


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def raises() -> None:
    raise OSError("the disk is full")


def nothing() -> None:
    pass


def test_everybody_is_told_whoever_fails_or_hangs(
    ended: EndedCommand, hangs: threading.Event
) -> None:
    well, failing = Told("metrics", nothing), Told("notify", raises)
    slow = Told("heartbeat", hangs.wait)
    said: list[str] = []
    began = time.monotonic()
    AfterCommand(lambda _: [slow, failing, well], WAIT_S)(ended, said.append)
    assert time.monotonic() - began >= WAIT_S
    assert (well.times, failing.times, slow.times) == (1, 1, 1)
    why = "heartbeat: it takes more than 0.2 s; notify: the disk is full"
    assert said == [f"warning: not told of this command: {why}. The refresh is not affected."]


def test_who_is_told_well_is_no_word(ended: EndedCommand) -> None:
    said: list[str] = []
    AfterCommand(lambda _: [Told("metrics", nothing)])(ended, said.append)
    assert not said


def test_who_still_hangs_is_not_asked_again(ended: EndedCommand, hangs: threading.Event) -> None:
    slow = Told("notify", hangs.wait)
    said: list[str] = []
    after = AfterCommand(lambda _: [slow], WAIT_S)
    for _ in range(3):
        after(ended, said.append)
    assert (slow.times, len(said)) == (1, 3)
    hangs.set()
    after._left["notify"].join()
    after(ended, said.append)
    assert (slow.times, len(said)) == (2, 3)


def test_all_share_the_time(ended: EndedCommand, hangs: threading.Event) -> None:
    """Each hangs, and the command waits once."""
    began = time.monotonic()
    slow = [Told(name, hangs.wait) for name in ("a", "b", "c")]
    said: list[str] = []
    AfterCommand(lambda _: slow, WAIT_S)(ended, said.append)
    assert time.monotonic() - began < 2 * WAIT_S
    assert said[0].count("it takes more than") == len(slow)
