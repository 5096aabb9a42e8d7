"""Files are divided among tasks by bytes, as Spark's own file sources do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning.task_shares import OPEN_BYTES, TASK_BYTES, task_bytes, task_shares

MIB = 1 << 20


def test_few_small_files_are_one_task() -> None:
    assert task_shares([], 2) == []
    assert task_shares([100], 8) == [slice(0, 1)]
    assert task_shares([100] * 3, 1) == [slice(0, 3)]


def test_all_that_run_at_once_have_work() -> None:
    assert task_shares([40 * MIB] * 4, 2) == [slice(0, 2), slice(2, 4)]
    assert task_shares([40 * MIB] * 4, 4) == [slice(n, n + 1) for n in range(4)]
    assert task_shares([40 * MIB] * 4, 4, tasks_max=2) == [slice(0, 2), slice(2, 4)]
    assert task_shares([40 * MIB] * 4, None) == task_shares([40 * MIB] * 4, 8)


def test_a_large_table_is_many_tasks() -> None:
    assert task_bytes([TASK_BYTES] * 100, 2) == TASK_BYTES
    assert len(task_shares([TASK_BYTES - OPEN_BYTES] * 100, 2)) == 100


@given(
    st.lists(st.integers(0, 300 * MIB), min_size=1, max_size=50),
    st.integers(1, 16) | st.none(),
    st.integers(1, 5) | st.none(),
)
def test_each_file_is_in_one_task(
    sizes: list[int], at_once: int | None, tasks_max: int | None
) -> None:
    shares = task_shares(sizes, at_once, tasks_max)
    assert [n for share in shares for n in range(*share.indices(len(sizes)))] == [
        *range(len(sizes))
    ]
    assert all(share.start < share.stop for share in shares)
    assert len(shares) <= (tasks_max or len(sizes))
