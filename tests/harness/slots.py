"""Whether an SQL text is a template of `explain` whose slots are filled as its lines say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from source_agent.engines.relations.predicates import ANY, COLUMNS, EQUALITY, OPERATOR, ROWS

_ORDER = r"(?:=|<>|<=|>=|<|>)"
_VALUE = r"(?:'(?:[^'\\]|''|\\.)*'|-?\d+|%s|\?)"  # bound by the driver, or its placeholder


def flat(sql: str) -> str:
    """A text on one line."""
    return " ".join(sql.split()).removesuffix(";")


def fills(sql: str, template: str, *, reads: Sequence[str], forms: Sequence[str]) -> bool:
    """Whether a text is a template with slots filled by some of `reads` and `forms`."""
    # The comma before them and their aliases belong to the columns.
    template = re.sub(rf", {re.escape(COLUMNS)}(?: AS c\d+)?", COLUMNS, template)
    pattern = re.escape(flat(template)).replace(r"\ ", " ")
    for slot, name in ((COLUMNS, "columns"), (ROWS, "rows")):
        escaped = re.escape(slot)
        if pattern.count(escaped) > 1:
            return False
        pattern = pattern.replace(escaped, rf"(?P<{name}>.*)")
    pattern = pattern.replace("%s", r".+?").replace(ANY, r".+?")
    found = re.fullmatch(pattern, flat(sql), re.DOTALL)
    if found is None:
        return False
    slots = found.groupdict()
    if "columns" in slots and not _is_list(slots["columns"], [flat(read) for read in reads]):
        return False
    return "rows" not in slots or _is_condition(slots["rows"], [Form.of(f) for f in forms])


def _is_list(text: str, reads: Sequence[str]) -> bool:
    """Whether a text is some of these expressions, in their order, each behind a comma."""
    for read in reads:
        if match := re.match(", " + re.escape(read) + r"(?: AS c\d+)?(?=, |$)", text):
            text = text[match.end() :]
    return not text


@dataclass(frozen=True)
class Form:
    """What may stand in a condition: a comparison, or a join around another condition."""

    before: re.Pattern[str]
    behind: re.Pattern[str] | None = None

    @classmethod
    def of(cls, written: str) -> Form:
        """The form that a line of `explain` shows."""
        before, is_join, behind = flat(written).partition(ROWS)
        return cls(_pattern(before), _pattern(behind) if is_join else None)

    def end(self, text: str, at: int, forms: Sequence[Form]) -> int:
        """Where it ends in a text; -1: it does not stand there."""
        if (found := self.before.match(text, at)) is None:
            return -1
        if self.behind is None:
            return found.end()
        inner = _condition(text, found.end(), forms)
        behind = self.behind.match(text, inner) if inner >= 0 else None
        return -1 if behind is None else behind.end()


def _pattern(form: str) -> re.Pattern[str]:
    """The pattern of one comparison, or of a part of a join."""
    text = re.escape(flat(form)).replace(r"\ ", " ")
    text = text.replace(re.escape(OPERATOR), _ORDER).replace(re.escape(EQUALITY), "(?:=|<>)")
    text = text.replace(re.escape(ANY), r"\d+")
    place = r"%s|\\\?"
    if listed := re.search(rf"IN \\\(((?:(?!\\\)$).)*(?:{place})(?:(?!\\\)$).)*)\\\)$", text):
        one = listed[1]
        text = f"{text[: listed.start(1)]}{one}(?:, {one})*{text[listed.end(1) :]}"
    return re.compile(re.sub(place, lambda _: _VALUE, text))


def _is_condition(text: str, forms: Sequence[Form]) -> bool:
    """Whether a text is comparisons in AND, OR, NOT and parentheses, and nothing else."""
    end = _condition(text, 0, forms)
    return end == len(text)


def _condition(text: str, at: int, forms: Sequence[Form]) -> int:
    """The end of the condition that begins at a place; -1: there is none."""
    at = _operand(text, at, forms)
    while at >= 0 and (word := re.compile(r" (?:AND|OR) ").match(text, at)):
        at = _operand(text, word.end(), forms)
    return at


def _operand(text: str, at: int, forms: Sequence[Form]) -> int:
    ends = [end for form in forms if (end := form.end(text, at, forms)) >= 0]
    if ends:
        return max(ends)
    opened = re.compile(r"(?:NOT )?\(").match(text, at)
    if opened is None:
        return -1
    at = _condition(text, opened.end(), forms)
    return at + 1 if at >= 0 and text[at : at + 1] == ")" else -1


class Templates:
    """What `explain` printed of one relation."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.reads: list[str] = []
        self.forms: list[str] = []
        filled: list[str] = []
        for line in lines:
            if line.startswith(f"-- {COLUMNS}"):
                filled = self.reads
            elif line.startswith(f"-- {ROWS}"):
                filled = self.forms
            elif line.startswith("--   "):
                filled.append(line.removeprefix("--   "))
        text = "\n".join(line for line in lines if not line.startswith("-- "))
        self.statements = [t for t in re.split(r";\n", text + "\n") if COLUMNS in t or ROWS in t]

    def has(self, sql: str) -> bool:
        """Whether a statement is one of the templates, its slots filled as `explain` says."""
        return any(
            fills(sql, template.replace("%%", "%"), reads=self.reads, forms=self.forms)
            for template in self.statements
        )


def explained(script: str) -> list[Templates]:
    """What `explain` printed of each relation."""
    found: list[list[str]] = []
    for line in script.splitlines():
        if line.startswith("-- relation "):
            found.append([])
        elif found:
            found[-1].append(line)
    return [Templates(lines) for lines in found]
