"""Activities as messages.

Apart from `activity`, because protobuf takes longer to import than a short command needs.
"""

from __future__ import annotations

from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import ACTIVITY_BYTES_MAX
from driftline.relations.activity import Activity, CountedActivity, FlaggedActivity, UnknownActivity


def to_message(activity: Activity) -> pb.Activity:
    """Return an activity as a message."""
    match activity:
        case CountedActivity(identity, changes):
            return pb.Activity(identity=bytes.fromhex(identity), changes=changes)
        case FlaggedActivity(identity, flag):
            return pb.Activity(identity=bytes.fromhex(identity), flag=bytes.fromhex(flag))
        case UnknownActivity(why):
            return pb.Activity(unknown=why)


def from_message(message: pb.Activity) -> Activity:
    """Return the activity of a message; one whose kind is not known here is `UnknownActivity`.

    Raises:
        MalformedMessage: its identity or its flag is too long, or its count of 2^63 or more.
    """
    if max(len(message.identity), len(message.flag)) > ACTIVITY_BYTES_MAX:
        raise MalformedMessage(
            f"An identity or a flag of an activity has more than {ACTIVITY_BYTES_MAX} bytes."
        )
    if message.changes >= 1 << 63:
        raise MalformedMessage(f"An activity counts {message.changes}; the maximum is 2^63 - 1.")
    kind = message.WhichOneof("value")
    if kind == "changes":
        return CountedActivity(message.identity.hex(), message.changes)
    if kind == "flag":
        return FlaggedActivity(message.identity.hex(), message.flag.hex())
    return UnknownActivity(
        message.unknown or "the source says nothing that this release understands"
    )
