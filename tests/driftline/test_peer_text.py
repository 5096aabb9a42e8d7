"""Streams that lack characters get escapes, and JSON stays JSON."""

from __future__ import annotations

import io
import json

import pytest
from driftline.peer_text import escape_in


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("text", ["é", "😀", "…", "\udcff", "plain"])
def test_every_text_can_be_written(encoding: str, text: str) -> None:
    made = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    escape_in(made, io.StringIO())
    made.write(json.dumps(text, ensure_ascii=False))
    made.seek(0)
    assert json.loads(made.buffer.read().decode(encoding)) == text
