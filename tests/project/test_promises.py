"""No promise is lost when pages are cut: each one listed stands where the list says."""

from __future__ import annotations

import pytest

from tests.project.promises import (
    LIST,
    Promise,
    listed,
    paragraphs,
    stands,
    texts_of_pages,
    written,
)

LINES = listed(LIST.read_text(encoding="utf-8"))
PROMISES = [line for line in LINES if isinstance(line, Promise)]


def test_every_promise_stands_where_the_list_says() -> None:
    texts = texts_of_pages()
    lost = {}
    for promise in PROMISES:
        places = stands(promise, texts)
        if not promise.places or not set(promise.places) <= set(places):
            lost[promise.text] = places or "in no page"
    assert not lost, "python -m tests.project.promises places them again"


def test_the_list_is_one() -> None:
    assert len(PROMISES) >= 300
    assert all(promise.words for promise in PROMISES), "which words have to stand there?"
    assert len({promise.text for promise in PROMISES}) == len(PROMISES)
    assert written(LINES) == LIST.read_text(encoding="utf-8")


PAGE = """# A page
One line, and
another [with](x.md) `code`.

## Two words, *now*
| a | b |
|---|---|
| never | more |
- an item of **ten** rows
```sh
never said
```
"""


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("It is **and another with code**.", ["p.md"]),
        ("**Never** again and **more**.", ["p.md#two-words-now"]),
        ("**Never** and **ten rows** are in two items.", []),
        ("**TEN rows**", ["p.md#two-words-now"]),
        ("**never said** in a block", []),
    ],
)
def test_a_promise_stands_in_one_paragraph(text: str, places: list[str]) -> None:
    assert stands(Promise(text), {"p.md": PAGE}) == places
    assert len(paragraphs(PAGE)) == 5


def test_a_list_is_read_as_it_was_written() -> None:
    link = "[types.md#not-null](../../docs/types.md#not-null)"
    text = f"# List\n- It **is**. → {link}, [c.md](../../c.md)\n"
    assert listed(text) == ["# List", Promise("It **is**.", ("docs/types.md#not-null", "c.md"))]
    assert written(listed(text)) == text
