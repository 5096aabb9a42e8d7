"""Virtual time and chance for the product's modules: what `time`, `datetime`, `uuid` and `secrets`
say there follows from a seed, and no wait takes time."""

from __future__ import annotations

import datetime as dt
import random
import secrets
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

BEGIN_S = 1_800_000_000.0  # since 1970
TICK_S = 1e-4  # by which each look at the clock moves it, so that no two moments are equal
_PACKAGES = ("driftline.", "source_agent.", "warehouse_agent.")


class Clock:
    """The time of one world, and the randomness of its salts, keys and names of files."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"chance {seed}")
        self.now_s = BEGIN_S  # true time
        self.error_s = 0.0  # of the wall clock

    def time(self) -> float:
        """Return the seconds since 1970 by the wall clock, a little later each time."""
        self.now_s += TICK_S
        return self.now_s + self.error_s

    def monotonic(self) -> float:
        """Return the seconds since the world began."""
        self.now_s += TICK_S
        return self.now_s - BEGIN_S

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += max(seconds, 0.0)

    def uuid4(self) -> uuid.UUID:
        """Return a random name."""
        return uuid.UUID(int=self.chance.getrandbits(128), version=4)

    def randbits(self, bits: int) -> int:
        """Return a random number, as `secrets.randbits`."""
        return self.chance.getrandbits(bits)

    def token_bytes(self, count: int) -> bytes:
        """Return random bytes, as `secrets.token_bytes`."""
        return self.chance.randbytes(count)

    def token_hex(self, count: int) -> str:
        """Return random digits, as `secrets.token_hex`."""
        return self.token_bytes(count).hex()


_current: list[Clock] = [Clock(0)]


def current() -> Clock:
    """Return the clock of the world that runs."""
    return _current[0]


def run_by(clock: Clock) -> None:
    """Let the product run by this clock from now on."""
    _current[0] = clock
    random.seed(f"jitter {clock.chance.getrandbits(64)}")  # tenacity's


class _AnyMoment(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, dt.datetime)


class _Moment(dt.datetime, metaclass=_AnyMoment):
    """`datetime.datetime`, whose `now` is that of the world."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(current().time(), tz or dt.UTC).replace(tzinfo=tz)


class _Inline:
    """An executor without threads: `submit` does the work."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> futures.Future[Any]:
        done: futures.Future[Any] = futures.Future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def map(self, function: Callable[[Any], Any], work: Any) -> Iterator[Any]:
        return map(function, work)


_TIME = types.SimpleNamespace(
    time=lambda: current().time(),
    monotonic=lambda: current().monotonic(),
    perf_counter=lambda: current().monotonic(),
    sleep=lambda seconds: current().sleep(seconds),
)
_CHANCE = types.SimpleNamespace(
    randbits=lambda bits: current().randbits(bits),
    token_bytes=lambda count: current().token_bytes(count),
    token_hex=lambda count: current().token_hex(count),
)
_STANDS_FOR: list[tuple[object, object]] = [
    (time, _TIME),
    (time.monotonic, _TIME.monotonic),
    (dt.datetime, _Moment),
    (secrets, _CHANCE),
    (uuid, types.SimpleNamespace(uuid4=lambda: current().uuid4(), UUID=uuid.UUID)),
    (uuid.uuid4, lambda: current().uuid4()),
    (futures.ThreadPoolExecutor, _Inline),
]


@contextmanager
def virtual_time() -> Iterator[None]:
    """Replace clocks, chance and pools of threads in every module of the product that is loaded."""
    before: list[tuple[dict[str, Any], str, object]] = []
    jitter = random.getstate()
    try:
        for name, module in sorted(sys.modules.items()):
            if not name.startswith(_PACKAGES):
                continue
            for known, value in list(vars(module).items()):
                for real, simulated in _STANDS_FOR:
                    if value is real:
                        before.append((vars(module), known, value))
                        vars(module)[known] = simulated
        yield
    finally:
        for names, known, value in before:
            names[known] = value
        random.setstate(jitter)
