"""The command line of the warehouse agent: commands, options, exit codes (`docs/errors.md`).

stdout carries the answer, with `--json` one object per line; stderr carries everything else. A
mistake of the user never shows a traceback; with `--debug` the log has one for every error.

The texts of all commands are here, because `--help` prints them. A command imports its modules when
it runs: `--help` needs none of them, `status` neither gRPC nor PySpark.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from driftline.debug_option import DebugGroup
from driftline.peer_text import VisibleFormatter, escape_in
from driftline.settings.declarations import duration_s

from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.spark import foreign_output

if TYPE_CHECKING:
    from warehouse_agent.config import Fragment, View, WarehouseConfig

    Chosen = Sequence[Fragment | View]

USAGE = 2
INTERRUPTED = 130
CHECK, CHECK_UNKNOWN = "--check", 3  # of `status`: what hinders it tells nothing of the tables

_DEBUG_HELP = "Show tracebacks, and what Spark and gRPC write."
_log = logging.getLogger("driftline")


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        import importlib.metadata

        try:
            version = importlib.metadata.version("driftline")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"  # a source tree that is not installed
        click.echo(f"driftline {version}")
        context.exit()


def _say_more() -> None:
    for handler in logging.getLogger().handlers:
        handler.removeFilter(foreign_output.is_ours)
    _log.setLevel(logging.DEBUG)


@click.group(
    cls=DebugGroup,
    say_more=_say_more,
    debug_help=_DEBUG_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("warehouse.toml"),
    show_default=True,
    help="The data engineer's file.",
)
@click.option("--debug", is_flag=True, help=_DEBUG_HELP)
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
    lines = logging.StreamHandler()
    lines.setFormatter(VisibleFormatter("%(message)s"))
    logging.basicConfig(handlers=[lines])
    if not debug:
        for handler in logging.getLogger().handlers:
            handler.addFilter(foreign_output.is_ours)
    _log.setLevel(logging.DEBUG if debug else logging.WARNING)
    WarehouseFailpoint.check()
    context.obj = config


def _leave_out_pandas() -> None:
    """Keep pyarrow from importing pandas with the first array that it makes, which takes 0.3 s.

    It only asks whether a value is an array of pandas, and asks once: so this is for a process of
    our own. What needs pandas, such as PySpark, still imports it.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    absent = _AbsentPandas()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(absent)


class _AbsentPandas(MetaPathFinder):
    """Import finder that says that pandas is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raise ModuleNotFoundError for pandas; leave other modules to other finders."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def _seconds(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a duration, such as `2h` or `1h30m`, in seconds; refuse one that is shorter than 1."""
    seconds = duration_s(text or "")
    if text is not None and not seconds:
        message = f"{text!r} is no duration. Write it like 2h, 90m, 1h30m or 1d."
        raise click.BadParameter(message, param=parameter)
    return seconds or None


_all = click.option("--all", "all_", is_flag=True, help="Every fragment and view of the file.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout.")
_verbose = click.option("--verbose", is_flag=True, help="Details of each.")
_file = click.Path(path_type=Path, exists=True, dir_okay=False)


def _on_fragments(
    *options: Callable[[Any], Any], is_named: bool = False
) -> Callable[[Callable[..., list[int]]], None]:
    """Make a command of an action on fragments: select them by NAMES and --all; exit with one code.

    Args:
        options: of the command, passed to the action by name.
        is_named: its fragments must be named; without, none named means all.
    """

    def add_command(action: Callable[..., list[int]]) -> None:
        def command(file: Path, names: Sequence[str], all_: bool, **chosen: Any) -> None:
            from warehouse_agent.report import PARTIAL
            from warehouse_agent.views.inputs import load
            from warehouse_agent.views.selection import chosen as named

            config = load(file)
            all_ |= not names and not is_named
            codes = action(config, named(config, names, all_), **chosen)
            if failed := [code for code in codes if code]:
                is_partial = len(failed) < len(codes) or PARTIAL in failed
                sys.exit(PARTIAL if is_partial else _common(failed))

        decorated: Any = command
        for add in (_json, *options, _all, click.argument("names", nargs=-1), click.pass_obj):
            decorated = add(decorated)
        cli.command(action.__name__, help=action.__doc__)(decorated)

    return add_command


def _common(codes: Sequence[int]) -> int:
    """Return the exit code that all failures have, or 1 if they differ."""
    return codes[0] if len(set(codes)) == 1 else 1


@cli.command()
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "--source", "address", metavar="HOST:PORT", help="Ask this source which relations it serves."
)
@click.option("--ca", type=_file, help="The authority that issued the source's certificate.")
@click.option("--certificate", type=_file, help="Our certificate.")
@click.option("--key", type=_file, help="Our key.")
@click.option("--server-name", help="The name in the source's certificate, if not HOST.")
@click.option("--insecure", is_flag=True, help="Plain text, to a source on this machine.")
@click.option("--name", metavar="SOURCE", help="The source's name in the file; default: from HOST.")
@click.pass_obj
def init(config: Path, /, force: bool, address: str | None, **options: Any) -> None:
    """Write a first warehouse.toml: a template, or, with --source, all that it serves.

    If the file exists, print what it lacks of the source, and write nothing. A source that is in
    the file needs --source alone.
    """
    from warehouse_agent.cli import init as first_file
    from warehouse_agent.inspection.first_configuration import known_source, source_of

    known = None if force else known_source(config, address, options["name"])
    source = known or source_of(address, **options)
    sys.exit(first_file.init(config, source, force=force))


@cli.command()
@_json
@click.pass_obj
def doctor(config: Path, as_json: bool) -> None:
    """Check configuration, storage, Java, certificates, sources and relations."""
    from warehouse_agent.cli import commands

    if failed := [code for code in commands.doctor(config, as_json=as_json) if code]:
        sys.exit(_common(failed))


@cli.command()
@_json
@click.pass_obj
def notify(config: Path, as_json: bool) -> None:
    """Send a test message to everybody whom [notify] names, and say who answered."""
    from warehouse_agent.cli import commands

    if any(commands.notify(config, as_json=as_json)):
        sys.exit(1)


@_on_fragments(_verbose)
def plan(config: WarehouseConfig, chosen: Chosen, **options: Any) -> list[int]:
    """Show what a refresh of fragments and views, by default of all, would do and cost.

    Reads no row of the source. Prints a line for each; all prices of those that are named, or with
    --verbose of all.
    """
    from warehouse_agent.cli import plan as forecasts

    options["verbose"] |= bool(click.get_current_context().params["names"])
    return forecasts.plan(config, chosen, **options)


@_on_fragments(
    click.option(
        "--accept-restored",
        is_flag=True,
        help="Accept a table that is older than the last published version, as after a restore.",
    ),
    click.option(
        "--allow-shrink", is_flag=True, help="Accept that more than half the rows are gone."
    ),
    click.option("--accept-schema", is_flag=True, help="Accept changed columns or a changed key."),
    click.option(
        "--trust-marker",
        is_flag=True,
        help="Use a marker again that two audits in a row found wrong.",
    ),
    click.option(
        "--deadline",
        "deadline_s",
        metavar="DURATION",
        callback=_seconds,
        help="Start nothing that by its history would end later, such as 2h or 1h30m from now.",
    ),
    click.option(
        "--without",
        metavar="VIEW",
        multiple=True,
        help="Leave a view, and the views over it, as they are; repeatable.",
    ),
    click.option("--due", is_flag=True, help="Only what `driftline schedule` says is due."),
)
def refresh(
    config: WarehouseConfig,
    _chosen: Chosen,
    *,
    without: Sequence[str],
    due: bool,
    as_json: bool,
    **options: Any,
) -> list[int]:
    """Make fragments, by default all, equal to their relations; prove it; publish.

    The views over them move with them; of a view that is named, all that it reads is refreshed.
    """
    from warehouse_agent.cli import commands
    from warehouse_agent.refresh.job import Options
    from warehouse_agent.views.selection import select

    _leave_out_pandas()
    patterns: Sequence[str] = click.get_current_context().params["names"]
    selection = select(config, patterns, not patterns, without)
    failing: list[int] = []
    if due:
        from warehouse_agent.cli.schedule import say_due
        from warehouse_agent.scheduler import due as due_now

        now = datetime.now(UTC)
        selection, decisions = due_now.due(config, selection, without, now)
        failing = say_due(decisions, config.file.name, now)
        names = [fragment.name for fragment in selection.fragments]
        options["gains"] = due_now.gains(config, names, now.timestamp())
    chosen = Options(is_scheduled=due, **options)
    return failing + commands.refresh(
        config, selection, chosen, as_json=as_json, others_failed=bool(failing)
    )


@_on_fragments(
    click.option("--ask", is_flag=True, help="Ask the sources what changed, as a refresh would."),
)
def schedule(config: WarehouseConfig, _chosen: Chosen, **options: Any) -> list[int]:
    """Show which fragments are due, why, and when the others will be.

    For a view that is named, shows all that it reads.
    """
    from warehouse_agent.cli import schedule as printed
    from warehouse_agent.views.selection import select

    patterns: Sequence[str] = click.get_current_context().params["names"]
    selection = select(config, patterns, not patterns)
    return printed.schedule(config, selection, datetime.now(UTC), **options)


@_on_fragments()
def run(config: WarehouseConfig, _chosen: Chosen, *, as_json: bool) -> list[int]:
    """Refresh what is due, again and again, until SIGTERM.

    SIGTERM ends it after the running refreshes, a second SIGTERM at once.
    """
    from warehouse_agent.cli import commands
    from warehouse_agent.cli.schedule import LoopPrinter
    from warehouse_agent.monitoring import metrics, tellers
    from warehouse_agent.monitoring.after_command import AfterCommand
    from warehouse_agent.refresh.job import Options
    from warehouse_agent.scheduler import loop
    from warehouse_agent.spark.session import DeferredSession
    from warehouse_agent.views.selection import TableSelection

    _leave_out_pandas()
    spark, after = DeferredSession.of(config), AfterCommand(tellers.of)

    def refreshed(
        config: WarehouseConfig,
        selection: TableSelection,
        gains: Mapping[str, float],
        is_ending: Callable[[], bool],
    ) -> list[int]:
        options = Options(is_scheduled=True, gains=gains, is_ending=is_ending)
        return commands.refresh(
            config, selection, options, as_json=as_json, spark=spark, after=after
        )

    patterns: Sequence[str] = click.get_current_context().params["names"]
    with metrics.listening(config, lambda line: click.echo(line, err=True)):
        loop.run(config, patterns, refreshed, LoopPrinter(config.file.name))
    return []


@cli.command()
@click.argument("name")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw rates by hour of the week and goodness of fit into an SVG file.",
)
@_json
@click.pass_obj
def fit(config: Path, name: str, plot: Path | None, as_json: bool) -> None:
    """Show when a relation changes, as its refreshes tell, and what they cannot tell."""
    from warehouse_agent.cli import fit as model
    from warehouse_agent.views.inputs import load

    model.fit_each(load(config), name, as_json=as_json, plot=plot)


@cli.command()
@click.argument("names", nargs=-1, metavar="[VIEWS]...")
@click.option("--ask", is_flag=True, help="Ask the sources what they offer now; do not use notes.")
@_json
@_verbose
@click.pass_obj
def explain(config: Path, names: Sequence[str], ask: bool, as_json: bool, verbose: bool) -> None:
    """Show what each source contributes to views, what is evaluated there, and what is not.

    Prints a line for each table of every view; all that is known of views that are named.
    """
    from warehouse_agent.cli import explain as decomposition
    from warehouse_agent.views.inputs import load

    decomposition.explain(load(config), names, ask=ask, as_json=as_json, verbose=verbose)


@_on_fragments(
    click.option("--repair", is_flag=True, help="Pull the rows of missing or damaged files again."),
)
def verify(config: WarehouseConfig, chosen: Chosen, **options: Any) -> list[int]:
    """Read every published file and check each row; compute each view again and compare."""
    from warehouse_agent.cli import commands

    _leave_out_pandas()
    return commands.verify(config, chosen, **options)


@cli.command()
@click.argument("name")
@click.option("--output", type=click.Path(path_type=Path), help="Default: NAME.receipt.json")
@click.pass_obj
def receipt(config: Path, name: str, output: Path | None) -> None:
    """Compute a total of the published values, which the DBA can recompute."""
    from warehouse_agent.cli import commands
    from warehouse_agent.views.inputs import load

    _leave_out_pandas()
    commands.receipt(load(config), name, output or Path(f"{name}.receipt.json"))


@_on_fragments(
    click.option(
        "--ask", is_flag=True, help="Ask the sources, without a scan, whether anything changed."
    ),
    click.option(
        CHECK,
        is_flag=True,
        help="Only what needs a look; exit codes: 0 ok, 1 warning, 2 critical, 3 unknown.",
    ),
    click.option("--totals", is_flag=True, help="Also what all refreshes did, saved and cost."),
    _verbose,
)
def status(config: WarehouseConfig, chosen: Chosen, **options: Any) -> list[int]:
    """Show what is published, how fresh it is and how it was proven, and what failed since.

    Prints a line for each table; details of those that are named, or with --verbose of all, also of
    what failed in the last day.
    """
    from warehouse_agent.cli import status as published

    options["verbose"] |= bool(click.get_current_context().params["names"])
    return published.status(config, chosen, **options)


@_on_fragments(
    click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        required=True,
        metavar="DIR",
        help="A new or empty folder, or one of an earlier report.",
    ),
    click.option(
        "--values",
        is_flag=True,
        help="Also messages of errors that may hold values of rows; only you can read the files.",
    ),
)
def report(config: WarehouseConfig, chosen: Chosen, **options: Any) -> list[int]:
    """Write pages of what happened, what failed and what was saved, to be read in any browser.

    Open DIR/index.html. The pages load nothing from a network and run no script.
    """
    from warehouse_agent.cli import commands

    _leave_out_pandas()
    return commands.report(config, chosen, **options)


@cli.command()
@click.pass_obj
def watch(config: Path) -> None:
    """Show what running refreshes do, also those of other terminals, until they have ended."""
    from warehouse_agent.cli import watch as running
    from warehouse_agent.views.inputs import load

    running.watch(load(config))


@cli.command()
@click.argument("name")
@click.option("--limit", default=20, show_default=True)
@_json
@click.pass_obj
def history(config: Path, name: str, limit: int, as_json: bool) -> None:
    """List the versions of a table, newest first, and refreshes that failed."""
    from warehouse_agent.cli import status as published
    from warehouse_agent.views.inputs import load

    published.history(load(config), name, limit, as_json=as_json)


@_on_fragments(
    click.option("--yes", is_flag=True, help="Remove the files. Without it, only count them."),
    click.option(
        "--keep-hours",
        default=168,
        show_default=True,
        help="Hours for which a version stays readable after the next one was published.",
    ),
    is_named=True,
)
def gc(config: WarehouseConfig, chosen: Chosen, **options: Any) -> list[int]:
    """Remove data files that no kept version needs."""
    from warehouse_agent.cli import commands

    return commands.gc(config, chosen, **options)


@cli.command()
@click.argument("files", metavar="[OLD] NEW", nargs=-1, type=_file, required=True)
@click.option("--format", type=_file, required=True, help="The columns of both files, as TOML.")
@click.option("--key", multiple=True, metavar="COLUMN", help="Column of the key; repeatable.")
@click.option(
    "--algorithm",
    type=click.Choice(["window", "sort-merge", "hash"]),
    help="Default: window; with --state sort-merge.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder that keeps what the next run needs of NEW, and stands in for OLD.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file .parquet or .csv. Default: NEW.changes.parquet",
)
@click.option("--whole-rows", is_flag=True, help="Join whole rows of NEW: cheaper if many changed.")
@click.option("--allow-shrink", is_flag=True, help="Accept that more than half the rows are gone.")
@_json
@click.pass_obj
def diff(config: Path, /, files: Sequence[Path], as_json: bool, **options: Any) -> None:
    """Write the changes between two dump files of one relation."""
    from warehouse_agent.differential import command

    _leave_out_pandas()
    command.diff(config, files, command.DiffOptions(**options), as_json=as_json)


def main(command: click.Command = cli, name: str = "driftline") -> NoReturn:
    """Run the console script `driftline`, or a command that ends as its commands do."""
    escape_in(sys.stdout, sys.stderr)
    if "--debug" not in sys.argv[1:]:
        foreign_output.divert()
    try:
        command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(CHECK_UNKNOWN if CHECK in sys.argv[1:] else USAGE)
    except (click.Abort, KeyboardInterrupt):
        print("Interrupted. Nothing unproven was published.", file=sys.stderr)
        _leave(INTERRUPTED)
    except BrokenPipeError:  # the reader of our answer closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(INTERRUPTED)
    except Exception as problem:
        from warehouse_agent.report import say_error
        from warehouse_agent.spark.executors import mistake

        _log.debug("the command failed", exc_info=problem)
        failure = mistake(problem, "")
        say_error(failure)
        _leave(CHECK_UNKNOWN if CHECK in sys.argv[1:] else failure.exit_code)
    sys.exit(0)


def _leave(code: int) -> NoReturn:
    """End the process; do not wait for a source's thread that did not stop in time."""
    if any(thread.name.startswith("driftline-source") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python would wait for what the thread has started, such as a proof
    sys.exit(code)
