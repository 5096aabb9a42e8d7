"""The backends of this process, by the root of a warehouse and what is configured of it.

A URI alone does not say how its store is reached, so a process learns it once for each root: the
driver when it makes a `Store`, a worker of Spark with each task (`spark.executors.task`). Secrets
are not among what is learnt.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError

from warehouse_agent.config import StorageSettings
from warehouse_agent.config.storage import S3_SCHEME
from warehouse_agent.storage.backends.disk import Disk
from warehouse_agent.storage.backends.interface import Backend
from warehouse_agent.storage.backends.request_counts import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Mapping

_settings: dict[str, StorageSettings] = {}


def learn(settings: Mapping[str, StorageSettings]) -> None:
    """Note how the stores of roots are reached."""
    _settings.update(settings)
    for root in settings:
        if is_bucket(root):
            REQUESTS.know(root.removeprefix(S3_SCHEME))


def is_bucket(root: str) -> bool:
    """Return True if a root lies in a bucket."""
    return root.startswith(S3_SCHEME)


def learnt() -> dict[str, StorageSettings]:
    """Return what this process knows, by root."""
    return dict(_settings)


def settings_of(uri: str) -> StorageSettings:
    """Return what is configured for the root that a URI begins with."""
    roots = [root for root in _settings if uri == root or uri.startswith(root.rstrip("/") + "/")]
    return _settings[max(roots, key=len)] if roots else StorageSettings()


def backend_of(uri: str) -> Backend:
    """Return the backend of a URI, or of a path of the machine.

    Raises:
        ConfigurationError: nothing serves such URIs, or its package is missing; or the credentials
            that are configured are not there.
    """
    if "://" not in uri or uri.startswith("file://"):
        return _disk()
    if not is_bucket(uri):
        raise ConfigurationError(
            f"{uri.partition('://')[0]}:// is no storage that is supported.",
            where="warehouse.path",
            remedy="Name a folder of a disk, or s3://BUCKET/FOLDER (package: "
            "driftline[object-stores]).",
        )
    bucket = uri.removeprefix(S3_SCHEME).partition("/")[0]
    return _bucket(bucket, settings_of(uri))


@functools.cache
def _disk() -> Backend:
    return Disk()


@functools.lru_cache(maxsize=16)
def _bucket(bucket: str, settings: StorageSettings) -> Backend:
    try:
        from warehouse_agent.storage.backends.s3 import S3
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The warehouse lies in a bucket, and the package {error.name} is not installed.",
            where="warehouse.path",
            remedy="Run: pip install 'driftline[object-stores]'",
        ) from error
    return S3(bucket, settings)
