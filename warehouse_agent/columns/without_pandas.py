"""Arrow without pandas, which takes 0.3 s of each command."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


def leave_out_pandas() -> None:
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
