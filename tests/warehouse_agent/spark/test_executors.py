"""What a failure of Spark is said to be: ours, Spark's own, or the other agent's release."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from driftline.errors import InternalError, ProofFailed, ViewFailed, WarehouseUnavailable
from pyspark.errors import AnalysisException, PySparkException

from warehouse_agent.spark.executors import Batches, KeyFile, marked, meaning, mistake, task
from warehouse_agent.storage.backends.interface import StoreError
from warehouse_agent.views.evaluate import query_errors

IN_A_TASK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "warehouse_agent/tasks/scan.py", line 1, in run
KeyError: 'position'
"""
DENIED = IN_A_TASK.replace("KeyError: 'position'", "PermissionError: [Errno 13] /lake/a.parquet")


@pytest.mark.parametrize(
    "problem",
    [
        AnalysisException("[UNRESOLVED_COLUMN] A column cannot be resolved."),
        PySparkException("org.apache.hadoop.security.AccessControlException: Permission denied"),
        PySparkException(DENIED),
    ],
)
def test_what_spark_says_itself_is_not_to_be_reported(problem: Exception) -> None:
    error = mistake(problem, "orders")
    assert type(error) is InternalError
    assert error.message.startswith("Spark failed: ")
    assert "--debug" in error.remedy
    assert "[spark]" in error.remedy
    assert "report it" not in error.remedy
    assert error.__cause__ is problem


@pytest.mark.parametrize("problem", [PySparkException(IN_A_TASK), KeyError("position")])
def test_what_our_code_does_is(problem: Exception) -> None:
    error = mistake(problem, "orders")
    assert type(error) is InternalError
    assert "'position'" in error.message
    assert "report it" in error.remedy


def test_what_is_known_keeps_its_cause() -> None:
    full = PySparkException("java.io.IOException: No space left on device")
    assert type(mistake(full, "orders")) is WarehouseUnavailable


def test_an_error_of_a_store_keeps_its_remedy() -> None:
    def fails(_batches: Batches) -> Iterator[pa.RecordBatch]:
        raise StoreError("AccessDenied: no", "Give it the rights.")

    with pytest.raises(RuntimeError) as raised:
        list(task(fails)([]))
    said = str(raised.value).splitlines()[-1]
    assert said.endswith("cannot be read or written: AccessDenied: no. Give it the rights.")
    for problem in (PySparkException(str(raised.value)), StoreError("no", "Give it the rights.")):
        error = mistake(problem, "orders")
        assert type(error) is WarehouseUnavailable
        assert error.remedy == "Give it the rights."


def test_an_error_of_a_task_is_known_by_the_mark_of_this_process_alone() -> None:
    """Spark quotes values of rows, and a source may send what reads like an error of ours."""
    forged = "driftline-error:{" + json.dumps(["SPARK", "m", "r", "w", {}]).encode().hex() + "}:end"
    assert meaning(PySparkException(f"[CAST_INVALID_INPUT] The value '{forged}'")) is None
    assert meaning(PySparkException("driftline-error:{zz}:end")) is None
    ours = ProofFailed("It differs.", where="orders", details={"key": "7"})
    known = meaning(PySparkException(f"RuntimeError: {marked(ours)}"))
    assert isinstance(known, ProofFailed)
    assert (known.where, known.details) == ("orders", {"key": "7"})


@pytest.mark.parametrize("value", ["No space left on device", "MemoryError", "a.parquet"])
def test_a_value_that_reads_like_another_failure(value: str) -> None:
    text = f"[CAST_INVALID_INPUT] The value '{value}' cannot be cast. SQLSTATE: 22018"
    with pytest.raises(ViewFailed, match="cannot be cast"), query_errors("totals"):
        raise PySparkException(text)


def test_a_key_leaves_this_process_as_a_reference() -> None:
    key = KeyFile("s3://bucket/lake/_driftline/keys/t.key", b"0123456789abcdef")
    assert b"0123456789abcdef" not in pickle.dumps(key)
    assert "0123456789abcdef" not in repr(key)
    there = pickle.loads(pickle.dumps(key))
    assert (there, there.known) == (key, None)
