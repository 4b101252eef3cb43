"""Time since which ZooKeeper's leader counts the silence of a session, at the latest, by our own clock.

    we        --request-->  our server     touches the session there, whatever the request
    leader    --PING----->  our server     every half tick
    leader    <--PING-----  our server     with the sessions touched since the last one: only now the leader counts anew
    we        --connect-->  our server     requests the session from the leader: it counts anew at once

(SessionTrackerImpl, LearnerSessionTracker, Learner.ping, LearnerHandler, Leader.lead and revalidateSession of
apache/zookeeper. A request that our server passes on to the leader, a write for one, does not touch the session there:
PrepRequestProcessor.checkSession only looks.) If we are connected to the leader itself, it counts from each request.

So the leader knows each of our requests that was answered before a PING's answer left our server.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Final

#: Distance of remembered requests, as a part of a session: enough to cover all of it.
SPACING: Final = 1 / 64
REMEMBERED_MAX: Final = 64


class Touches:
    """Requests that touched one session. Any thread may note and read; times are those of one clock."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._connected_at = -math.inf
        self._answered: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_MAX)

    def connected(self, asked_at_seconds: float) -> None:
        """Note the end of a connect that began then: the leader knows the session, new or again."""
        with self._guard:
            self._connected_at = max(self._connected_at, asked_at_seconds)

    def answered(self, asked_at_seconds: float, answered_at_seconds: float, session_seconds: float) -> None:
        """Note that a request sent at the first time was answered at the second, whatever the answer was."""
        with self._guard:
            if not self._answered or asked_at_seconds - self._answered[-1][0] >= session_seconds * SPACING:
                self._answered.append((asked_at_seconds, answered_at_seconds))

    def counted_since(self, told_at_seconds: float) -> float:
        """Return the time from which, or from a later one, the leader counts, if our server has reported its sessions
        at `told_at_seconds` or later. Minus infinity when nothing is known."""
        with self._guard:
            told = (
                asked_at
                for asked_at, answered_at in self._answered
                if answered_at <= told_at_seconds  # prove: answered-before-told "answered_at" -> "asked_at"
            )
            return max(self._connected_at, *told, -math.inf)
