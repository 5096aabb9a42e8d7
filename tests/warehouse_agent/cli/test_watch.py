"""`watch` shows what the record of a running command says, in any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.cli.watch import lines_of
from warehouse_agent.history.command_records import (
    DONE,
    FAILED,
    LEFT,
    WORKING,
    CommandRecord,
    FragmentWork,
)

NOW = 1_700_000_000.0
HELD = "held back by the source for 7 s"
WHO = "process 7 of erp on host"


def record(works: dict[str, FragmentWork]) -> CommandRecord:
    names = (*works, "later")
    return CommandRecord("r", NOW - 3700, WHO, names, NOW - 3, works, is_running=True)


def test_a_running_command() -> None:
    works = {
        "orders": FragmentWork(DONE, since=NOW - 90),
        "items": FragmentWork(
            WORKING, "exchange", NOW - 42, "scan", 5_000, 20_000, 7.0, left_s=203.0
        ),
        "sites": FragmentWork(WORKING, since=NOW - 1),
        "ledger": FragmentWork(FAILED, since=NOW - 50, code="LOCKED"),
        "docks": FragmentWork(LEFT, since=NOW - 50),
    }
    assert lines_of(record(works), NOW, 120) == [
        f"{WHO}, for 1 h 1 min: 1 of 6 tables done, 1 failed",
        "  ledger  failed: LOCKED",
        "  items   exchange for 42 s, about 3 min left, scan 5,000 of about 20,000 rows, " + HELD,
        "  sites   begins for 1 s",
    ]


@given(st.dictionaries(st.text(min_size=1, max_size=90), st.sampled_from([WORKING, FAILED])),
       st.integers(10, 200))  # fmt: skip
def test_any_width(states: dict[str, str], width: int) -> None:
    works = {name: FragmentWork(state, "apply", NOW - 9) for name, state in states.items()}
    lines = lines_of(record(works), NOW, width)
    assert len(lines) == 1 + len(works)
    assert max(map(len, lines)) <= width


def test_what_is_left_gets_less_between_two_lines() -> None:
    """A record has a line each ten seconds; what it said is older when it is read."""
    works = {"orders": FragmentWork(WORKING, "apply", NOW - 9, left_s=33.0)}
    shown = [lines_of(record(works), NOW + later, 100)[1].split(", ")[1] for later in (0, 20, 99)]
    assert shown == ["about 30 s left", "about 10 s left", "less than 10 s left"]
