"""Run a command on each of many fragments; an error of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from driftline.errors import NotFound

from warehouse_agent.config import Fragment
from warehouse_agent.report import Report, say_error
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot


def each(
    fragments: Sequence[Fragment],
    action: Callable[[Fragment], int | None],
    *,
    as_json: bool,
    command: str,
) -> list[int]:
    """Call `action` for every fragment and report the errors of each.

    Args:
        as_json: also print a report of each failure on stdout.
        command: the name of the command in that report.

    Returns:
        An exit code for each fragment: what the action returned, 0 for None, or its error's.

    Raises:
        BrokenPipeError: nobody reads the output any more.
    """
    codes = []
    for fragment in fragments:
        try:
            codes.append(action(fragment) or 0)
        except BrokenPipeError:
            raise
        except Exception as problem:
            error = mistake(problem, fragment.name)
            report = Report(fragment.name, command)
            report.fail(error)
            codes.append(error.exit_code)
            if as_json:
                print(report.to_json(), flush=True)
            say_error(error)
    return codes


def published(store: Store, name: str) -> Snapshot:
    """Return the newest version of a fragment.

    Raises:
        NotFound: nothing has been published yet.
        WarehouseUnavailable: the table cannot be read.
    """
    snapshot = formats.head(store, name)
    if snapshot is None:
        raise NotFound(
            "Nothing has been published yet.", where=name, remedy=f"Run `driftline refresh {name}`."
        )
    return snapshot
