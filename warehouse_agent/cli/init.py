"""`init`: write a first warehouse.toml, from a template or from what a source serves to us.

The file holds every relation that can be refreshed (`inspection.first_configuration` asks for
them); the others are comments with the reason. Names and reasons come from the other side: they are
cut, cleaned of control characters and escaped.

The file is written only after the whole conversation succeeded. An existing file is overwritten
only on request: what it lacks of a source is printed instead. Paths below the file's folder are
written relative to it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from driftline.errors import ConfigurationError, Unauthenticated
from driftline.peer_text import one_line

from warehouse_agent.config import Source
from warehouse_agent.config.file import WarehouseFile, WarehouseTable
from warehouse_agent.config.fragments import FragmentTable
from warehouse_agent.config.sources import SourceTable
from warehouse_agent.inspection.first_configuration import (
    FirstConfiguration,
    OfferedRelation,
    known_file,
    needs_fuzzy,
    offers,
    proposed,
    size_and_key,
)
from warehouse_agent.report import counted
from warehouse_agent.transport.channel import SourceChannel

USUAL = Path("warehouse.toml")
NOTE_CHARACTERS_MAX = 1000  # of a reason or a note of the source, in a comment
_MODE = 0o644  # whatever the umask, others do not write what may name code of Spark
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

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


def init(path: Path, source: Source | None, *, force: bool) -> int:
    """Write a first warehouse.toml: with all that `source` serves, or a template.

    Returns:
        The exit code: 1 if no relation of the source can be refreshed, and a file says so.

    Raises:
        ConfigurationError: the file exists already, and no source is named, or it cannot be
            read or written.
        DriftlineError: the source cannot be asked. Nothing is written then.
    """
    doctor = f"driftline {'' if path == USUAL else f'--config {path} '}doctor"
    known = None
    if path.exists() and not force:
        if source is None:
            raise _exists_already(path)
        known = known_file(path, source)
    elif source is None:
        _write(path, TEMPLATE, force=force)
        print(f"Wrote {path}. Edit it, then run: {doctor}", file=sys.stderr)
        return 0
    proposal = proposed(source, _asked(source), known)
    if known is not None:
        _say_lacking(path, proposal)
        return 0
    _write(path, text_of(path, proposal), force=force)
    good, relations = _say_refused(proposal)
    print(f"Wrote {path} with {relations} of {source.address}.", file=sys.stderr)
    if good:
        print(f"Now run: {doctor}", file=sys.stderr)
    return 0 if good else 1


def _say_lacking(path: Path, proposal: FirstConfiguration) -> None:
    """Print what the file lacks of what a source serves."""
    address = proposal.source.address
    if not proposal.fragments:
        print(f"{path} has every relation of {address}; nothing to add.", file=sys.stderr)
        return
    print("\n".join(_tables(path, proposal)).strip("\n"))
    _, relations = _say_refused(proposal)
    print(
        f"{path} exists and stays as it is. Add what is printed above, {relations} of"
        f" {address}, to it.",
        file=sys.stderr,
    )


def _asked(source: Source) -> list[OfferedRelation]:
    """Return all that a source serves to us."""
    try:
        with SourceChannel(source) as link:
            return list(offers(link))
    except (ConfigurationError, Unauthenticated) as error:
        # The error names settings of a file that may not exist yet.
        error.details["options"] = "a setting such as server_name is --server-name here"
        raise


def _say_refused(proposal: FirstConfiguration) -> tuple[int, str]:
    """Say why relations cannot be refreshed; return how many can, and that in words."""
    offered = proposal.fragments.values()
    refused = [offer for offer in offered if offer.description is None]
    for offer in refused:
        print(f"{_clean(offer.relation)}: {_clean(offer.reason)}", file=sys.stderr)
    good = len(offered) - len(refused)
    of_all = f"{good} of " if refused else ""
    return good, f"{of_all}{counted(len(offered), 'relation')}"


def text_of(file: Path, proposal: FirstConfiguration) -> str:
    """Return the text of a new warehouse.toml at `file`."""
    return "\n".join([_HEAD, *_tables(file, proposal)]) + "\n"


def _tables(file: Path, proposal: FirstConfiguration) -> Iterator[str]:
    """Return the lines of the source, if it is new, and of the fragments."""
    if proposal.is_new:
        yield from _source_lines(file, proposal.source)
    for name, offer in proposal.fragments.items():
        yield ""
        yield from _fragment_lines(name, proposal.source, offer)


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
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
        with os.fdopen(os.open(path, flags, _MODE), "wb") as out:
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
        if needs_fuzzy(note):
            yield "# " + FragmentTable.require.line('"fuzzy"', "needed here: docs/guarantees.md")
    if offer.allowed:
        yield f"# The source allows {_clean(offer.allowed)}."
        yield "# To have a refresh compare a part while no scan is allowed:"
        yield '# require = "fuzzy"'
        yield "# " + FragmentTable.proof.line('"part"', "docs/operating/partial.md#parts")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    """Return the text as a basic string of TOML: as JSON, and DEL is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _clean(text: str) -> str:
    return one_line(text, NOTE_CHARACTERS_MAX)
