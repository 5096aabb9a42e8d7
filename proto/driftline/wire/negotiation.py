"""Agree on protocol and features between two releases (protocol, section 9, "Versions").

The agents are upgraded by two people on two days, so either may be older. Three rules:

1. A source names its protocols and features in every `DescribeReply`. A source that names none is
   older than this rule: it speaks protocol 1 and has no feature.
2. A source refuses unknown features and unknown fields by name. It never ignores them: the
   warehouse would believe that they were observed. So a warehouse asks in `Open` only for features
   that the source has named, or that it cannot do without.
3. A warehouse ignores unknown fields of a reply: a newer source may say more. What it must not
   overlook is therefore a feature, sent only on request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from driftline.errors import VersionMismatch
from driftline.limits import PROTOCOL_VERSION, SAMPLES_MAX

PROTOCOLS = (PROTOCOL_VERSION,)  # all that this release speaks, ascending
PROTOCOLS_UNNAMED = (1,)  # what a source speaks that names none

SINCE = "since"
CHECKSUM = "checksum"
CLAIMED = "claimed"
FOLLOWING = "following"
LATER = "later"
REFERRING = "referring"
BRIEF = "brief"
CHUNKS = "chunks"
DEFLATE = "deflate"

# What the source does on request, by the feature's name. A name keeps its meaning: a feature that
# changes gets a new name.
FEATURES: Mapping[str, str] = {
    "between": "tiles between two keys that are not one integer",
    DEFLATE: "a derivation that comes compressed",
    "derive": "columns and rows that a warehouse chooses, where the DBA lets it",
    SINCE: "rows behind a mark, beside the keys of all rows",
    CHECKSUM: "rows compared by a checksum that the source maintains",
    CLAIMED: "rows behind a mark alone, where the DBA says how rows are deleted",
    "references": "foreign keys between published relations, said by every description",
    "keys": "parts of a relation whose rows are named by their keys",
    FOLLOWING: "relations that are to follow in a stream, locked before its snapshot",
    CHUNKS: "rows of an unfinished load that are listed by chunks, and do not come again",
    REFERRING: "rows chosen by rows that reference them, described for relations that are named",
    LATER: "sums of a warehouse that come after its opening, awaited behind the scan",
    BRIEF: "strata that come from the source where it is needed, and no empty list of deleted keys",
}

WHERE_NAMED = (BRIEF, DEFLATE)  # that openings ask a source for which named them

FEATURE_CHARACTERS_MAX = 64  # of a name that is shown in an error

_REMEDY = "Install the same release on both sides, or the newer one at the source first."


@dataclass(frozen=True, slots=True)
class Agreement:
    """The protocol and the features, in order of name, that both sides speak."""

    protocol: int = PROTOCOL_VERSION
    features: tuple[str, ...] = ()


def is_negotiable(
    protocols: Collection[int] = PROTOCOLS, *, features: Collection[str] = ()
) -> bool:
    """Return True if a warehouse must ask first what the source names; else it saves a round trip.

    Args:
        protocols: all that it speaks.
        features: those that it would use and can do without. One that it cannot do without is no
            choice: a source that lacks it refuses the `Open`.
    """
    return len(protocols) > 1 or bool(features)


def agree(
    protocols: Iterable[int],
    features: Iterable[str],
    *,
    our_protocols: Collection[int] = PROTOCOLS,
    our_features: Collection[str] = FEATURES,
) -> Agreement:
    """Choose the highest protocol that both sides speak, and the features that both have.

    The warehouse passes what `DescribeReply` names; no protocols mean PROTOCOLS_UNNAMED. Raises
    VersionMismatch if there is no common protocol.
    """
    theirs = set(protocols) or set(PROTOCOLS_UNNAMED)
    both = theirs & set(our_protocols)
    if not both:
        raise VersionMismatch(
            f"The source speaks protocol {_listed(theirs)}, "
            f"this warehouse {_listed(our_protocols)}.",
            remedy="Install the same release on both sides.",
            details={"versions": _listed(theirs)},
        )
    return Agreement(max(both), tuple(sorted(set(features) & set(our_features))))


def check_protocol(protocol: int) -> None:
    """Raise VersionMismatch, naming our protocols, for one that this source does not speak."""
    if protocol not in PROTOCOLS:
        raise VersionMismatch(
            f"The warehouse speaks protocol {protocol}, this source {_listed(PROTOCOLS)}.",
            remedy="Install the same release on both sides.",
            details={"versions": _listed(PROTOCOLS)},
        )


def check_features(asked: Iterable[str], known: Collection[str] = FEATURES) -> None:
    """Raise VersionMismatch, with up to SAMPLES_MAX names, for features that this source lacks."""
    if unknown := sorted(set(asked) - set(known)):
        raise VersionMismatch(
            f"The warehouse asks for {_shown(unknown)}, which this source does not have.",
            remedy=_REMEDY,
            details={"features": ", ".join(sorted(known)) or "none"},
        )


def check_fields(message: Message) -> None:
    """Raise VersionMismatch, with up to SAMPLES_MAX names, for fields of a newer release."""
    if unknown := list(unknown_fields(message)):
        raise VersionMismatch(
            f"The warehouse sent {_shown(unknown)}, which this source does not know.",
            remedy=_REMEDY,
        )


def unknown_fields(message: Message) -> Iterator[str]:
    """Yield each field that the schema lacks as `Message.number`, also in nested messages."""
    descriptor = message.DESCRIPTOR
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        yield f"{descriptor.name}.{unknown[index].field_number}"
    for name, is_repeated in _message_fields(descriptor):
        if is_repeated:
            for inner in getattr(message, name):
                yield from unknown_fields(inner)
        elif message.HasField(name):
            yield from unknown_fields(getattr(message, name))


@cache
def _message_fields(descriptor: Descriptor) -> tuple[tuple[str, bool], ...]:
    """Return (name, is repeated) of each field that holds messages; maps are none."""
    return tuple(
        (field.name, field.is_repeated)
        for field in descriptor.fields
        if field.message_type is not None and not field.message_type.GetOptions().map_entry
    )


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _shown(names: list[str]) -> str:
    shown = [repr(name[:FEATURE_CHARACTERS_MAX])[1:-1] for name in names[:SAMPLES_MAX]]
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
