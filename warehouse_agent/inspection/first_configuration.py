"""Decide what a warehouse.toml needs to keep what a source serves to us (`init`).

The source is asked for the names that it serves to our certificate, then for a description of
each. Names and reasons come from the other side and are returned as they are: `cli.init`, which
makes the text, cuts and cleans them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, DriftlineError, NotFound, UsageError
from driftline.peer_text import one_line
from driftline.settings.declarations import address_parts, is_loopback

from warehouse_agent import config
from warehouse_agent.config import Fragment, Source, WarehouseConfig
from warehouse_agent.refresh import schema_change
from warehouse_agent.report import counted
from warehouse_agent.transport.channel import SourceChannel, allowances
from warehouse_agent.transport.preflight import reach
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX

_FUZZY = "read without a snapshot"  # begins the note of a source that cannot be exact
_INVALID = re.compile(r"[^A-Za-z0-9_.-]+")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class OfferedRelation:
    """One relation that the source serves to us: its description, or why it has none.

    `allowed`: what its DBA allows to be read now; empty: everything.
    """

    relation: str
    description: pb.Description | None
    reason: str = ""
    allowed: str = ""


@dataclass(frozen=True, slots=True)
class FirstConfiguration:
    """Settings of a source and its fragments that a warehouse.toml lacks.

    Attributes:
        source: that serves the relations.
        is_new: the file does not have the source yet.
        fragments: the relations that it does not have, by the name of the fragment.
    """

    source: Source
    is_new: bool
    fragments: Mapping[str, OfferedRelation]


def known_file(path: Path, source: Source) -> WarehouseConfig:
    """Return an existing file, to which what it lacks of `source` can be added.

    Raises:
        ConfigurationError: it cannot be read, or has another source of that name.
    """
    known = config.load(path)
    if source not in known.sources.values() and source.name in known.sources:
        raise ConfigurationError(
            f"{path} has another source {source.name!r}.",
            where=f"{path.name}: sources.{source.name}",
            remedy="Choose another name for this one with --name.",
        )
    return known


def proposed(
    source: Source, offered: Iterable[OfferedRelation], known: WarehouseConfig | None
) -> FirstConfiguration:
    """Return what a file lacks of what its source offers; `known`: the file, None: a new one."""
    fragments: dict[str, OfferedRelation] = {}
    kept, taken = set[str](), set[str]()
    if known is not None:
        kept = {f.relation for f in known.fragments.values() if f.source == source}
        taken = {name.lower() for name in (*known.fragments, *known.views)}
    for offer in offered:
        if offer.relation not in kept:
            name = fragment_name(offer.relation, taken)
            taken.add(name.lower())
            fragments[name] = offer
    is_new = known is None or source not in known.sources.values()
    return FirstConfiguration(source, is_new, fragments)


def known_source(path: Path, address: str | None, name: str | None) -> Source | None:
    """Return the source of an existing file that has this address, and this name if one is given.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if address is None or not path.exists():
        return None
    for source in config.load(path).sources.values():
        if source.address == address and name in {None, source.name}:
            return source
    return None


def source_of(
    address: str | None, *, server_name: str | None, insecure: bool, name: str | None, **files: Path
) -> Source | None:
    """Return the source that the options of a command line describe; None without an address.

    Args:
        files: ca, certificate and key; None if not given.

    Raises:
        UsageError: the options contradict each other, or one is missing.
    """
    given = [f"--{file}" for file, path in files.items() if path is not None]
    given += ["--server-name"] if server_name else []
    if address is None:
        given += [option for option, value in (("--insecure", insecure), ("--name", name)) if value]
        if given:
            raise UsageError(
                f"{given[0]} has an effect with --source alone.", remedy="Add --source HOST:PORT."
            )
        return None
    parts = address_parts(address)
    if parts is None or parts[1] == 0:
        raise UsageError(
            f"--source {address!r} is not an address.",
            remedy="Write HOST:PORT, such as erp.example:7443.",
        )
    host = parts[0]
    if name is not None and not config.is_fragment_name(name):
        raise UsageError(
            f"--name {name!r} cannot name a source.",
            remedy="Use letters, digits, '_', '.' and '-', beginning with a letter or a digit.",
        )
    named = name or _source_name(host)
    if not insecure:
        if missing := [f"--{file}" for file, path in files.items() if path is None]:
            raise UsageError(
                f"--source needs {', '.join(missing)}.",
                remedy="The DBA makes these files with `driftline-source enroll`. For a source on "
                "this machine that uses plain text: --insecure.",
            )
        ca, certificate, key = (
            Path(os.path.abspath(files[file])) for file in ("ca", "certificate", "key")
        )
        return Source(named, address, ca, certificate, key, server_name=server_name)
    if not is_loopback(host):
        raise UsageError(
            f"--insecure is for loopback only, and {host} is not.",
            remedy="Name --ca, --certificate and --key.",
        )
    if given:
        raise UsageError(
            f"{given[0]} has no effect with --insecure.", remedy="Remove one of the two."
        )
    return Source(named, address, insecure=True)


def offers(link: SourceChannel) -> Iterator[OfferedRelation]:
    """Ask the source for every relation that it serves to our certificate.

    Raises:
        NotFound: it serves nothing to our certificate.
        DriftlineError: the source cannot be asked now, but perhaps later.
    """
    reach(link.source)
    names = sorted(link.describe("").relations)
    if not names:
        whom = "you" if link.source.insecure else "this certificate"
        raise NotFound(
            f"{link.source.address} serves no relation to {whom}.",
            where=f"source {link.source.name}",
            remedy="Ask its DBA: [relations.NAME] and `allow` in source.toml.",
        )
    for name in names:
        try:
            reply = link.describe(name)
            # Check also that its columns can be published here.
            schema_change.described(reply, Fragment(name, link.source, name), None)
        except DriftlineError as error:
            if error.is_retryable:
                raise
            yield OfferedRelation(name, None, f"{error.message} {error.remedy}".strip())
        else:
            allowance = allowances(reply).get(name)
            told = allowance.describe(datetime.now(UTC)) if allowance is not None else ""
            yield OfferedRelation(name, reply.description, allowed=told)


def size_and_key(description: pb.Description) -> str:
    """Return the expected rows and the key of a relation, such as `about 3 rows, key (id)`."""
    rows = description.rows_expected
    key = ", ".join(c.name for c in description.columns[: description.key_columns])
    about = f"about {counted(rows, 'row')}" if rows else "rows unknown"
    return f"{about}, key ({one_line(key, LINE_CHARACTERS_MAX)})"


def needs_fuzzy(note: str) -> bool:
    """Return True if a note of a description says that its fragment needs `require = "fuzzy"`."""
    return note.startswith(_FUZZY)


def fragment_name(relation: str, taken: set[str]) -> str:
    """Make a fragment's name of a relation's that is not in `taken` (in lower case)."""
    name = _INVALID.sub("_", relation)
    if not config.is_fragment_name(name[:1]):
        name = f"_{name}"
    if name.lower().startswith(config.RESERVED):
        name = f"relation{name}"
    longest = config.NAME_CHARACTERS_MAX
    candidate, number = name[:longest], 1
    while candidate.lower() in taken:
        number += 1
        suffix = f"_{number}"
        candidate = name[: longest - len(suffix)] + suffix
    return candidate


def _source_name(host: str) -> str:
    """Return the first label of a host name, `local` for this machine, `remote` for an address."""
    if is_loopback(host):
        return "local"
    label = host.partition(".")[0]
    return label if _LABEL.fullmatch(label) else "remote"
