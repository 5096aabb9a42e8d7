"""The policies under which the source's login sees a relation: kept with a version, and compared.

The record of a version has the policies under which its rows were read. When other policies apply,
rows appear or disappear that nobody inserted or deleted. A refresh refuses that, like a change of
columns, until it is accepted. A version without policies in its record adopts the first that the
source sends; a refresh that makes no new version keeps them in the fragment's notes. A source that
sends none (an older one, or an engine without row security) changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from driftline.errors import MalformedMessage, RecipeChanged
from driftline.limits import NAME_BYTES_MAX, POLICIES_MAX
from driftline.peer_text import visible

if TYPE_CHECKING:
    from driftline import wire_pb2 as pb

_DIGEST_BYTES, _POLICY_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class PolicyDigests:
    """The policies of a relation: a hexadecimal digest of all, and one of the text of each.

    `policies` has the first POLICIES_MAX, by table and name.
    """

    digest: str
    policies: dict[tuple[str, str], str]

    @property
    def hides(self) -> bool:
        """Return True if policies decide which rows the source's login sees."""
        return bool(self.policies)

    @classmethod
    def from_message(cls, message: pb.Description | pb.Finished) -> Self | None:
        """Return the policies in a message; None if it has none. Raises MalformedMessage."""
        if not message.HasField("row_security"):
            return None
        sent = message.row_security
        is_bounded = len(sent.policies) <= POLICIES_MAX and all(
            len(p.digest) <= _POLICY_BYTES and len((p.table + p.name).encode()) <= NAME_BYTES_MAX
            for p in sent.policies
        )
        if len(sent.digest) != _DIGEST_BYTES or not is_bounded:
            raise MalformedMessage("The row security that the source sent is malformed.")
        digests = {(_clean(p.table), _clean(p.name)): p.digest.hex() for p in sent.policies}
        return cls(sent.digest.hex(), digests)

    @classmethod
    def from_json(cls, body: object) -> Self | None:
        """Return the policies that `to_json` wrote; None if there are none or they are damaged."""
        try:
            assert isinstance(body, dict)
            digests = {(str(t), str(n)): str(d) for t, n, d in body["policies"]}
            return cls(str(body["digest"]), digests)
        except (AssertionError, KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the policies as JSON, for a version's record and for notes."""
        rows = [[table, name, digest] for (table, name), digest in self.policies.items()]
        return {"digest": self.digest, "policies": rows}


def refuse_changed(before: PolicyDigests | None, now: PolicyDigests | None, name: str) -> None:
    """Raise RecipeChanged if the policies are not those under which a version was read."""
    differences = changes(before, now)
    if not differences:
        return
    raise RecipeChanged(
        f"Row security changed for the source's login: {'; '.join(differences)}.",
        where=name,
        remedy=f"To go on: driftline refresh {name} --accept-schema",
        details={f"change {i + 1}": text for i, text in enumerate(differences)},
    )


def changes(before: PolicyDigests | None, now: PolicyDigests | None) -> list[str]:
    """Return the changes, a phrase per policy; none if one of the two is not known."""
    if before is None or now is None or before.digest == now.digest:
        return []
    return list(_changes(before, now)) or ["policies that are not named here changed"]


def _changes(before: PolicyDigests, now: PolicyDigests) -> Iterator[str]:
    for (table, name), digest in now.policies.items():
        what = f"policy {name} of {table}" if name else f"no policy of {table}"
        if (table, name) not in before.policies:
            yield f"{what} applies now" if name else f"{what} shows the login a row"
        elif before.policies[table, name] != digest:
            yield f"{what} changed"
    for table, name in sorted(before.policies.keys() - now.policies.keys()):
        if name:
            yield f"policy {name} of {table} no longer applies"
        elif not any(other == table for other, _ in now.policies):
            yield f"{table} no longer hides its rows"


def _clean(text: str) -> str:
    """Return text of the other side as one line, with terminal control characters escaped."""
    return visible(text).replace("\n", r"\x0a")
