"""Causes of failures in Spark as one sentence: an exception in the Python code of a task, in Java, or in Spark.

[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "...", line 150, in read
pipeline.source.FileGone: /data/db-7.log was deleted after this read was planned ...
SQLSTATE: 38000
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

_OURS: Final = "tandemmq."
_TRACEBACK: Final = "Traceback (most recent call last):"
# Last line of a traceback: the only line that is not indented.
_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.+))?$", re.MULTILINE)
_THROWN: Final = re.compile(r"^(?:: |Caused by: )(?:[a-z]\w*\.)+([A-Z]\w*: .+)$", re.MULTILINE)
# Parts that Spark adds to an error message, and the stack trace of Java.
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_BEHIND: Final = re.compile(r"\s*SQLSTATE: \w+|^\s+at |^Driver stacktrace:", re.MULTILINE)
CHARS_MAX: Final = 600


def expected() -> tuple[type[Exception], ...]:
    """Return the exceptions of a job that are not bugs. Use `except expected() as error`, then ``cause(error)``."""
    found: list[type[Exception]] = [ValueError, OSError, *of_engines()]
    with suppress(ImportError):
        from py4j.protocol import Py4JError

        found.append(Py4JError)
    return tuple(found)


def of_engines() -> tuple[type[Exception], ...]:
    """Return the exceptions that the installed engines raise when a query fails."""
    found: list[type[Exception]] = []
    with suppress(ImportError):
        from duckdb import Error

        found.append(Error)
    with suppress(ImportError):
        from pyspark.errors import PySparkException

        found.append(PySparkException)
    return tuple(found)


def cause(error: BaseException) -> str:
    """Return the innermost cause of ``error``, on one line of at most CHARS_MAX characters.

    For exceptions of this package this is the message; for others the name and the message.
    """
    text = str(error)
    text_of_cause = _of_python(text) or _of_spark(text) or _of_java(error, text) or text.strip().split("\n")[0]
    line = " ".join(text_of_cause.split()) or type(error).__name__
    return line if len(line) <= CHARS_MAX else line[: CHARS_MAX - 1] + "…"


def _of_python(text: str) -> str | None:
    _, found, behind = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(behind) if found else None
    if raised is None:
        return None
    message = _BEHIND.split(behind[raised.end(1) :])[0].removeprefix(": ")
    return message if raised[1].startswith(_OURS) else f"{raised[1]}: {message}"


def _of_spark(text: str) -> str | None:
    """Return the first line of an error with a Spark error class; None for other texts. Query plans follow after the
    first line."""
    return _BEHIND.split(_CLASS.sub("", text))[0].split("\n")[0] if _CLASS.match(text) else None


def _of_java(error: BaseException, text: str) -> str | None:
    """Return the last "Caused by" of a Java stack trace; None without one. PySpark may keep the trace in a separate
    attribute."""
    thrown = _THROWN.findall(f"{text}\n{getattr(error, '_stackTrace', '')}")
    return str(thrown[-1]) if thrown else None
