"""The inputs of views: what each table of a query means, and the relations kept for views."""

from __future__ import annotations

from pathlib import Path

from warehouse_agent.config import View, WarehouseConfig


def load(file: Path | str) -> WarehouseConfig:
    """Read warehouse.toml with its views; add a kept fragment for each relation without one.

    Raises:
        ConfigurationError: as `config.load`; a query that is refused; an unknown or ambiguous
            table; views in a circle; a name that two things have.
    """
    raise NotImplementedError


def inputs_of(config: WarehouseConfig, view: View) -> tuple[str, ...]:
    """Return the name of the fragment or view of each occurrence in a view's query."""
    raise NotImplementedError
