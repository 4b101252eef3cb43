"""Formats of log lines: text, logfmt, JSON.

Control characters are escaped, so that texts and names of clients cannot begin a new line or move a terminal's cursor.
The name of an event (tandemmq.log_events) is the field ``event`` in logfmt and JSON. Times are local times with their
offset.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

_CONTROL_CODES: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_CONTROLS: Final = {code: f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}" for code in _CONTROL_CODES}
#: Control characters that JSON does not escape.
_CONTROLS_OF_JSON: Final = {code: f"\\u{code:04x}" for code in _CONTROL_CODES if code >= 0x20}
_OURS: Final = "tandemmq."
_PLAIN: Final = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
#: Priorities of sd-daemon(3), each with its minimum level.
_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


class TextFormatter(logging.Formatter):
    """Plain text line. A traceback below it is not escaped. ``has_time``: False if the receiver of the lines adds the
    time."""

    def __init__(self, *, has_time: bool = True) -> None:
        super().__init__(f"{'%(asctime)s ' if has_time else ''}%(levelname)-7s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time(record, " ")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_CONTROLS)


class LogfmtFormatter(logging.Formatter):
    """``time=… level=info event=… logger=… message="…"``: one line for each record."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_logfmt(str(value))}" for key, value in _fields(self, record).items())


class JsonFormatter(logging.Formatter):
    """A JSON object on one line for each record, with the keys of logfmt."""

    def format(self, record: logging.LogRecord) -> str:
        return _json(_fields(self, record))


class JournalFormatter(logging.Formatter):
    """Formatter that adds to each line of another formatter the priority that journald reads from a service's
    stderr."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).split("\n"))


FORMATS: Final[Mapping[str, type[logging.Formatter]]] = {
    "text": TextFormatter,
    "logfmt": LogfmtFormatter,
    "json": JsonFormatter,
}


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record. ``event`` and the exception are included only if the record has them."""
    fields = {
        "time": _time(record, "T"),
        "level": record.levelname.lower(),
        "event": getattr(record, "event", None),
        "logger": record.name.removeprefix(_OURS),
        "message": record.getMessage(),
        "exception": formatter.formatException(record.exc_info) if record.exc_info else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _time(record: logging.LogRecord, separator: str) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(separator, "milliseconds")


def _logfmt(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).translate(_CONTROLS_OF_JSON)
