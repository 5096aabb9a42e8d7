"""`explain`: print every SQL text that the agent can issue.

Of several relations a line for each; all texts of one that is named, or of all.
"""

from __future__ import annotations

from collections.abc import Sequence

from driftline.peer_text import one_line
from driftline.text_tables import table

from source_agent.checks.statements import EVERY_SESSION, RELATION, StatementSection

HEADINGS = ("relation", "texts", "the first")
_ASKED = "-- The agent issues these statements to describe it:"
_TEXT_CHARACTERS_MAX = 200


def as_text(sections: Sequence[StatementSection]) -> str:
    """Return the statements as text; headings are SQL comments."""
    lines: list[str] = []
    for section in sections:
        lines.append(f"-- {section.heading}")
        if section.error is not None:
            reason = " ".join(section.error.split())
            lines += [f"-- cannot be served: {reason}", _ASKED, ""]
        if section.slots:
            lines += ["-- A warehouse may fill these slots (derive):"]
            lines += [f"-- {line}" for slot in section.slots for line in slot.splitlines()]
            lines.append("")
        for sql in section.statements:
            lines += [sql.strip().removesuffix(";") + ";", ""]
        lines.append("")
    return "\n".join(lines).rstrip()


def table_of(sections: Sequence[StatementSection], width: int, colours: bool) -> str:
    """Return a line for each section: the number of texts, and the first one, or that it fails;
    those first that cannot be served.

    Args:
        width: characters in a line.
        colours: mark what cannot be served by a colour of a terminal.
    """
    ordered = sorted(sections, key=lambda one: one.error is None)
    failing = [one for one in ordered if one.error is not None]
    marked = ["red"] * len(failing) if colours else []
    rows = [_cells(section) for section in ordered]
    name = next((row[0] for row in rows if row[0] != EVERY_SESSION), EVERY_SESSION)
    return "\n".join(
        [
            *table(HEADINGS, rows, width, numbers=HEADINGS[1:2], colours=marked),
            f"All texts: driftline-source explain {name}, or --verbose.",
        ]
    )


def _cells(section: StatementSection) -> tuple[str, str, str]:
    name = section.heading.removeprefix(RELATION)
    number = f"{len(section.statements):,}"
    if section.error is not None:
        return name, number, "FAILED"
    first = section.statements[0] if section.statements else ""
    return name, number, one_line(" ".join(first.split()), _TEXT_CHARACTERS_MAX)
