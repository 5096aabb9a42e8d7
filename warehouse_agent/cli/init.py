"""`init`: write a first warehouse.toml, from a template or from what a source serves to us.

The source is asked for the names that it serves to our certificate, then for a description of
each. The file holds every relation that can be refreshed; the others are comments with the reason.
Names and reasons come from the other side: they are cut, cleaned of control characters and escaped.

The file is written only after the whole conversation succeeded. An existing file is overwritten
only on request: what it lacks of a source is printed instead. Paths below the file's folder are
written relative to it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from driftline import wire_pb2 as pb
from driftline.errors import (
    ConfigurationError,
    DriftlineError,
    NotFound,
    Unauthenticated,
    UsageError,
)
from driftline.peer_text import one_line
from driftline.settings.declarations import address_parts, is_loopback

from warehouse_agent import config
from warehouse_agent.config import Fragment, Source
from warehouse_agent.config.file import WarehouseFile, WarehouseTable
from warehouse_agent.config.fragments import FragmentTable
from warehouse_agent.config.sources import SourceTable
from warehouse_agent.refresh import schema_change
from warehouse_agent.report import counted
from warehouse_agent.transport.channel import SourceChannel, allowances
from warehouse_agent.transport.preflight import reach
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX

USUAL = Path("warehouse.toml")
NOTE_CHARACTERS_MAX = 1000  # of a reason or a note of the source, in a comment
_FUZZY = "read without a snapshot"  # begins the note of a source that cannot be exact
_INVALID = re.compile(r"[^A-Za-z0-9_.-]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

# Without it a fragment is never due, and who sets up a timer would have nothing refreshed.
_DAILY = FragmentTable.interval_max.line('"1d"')
_HEAD = f"""\
# The data engineer's file. Relative paths resolve against it; an unknown key is an error.
[warehouse]
{WarehouseTable.path.line('"warehouse"')}

[spark]                             # {WarehouseFile.spark.brief}
"spark.master" = "local[*]"
"""
TEMPLATE = f"""{_HEAD}
[sources.erp]
{SourceTable.address.line('"erp.example:7443"')}
{SourceTable.ca.line('"ca.pem"')}
{SourceTable.certificate.line('"warehouse.pem"')}
{SourceTable.key.line('"warehouse.key"')}

[fragments.orders]                  # the published table is <path>/orders
source = "erp"
{FragmentTable.relation.line('"orders"')}
{_DAILY}
"""


@dataclass(frozen=True, slots=True)
class OfferedRelation:
    """One relation that the source serves to us: its description, or why it has none.

    `allowed`: what its DBA allows to be read now; empty: everything.
    """

    relation: str
    description: pb.Description | None
    reason: str = ""
    allowed: str = ""


def init(path: Path, source: Source | None, *, force: bool) -> int:
    """Write a first warehouse.toml: with all that `source` serves, or a template.

    Returns:
        The exit code: 1 if no relation of the source can be refreshed, and a file says so.

    Raises:
        ConfigurationError: the file exists already, and no source is named, or it cannot be
            read or written.
        DriftlineError: the source cannot be asked. Nothing is written then.
    """
    if path.exists() and not force:
        if source is None:
            raise _exists_already(path)
        return _print_lacking(path, source)
    doctor = f"driftline {'' if path == USUAL else f'--config {path} '}doctor"
    if source is None:
        _write(path, TEMPLATE, force=force)
        print(f"Wrote {path}. Edit it, then run: {doctor}", file=sys.stderr)
        return 0
    offered = _asked(source)
    _write(path, text_of(path, source, offered), force=force)
    good, relations = _print_refused(offered)
    print(f"Wrote {path} with {relations} of {source.address}.", file=sys.stderr)
    if good:
        print(f"Now run: {doctor}", file=sys.stderr)
    return 0 if good else 1


def _print_lacking(path: Path, source: Source) -> int:
    """Print what the file lacks of what a source serves; change nothing.

    Raises:
        ConfigurationError: the file cannot be read.
        DriftlineError: the source cannot be asked.
    """
    known = config.load(path)
    is_new = source not in known.sources.values()
    if is_new and source.name in known.sources:
        raise ConfigurationError(
            f"{path} has another source {source.name!r}.",
            where=f"{path.name}: sources.{source.name}",
            remedy="Choose another name for this one with --name.",
        )
    kept = {f.relation for f in known.fragments.values() if f.source == source}
    offered = [offer for offer in _asked(source) if offer.relation not in kept]
    if not offered:
        print(f"{path} has every relation of {source.address}; nothing to add.", file=sys.stderr)
        return 0
    taken = {name.lower() for name in (*known.fragments, *known.views)}
    lines = list(_source_lines(path, source)) if is_new else []
    print("\n".join([*lines, *_tables(source, offered, taken)]).strip("\n"))
    _, relations = _print_refused(offered)
    print(
        f"{path} exists and stays as it is. Add what is printed above, {relations} of"
        f" {source.address}, to it.",
        file=sys.stderr,
    )
    return 0


def _asked(source: Source) -> list[OfferedRelation]:
    """Return all that a source serves to us."""
    try:
        with SourceChannel(source) as link:
            return list(offers(link))
    except (ConfigurationError, Unauthenticated) as error:
        # The error names settings of a file that may not exist yet.
        error.details["options"] = "a setting such as server_name is --server-name here"
        raise


def _print_refused(offered: Sequence[OfferedRelation]) -> tuple[int, str]:
    """Say why relations cannot be refreshed; return how many can, and that in words."""
    refused = [offer for offer in offered if offer.description is None]
    for offer in refused:
        print(f"{_clean(offer.relation)}: {_clean(offer.reason)}", file=sys.stderr)
    good = len(offered) - len(refused)
    of_all = f"{good} of " if refused else ""
    return good, f"{of_all}{counted(len(offered), 'relation')}"


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
            raise UsageError(f"{given[0]} goes with --source.", remedy="Add --source HOST:PORT.")
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


def text_of(file: Path, source: Source, offered: Sequence[OfferedRelation]) -> str:
    """Return the text of the warehouse.toml at `file`."""
    lines = [_HEAD, *_source_lines(file, source), *_tables(source, offered, set())]
    return "\n".join(lines) + "\n"


def _tables(source: Source, offered: Sequence[OfferedRelation], taken: set[str]) -> Iterator[str]:
    """Return the lines of the fragments; their names are added to those that are `taken`."""
    for offer in offered:
        name = fragment_name(offer.relation, taken)
        taken.add(name.lower())
        yield ""
        yield from _fragment_lines(name, source, offer)


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


def _exists_already(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} exists already.",
        remedy="Name a source with --source to see what it lacks, use another --config, or --force"
        " to overwrite it.",
    )


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write the file; overwrite one that somebody else wrote by now only with `force`."""
    try:
        data = text.encode()
        with path.open("wb" if force else "xb") as out:
            out.write(data)
    except FileExistsError:
        raise _exists_already(path) from None
    except UnicodeEncodeError:
        raise ConfigurationError(
            "The path of a file is not UTF-8, and warehouse.toml cannot name it.",
            remedy="Rename it.",
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None


def _source_lines(file: Path, source: Source) -> Iterator[str]:
    yield f"[sources.{_key(source.name)}]"
    yield f"address = {_string(source.address)}"
    if source.insecure:
        yield SourceTable.insecure.line("true")
        return
    for key, path in (("ca", source.ca), ("certificate", source.certificate), ("key", source.key)):
        assert path is not None
        folder = Path(os.path.abspath(file)).parent
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        yield f"{key} = {_string(str(shown))}"
    if source.server_name:
        yield f"server_name = {_string(source.server_name)}"


def _fragment_lines(name: str, source: Source, offer: OfferedRelation) -> Iterator[str]:
    described = offer.description
    if described is None:
        yield f"# {_clean(offer.relation)} cannot be refreshed. {_clean(offer.reason)}"
        mark, size = "# ", ""
    else:
        mark, size = "", f"  # {_clean(size_and_key(described))}"
    yield f"{mark}[fragments.{_key(name)}]{size}"
    yield f"{mark}source = {_string(source.name)}"
    if name != offer.relation:
        yield f"{mark}relation = {_string(offer.relation)}"
    yield f"{mark}{_DAILY}"
    for note in described.notes if described is not None else ():
        yield f"# {_clean(note)}"
        if note.startswith(_FUZZY):
            yield "# " + FragmentTable.require.line('"fuzzy"', "needed here: docs/guarantees.md")
    if offer.allowed:
        yield f"# The source allows {_clean(offer.allowed)}."
        yield "# To have a refresh compare a part while no scan is allowed:"
        yield '# require = "fuzzy"'
        yield "# " + FragmentTable.proof.line('"part"', 'docs/operating.md, "Parts"')


def _source_name(host: str) -> str:
    """Return the first label of a host name, `local` for this machine, `remote` for an address."""
    if is_loopback(host):
        return "local"
    label = host.partition(".")[0]
    return label if _LABEL.fullmatch(label) else "remote"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    """Return the text as a basic string of TOML: as JSON, and DEL is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _clean(text: str) -> str:
    return one_line(text, NOTE_CHARACTERS_MAX)
