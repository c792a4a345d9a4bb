"""Finds the cause of an error of Spark, Delta or a Python worker, as one line.

An error that passed through Java and Python has the text of each level, and begins with "An error
occurred while calling o123.save". The innermost cause is the useful one.
"""

from __future__ import annotations

import logging
import re

DEPTH_MAX = 20
# The last line of a Python traceback, even inside a Java error. Our own errors may have any name.
_PYTHON = re.compile(
    r"^((?:lakequeue(?:\.\w+)*\.[A-Z]\w*|(?:\w+\.)*\w*(?:Error|Exception))(?:: .*)?)$",
    re.MULTILINE,
)
_CAUSED = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_CALLED = re.compile(r"^: (.+)$", re.MULTILINE)  # behind "An error occurred while calling …"
_JAVA = re.compile(r"(?:java|org|io|com|scala|software)\.")
_PASSED_ON = re.compile(r"(?:\w+\.)*Py4J\w*|(?:\w+\.)*\w+: An exception was raised by the Python")
_PACKAGE = re.compile(r"(?:[a-z]\w*\.)+(?=[A-Z])")
# The query was stopped, Spark ended, or its Java process died during a call.
_CUT_OFF = re.compile(
    r"\w*Interrupt\w*|.*\bSparkContext was shut down|.*\bstopped SparkContext"
    r"|Error while sending or receiving|An error occurred while calling \S+$"
    r"|\[Errno \d+\] Connection refused"
)
_PY4J = ("clientserver", "java_gateway")


def cause_of(error: object) -> str:
    """The innermost cause in an error's text, without the package of its class."""
    text = _all_of(error)
    python = [t for t in _PYTHON.findall(text) if not (_JAVA.match(t) or _PASSED_ON.match(t))]
    java = [t for t in _CAUSED.findall(text) if not _PASSED_ON.match(t)] or _CALLED.findall(text)
    lines = python or java or text.splitlines() or ["no reason given"]
    line = lines[-1] if python or java else lines[0]
    return _PACKAGE.sub("", line.strip(), count=1) if _PACKAGE.match(line.strip()) else line.strip()


def keep_record(record: logging.LogRecord) -> bool:
    """A logging filter that drops py4j's tracebacks of batches that were cut off. The engine itself
    reports unexpected ends."""
    error = record.exc_info[1] if record.exc_info else None
    return record.module not in _PY4J or error is None or not _CUT_OFF.match(cause_of(error))


def _all_of(error: object) -> str:
    texts = []
    for _ in range(DEPTH_MAX):
        if error is None:
            break
        text = str(error).strip()
        if not text and isinstance(error, BaseException):
            text = type(error).__name__
        texts.append(text)
        error = getattr(error, "_cause", None) or getattr(error, "__cause__", None)  # PySpark's own
    return "\nCaused by: ".join(t for t in texts if t)
