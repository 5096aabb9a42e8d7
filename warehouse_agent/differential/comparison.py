"""A differential of two files by the window: checked, with changes that appear when it is whole."""

from __future__ import annotations

import secrets
from pathlib import Path

from driftline.errors import DuplicateKey, InternalError, TableShrank
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES

from warehouse_agent.differential.matching import Collision, RepeatedPosition
from warehouse_agent.differential.output import ChangesFile
from warehouse_agent.differential.records import FileSnapshot
from warehouse_agent.differential.window import DiffCounts, WindowBuffers, window
from warehouse_agent.report import counted

ATTEMPTS_MAX = 4  # with other hashes each; the second fails by chance once in 10^5 pairs of files
SHRUNK = 2  # as many times fewer rows are refused, as in a refresh


def by_window(
    old: FileSnapshot,
    new: FileSnapshot,
    output: Path,
    *,
    allow_shrink: bool = False,
    buffers: WindowBuffers | None = None,
) -> DiffCounts:
    """Write the changes between two files with equal recipes, and return their counts.

    Raises:
        WindowExhausted: the files need more memory; nothing was written.
        DuplicateKey, NullKey: a key comes twice or is NULL.
        TableShrank: more than half of the records are gone.
        InternalError: different keys collide with all hashes.
    """
    repeated: tuple[int, tuple[int, int]] | None = None
    for _ in range(ATTEMPTS_MAX):
        with ChangesFile(output, new.recipe) as changes:
            try:
                secret = secrets.token_bytes(FRAGMENT_KEY_BYTES)
                counts = window(old, new, changes.put, secret=secret, buffers=buffers)
            except Collision:
                continue
            except RepeatedPosition as error:
                if new.recipe.integer_key or repeated == (error.side, error.numbers):
                    raise duplicate((old, new)[error.side].name, error.numbers) from None
                repeated = error.side, error.numbers
                continue
            refuse_shrunk(counts, new.name, allow_shrink=allow_shrink)
            changes.finish()
            return counts
    raise InternalError("The hashes of different keys collide with every secret.", where=new.name)


def duplicate(name: str, numbers: tuple[int, int]) -> DuplicateKey:
    """Return the error for two records of a file with one key, by their numbers from 0."""
    first, second = numbers
    return DuplicateKey(
        f"Records {first + 1:,} and {second + 1:,} have the same key.",
        where=name,
        remedy="Name columns that identify a row, or deliver the file again.",
    )


def refuse_shrunk(counts: DiffCounts, name: str, *, allow_shrink: bool) -> None:
    """Raise TableShrank if more than half of the records are gone."""
    if counts.new * SHRUNK < counts.old and not allow_shrink:
        raise TableShrank(
            f"The new file has {counted(counts.new, 'record')} and the old one {counts.old:,}: "
            "more than half are gone.",
            where=name,
            remedy="If that is right: --allow-shrink",
        )
