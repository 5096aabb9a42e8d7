"""The state of a differential: <K, b> of the last file, sorted: the next one needs no old file.

Labio and Garcia-Molina, section 3.3: f_1 sorted was produced by the comparison before, and |f_1| is
read instead of |F_1|. A folder of Parquet files with a manifest: the secret of the fingerprints,
the recipe, and the BLAKE3 of every file. Write once: a new state is complete beside the old one
before it takes its name.

Whoever can read the state can find rows by guessing them; it is written for its owner alone.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3
from driftline.values.types import Recipe

from warehouse_agent.spark.executors import driver_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST = "state.json"
VERSION = 1
_READ_BYTES = 1 << 20


class StateUnusable(Exception):
    """There is no state, or it cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class DiffState:
    """A state that was checked: the file it was made of, and the secret of its fingerprints."""

    folder: Path
    name: str
    secret: bytes

    def records(self, spark: SparkSession) -> DataFrame:
        """Return its records as of `joins.by_key`; a state has no key twice."""
        records = spark.read.parquet(str(self.folder / "records"))
        return records.selectExpr("*", "number as last", "cast(null as binary) as row")


def load(folder: Path, recipe: Recipe) -> DiffState:
    """Return a state after every byte of it was checked; raise StateUnusable if it cannot serve."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, files = manifest["version"], dict(manifest["files"])
        made_of = manifest["recipe"], str(manifest["name"]), bytes.fromhex(manifest["secret"])
    except FileNotFoundError:
        raise StateUnusable(f"{folder} has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateUnusable(f"{folder / MANIFEST} cannot be read: {error}") from None
    if version != VERSION:
        raise StateUnusable(f"{folder} is of another release (version {version})")
    if made_of[0] != recipe.id.hex():
        raise StateUnusable(f"{folder} has other columns or another key")
    try:
        digests = _digests(folder)
    except OSError as error:
        raise StateUnusable(f"{folder} cannot be read: {error.strerror}") from None
    if digests != files:
        wrong = sorted(n for n in digests.keys() | files.keys() if digests.get(n) != files.get(n))
        raise StateUnusable(f"{folder / 'records' / wrong[0]} is missing or damaged")
    return DiffState(folder, made_of[1], made_of[2])


def save(folder: Path, records: DataFrame, recipe: Recipe, name: str, secret: bytes) -> None:
    """Write <K, b> of a file, sorted by K, as the state; `records` are as of `joins.by_key`.

    Raises:
        OSError: the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}.partial")
    partial.mkdir(mode=0o700)
    try:
        with driver_errors():
            kept = records.select("key", "hi", "lo", "number").orderBy("key")
            kept.write.parquet(str(partial / "records"))
        manifest = {
            "version": VERSION,
            "name": name,
            "recipe": recipe.id.hex(),
            "secret": secret.hex(),
            "files": _digests(partial),
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, folder: Path) -> None:
    """Give a new state its name. Between both renames there is none, which the next one says."""
    older = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}.older")
    if folder.exists():
        os.rename(folder, older)
    os.rename(partial, folder)
    shutil.rmtree(older, ignore_errors=True)


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in sorted((folder / "records").glob("*.parquet")):
        digest = blake3()
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
        digests[path.name] = digest.hexdigest()
    return digests
