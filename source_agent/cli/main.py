"""The DBA's command line: `driftline-source --config source.toml serve | check | …`.

stdout carries what was asked for (a report, a script, JSON); everything else goes to stderr. What
the user did wrong, and what the database or the network did, is one line of what, where, why and
what to do, with an exit code of docs/errors.md; a traceback appears with --debug only.

Modules are imported by the command that needs them: `enroll` needs no database driver and
`--help` no gRPC.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from driftline.errors import DriftlineError, InternalError

from source_agent.config import SourceConfig, load

if TYPE_CHECKING:
    from source_agent.engines.interface import Engine

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_EXIT_DIFFERS = 1
_EXIT_NOT_SERVED = 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """The options that stand before the command."""

    config: Path
    debug: bool

    def load(self) -> SourceConfig:
        return load(self.config)

    def connected(self) -> tuple[SourceConfig, Engine]:
        """The file and its engine; the database is not contacted yet."""
        from source_agent.engines.registry import connect

        config = self.load()
        database = config.database
        return config, connect(database.url, database.password, database.limits)


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from source_agent.server.service import agent_version

        click.echo(f"driftline-source {agent_version()}")
        context.exit()


INTERRUPTED = 130  # as a shell says of Ctrl-C


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", type=_FILE, default=Path("source.toml"), show_default=True, help="The DBA's file."
)
@click.option("--debug", is_flag=True, help="Log more, and show tracebacks.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def cli(context: click.Context, config: Path, debug: bool) -> None:
    """The read-only agent beside a database, for its DBA."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    if not debug:  # gRPC's core reads it when a command imports gRPC
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    context.obj = Chosen(config, debug)


@cli.command()
@click.option("--url", required=True, help="Of the database, without a password.")
@click.option(
    "--tables", "patterns", multiple=True, metavar="PATTERN",
    help="Such as 'public.*'; repeatable. Default: all tables and views.",
)  # fmt: skip
@click.option("--login", help="The login that the agent will use; by default that of --url.")
@click.option("--password-file", type=_FILE, help="Of the login in --url; else it is asked for.")
@click.option("--listen", default="127.0.0.1:7443", show_default=True, metavar="HOST:PORT")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.pass_obj
def init(
    chosen: Chosen,
    url: str,
    patterns: tuple[str, ...],
    login: str | None,
    password_file: Path | None,
    listen: str,
    force: bool,
) -> None:
    """Write source.toml and the script of grants from the database's catalogue."""
    from source_agent.cli import init as scaffold

    request = scaffold.Request(
        chosen.config, url, patterns, login, password_file, listen, force, _ask_password
    )
    made = scaffold.init(request)
    for path in made.files:
        click.echo(path)
    click.echo(str(made), err=True)
    first = ""
    if made.password_to_write is not None:
        first = f"run {made.files[1].name}, put the password into {made.password_to_write}, "
    click.echo(f"next: {first}driftline-source enroll --source-name HOST, check, serve", err=True)
    if not made.published:
        raise click.exceptions.Exit(_EXIT_NOT_SERVED)


def _ask_password(prompt: str) -> str | None:
    """Prompt on the terminal; None where there is none."""
    if not sys.stdin.isatty():
        return None
    return str(click.prompt(prompt, hide_input=True, err=True))


@cli.command()
@click.option("--port-file", type=_FILE, help="Write the port there once it is listened on.")
@click.pass_obj
def serve(chosen: Chosen, port_file: Path | None) -> None:
    """Answer warehouses until SIGTERM. SIGHUP reads limits and relations again."""
    # It never ends the agent; what comes before `run` listens to it comes before the file is read.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from source_agent.server.service import run

    run(chosen.load, port_file=port_file)
    # The interpreter gives signals their default back while it ends; one that is late must not
    # make of a clean end a killed process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.pass_obj
def check(chosen: Chosen, as_json: bool) -> None:
    """Show what is published, what the login may do, what scans cost, if `serve` could listen.

    Reads catalogues only. For gates: ends with 0 when all relations can be served and the agent can
    listen, with 1 when not, with 2 when the file is wrong, with 4 when the database is away.
    """
    from source_agent.cli import check as checking

    report = checking.check(*chosen.connected())
    if as_json:
        click.echo(json.dumps(checking.as_json(report), ensure_ascii=False))
    else:
        click.echo(checking.as_text(report))
    if report.failed:
        raise click.exceptions.Exit(_EXIT_NOT_SERVED)


@cli.command()
@click.option("--login", help="The login to grant to; by default that of database.url.")
@click.pass_obj
def grants(chosen: Chosen, login: str | None) -> None:
    """Print the least-privilege script for this database; run it as yourself."""
    from source_agent.cli.grants import grants as script

    click.echo(script(*chosen.connected(), login=login))


@cli.command()
@click.pass_obj
def explain(chosen: Chosen) -> None:
    """Print every SQL text that this agent can issue, those of its commands included."""
    from source_agent.cli import explain as explaining

    sections = explaining.explain(*chosen.connected())
    click.echo(explaining.as_text(sections))
    failed = [section for section in sections if section.error is not None]
    for section in failed:
        click.echo(f"{section.heading} cannot be served: {section.error}", err=True)
    if failed:
        raise click.exceptions.Exit(_EXIT_NOT_SERVED)


@cli.command()
@click.option("--directory", type=_FOLDER, default=Path("certs"), show_default=True)
@click.option(
    "--source-name", "source_names", multiple=True, required=True,
    help="A host name or address under which the warehouse reaches this agent; repeatable.",
)  # fmt: skip
@click.option("--warehouse-name", default="warehouse", show_default=True)
@click.option("--days", type=int, default=825, show_default=True, help="Validity.")
def enroll(directory: Path, source_names: tuple[str, ...], warehouse_name: str, days: int) -> None:
    """Make a certificate authority and the certificates of both agents."""
    from source_agent.cli.enroll import enroll as make

    made = make(directory, source_names=source_names, warehouse_name=warehouse_name, days=days)
    for path in made:
        click.echo(path)
    click.echo(
        "Give ca.pem, warehouse.pem and warehouse.key to the data engineer, source.* to this "
        "agent, and keep ca.key away from both.",
        err=True,
    )


@cli.command()
@click.option("--receipt", type=_FILE, required=True, help="Made by `driftline receipt`.")
@click.pass_obj
def total(chosen: Chosen, receipt: Path) -> None:
    """Recompute a receipt of the warehouse from this database."""
    from source_agent.cli import total as totalling

    found = totalling.total(*chosen.connected(), totalling.read_receipt(receipt))
    click.echo(str(found))
    if not found.equal:
        raise click.exceptions.Exit(_EXIT_DIFFERS)


def report(error: DriftlineError, *, debug: bool) -> int:
    """Print an error for a person; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    click.echo(f"error {error.code}: {error}", err=True)
    for name, value in error.details.items():
        click.echo(f"  {name}: {value}", err=True)
    return error.exit_code


def main() -> None:
    """The entry point `driftline-source`."""
    debug = "--debug" in sys.argv[1:]
    try:
        code = cli.main(prog_name="driftline-source", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except DriftlineError as error:
        sys.exit(report(error, debug=debug))
    except Exception as problem:
        mistake = InternalError(f"An unexpected {type(problem).__name__} happened.")
        mistake.__cause__ = problem
        sys.exit(report(mistake, debug=debug))
