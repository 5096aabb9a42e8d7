"""Firebird: bare columns as firebird-driver returns them, with the server's own conversion of text.

An index is read in its own direction alone, so the last keys are not asked for.
"""

from __future__ import annotations

from typing import Any

from source_agent.engines.own_values.reading import PLACE, NotComparable, SessionValues
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Shape


class FirebirdValues(SessionValues):
    """Read as firebird-driver does."""

    limit = f"\nROWS {PLACE}"
    reads_backwards = False

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        del published
        plan = plan_of(shape)
        is_cast = plan.reads[number] != self.column(shape, number)
        if isinstance(value, str) and plan.forms[number] == "shown" and is_cast:
            raise NotComparable("it is read as the digits of its bytes, and the driver decodes it")
        return value
