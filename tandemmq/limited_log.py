"""Rate limit for log lines that a stranger can cause: one a minute for each port and kind of fault, with the count of
the others.

Without a limit each connection of an attacker writes a line, and all other lines are lost among them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Interval between two lines of one kind.
AGAIN_SECONDS: Final = 60.0
SHOWN_CHARACTERS_MAX: Final = 300
#: Maximum number of kinds, which are words of the program; further ones share one line.
KINDS_MAX: Final = 256
_OTHERS: Final = ("", "")


class LimitedLog:
    """``clock``: seconds that never decrease. If several threads write, a line may come twice."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[tuple[str, str], list[float]] = {}  # -> [time of its last line, count since]

    def warning(
        self,
        port: str,
        kind: str,
        text: str,
        extra: Mapping[str, Any] | None = None,
        *,
        error: BaseException | None = None,
        level: int = logging.WARNING,
    ) -> None:
        """Write ``text``, cut at SHOWN_CHARACTERS_MAX, or count it. ``kind``: the fault, without any text that the
        client chose. ``error``: its traceback is shown with the line."""
        key = (port, kind)
        if key not in self._told and len(self._told) >= KINDS_MAX:
            key = _OTHERS
        now = self._clock()
        told = self._told.get(key)
        if told is not None and now - told[0] < AGAIN_SECONDS:  # prove: one-line-a-minute-and-kind
            told[1] += 1
            return
        more = f" ({told[1]:.0f} more like this since the last line)" if told is not None and told[1] else ""
        self._told[key] = [now, 0]
        self._log.log(level, "%s%s", text[:SHOWN_CHARACTERS_MAX], more, extra=extra, exc_info=error)
