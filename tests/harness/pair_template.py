"""A pair over SQLite, without Spark, that many tests begin with: it is made once and copied."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair


@dataclass(frozen=True)
class PairTemplate:
    """A folder with a database and a warehouse.

    `tables`: name to the columns of CREATE TABLE. `relations`: name to the lines of source.toml.
    """

    folder: Path
    tables: Mapping[str, str]
    relations: Mapping[str, str]

    @contextmanager
    def made(self) -> Iterator[Pair]:
        """Yield the pair that makes the template, with empty tables."""
        with _pair(self.folder, self.relations) as pair:
            for name, columns in self.tables.items():
                pair.legacy.execute(f"CREATE TABLE {name} ({columns})")
            yield pair

    @contextmanager
    def copied(self, folder: Path) -> Iterator[Pair]:
        """Yield a pair that begins with a copy of the template."""
        for file in self.folder.glob("erp.db*"):
            shutil.copyfile(file, folder / file.name)
        with _pair(folder, self.relations, self.folder / "pair") as pair:
            yield pair


@contextmanager
def _pair(
    folder: Path, relations: Mapping[str, str], template: Path | None = None
) -> Iterator[Pair]:
    legacy = SqliteLegacy(folder / "erp.db")
    with Pair(NoSpark(), legacy, folder / "pair", dict(relations), template=template) as pair:
        pair.small_bytes = 32 << 20
        pair.fragment_lines = dict.fromkeys(relations, 'method = "sketch"')
        yield pair
    legacy.close()
