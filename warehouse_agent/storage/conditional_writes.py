"""Check that a store without locks lets one of several writers of a file succeed, and no other.

The log of a table, fragment keys and notes stand on that. A store that takes every conditional
write works until two commands meet, and then loses a version without a word: so it is found before
the first version, and refused. `doctor` may check it at any time.

Not found: a store that fails only under a load or a fault that the check does not make.
"""

from __future__ import annotations

import json
import uuid

from warehouse_agent.report import utc_now
from warehouse_agent.storage.place_trial import race, two_writers
from warehouse_agent.storage.store import PRIVATE, Store

FOLDER = "conditions"
WRITERS = 4
_CHECKED = (PRIVATE, FOLDER, "checked.json")


def check_once(store: Store) -> None:
    """Check the store of a warehouse, if that was never done. Raises as `check`."""
    if not store.has_locks and store.read(*_CHECKED) is None:
        check(store)
        store.write(json.dumps({"checked_at": utc_now()}).encode(), *_CHECKED)


def check(store: Store) -> None:
    """Let several writers make one new file at once, and change a file that changes meanwhile.

    Raises:
        WarehouseUnavailable: the store cannot be written, or two succeeded.
    """
    place = (PRIVATE, FOLDER, uuid.uuid4().hex)
    try:
        if not (_makes_one(store, place) and _changes_as_read(store, place)):
            raise two_writers(store.root)
    finally:
        store.remove_file(*place)


def _makes_one(store: Store, place: tuple[str, ...]) -> bool:
    """Return True if one of several writers of a new file succeeds, and none after it."""
    won = race(store.backend, store.backend.path(store.uri(*place)), WRITERS)
    is_one = won is not None and store.read(*place) == won
    return is_one and not store.write_new(b"later", *place)


def _changes_as_read(store: Store, place: tuple[str, ...]) -> bool:
    """Return True if a file that another writer changed after it was read is read again."""
    seen = list[bytes]()

    def change(data: bytes) -> bytes:
        seen.append(data)
        if len(seen) == 1:
            store.write(b"between", *place)
        return data + b" and after"

    store.change(change, *place)
    return seen[1:] == [b"between"]
