"""Commands of the DBA, run in this process; a refusal is raised here, not printed."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from source_agent.cli.main import cli


def source_command(file: Path, *words: str) -> Result:
    """Run `driftline-source` with a source.toml. Raises the error with which the command ends."""
    return CliRunner().invoke(cli, ["--config", str(file), *words], catch_exceptions=False)
