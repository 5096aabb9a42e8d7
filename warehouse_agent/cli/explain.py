"""`explain`: print what each site contributes to a view, and what is evaluated there.

Of all views a line for each table in them; details of views that are named.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict

from driftline.errors import UsageError
from driftline.text_tables import has_colour, table

from warehouse_agent.config import View, WarehouseConfig
from warehouse_agent.inspection.site_shares import SiteShare, TableShare, decomposed
from warehouse_agent.report import counted
from warehouse_agent.views.selection import view_called

HEADINGS = ("table", "view", "site", "columns", "rows", "state")
_GOOD, _BAD = "green", "red"  # colours


def explain(
    config: WarehouseConfig, names: Sequence[str], *, ask: bool, as_json: bool, verbose: bool
) -> None:
    """Print the decomposition of views, by default of all.

    Args:
        verbose: all of it, as of views that are named, or of the only one.

    Raises:
        UsageError: there is no view, or none of a name.
        ConfigurationError: a query is refused.
        WarehouseUnavailable: a table cannot be read.
    """
    views = [view_called(config, name) for name in dict.fromkeys(names or config.views)]
    if not views:
        raise UsageError(f"{config.file.name} has no [views.NAME].", remedy="Add one.")
    verbose |= bool(names) or len(views) == 1
    shares = list[tuple[View, SiteShare]]()
    for view in views:
        sites = decomposed(config, view, ask=ask)
        if as_json:
            print(json.dumps({"view": view.name, "sites": [asdict(site) for site in sites]}))
        elif verbose:
            _print_view(view, sites)
        else:
            shares += [(view, site) for site in sites]
    if shares:
        width = shutil.get_terminal_size().columns
        print("\n".join(table_of(shares, width, colours=has_colour())))
        print(f"Details: driftline explain {views[0].name}, or --verbose.")


def table_of(
    shares: Sequence[tuple[View, SiteShare]], width: int, *, colours: bool = False
) -> list[str]:
    """Return a line for each table of views under HEADINGS, those first that cannot be asked for.

    Args:
        width: characters in a line.
        colours: mark what cannot be asked for by colours of a terminal.
    """
    rows = [
        (site.unknown is None, _cells(view, site, share))
        for view, site in shares
        for share in site.tables
    ]
    rows.sort(key=lambda one: one[0])
    marked = [_GOOD if is_known else _BAD for is_known, _ in rows] if colours else []
    cells = [cell for _, cell in rows]
    return table(HEADINGS, cells, width, numbers=("columns", "rows"), colours=marked)


def _cells(view: View, site: SiteShare, share: TableShare) -> tuple[str, ...]:
    of = "" if share.columns is None or share.columns_of is None else f"/{share.columns_of}"
    columns = "" if share.columns is None else f"{share.columns}{of}"
    rows = "" if share.rows is None else f"{share.rows:,}"
    if share.rows is not None and share.rows_of:
        rows += f" ({min(share.rows / share.rows_of, 1.0):.0%})"
    if site.unknown is not None:
        state = f"not known: {site.unknown}"
    else:
        state = f"{counted(len(share.pushed), 'condition')} there, {len(share.stays)} here"
    return share.name, view.name, site.site, columns, rows, state


def _print_view(view: View, sites: Sequence[SiteShare]) -> None:
    print(f"{view.name}: {counted(len(view.inputs), 'table')} of {counted(len(sites), 'site')}")
    for number, site in enumerate(sites):
        _print(_lines(site), is_last=number == len(sites) - 1)


def _lines(site: SiteShare) -> tuple[str, list[list[str]]]:
    """Return the line of a site, and the lines of each branch below it."""
    database = f" ({site.database})" if site.database else ""
    branches = [_table_lines(table) for table in site.tables]
    if site.unknown is not None:
        branches.append([f"the source cannot be asked: {site.unknown}"])
    if site.proposal is not None:
        head = "its DBA could publish the join, and a view read that (names are relations'):"
        branches.append([head, *(f"  {line}" for line in site.proposal.splitlines())])
    return f"{site.site}{database}", branches


def _table_lines(table: TableShare) -> list[str]:
    published = "nothing published" if table.version is None else f"version {table.version}"
    lines = [f"{table.name} as {table.alias}, {published}: {_saved(table)}"]
    if table.query is not None:
        lines.append(f"  reads   {table.query}")
    lines += [f"  pushed  {condition}" for condition in table.pushed]
    lines += [f"  stays   {condition}: {why}" for condition, why in table.stays]
    return lines + [f"  note    {note}" for note in table.notes]


def _saved(table: TableShare) -> str:
    if table.columns is None:
        return "its columns and rows are not known"
    of = "" if table.columns_of is None else f" of {table.columns_of}"
    text = f"{table.columns}{of} columns"
    if table.rows is None:
        return f"{text}, rows not known before the first load"
    text += f", {table.rows:,}"
    if not table.rows_of:
        return f"{text} rows; how many the relation has is not known"
    share = min(table.rows / table.rows_of, 1.0)
    return f"{text} of about {table.rows_of:,} rows ({share:.0%})"


def _print(site: tuple[str, list[list[str]]], *, is_last: bool) -> None:
    head, branches = site
    print(f"{'└' if is_last else '├'}─ {head}")
    outer = "   " if is_last else "│  "
    for number, lines in enumerate(branches):
        is_end = number == len(branches) - 1
        print(f"{outer}{'└' if is_end else '├'}─ {lines[0]}")
        inner = "   " if is_end else "│  "
        for line in lines[1:]:
            print(f"{outer}{inner}{line}")
    sys.stdout.flush()
