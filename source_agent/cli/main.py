"""The command line of the DBA, `driftline-source`.

stdout has the result of a command (a report, a script, JSON); everything else goes to stderr. An
error of the user, the database or the network is one line of what, where, why and what to do, with
an exit code of docs/errors.md; a traceback appears with --debug only. Each command imports its
modules itself: `enroll` needs no database driver, and `--help` neither SQLAlchemy nor gRPC.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click
from driftline.debug_option import DebugGroup
from driftline.errors import ConfigurationError, DriftlineError, InternalError
from driftline.limits import ROWS_COMPARED, ROWS_COMPARED_MAX
from driftline.peer_text import VisibleFormatter, escape_in
from driftline.text_tables import has_colour

from source_agent.failpoints import SourceFailpoint

if TYPE_CHECKING:
    from driftline.rows.digests import Digest

    from source_agent.checks.total import SourceTotal
    from source_agent.config.file import SourceConfig
    from source_agent.engines.interface import Engine

INTERRUPTED = 130  # the exit code of a shell after Ctrl-C
# More than the rows that are held at once, so that the garbage collector does not visit the tuples
# of every block: 6 % of a scan of SQLite. Rows are in no cycle.
GC_OBJECTS = 10_000
_SILENT = "NONE"  # of GRPC_VERBOSITY
_DEBUG_HELP = "Log more and show tracebacks."
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_all_of = click.option("--verbose", is_flag=True, help="Print all that is known of each relation.")
_relations = click.argument("names", nargs=-1, metavar="[RELATIONS]...")


def _connected(path: Path) -> tuple[SourceConfig, Engine]:
    """Return the configuration and its engine; do not contact the database yet."""
    from source_agent.config.file import load
    from source_agent.engines.registry import connect

    config = load(path)
    database = config.database
    given = database.url, database.password, database.limits
    return config, connect(*given, pooler=database.pooler)


def _width() -> int:
    """Return the characters in a line of the terminal; 80 without one."""
    return shutil.get_terminal_size().columns


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from source_agent.server.service import agent_version

        click.echo(f"driftline-source {agent_version()}")
        context.exit()


def _say_more() -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    if os.environ.get("GRPC_VERBOSITY") == _SILENT:
        del os.environ["GRPC_VERBOSITY"]


@click.group(
    cls=DebugGroup, say_more=_say_more, debug_help=_DEBUG_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.option(
    "--config", type=_FILE, default=Path("source.toml"), show_default=True, help="Settings file."
)
@click.option("--debug", is_flag=True, help=_DEBUG_HELP)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def cli(context: click.Context, config: Path, debug: bool) -> None:
    """Run and inspect the read-only agent beside a database."""
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if debug else logging.INFO)
    if not debug:  # gRPC's core reads it when a command imports gRPC
        os.environ.setdefault("GRPC_VERBOSITY", _SILENT)
    SourceFailpoint.check()
    context.obj = config


@cli.command()
@click.option("--url", help="Database URL, without a password. Default: that of source.toml.")
@click.option(
    "--tables", "patterns", multiple=True, metavar="PATTERN",
    help="Tables to publish, such as 'public.*'; repeatable. Default: all tables and views.",
)  # fmt: skip
@click.option("--login", help="Login of the agent. Default: that of --url.")
@click.option("--password-file", type=_FILE, help="File with the password of --url.")
@click.option("--listen", default="127.0.0.1:7443", show_default=True, metavar="HOST:PORT")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.pass_obj
def init(
    config: Path,
    url: str | None,
    patterns: tuple[str, ...],
    login: str | None,
    password_file: Path | None,
    listen: str,
    force: bool,
) -> None:
    """Write a first source.toml and a script of grants.

    If source.toml exists, print the relations that can be added to it, and write nothing.
    """
    from source_agent.checks.first_configuration import InitOptions
    from source_agent.cli import init as scaffold

    request = InitOptions(config, url, patterns, login, password_file, listen, _prompt)
    if config.exists() and not force:
        lacks = scaffold.missing(request)
        if lacks.text:
            click.echo(lacks.text)
        click.echo(str(lacks), err=True)
        if lacks.addable:
            click.echo("next: driftline-source grants, check; SIGHUP adds relations", err=True)
        return
    made = scaffold.init(request, force=force)
    for path in made.files:
        click.echo(path)
    click.echo(str(made), err=True)
    first = ""
    if made.password_to_write is not None:
        first = f"run {made.files[1].name}, put the password into {made.password_to_write}, "
    click.echo(f"next: {first}driftline-source enroll --source-name HOST, check, serve", err=True)
    _end(failed=not made.published)


def _prompt(prompt: str) -> str | None:
    if not sys.stdin.isatty():
        return None
    return str(click.prompt(prompt, hide_input=True, err=True))


@cli.command()
@click.option("--port-file", type=_FILE, help="Write the port into this file when listening.")
@click.pass_obj
def serve(config: Path, port_file: Path | None) -> None:
    """Answer warehouses until SIGTERM. SIGHUP reads limits and relations again."""
    # SIGHUP never ends the agent; before `run` it needs no answer, because `run` reads the file.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from source_agent.config.file import load
    from source_agent.scan.processors import give_way
    from source_agent.server.service import run

    give_way()
    gc.set_threshold(GC_OBJECTS)
    run(lambda: load(config), port_file=port_file)
    # While it ends, the interpreter restores the default handlers; a late signal must not turn a
    # clean exit into a killed process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option(
    "--reads", "compared", multiple=True, metavar="RELATION",
    help="Instead, compare what is read of it with the driver's own values; repeatable.",
)  # fmt: skip
@click.option(
    "--rows", type=click.IntRange(1, ROWS_COMPARED_MAX), default=ROWS_COMPARED,
    show_default=True, help="About how many rows --reads compares of each.",
)  # fmt: skip
@_all_of
@_relations
@click.pass_obj
def check(
    config: Path,
    as_json: bool,
    compared: tuple[str, ...],
    rows: int,
    verbose: bool,
    names: tuple[str, ...],
) -> None:
    """Check the address, the relations, scan costs and privileges.

    Prints a line for each relation. If some are named, checks these alone, and prints all that is
    known of them.

    Reads catalogues only. Exit code: 0 if the agent can listen and serve all relations, 1 if not, 2
    if the configuration is wrong, 4 if the database is not available.

    With --reads it compares a sample of a relation, as a scan sends it, with what the driver itself
    returns for the columns: SELECT alone, in one snapshot. Exit code: 0 if all values that were
    compared are equal, 1 if one differs or none could be compared.
    """
    if compared:
        _check_reads(config, compared, rows, as_json=as_json)
        return
    from source_agent.checks.configuration import check as examine
    from source_agent.cli import check as printing

    report = examine(*_connected(config), names)
    if as_json:
        click.echo(printing.as_json(report))
    else:
        verbose |= bool(names)
        shown = printing.as_text(report, verbose=verbose, width=_width(), colours=has_colour())
        click.echo(shown)
    _end(failed=report.failed)


def _check_reads(path: Path, names: tuple[str, ...], rows: int, *, as_json: bool) -> None:
    from source_agent.checks.reads import check_reads, failed
    from source_agent.cli import check_reads as printing

    comparisons = check_reads(*_connected(path), names, rows)
    click.echo(printing.as_json(comparisons) if as_json else printing.as_text(comparisons))
    _end(failed=failed(comparisons))


@cli.command()
@click.option("--login", help="Login to grant to. Default: that of database.url.")
@click.pass_obj
def grants(config: Path, login: str | None) -> None:
    """Print a script of the least grants; run it as yourself."""
    from source_agent.checks.grants import grants as script

    click.echo(script(*_connected(config), login=login))


@cli.command()
@_all_of
@_relations
@click.pass_obj
def explain(config: Path, verbose: bool, names: tuple[str, ...]) -> None:
    """Print every SQL text that the agent can issue.

    Prints a line for each relation; all texts of those that are named, or with --verbose of all.
    """
    from source_agent.checks.statements import explain as sections_of
    from source_agent.cli import explain as printing

    loaded, engine = _connected(config)
    sections = sections_of(loaded, engine, names)
    if verbose or names or len(loaded.relations) == 1:
        click.echo(printing.as_text(sections))
    else:
        click.echo(printing.table_of(sections, _width(), has_colour()))
    failed = [section for section in sections if section.error is not None]
    for section in failed:
        click.echo(f"{section.heading} cannot be served: {section.error}", err=True)
    _end(failed=bool(failed))


@cli.command()
@click.option(
    "--directory", type=_FOLDER, default=Path("certs"), show_default=True,
    help="Folder for the files.",
)  # fmt: skip
@click.option(
    "--source-name", "source_names", multiple=True,
    help="Host name or address at which the warehouse reaches this agent; repeatable.",
)  # fmt: skip
@click.option("--warehouse-name", help="Name of the warehouse. Default: warehouse.")
@click.option("--days", type=int, default=825, show_default=True, help="Days of validity.")
@click.option(
    "--authority", type=_FOLDER,
    help="Folder with the ca.pem and ca.key of an authority, for another source or warehouse.",
)  # fmt: skip
def enroll(
    directory: Path,
    source_names: tuple[str, ...],
    warehouse_name: str | None,
    days: int,
    authority: Path | None,
) -> None:
    """Make an authority and the certificates of both agents.

    With --authority: only certificates of the source or warehouse that is named, signed by it.
    """
    try:
        from source_agent.enrolment import enroll as make
    except ImportError as error:
        raise _no_cryptography() from error
    made = make(
        directory,
        source_names=source_names,
        warehouse_name=warehouse_name,
        days=days,
        authority=authority,
    )
    for path in made:
        click.echo(path)
    names = {path.name for path in made}
    parts = []
    if "warehouse.pem" in names:
        parts.append("Give ca.pem, warehouse.pem and warehouse.key to the data engineer")
    if "source.pem" in names:
        parts.append(f"{'source.*' if parts else 'Give source.*'} to this agent")
    kept = "and keep ca.key away from both" if authority is None else "ca.key stays where it is"
    click.echo(f"{', '.join([*parts, kept])}.", err=True)


def _no_cryptography() -> ConfigurationError:
    return ConfigurationError(
        "`enroll` needs the package `cryptography`, which is not installed.",
        remedy="Run: pip install 'driftline[enroll]'. It is needed for this command only.",
    )


@cli.command()
@click.option("--receipt", type=_FILE, required=True, help="File of `driftline receipt`.")
@click.pass_obj
def total(config: Path, receipt: Path) -> None:
    """Recompute a receipt of the warehouse from this database."""
    from source_agent.checks import total as room

    comparison = room.total(*_connected(config), room.read_receipt(receipt))
    click.echo(_total_text(comparison))
    _end(failed=not comparison.equal)


def _total_text(found: SourceTotal) -> str:
    stated = found.receipt
    head = f"{stated.relation}: {_counted(found.digest)}"
    if found.equal:
        return f"{head}, equal to the receipt of {stated.as_of}"
    version = f"version {stated.version}" if stated.version else "the receipt's version"
    return (
        f"{head}, differs from the receipt of {stated.as_of}: {_counted(stated.digest)}. "
        f"The table may have changed since: {version} was read as of {stated.as_of}, "
        f"this total as of {found.as_of}. To compare at a time without writes, refresh, make a "
        "new receipt and run this again."
    )


def _counted(digest: Digest) -> str:
    """Return rows and total in the form that both sides print."""
    rows = "row" if digest.count == 1 else "rows"
    return f"{digest.count} {rows}, total {digest.sum_bytes().hex()}"


def _end(*, failed: bool) -> None:
    """Exit with 1 if a relation cannot be served, or totals or values differ."""
    if failed:
        raise click.exceptions.Exit(1)


def report(error: DriftlineError, *, debug: bool) -> int:
    """Print an error for people; return its exit code."""
    if debug:
        traceback.print_exception(error)
    click.echo(f"error {error.code}: {error}", err=True)
    for name, value in error.details.items():
        click.echo(f"  {name}: {value}", err=True)
    return error.exit_code


def main() -> None:
    """Run `driftline-source`; exit with its code."""
    debug = "--debug" in sys.argv[1:]
    escape_in(sys.stdout, sys.stderr)
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
        mistake = InternalError(f"An unexpected {type(problem).__name__} occurred.")
        mistake.__cause__ = problem
        sys.exit(report(mistake, debug=debug))
