"""Engines of other packages: found by their entry points, imported only when a URL names one.

A package declares, in the group `driftline.engines`, the scheme of its URLs and a function
`connect(url, password, limits) -> Engine`, whose module has `ENGINE_API`, the number of the
interface that it was written for. It runs with everything that the agent may do. A scheme of
`registry.KINDS` is never a plug-in's.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from inspect import getmodule
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError

from source_agent.engines.interface import Engine, Limits

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

GROUP = "driftline.engines"
ENGINE_API = 3  # of `interface`; a change that engines must follow adds one


def schemes() -> list[str]:
    """Return the schemes that installed packages declare, sorted; none is imported."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def refused(taken: Collection[str]) -> list[str]:
    """Return a sentence for each plug-in whose scheme is one of `taken`, for `check`."""
    return [
        f"the engine {entry.name!r} of {_package(entry)} is not used: the name is Driftline's own"
        for entry in entry_points(group=GROUP)
        if entry.name in taken
    ]


def connect(scheme: str, url: URL, password: str | None, limits: Limits) -> Engine | None:
    """Return the engine of the package that declares `scheme`; None if no package does.

    Raises:
        ConfigurationError: two packages declare it, or the one cannot be imported, was written for
            another interface, or refuses the URL; names the package.
    """
    plug_ins = list(entry_points(group=GROUP, name=scheme))
    if not plug_ins:
        return None
    if len(plug_ins) > 1:
        raise ConfigurationError(
            f"{' and '.join(sorted(map(_package, plug_ins)))} both have an engine {scheme!r}.",
            remedy="Uninstall one of them.",
            where=_package(plug_ins[0]),
        )
    [plug_in] = plug_ins
    try:
        opened = plug_in.load()
    except Exception as error:  # its code, not ours
        raise _broken(plug_in, f"cannot be imported: {error!r}", "Repair or update it.") from error
    api = getattr(getmodule(opened), "ENGINE_API", None)
    if api != ENGINE_API:
        raise _broken(
            plug_in,
            f"was written for version {api} of the interface, and this is {ENGINE_API}",
            "Install a release of it that goes with this one of driftline.",
        )
    engine: Engine = opened(url, password, limits)
    return engine


def _broken(plug_in: EntryPoint, what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"The engine {plug_in.name!r} of {_package(plug_in)} {what}.",
        remedy=remedy,
        where=plug_in.value,
    )


def _package(entry: EntryPoint) -> str:
    """Return the name and version of the package that declares an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without a name"
