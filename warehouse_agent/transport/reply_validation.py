"""Messages of a source, where they enter the warehouse: bounded, in range, safe to show.

`channel` passes every reply and description through here first. Text that is only shown becomes one
printable line of bounded length. Names are compared, so an invalid name is refused. A number out of
range is a protocol error. Whether a message fits another one, the methods and `frame_admission`
check.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Final

from driftline import wire_pb2 as pb
from driftline.errors import (
    BY_CODE,
    GRPC_STATUS,
    DriftlineError,
    InternalError,
    MalformedMessage,
    from_code,
)
from driftline.limits import (
    COLUMNS_MAX,
    GONE_ROWS_MAX,
    MARK_BYTES_MAX,
    NAME_BYTES_MAX,
    UNMARKED_ROWS_MAX,
)
from driftline.peer_text import one_line
from driftline.relations.activity_messages import from_message
from driftline.relations.reference_messages import joinable

from warehouse_agent.report import counted

COUNT_MAX: Final = 2**63 - 1  # of rows: counts are kept as signed 64-bit integers
SUM_BYTES: Final = 16
HELD_BACK_S_MAX: Final = 1e9  # 30 years: a sum of such numbers stays finite
MESSAGE_CHARACTERS_MAX: Final = 4_000  # of an error: it may name every column
LINE_CHARACTERS_MAX: Final = 1_000  # of a remedy, a place, a note, a detail
WORD_CHARACTERS_MAX: Final = 200  # of a phase, an agent's name, a database's
DETAILS_MAX: Final = 100
CONSISTENCIES: Final = frozenset({"exact", "fuzzy"})

# With the others a warehouse would look for damage of its own files, or of its own Spark.
_OF_SOURCES: Final = {kind.code for kind in GRPC_STATUS} | {InternalError.code}
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


def check_reply(reply: pb.Reply) -> None:
    """Make the text of a reply safe, in place.

    Raises:
        MalformedMessage: a number, an instant or a word is not valid.
    """
    kind = reply.WhichOneof("message")
    if kind == "progress":
        progress = reply.progress
        progress.phase = one_line(progress.phase, WORD_CHARACTERS_MAX)
        _check_counts(rows=progress.rows, rows_expected=progress.rows_expected)
        _check_held(progress.held_back_s, "goes on")
    elif kind == "verdict":
        _check_counts(count=reply.verdict.count, differing=reply.verdict.differing)
        _check_sum(reply.verdict.sum)
    elif kind == "finished":
        _check_finished(reply.finished)


def check_description(reply: pb.DescribeReply) -> None:
    """Make the text of a description safe, in place.

    Raises:
        MalformedMessage: as `check_reply`; or a name under which nothing can be served.
    """
    reply.agent = one_line(reply.agent, WORD_CHARACTERS_MAX)
    reply.database = one_line(reply.database, WORD_CHARACTERS_MAX)
    for name in reply.relations:
        if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
            raise MalformedMessage(
                f"The source serves {one_line(name, WORD_CHARACTERS_MAX)!r}, which is no name."
            )
    if reply.allowances and len(reply.allowances) != len(reply.relations):
        raise MalformedMessage(
            f"The source sent {counted(len(reply.allowances), 'allowance')} for"
            f" {counted(len(reply.relations), 'relation')}."
        )
    for allowance in reply.allowances:
        _check_counts(rows_by_key=allowance.rows_by_key)
        for at in filter(None, (allowance.begins, allowance.ends)):
            _check_instant(at, "allows scans from or until")
    if not reply.HasField("description"):
        return
    description = reply.description
    _check_counts(rows_expected=description.rows_expected)
    rates = {
        "rows_per_second": description.rows_per_second,
        "bytes_per_second": description.bytes_per_second,
    }
    for name, rate in rates.items():
        if not math.isfinite(rate) or rate < 0:
            raise MalformedMessage(f"The source describes {name} = {rate:g}, which is no rate.")
    if len(description.columns) > COLUMNS_MAX or description.key_columns > len(description.columns):
        raise MalformedMessage(
            f"The source describes a key of {counted(description.key_columns, 'column')} in a"
            f" relation of {len(description.columns):,}."
        )
    if len({column.name for column in description.columns}) < len(description.columns):
        raise MalformedMessage("The source describes two columns of one name.")
    if description.HasField("marker"):
        marker = description.marker
        marker.kind = one_line(marker.kind, WORD_CHARACTERS_MAX)
        marker.column = one_line(marker.column, WORD_CHARACTERS_MAX)
        if not math.isfinite(marker.late_s) or marker.late_s < 0:
            raise MalformedMessage(f"The source describes late_s = {marker.late_s:g}.")
    joinable(description)
    notes = [one_line(note, LINE_CHARACTERS_MAX) for note in description.notes[:COLUMNS_MAX]]
    del description.notes[:]
    description.notes.extend(notes)


def check_activities(reply: pb.ActivityReply, asked: int) -> None:
    """Make the text of activities safe, in place; `asked`: relations in the request.

    Raises:
        MalformedMessage: another number of activities, or one that is not valid.
    """
    if len(reply.activities) != asked:
        raise MalformedMessage(
            f"The source sent the activity of {counted(len(reply.activities), 'relation')}, not of"
            f" {asked:,}."
        )
    for activity in reply.activities:
        _check_activity(activity)


def refusal(refused: pb.Refused) -> DriftlineError:
    """Return the error that the source refused with, its text made safe; MalformedMessage if it is
    one that only a warehouse has."""
    if refused.code in BY_CODE and refused.code not in _OF_SOURCES:
        said = one_line(refused.message, LINE_CHARACTERS_MAX)
        return MalformedMessage(
            f"The source refused with {refused.code}, which no source means: {said}",
            remedy="Check what runs at the source's address; nothing was published.",
        )
    details = {
        one_line(name, WORD_CHARACTERS_MAX): one_line(refused.details[name], LINE_CHARACTERS_MAX)
        for name in sorted(refused.details)[:DETAILS_MAX]
    }
    return from_code(
        refused.code,
        one_line(refused.message, MESSAGE_CHARACTERS_MAX),
        remedy=one_line(refused.remedy, LINE_CHARACTERS_MAX),
        where=one_line(refused.where, LINE_CHARACTERS_MAX),
        details=details,
    )


def _check_finished(finished: pb.Finished) -> None:
    _check_counts(count=finished.count, rows_read=finished.rows_read)
    _check_sum(finished.sum)
    _check_held(finished.held_back_s, "finished")
    if finished.consistency not in CONSISTENCIES:
        shown = one_line(finished.consistency, WORD_CHARACTERS_MAX)
        raise MalformedMessage(f"The source finished with the consistency {shown!r}.")
    _check_instant(finished.as_of, "finished as of")
    if finished.HasField("activity"):
        _check_activity(finished.activity)
    if finished.HasField("since"):
        _check_marked(finished.since)


def _check_marked(marked: pb.Marked) -> None:
    marked.why = one_line(marked.why, LINE_CHARACTERS_MAX)
    _check_counts(rows=marked.rows, unmarked=marked.unmarked, future=marked.future)
    if not math.isfinite(marked.open_s) or marked.open_s < 0:
        raise MalformedMessage(f"The source names a transaction of {marked.open_s:g} s.")
    named = len(marked.positions)
    is_named = named == len(marked.row_hashes) and named % 8 == 0 and named // 8 <= marked.unmarked
    is_named &= len(marked.checksums) == (named if marked.checksum else 0)
    if not is_named or named > 8 * UNMARKED_ROWS_MAX:
        raise MalformedMessage("The rows that an audit names are malformed.")
    if len(marked.gone) % 8 or len(marked.gone) > 8 * GONE_ROWS_MAX:
        raise MalformedMessage("The deleted rows of an audit are malformed.")
    if len(marked.mark) > MARK_BYTES_MAX:
        raise MalformedMessage(f"A mark of {counted(len(marked.mark), 'byte')} came.")


def _check_activity(activity: pb.Activity) -> None:
    if activity.WhichOneof("value") == "unknown":
        activity.unknown = one_line(activity.unknown, LINE_CHARACTERS_MAX)
    from_message(activity)


def _check_instant(text: str, what: str) -> None:
    """Raise MalformedMessage if a text is no instant. what: the source did with it."""
    try:
        if not _INSTANT.fullmatch(text):
            raise ValueError
        datetime.fromisoformat(text)
    except ValueError:
        shown = one_line(text, WORD_CHARACTERS_MAX)
        raise MalformedMessage(f"The source {what} {shown!r}, which is no instant.") from None


def _check_held(seconds: float, what: str) -> None:
    if not 0 <= seconds <= HELD_BACK_S_MAX:  # also not a number
        raise MalformedMessage(f"The source {what} after holding back for {seconds:g} s.")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count > COUNT_MAX:
            raise MalformedMessage(f"The source sent {name} = {count}; the maximum is 2^63 - 1.")


def _check_sum(data: bytes) -> None:
    if len(data) != SUM_BYTES:
        raise MalformedMessage(f"A total of {len(data)} bytes came; it has {SUM_BYTES}.")
