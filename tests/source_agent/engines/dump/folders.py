"""A folder with one relation, for tests of the dump engine below the agent."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from source_agent.engines.conformance.reads import Read, decoded, flat
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Files, Relation

ACCOUNTS = """
null = ""
[columns]
id = "int8"
name = "text"
balance = "numeric(9,2)"
"""


class Accounts:
    """Files named `a-*`, complete as soon as they are there, of the format `text`."""

    def __init__(self, folder: Path, text: str = ACCOUNTS, pattern: str = "a-*") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.format = folder / "accounts.toml"
        self.format.write_text(text)
        files = Files(pattern, self.format, settle_s=1e-9)
        self.relation = Relation("accounts", key=("id",), files=files)

    def put(self, data: bytes, name: str = "a-1.csv") -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def choose(self, columns: tuple[str, ...]) -> None:
        """Publish these columns alone."""
        self.relation = replace(self.relation, columns=columns)

    def key(self, columns: tuple[str, ...]) -> None:
        """Make these columns the key."""
        self.relation = replace(self.relation, key=columns)

    def read(self) -> list[Read]:
        with closing(connect(f"dump:///{self.folder}", None, Limits()).open()) as session:
            shape = session.describe(self.relation)
            return [decoded(row, shape) for row in flat(session.scan(shape))]
