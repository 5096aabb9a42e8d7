"""PySpark's daemon, whose Python workers begin with the modules of our tasks imported.

Workers are forked for the first tasks of a session, and again after each task that failed; their
imports take most of a second of a processor. `"spark.python.daemon.module"` names this module.
PySpark's own daemon imports nothing before it forks, because threads do not survive a fork: those
of these modules start later.

Not for tests of executors with another Python, or of another installation.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from typing import Final
from zipimport import zipimporter

from pyspark import daemon

_OF_TASKS: Final = (
    *("pandas", "pyarrow.pandas_compat", "pyspark.sql.pandas.serializers", "pyspark.worker"),
    *("warehouse_agent.runs.batch", "warehouse_agent.views.maintenance.maintain"),
)


def main() -> None:
    """Import, and fork workers until Spark ends."""
    with contextlib.suppress(ImportError):  # whose task needs a module that is not there says so
        for name in _OF_TASKS:
            importlib.import_module(name)
    # Spark puts the archive of PySpark before the package that is installed; each worker would read
    # the archive's list of files twenty times.
    sys.path[:] = [place for place in sys.path if not place.endswith(".zip")]
    for place, found in [*sys.path_importer_cache.items()]:
        if isinstance(found, zipimporter):
            del sys.path_importer_cache[place]
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        daemon.manager()


if __name__ == "__main__":
    main()
