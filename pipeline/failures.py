"""Failures in Spark as one sentence: of a task's Python, of Java, of Spark itself.

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
# The last line of a traceback, the only one that is not indented.
_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.+))?$", re.MULTILINE)
_THROWN: Final = re.compile(r"^(?:: |Caused by: )(?:[a-z]\w*\.)+([A-Z]\w*: .+)$", re.MULTILINE)
# Spark's decoration of an error message, and the stack of Java.
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_BEHIND: Final = re.compile(r"\s*SQLSTATE: \w+|^\s+at |^Driver stacktrace:", re.MULTILINE)
CHARS_MAX: Final = 600


def expected() -> tuple[type[Exception], ...]:
    """The exceptions of a job that are no bug: after `except expected() as error`, ``cause`` gives the text."""
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
    """Return the innermost reason in ``error``, in one line of at most CHARS_MAX characters.

    Our own exceptions are shown by their message, others with their name.
    """
    text = str(error)
    told = _of_python(text) or _of_spark(text) or _of_java(error, text) or text.strip().split("\n")[0]
    line = " ".join(told.split()) or type(error).__name__
    return line if len(line) <= CHARS_MAX else line[: CHARS_MAX - 1] + "…"


def _of_python(text: str) -> str | None:
    _, found, behind = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(behind) if found else None
    if raised is None:
        return None
    message = _BEHIND.split(behind[raised.end(1) :])[0].removeprefix(": ")
    return message if raised[1].startswith(_OURS) else f"{raised[1]}: {message}"


def _of_spark(text: str) -> str | None:
    """Return the text of an error that has a Spark class: its first line is for users, plans follow after it."""
    return _BEHIND.split(_CLASS.sub("", text))[0].split("\n")[0] if _CLASS.match(text) else None


def _of_java(error: BaseException, text: str) -> str | None:
    """Return the last cause in Java's words; PySpark may keep them in a separate attribute."""
    thrown = _THROWN.findall(f"{text}\n{getattr(error, '_stackTrace', '')}")
    return str(thrown[-1]) if thrown else None
