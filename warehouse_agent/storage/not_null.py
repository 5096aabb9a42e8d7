"""NOT NULL as a published table declares it: of columns that hold no NULL in any of its files.

A source says which columns its engine keeps free of NULL. That is a wish: a version declares it
only if each of its files is known to hold none, and the version that holds the first NULL of a
column declares the column nullable, in its own commit. It stays so until the source is asked for a
description again. So readers may rely on what is declared, whatever a source says, and no refresh
fails for it.

A file is known by its writer. Files of older releases, which noted nothing, are read for their
statistics, once and only from a disk.
"""

from __future__ import annotations

import pyarrow as pa

from warehouse_agent.columns.layout import Layout
from warehouse_agent.storage.data_files import DataFile, without_null
from warehouse_agent.storage.store import data_source
from warehouse_agent.storage.table import NewVersion


def checked(new: NewVersion) -> Layout:
    """Return the layout of a new version, with NOT NULL only where all of its files hold none."""
    gone = {f.path for f in new.removed}
    kept = () if new.base is None else (f for f in new.base.files if f.path not in gone)
    left = new.layout.not_null
    for file in (*new.added, *kept):
        if unknown := left - file.not_null:
            left -= unknown - _by_statistics(file)
    return new.layout.with_not_null(left)


def _by_statistics(file: DataFile) -> frozenset[str]:
    """Return the columns of a file that hold no NULL; none if it cannot be read."""
    try:
        with data_source(file.uri) as source:
            return without_null(source.footer)
    except (OSError, pa.ArrowException):
        return frozenset()
