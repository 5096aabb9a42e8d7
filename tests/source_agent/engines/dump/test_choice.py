"""Which file is read: the newest complete one, never by chance."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline import errors
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.dump.choice import CandidateFile, newest, pattern, text_of
from source_agent.engines.relations.shapes import Files

S = 10**9
MARKED = Files("a-*.csv", Path("f"), "{file}.done")
SETTLED = Files("a-*.csv", Path("f"), settle_s=300)
DATED = Files("a-{%Y%m%dT%H%M}*.csv", Path("f"), "{file}.done")
TIMES = st.integers(0, 50).map(lambda s: s * S)
CANDIDATES = st.lists(
    st.tuples(TIMES, TIMES, st.none() | TIMES), unique_by=lambda t: t[0], max_size=8
).map(
    lambda found: [
        CandidateFile(f"a-{i}.csv", 1, mtime, ctime, marked)
        for i, (mtime, ctime, marked) in enumerate(found)
    ]
)


@given(CANDIDATES, st.integers(0, 400))
def test_the_newest_complete_file_is_chosen(candidates: list[CandidateFile], now_s: int) -> None:
    for files in (MARKED, SETTLED):
        if files is MARKED:
            complete = [c for c in candidates if c.marked_ns is not None]
            complete = [c for c in complete if (c.marked_ns or 0) >= c.mtime_ns]
        else:
            complete = [c for c in candidates if now_s * S - max(c.mtime_ns, c.ctime_ns) >= 300 * S]
        named = pattern(files, "r")
        if not complete:
            with pytest.raises(errors.DatabaseUnavailable):
                newest(candidates, files, named, now_s * S)
            continue
        (found,), at = newest(candidates, files, named, now_s * S)
        assert found == max(complete, key=lambda c: c.mtime_ns)
        assert at == found.mtime_ns


def test_two_files_of_one_instant_are_refused() -> None:
    two = [CandidateFile("a-1.csv", 1, S, S, S), CandidateFile("a-2.csv", 1, S, S, S)]
    with pytest.raises(errors.DatabaseRefused, match=r"'a-1.csv' and 'a-2.csv' .*1970-01-01T00:00"):
        newest(two, MARKED, pattern(MARKED, "r"), 9 * S)
    older = [*two, CandidateFile("a-3.csv", 1, 2 * S, S, 2 * S)]
    assert newest(older, MARKED, pattern(MARKED, "r"), 9 * S)[0][0].name == "a-3.csv"


def test_the_time_is_in_the_name() -> None:
    named = pattern(DATED, "r")
    names = ["a-20241231T2300.csv", "a-20250101T0000-b.csv", "a-20240101T0000.csv"]
    candidates = [CandidateFile(name, 1, (9 - i) * S, S, 99 * S) for i, name in enumerate(names)]
    (found,), at = newest(candidates, DATED, named, 99 * S)
    assert (found.name, text_of(at)) == (names[1], "2025-01-01T00:00:00.000Z")
    assert not named.matches("a-2025010T0000.csv")
    assert not named.matches("a-20250101T0000.csv.done")
    wrong = [CandidateFile("a-20251301T0000.csv", 1, S, S, S)]
    with pytest.raises(errors.DatabaseRefused, match="'20251301T0000'"):
        newest(wrong, DATED, named, S)


def test_a_marker_of_the_version_before_completes_nothing() -> None:
    again = [CandidateFile("a-1.csv", 1, 5 * S, 5 * S, 4 * S)]
    with pytest.raises(errors.DatabaseUnavailable, match=r"'a-1.csv.done' is older than the file"):
        newest(again, MARKED, pattern(MARKED, "r"), 9 * S)


def test_a_file_with_an_old_mtime_may_still_be_written() -> None:
    copied = [CandidateFile("a-1.csv", 1, S, 999 * S)]
    with pytest.raises(errors.DatabaseUnavailable, match="changed 1 s ago"):
        newest(copied, SETTLED, pattern(SETTLED, "r"), 1000 * S)
