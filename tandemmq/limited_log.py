"""Log lines that a stranger can cause: one a minute for each port and kind of fault, with the count of the others.

Without a limit each connection of an attacker writes a line, and the lines of everything else are lost among them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Between two lines of one kind.
AGAIN_SECONDS: Final = 60.0
SHOWN_CHARACTERS_MAX: Final = 300
#: Kinds are words of the program. What is beyond this number shares one line.
KINDS_MAX: Final = 256
_OTHERS: Final = ("", "")


class LimitedLog:
    """``clock``: seconds that only grow. Where several threads write, a line may come twice."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[tuple[str, str], list[float]] = {}  # -> [when its line was written, how many since]

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
        """Write ``text``, cut at SHOWN_CHARACTERS_MAX, or count it. ``kind``: what is wrong, without anything that the
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
