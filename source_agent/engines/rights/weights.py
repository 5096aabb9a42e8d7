"""What `check` says of a right: needed, too much, or a note, by one rule for all engines; no I/O.

A right counts whoever holds it for the login: itself, a role of which it is a member, whether its
rights are inherited or need SET ROLE, or PUBLIC. What PUBLIC or a mandatory role has is a note: all
other logins have it as well, so taking it away is a decision about them. The catalogue's own
grants, without which no login could work, are nothing to say; each engine leaves them out.
"""

from __future__ import annotations

from source_agent.engines.interface import Privilege


def weigh(
    what: str,
    *,
    needed: bool = False,
    role: str = "",
    public: bool = False,
    mandatory: bool = False,
    grantable: bool = False,
) -> Privilege:
    """Return a right as `check` shows it.

    `role`: the one that holds it for the login; empty: the login itself. `mandatory`: that role is
    one of all logins. `grantable`: it can be passed on, which is never needed.
    """
    text = f"{what} with GRANT OPTION" if grantable else what
    if public:
        text += ", which PUBLIC has"
    elif role:
        text += f", by role {role}{', which is mandatory' if mandatory else ''}"
    is_enough = needed and not grantable
    is_everyones = public or mandatory
    return Privilege(
        text, excess=not (is_enough or is_everyones), is_note=is_everyones and not is_enough
    )
