"""Pairs of snapshots as Labio and Garcia-Molina's generator makes them (section 5.2).

Records have 156 bytes, and the old file is in the order of its keys. Each record of the new file is
moved: to its place a number is added, uniform from 0 to 2 · `distance` · records, and the records
are sorted by the sums, so the distance of the files (Equation 3) is about `distance`. Unlike in the
paper, some records are also inserted and deleted. The seed is fixed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from warehouse_agent.differential.reading import named
from warehouse_agent.differential.records import FileSnapshot

RECORD_BYTES = 156
FORMAT = '[columns]\nid = "int8"\nb = "text"\n'
_FILLER = "x" * (RECORD_BYTES - len("00000000,0000\n"))


class Changed(NamedTuple):
    """Shares of the records of the old file, or numbers of records."""

    updates: float
    inserts: float
    deletes: float


def _write(path: Path, keys: np.ndarray, versions: np.ndarray) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write("id,b\n")
        for key, version in zip(keys.tolist(), versions.tolist(), strict=True):
            file.write(f"{key:08},{version:04}{_FILLER}\n")


def make(folder: Path, rows: int, distance: float, changed: Changed) -> Changed:
    """Write old.csv, new.csv and their format; return the numbers of changes between them."""
    dice = np.random.default_rng(7)
    keys = np.arange(rows) * 2
    _write(folder / "old.csv", keys, np.zeros(rows, np.int64))
    stays = dice.random(rows) >= changed.deletes
    inserted = np.sort(dice.choice(rows, int(rows * changed.inserts), replace=False)) * 2 + 1
    new = np.concatenate([keys[stays], inserted])
    updated = dice.random(int(stays.sum())) < changed.updates
    version = np.concatenate([updated, np.ones(len(inserted))]).astype(np.int64)
    place = np.argsort(new + dice.uniform(0, 4 * rows * distance, len(new)), kind="stable")
    _write(folder / "new.csv", new[place], version[place])
    (folder / "format.toml").write_text(FORMAT)
    return Changed(int(updated.sum()), len(inserted), int((~stays).sum()))


def snapshots(folder: Path) -> list[FileSnapshot]:
    """Return the old and the new file."""
    return [named(folder / f"{n}.csv", folder / "format.toml", ("id",)) for n in ("old", "new")]
