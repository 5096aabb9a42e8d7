"""The place of a step, as a table: what runs where, and what decided."""

from __future__ import annotations

import pytest

from warehouse_agent.planning.step_places import (
    JOB_S,
    MANY_FILES,
    PROCESS_BYTES,
    PROCESS_MEMORY,
    RATES,
    PlacedStep,
    PlaceReason,
    StepKind,
    StepPlace,
    StepResources,
    StepWork,
    by_bytes,
    by_prediction,
    driver_s,
    in_processes,
    joining,
    local_start_s,
    tasks_s,
)

MIB, GIB = 1 << 20, 1 << 30
DRIVER, SPARK = StepPlace.DRIVER, StepPlace.SPARK
READ, WRITE, DIGESTS = StepKind.READ, StepKind.WRITE, StepKind.DIGESTS

START_S = local_start_s(2)
COLD = StepResources(2, 32 * GIB, 2, START_S, START_S)  # local, no session
WARM = StepResources(2, 32 * GIB, 2, 0.0, START_S)
CLUSTER = StepResources(2, 32 * GIB, 8, 0.0, 0.0)


@pytest.mark.parametrize(
    ("there", "kind", "size", "place"),
    [
        *((there, kind, 1 * MIB, DRIVER) for there in (COLD, WARM, CLUSTER) for kind in StepKind),
        *((there, kind, 32 * MIB, DRIVER) for there in (COLD, WARM) for kind in (READ, WRITE)),
        (COLD, READ, 750 * MIB, DRIVER),  # 3 M rows of lineitem
        (COLD, WRITE, 750 * MIB, DRIVER),
        (WARM, READ, 750 * MIB, DRIVER),  # in processes
        (WARM, READ, 2 * GIB, SPARK),
        (WARM, WRITE, 750 * MIB, DRIVER),
        (CLUSTER, READ, 750 * MIB, SPARK),
        (CLUSTER, WRITE, 750 * MIB, SPARK),
        (COLD, READ, 10 * GIB, DRIVER),
        (COLD, READ, 24 * GIB, SPARK),
        (COLD, DIGESTS, 9 * MIB, DRIVER),
        (COLD, DIGESTS, 300 * MIB, DRIVER),  # 100 M rows
    ],
)
def test_the_place_of_a_step(
    there: StepResources, kind: StepKind, size: int, place: StepPlace
) -> None:
    found = by_prediction(StepWork(kind, size), there)
    assert (found.place, found.reason) == (place, PlaceReason.SECONDS)
    assert found.driver_s is not None
    assert found.spark_s is not None
    assert found.place is (SPARK if found.driver_s > found.spark_s else DRIVER)


@pytest.mark.parametrize("there", [COLD, WARM, CLUSTER])
def test_more_than_the_drivers_share_is_sparks(there: StepResources) -> None:
    for work in (
        StepWork(WRITE, there.memory + 1),
        StepWork(READ, 1000, held=there.memory + 1),
        StepWork(DIGESTS, there.memory + 1, files=1),
    ):
        found = by_prediction(work, there)
        assert (found.place, found.reason) == (SPARK, PlaceReason.MEMORY)
        assert (found.size, found.limit) == (there.memory + 1, there.memory)
        assert found.needs_spark
        assert "driver's share of memory" in found.because
    assert by_prediction(StepWork(WRITE, 1000, held=there.memory), there).place is DRIVER


def test_what_needs_spark_needs_it_without_a_session() -> None:
    """A session that happens to be there draws a step to it, which then asks for none next time."""
    work = StepWork(READ, 2 * GIB)
    assert by_prediction(work, WARM).place is SPARK
    assert not by_prediction(work, WARM).needs_spark
    assert not by_prediction(work, COLD).needs_spark
    assert by_prediction(work, CLUSTER).needs_spark
    assert by_prediction(StepWork(READ, 24 * GIB), WARM).needs_spark


def test_one_task_reads_a_file() -> None:
    one, many = (tasks_s(StepWork(READ, GIB, files), 8) for files in (1, MANY_FILES))
    assert one == pytest.approx(8 * many)
    assert tasks_s(StepWork(READ, GIB, 3), 8) == pytest.approx(one / 3)


def test_each_thread_helps_less_than_the_first() -> None:
    for kind in StepKind:
        seconds = [driver_s(StepWork(kind, GIB), threads) for threads in (0, 1, 2, 4)]
        assert seconds[0] == seconds[1] > seconds[2] > seconds[3] > seconds[1] / 4
        assert 0 < RATES[kind].gain <= 1


def test_large_steps_that_read_have_processes() -> None:
    """Two are faster than two threads, unless they would take all of the driver's share."""
    most = 4 * PROCESS_MEMORY
    for kind in StepKind:
        works = [StepWork(kind, size) for size in (PROCESS_BYTES - 1, PROCESS_BYTES)]
        found = [in_processes(work, 4, most) for work in works]
        assert found == [False, kind is READ]
        threads, processes = (driver_s(works[1], 4, memory) for memory in (most - 1, most))
        assert (processes < threads) == (kind is READ)
        assert driver_s(works[1], 1, most) == driver_s(works[1], 1)
    assert not in_processes(StepWork(READ, GIB), 1, GIB)
    assert not in_processes(StepWork(READ, GIB), 4, most - 1)


def test_a_step_goes_to_spark_where_it_ends_first_and_stays_there_as_it_grows() -> None:
    for there in (COLD, WARM, CLUSTER):
        for kind in StepKind:
            places = [by_prediction(StepWork(kind, 1 << n), there).place for n in range(8, 40)]
            assert places == sorted(places), "first the driver's, then Spark's"
            assert places[0] is DRIVER
            assert places[-1] is SPARK


@pytest.mark.parametrize(
    ("small_bytes", "size", "place"),
    [
        (0, 0, SPARK),
        (0, 1, SPARK),
        (1000, 1000, DRIVER),
        (1000, 1001, SPARK),
        (1 << 50, 7 * GIB, DRIVER),
    ],
)
def test_a_setting_alone_decides(small_bytes: int, size: int, place: StepPlace) -> None:
    found = by_bytes(StepWork(READ, size, held=1 << 60), small_bytes)
    assert (found.place, found.reason, found.needs_spark) == (
        place,
        PlaceReason.BYTES,
        place is SPARK,
    )
    assert found.why == f"{size:,} bytes, and `small_bytes` is {small_bytes:,}"


def test_a_start_takes_longer_on_fewer_cores() -> None:
    seconds = [local_start_s(cores) for cores in (0, 1, 2, 4, 64)]
    assert seconds[0] == seconds[1] > seconds[2] > seconds[3] == seconds[4]


def test_words() -> None:
    found = PlacedStep(DRIVER, PlaceReason.SECONDS, 5, False, None, 1.84, 9.36, 6.0)
    assert found.why == "driver 1.8 s, Spark 9.4 s with its start"
    assert found.to_json() == {
        "why": found.why,
        "reason": "seconds",
        "bytes": 5,
        "driver_s": 1.8,
        "spark_s": 9.4,
        "needs_spark": False,
    }
    warm = by_prediction(StepWork(READ, 1), WARM)
    assert warm.why == f"driver 0.0 s, Spark {JOB_S:.1f} s"
    joins = joining(7)
    assert joins.because == "and joins rows, which Spark alone does"
    assert joins.to_json()["driver_s"] is None
