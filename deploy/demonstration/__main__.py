"""Run the demonstration as `deploy/demo` does."""

from __future__ import annotations

from pathlib import Path

import click

from deploy.demonstration.job import run
from warehouse_agent.cli.main import main


@click.command()
@click.option("--directory", type=click.Path(path_type=Path), default=Path("driftline-demo"))
@click.option("--postgres", is_flag=True, help="Use a real PostgreSQL instead of SQLite.")
@click.option("--scale", default=0.1, show_default=True, help="TPC-H scale factor.")
def demo(directory: Path, postgres: bool, scale: float) -> None:
    """Run both agents on generated data: load, change, refresh, prove, receipt."""
    run(directory, postgres=postgres, scale=scale)


main(demo, "deploy/demo")
