"""The canonical text of a predicate (protocol, section 5), slowly, from its JSON form."""

from __future__ import annotations

from typing import Any


def canonical_text(node: dict[str, Any]) -> str:
    """Return the text of the predicate that stands in JSON."""
    kind, operands = simplified(node)
    if kind in {"AND", "OR"}:
        return f" {kind} ".join("(" + operand + ")" for operand in operands)
    return operands[0]


def simplified(node: dict[str, Any]) -> tuple[str, list[str]]:
    """Return AND, OR, NOT or "", and the texts of the operands; of NOT and "", the text itself."""
    if "comparison" in node:
        return "", [compared(**node["comparison"])]
    if "negated" in node:
        kind, operands = simplified(node["negated"])
        if kind == "NOT":  # of a NOT: what that one negates
            return inside(operands[0])
        return "NOT", ["NOT (" + canonical_text(node["negated"]) + ")"]
    ((name, listed),) = node.items()
    word = {"every": "AND", "some": "OR"}[name]
    found: set[str] = set()
    kinds: dict[str, tuple[str, list[str]]] = {}
    for part in listed["parts"]:
        kind, operands = simplified(part)
        if kind == word:
            found |= set(operands)
        else:
            text = canonical_text(part)
            found.add(text)
            kinds[text] = (kind, operands)
    texts = sorted(found)
    if len(texts) == 1:
        return kinds.get(texts[0]) or inside_any(texts[0])
    return word, texts


def inside(text: str) -> tuple[str, list[str]]:
    """Return what a text "NOT (…)" negates."""
    return inside_any(text.removeprefix("NOT (")[:-1])


def inside_any(text: str) -> tuple[str, list[str]]:
    """Return a text's word and operands: its outermost AND or OR, outside of quotes."""
    operands, depth, start, quote, word = [], 0, 0, "", ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif depth == 0 and text[start] == "(" and character == " ":
            for each in ("AND", "OR"):
                if text[place:].startswith(f" {each} "):
                    operands.append(text[start + 1 : place - 1])
                    start, word = place + len(each) + 2, each
    if word:
        return word, [*operands, text[start + 1 : -1]]
    return ("NOT" if text.startswith("NOT (") else ""), [text]


def compared(column: str, operator: str, values: list[str] | None = None) -> str:
    """Return the text of a comparison."""
    name = '"' + column.replace('"', '""') + '"'
    literals = ["'" + value.replace("'", "''") + "'" for value in values or ()]
    if operator == "IN":
        chosen = sorted(set(values or ()))
        literals = ["'" + value.replace("'", "''") + "'" for value in chosen]
        if len(literals) > 1:
            return f"{name} IN ({', '.join(literals)})"
        operator = "="
    return " ".join([name, operator, *literals])
