"""Try in a folder all that is asked of a warehouse's place, without delta-rs.

A place may be readable and not writable, and a store may ignore the condition of a put: then two
agents publish the same version, and one of them is lost.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

from driftline.errors import WarehouseUnavailable
from pyarrow import fs

from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.interface import Backend
from warehouse_agent.storage.store import file_errors

RACE = 2  # writers of one new file, at the same time


def try_folder(uri: str) -> None:
    """Write, read, list and delete a small file and a data file, by URI; two writers race for one.

    Raises:
        WarehouseUnavailable: one of it fails, or both writers win.
        ConfigurationError: as `known.backend_of`.
    """
    backend = known.backend_of(uri)
    folder, name = backend.path(uri), uuid.uuid4().hex
    raced, data = f"{folder}/{name}", f"{folder}/{name}.data"
    won = race(backend, raced, RACE)
    with file_errors("written", data):
        file = backend.begun(data)
        file.out.write(b"data")
        file.finish()
    with file_errors("read", folder), backend.system.open_input_file(data) as source:
        found = [backend.read(raced), source.read()]
    with file_errors("listed", folder):
        infos = backend.listed(folder, recursive=False)
    names = {info.base_name for info in infos if info.type is fs.FileType.File}
    with file_errors("removed", folder):
        for path in (raced, data):
            backend.remove_file(path, 0)
        is_left = backend.read(raced) is not None
    if won is None:
        raise two_writers(folder)
    if found != [won, b"data"]:
        raise _not_kept(folder, "what was written does not read back")
    if not {name, f"{name}.data"} <= names:
        raise _not_kept(folder, "what was written is not listed")
    if is_left:
        raise _not_kept(folder, "what was deleted is still there")


def race(backend: Backend, path: str, writers: int) -> bytes | None:
    """Let several writers make one new file at once; return what the one wrote that succeeded.

    Return None if not exactly one did.

    Raises:
        WarehouseUnavailable: it cannot be written.
    """
    texts = [b"%d" % number for number in range(writers)]
    with file_errors("written", path), ThreadPoolExecutor(writers) as pool:
        won = [*pool.map(lambda text: backend.write_new(path, text, private=False), texts)]
    return texts[won.index(True)] if sum(won) == 1 else None


def two_writers(where: str) -> WarehouseUnavailable:
    """Return the error of a store in which two writers of one file succeed, or neither."""
    return WarehouseUnavailable(
        "The object store lets two writers of one file succeed: of two commands at once, "
        "one would lose what the other publishes.",
        where=where,
        remedy="Use a server that obeys If-None-Match and If-Match of a PUT, or remove "
        "what stands between and drops these headers.",
    )


def _not_kept(place: str, what: str) -> WarehouseUnavailable:
    """Return the error of a place that takes a file and does not keep it."""
    return WarehouseUnavailable(f"{place} does not keep files: {what}.")
