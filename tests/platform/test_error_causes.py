"""What an operator is told of an error that went through Java and Python: where it came from."""

from __future__ import annotations

import logging
import sys

import pytest
from lakequeue.streaming.spark.error_causes import cause_of, keep_record
from py4j.protocol import Py4JError, Py4JNetworkError

SPARKS = """An error occurred while calling o199.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Error
You can explicitly invalidate the cache in Spark
\tat org.apache.spark.sql.errors.fileNotExistError(x.scala)
Caused by: java.io.FileNotFoundException: File `/t/part-0.parquet` does not exist.
\tat org.apache.spark.x(y.scala:1)
\t... 12 more
Caused by: java.nio.file.NoSuchFileException: /t/part-0.parquet
\tat org.apache.spark.x(y.scala:1)"""
WORKERS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to a stage
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
lakequeue.replica.driver.Refused: the log belongs to another home
ValueError: 7 is no offset
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
Caused by: java.io.EOFException
"""
OURS = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback
  File "replay_inputs.py", line 51, in read_steps
lakequeue.protocol.errors.NotConnected: topic 'broker-0.steps' did not answer within 30 s
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)"""
SINKS = f"""[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message:
Traceback
  File "delta.py", line 70, in __call__
py4j.protocol.Py4JJavaError: {SPARKS}
"""


class Captured(Exception):
    """As PySpark keeps the exception that another came from."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SPARKS, "NoSuchFileException: /t/part-0.parquet"),
        (WORKERS, "ValueError: 7 is no offset"),
        (OURS, "NotConnected: topic 'broker-0.steps' did not answer within 30 s"),
        ("lakequeue.sinks.log_writer.Stopping: the end", "Stopping: the end"),
        (SINKS, "NoSuchFileException: /t/part-0.parquet"),
        ("An error occurred while calling o1.sql.\n: java.lang.OutOfMemoryError: Java heap space",
         "OutOfMemoryError: Java heap space"),
        ("[DELTA_X] The table is so.\nAnd more", "[DELTA_X] The table is so."),
        (Captured("Job aborted", Captured("java.lang.ArithmeticException: long overflow")),
         "ArithmeticException: long overflow"),
        (KeyError("a"), "'a'"),
        (RuntimeError(), "RuntimeError"),
        (None, "no reason given"),
    ],
)  # fmt: skip
def test_the_innermost_cause_is_told(error: object, cause: str) -> None:
    assert cause_of(error) == cause


CALL = "An error occurred while calling o3908.collectToPython"


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (Py4JNetworkError("Error while sending or receiving"), False),
        (Py4JError(CALL), False),
        (Py4JError(f"{CALL}.\n: java.lang.InterruptedException"), False),
        (Py4JError(f"{CALL}.\n: java.nio.channels.ClosedByInterruptException"), False),
        (Py4JError(f"{CALL}.\n: org.apache.spark.SparkException: Job 7 cancelled because "
                   "SparkContext was shut down"), False),
        (Py4JError(SPARKS), True),
        (Py4JError(f"{CALL}. Trace:\npy4j.Py4JException: Method x([]) does not exist"), True),
        (ConnectionRefusedError(111, "Connection refused"), False),
        (ValueError("no table"), True),
    ],
)  # fmt: skip
def test_a_batch_that_was_cut_off_is_no_error_in_the_log(error: Exception, kept: bool) -> None:
    def record(module: str) -> logging.LogRecord:
        try:
            raise error
        except Exception:
            path = f"/x/{module}.py"
            return logging.LogRecord("", logging.ERROR, path, 1, "failed", (), sys.exc_info())

    assert keep_record(record("clientserver")) is kept
    assert keep_record(record("a_program")) is True
