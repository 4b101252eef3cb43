"""Logs refusals because of missing rights: the first at once, and then once a minute the count of the same one."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from tandemmq import log_events

log = logging.getLogger(__name__)

#: Time between two lines about the same refusal.
AGAIN_MS: Final = 60_000
#: Refusals that are remembered; the one that was logged longest ago is forgotten first.
REMEMBERED_MAX: Final = 1_000
#: Lines within AGAIN_MS; beyond it refusals are only counted.
LINES_MAX: Final = 100
SHOWN_CHARACTERS_MAX: Final = 500


class Denials:
    """``now`` is in milliseconds since 1970. On the loop."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, list[int]] = OrderedDict()  # sentence -> [time of its last line, count since]
        self._lines_since = 0
        self._lines = 0
        self._untold = 0

    def note(self, peer: object, sentence: str, now: int) -> None:
        """Log or count that ``peer`` was refused by ``sentence``, which names user, operation and destination."""
        known = self._told.get(sentence)
        if known is not None and now - known[0] < AGAIN_MS:
            known[1] += 1
            return
        if now - self._lines_since >= AGAIN_MS:
            if self._untold:
                log.warning("denied: %d more refusals were not logged", self._untold, extra=log_events.DENIED)
            self._lines_since, self._lines, self._untold = now, 0, 0
        if self._lines >= LINES_MAX:
            self._untold += 1
            return
        self._lines += 1
        times = f", {known[1]} times since the last line" if known is not None and known[1] else ""
        log.warning("denied: %r: %s%s", peer, sentence[:SHOWN_CHARACTERS_MAX], times, extra=log_events.DENIED)
        self._told[sentence] = [now, 0]
        self._told.move_to_end(sentence)
        if len(self._told) > REMEMBERED_MAX:
            self._told.popitem(last=False)
