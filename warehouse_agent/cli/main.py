"""The command line of the warehouse agent.

stdout carries the answer (with `--json` one object per line), stderr everything else. What a user
did wrong never shows a traceback; with `--debug` the log has one for every error. Exit codes:
`docs/errors.md`.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from warehouse_agent.cli import commands
from warehouse_agent.cli import init as scaffold
from warehouse_agent.cli import status as show
from warehouse_agent.config import WarehouseConfig, load
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import say_error
from warehouse_agent.spark import foreign_output
from warehouse_agent.spark.executors import mistake

USAGE = 2
PARTIAL = 3  # some fragments failed, some did not
INTERRUPTED = 130

_log = logging.getLogger("driftline")


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        try:
            found = importlib.metadata.version("driftline")
        except importlib.metadata.PackageNotFoundError:
            found = "unknown"  # a source tree that is not installed
        click.echo(f"driftline {found}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=scaffold.USUAL,
    show_default=True,
    help="The data engineer's file.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks, and what Spark and gRPC write.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(context: click.Context, config: Path, debug: bool) -> None:
    """Keep warehouse tables equal to tables in remote databases that grant only SELECT."""
    logging.basicConfig(format="%(message)s")
    if not debug:
        for handler in logging.getLogger().handlers:
            handler.addFilter(foreign_output.is_ours)
    _log.setLevel(logging.DEBUG if debug else logging.WARNING)
    context.obj = config


_names = click.argument("names", nargs=-1)
_all = click.option("--all", "all_", is_flag=True, help="Every fragment of the file.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout.")


_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@cli.command()
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--source", "address", metavar="HOST:PORT", help="Ask this source what it serves.")
@click.option("--ca", type=_file, help="The authority that issued the source's certificate.")
@click.option("--certificate", type=_file, help="Our certificate.")
@click.option("--key", type=_file, help="Our key.")
@click.option("--server-name", help="The name in the source's certificate, if not HOST.")
@click.option("--insecure", is_flag=True, help="Plain text, to a source on this machine.")
@click.option("--name", metavar="SOURCE", help="What to call the source; by default after HOST.")
@click.pass_obj
def init(config: Path, /, force: bool, address: str | None, **options: Any) -> None:
    """Write a first warehouse.toml: a template, or with --source all that it serves."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if address is None and given:
        raise click.UsageError(f"{given[0]} goes with --source HOST:PORT.")
    source = None if address is None else scaffold.source_of(address, **options)
    sys.exit(scaffold.init(config, source, force=force))


@cli.command()
@_json
@click.pass_obj
def doctor(config: Path, as_json: bool) -> None:
    """Check configuration, storage, Java, certificates, sources and relations."""
    failed = {code for code in commands.doctor(config, as_json=as_json) if code}
    if failed:
        sys.exit(failed.pop() if len(failed) == 1 else 1)


@cli.command()
@_names
@_all
@_json
@click.pass_obj
def plan(config: Path, names: Sequence[str], all_: bool, as_json: bool) -> None:
    """Say what a refresh of fragments, by default of all, would do and cost.

    No row of the source is read.
    """
    _end(commands.plan(_load(config), names, all_, as_json=as_json))


@cli.command()
@_names
@_all
@_json
@click.option("--accept-schema", is_flag=True, help="Go on after columns or key changed.")
@click.option("--allow-shrink", is_flag=True, help="Go on though more than half the rows are gone.")
@click.option(
    "--accept-restored",
    is_flag=True,
    help="Go on from a table that is older than what was published, as after a restore.",
)
@click.pass_obj
def refresh(
    config: Path,
    names: Sequence[str],
    all_: bool,
    as_json: bool,
    accept_schema: bool,
    allow_shrink: bool,
    accept_restored: bool,
) -> None:
    """Make fragments, by default all, equal to their relations, prove it, and publish."""
    options = Options(accept_schema, allow_shrink, accept_restored=accept_restored)
    _end(commands.refresh(_load(config), names, all_, options, as_json=as_json))


@cli.command()
@_names
@_all
@_json
@click.option("--repair", is_flag=True, help="Pull again what missing or damaged files held.")
@click.pass_obj
def verify(config: Path, names: Sequence[str], all_: bool, as_json: bool, repair: bool) -> None:
    """Read every published file again and check each row against its fingerprint."""
    _end(commands.verify(_load(config), names, all_, repair=repair, as_json=as_json))


@cli.command()
@click.argument("name")
@click.option("--output", type=click.Path(path_type=Path), help="Default: NAME.receipt.json")
@click.pass_obj
def receipt(config: Path, name: str, output: Path | None) -> None:
    """Total the published values under a one-off key, for the DBA to recompute."""
    commands.receipt(_load(config), name, output or Path(f"{name}.receipt.json"))


@cli.command()
@_names
@_all
@_json
@click.pass_obj
def status(config: Path, names: Sequence[str], all_: bool, as_json: bool) -> None:
    """Show what is published, how fresh it is and how it was proven."""
    _end(show.status(_load(config), names, all_, as_json=as_json))


@cli.command()
@click.argument("name")
@click.option("--limit", default=20, show_default=True)
@_json
@click.pass_obj
def history(config: Path, name: str, limit: int, as_json: bool) -> None:
    """List the versions of a fragment, newest first."""
    show.history(_load(config), name, limit, as_json=as_json)


@cli.command()
@_names
@_all
@click.option(
    "--keep-hours",
    default=168,
    show_default=True,
    help="Hours that a version stays readable after the next one is published.",
)
@click.option("--yes", is_flag=True, help="Remove; without it, only say what would be removed.")
@_json
@click.pass_obj
def gc(
    config: Path, names: Sequence[str], all_: bool, keep_hours: int, yes: bool, as_json: bool
) -> None:
    """Remove data files that no version within the retention needs."""
    _end(commands.gc(_load(config), names, all_, keep_hours, yes=yes, as_json=as_json))


@cli.command()
@click.option("--directory", type=click.Path(path_type=Path), default=Path("driftline-demo"))
@click.option("--postgres", is_flag=True, help="A real PostgreSQL instead of SQLite.")
@click.option("--scale", default=0.1, show_default=True, help="TPC-H scale factor.")
def demo(directory: Path, postgres: bool, scale: float) -> None:
    """Run the whole thing on generated data: load, change, refresh, prove, receipt."""
    from warehouse_agent.demo.demonstration import run

    run(directory, postgres=postgres, scale=scale)


def _load(config: Path) -> WarehouseConfig:
    return load(config)


def _end(codes: list[int]) -> None:
    """Exit with what the fragments' exit codes mean together."""
    failed = [c for c in codes if c]
    if not failed:
        return
    if len(failed) < len(codes):
        sys.exit(PARTIAL)
    sys.exit(failed[0] if len(set(failed)) == 1 else 1)


def main() -> NoReturn:
    """Entry point of the console script `driftline`."""
    if "--debug" not in sys.argv[1:]:
        foreign_output.divert()
    try:
        cli.main(prog_name="driftline", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted; nothing unproven was published", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # who reads our answer has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(INTERRUPTED)
    except Exception as problem:
        _log.debug("the command failed", exc_info=problem)
        error_of_ours = mistake(problem, "")
        say_error(error_of_ours)
        sys.exit(error_of_ours.exit_code)
    sys.exit(0)
