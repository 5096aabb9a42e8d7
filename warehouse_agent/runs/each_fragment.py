"""Run a command on each of many fragments or views; an error of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from driftline.errors import DriftlineError, NotFound

from warehouse_agent.config import Fragment, View
from warehouse_agent.report import Report, say_error
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot, ViewSnapshot

T = TypeVar("T", Fragment, View, Fragment | View)


def each(
    fragments: Sequence[T],
    action: Callable[[T], int | None],
    *,
    as_json: bool,
    command: str,
    on_error: Callable[[DriftlineError], None] = say_error,
) -> list[int]:
    """Call `action` for every fragment or view and report the errors of each.

    Args:
        as_json: also print a report of each failure on stdout.
        command: the name of the command in that report.
        on_error: is called with each error.

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
            on_error(error)
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


def published_view(store: Store, name: str) -> ViewSnapshot:
    """Return the newest version of a view. Raises NotFound, WarehouseUnavailable as `published`."""
    if (snapshot := formats.view_head(store, name)) is None:
        raise NotFound(
            "Nothing has been published yet.", where=name, remedy=f"Run `driftline refresh {name}`."
        )
    return snapshot
