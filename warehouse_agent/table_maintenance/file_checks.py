"""Check if the files of a version are there, without reading them, and which one readers see."""

from __future__ import annotations

from driftline.errors import WarehouseUnavailable

from warehouse_agent.report import counted
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot, ViewSnapshot
from warehouse_agent.tasks import file_damage
from warehouse_agent.visible_versions import warehouse_versions

_REMEDY = "Run `driftline verify {} --repair`, or the next refresh: it pulls their rows again."


def check_files(store: Store, name: str, snapshot: Snapshot | ViewSnapshot) -> None:
    """Check that every data file of a version exists and has its size.

    Raises:
        WarehouseUnavailable: some do not; the details name them.
    """
    if wrong := file_damage.absent(store, name, snapshot.files):
        raise damage_error(name, wrong)


def check_rows(name: str, snapshot: Snapshot, rows: int) -> None:
    """Check that the files of a version had its number of `rows` when they were read.

    Raises:
        WarehouseUnavailable: they had another; `verify` names the file.
    """
    if rows != snapshot.record.rows:
        raise WarehouseUnavailable(
            f"{counted(rows, 'row')} were read, and the version has {snapshot.record.rows:,}.",
            where=name,
            remedy=_REMEDY.format(name),
        )


def given_version(store: Store, name: str, newest: int | None) -> int | None:
    """Return which version of a fragment or a view readers are given, if it is not the newest.

    Its files are checked as `check_files` does.

    Raises:
        WarehouseUnavailable: files of it are missing. A refresh of a view over it shows the newest.
    """
    member = warehouse_versions.visible_member(store, name)
    if member is None or member.version == newest:
        return None
    given = formats.any_head(store, name, version=member.version)
    if given is not None:
        try:
            check_files(store, name, given)
        except WarehouseUnavailable as wrong:
            wrong.remedy = (
                f"Readers are given this version, {given.version}. Refresh a view over {name} by"
                " its name: readers are then given the newest one."
            )
            raise
    return member.version


def damage_error(
    name: str, wrong: dict[str, str], remedy: str | None = None
) -> WarehouseUnavailable:
    """Return the error that names the first of the missing and damaged files, and how many are."""
    path, what = next(iter(wrong.items()))
    more = f"; {counted(len(wrong) - 1, 'more file')} missing or damaged" if len(wrong) > 1 else ""
    state = what if what == file_damage.MISSING else f"damaged: {what.rstrip('.')}"
    return WarehouseUnavailable(
        f"Data file {path} is {state}{more}.",
        where=name,
        remedy=_REMEDY.format(name) if remedy is None else remedy,
        details=file_damage.listed(wrong),
    )
