"""The table [storage]: how the object store is reached in which the warehouse lies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from driftline.errors import ConfigurationError
from driftline.settings.declarations import SettingsTable, is_loopback
from driftline.settings.kinds import FLAG, PATH, TEXT, number, shown_text

from warehouse_agent.config.settings import StorageSettings

S3_SCHEME = "s3://"
SCHEMES = (S3_SCHEME, "s3a://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Not the names of files, which are no secrets.
_SECRET = re.compile(r"spark\.executorEnv\.AWS_\w*(?:SECRET|TOKEN)\w*(?<!_FILE)")
_ENCRYPTION = ("spark.authenticate", "spark.network.crypto.enabled")
_PART = re.compile(r"[^\s*?\[\]{}\\%#]+")


class StorageTable(SettingsTable):
    """The way to the object store. Unset: as AWS's own programs reach S3."""

    endpoint = TEXT.optional(
        "`https://HOST[:PORT]` of a server that speaks S3's protocol", unset="AWS"
    )
    region = TEXT.optional("of the bucket", unset="that of the environment; at an endpoint any")
    profile = TEXT.optional(
        "of the file of credentials; its keys are read again for each use",
        unset="`default` with a `credentials_file`; else keys are looked for in"
        " `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, a web identity, and the metadata of a container or a"
        " machine",
    )
    credentials_file = PATH.optional(
        "a file of profiles as AWS has it, with `aws_access_key_id` and `aws_secret_access_key`; on"
        " a cluster each executor reads its own, of the same path",
        unset="`~/.aws/credentials`",
    )
    insecure = FLAG.by_default(
        False, "an `http://` endpoint on another machine: rows then travel in plain text"
    )
    price_per_1000_reads = number("what 1,000 GET and HEAD requests cost").optional(
        "for `plan`", unset="`plan` says no price"
    )
    price_per_1000_writes = number("what 1,000 PUT, POST and LIST requests cost").optional(
        "for `plan`", unset="`plan` says no price"
    )


def parse(table: StorageTable, path: str) -> StorageSettings:
    """Return the settings of the table; `path` is the warehouse's. Raises ConfigurationError."""
    found = StorageSettings(
        _endpoint(table),
        table.region,
        table.profile,
        table.credentials_file,
        table.price_per_1000_reads,
        table.price_per_1000_writes,
    )
    if "://" not in path and found != StorageSettings():
        raise table.error(
            "endpoint" if found.endpoint else "region",
            "The warehouse is on a disk, and [storage] says how an object store is reached.",
            "Remove the table, or name s3://BUCKET/FOLDER as `path`.",
        )
    return found


def bucket_path(path: str, where: str) -> str:
    """Return the path of a warehouse with a scheme, as `s3://BUCKET[/FOLDER]`.

    Raises:
        ConfigurationError: nobody serves the scheme, or a character would not be read literally;
            `where` the path stands.
    """
    scheme, _, rest = path.partition("://")
    if f"{scheme}://" not in SCHEMES:
        raise ConfigurationError(
            f"{scheme}:// is no storage that is supported.",
            where=where,
            remedy="Name a folder of a disk, or s3://BUCKET/FOLDER (package: "
            "driftline[object-stores]).",
        )
    bucket, *parts = rest.rstrip("/").split("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigurationError(
            f"{shown_text(bucket)} is no name of a bucket.",
            where=where,
            remedy="Write s3://BUCKET.",
        )
    if wrong := [p for p in parts if not _PART.fullmatch(p) or p in {".", ".."}]:
        raise ConfigurationError(
            f"The part {wrong[0]!r} of {path} would not be read literally.",
            where=where,
            remedy="Name a folder without blanks, empty parts, `..` and * ? # [ ] { } \\ %.",
        )
    return S3_SCHEME + "/".join([bucket, *parts])


def refuse_open_secrets(spark: Mapping[str, str], where: str) -> None:
    """Raise ConfigurationError if [spark] sends a secret of AWS to executors over an open line."""
    secrets = [key for key in spark if _SECRET.fullmatch(key)]
    master = spark.get("spark.master", "local")
    is_remote = "spark.remote" in spark
    if not secrets or (not is_remote and (master == "local" or master.startswith("local["))):
        return
    if is_remote or any(spark.get(key, "").lower() != "true" for key in _ENCRYPTION):
        raise ConfigurationError(
            f"{secrets[0]} would travel to the executors in plain text.",
            where=where,
            remedy="Remove it, and give the executors' machines a role or the `credentials_file` of"
            f" [storage]; or set {' and '.join(_ENCRYPTION)} to true, which Spark Connect does not"
            " heed.",
        )


def _endpoint(table: StorageTable) -> str | None:
    if (endpoint := table.endpoint) is None:
        return None
    try:
        url = urlsplit(endpoint)
        is_bare = "@" not in url.netloc and not url.query and not url.fragment
        is_one = url.scheme in {"http", "https"} and is_bare and url.port != 0
    except ValueError:  # brackets that are no address, or a port that is none
        is_one = False
    if not is_one or not url.hostname:
        raise table.error(
            "endpoint", f"{shown_text(endpoint)} is no address.", "Write https://HOST[:PORT]."
        )
    if url.scheme == "http" and not table.insecure and not is_loopback(url.hostname):
        raise table.error(
            "endpoint",
            "Rows would travel in plain text to another machine.",
            "Write https://, or set `insecure = true` where that line is trusted.",
        )
    return endpoint.rstrip("/")
