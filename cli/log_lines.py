"""Lines of the log: what clients say and call things cannot end one, or begin another, or move a terminal's cursor."""

from __future__ import annotations

import logging
from typing import Final

_CONTROLS: Final = {
    code: f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


class LineFormatter(logging.Formatter):
    """A record's own line has no control characters, and none that turn the direction of what is read. A traceback
    below it is as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_CONTROLS)
