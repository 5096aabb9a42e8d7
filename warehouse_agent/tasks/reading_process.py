"""A process beside the driver's that reads shares of a step.

`processes` starts it with a pipe as its standard input. It gets the function of a step, then
shares, and returns their rows. It ends when the pipe does, also in the midst of a share, and when
it was idle for IDLE_S. It ignores the signals of a terminal or a service manager, because the
driver decides when it ends.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
from driftline.errors import InternalError

from warehouse_agent.config import StorageSettings
from warehouse_agent.spark.executors import meaning
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.request_counts import REQUESTS, Counts

IDLE_S = 60.0


Function = Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ToRead:
    """A step: its function, and how the stores of its files are reached."""

    function: Function
    stores: Mapping[str, StorageSettings] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Begun:
    """A step was begun: its shares may come."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the step that was begun."""

    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Read:
    """The rows of a share, and the requests that reading them took."""

    batches: list[pa.RecordBatch]
    requests: Counts


@dataclass(frozen=True, slots=True)
class Failed:
    """The error that ended a share, and the requests made before."""

    error: Exception
    requests: Counts


def main() -> None:
    """Read shares until the pipe ends, or none has come for IDLE_S."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pipe = Connection(os.dup(0))
    received: queue.SimpleQueue[ToRead | Share] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, received), daemon=True).start()
    function: Function | None = None
    said: Begun | Read | Failed
    while True:
        try:
            work = received.get(timeout=IDLE_S)
        except queue.Empty:
            os._exit(0)
        if isinstance(work, ToRead):
            known.learn(work.stores)
            function, said = work.function, Begun()
        else:
            assert function is not None
            said = _read(function, work.items)
        try:
            pipe.send(said)
        except OSError:  # the driver is gone
            os._exit(0)


def _read(function: Function, items: Sequence[Any]) -> Read | Failed:
    try:
        batches = list(function(iter(items)))
    except MemoryError as error:
        return Failed(error, REQUESTS.drained())
    except Exception as error:  # it may hold what cannot be pickled
        known_error = meaning(error) or InternalError(f"{type(error).__name__}: {error}")
        return Failed(known_error, REQUESTS.drained())
    return Read(batches, REQUESTS.drained())


def _listen(pipe: Connection, received: queue.SimpleQueue[ToRead | Share]) -> None:
    try:
        while True:
            received.put(pipe.recv())
    except Exception:  # it ended, or the driver is of another release
        os._exit(0)
