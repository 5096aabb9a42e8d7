"""A command on many fragments: whatever happens to one, the others have their turn.

Also what commands share about a fragment: its published version.
"""

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
    """Do it for every fragment, whatever happens to the others.

    Returns:
        Exit codes: what the action returned, 0 for None, or the code of its error.
    """
    codes = []
    for fragment in fragments:
        try:
            codes.append(action(fragment) or 0)
        except BrokenPipeError:  # who reads our answer has read enough
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
    """The newest version. Raises NotFound, WarehouseUnavailable."""
    snapshot = formats.head(store, name)
    if snapshot is None:
        raise NotFound(
            "Nothing has been published yet.", where=name, remedy=f"Run `driftline refresh {name}`."
        )
    return snapshot
