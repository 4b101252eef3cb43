"""Since when ZooKeeper's leader counts the silence of a session, at the latest: what our own clock knows of it.

    we        --request-->  our server     touches the session there, whatever is asked
    leader    --PING----->  our server     every half tick
    leader    <--PING-----  our server     with the sessions touched since the last one: only now the leader counts anew
    we        --connect-->  our server     asks the leader for the session: it counts anew at once

(SessionTrackerImpl, LearnerSessionTracker, Learner.ping, LearnerHandler, Leader.lead and revalidateSession of
apache/zookeeper. A request that our server passes on to the leader, a write for one, does not touch the session there:
PrepRequestProcessor.checkSession only looks.) Where we are connected to the leader itself, it counts from each request.

So of all that we have asked for, that which was answered before a PING's answer left our server is known to the leader.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Final

#: Requests that are remembered lie this part of a session apart: enough to cover all of it.
SPACING: Final = 1 / 64
REMEMBERED_MAX: Final = 64


class Touches:
    """What touched one session. Any thread may tell and ask; times are those of one clock."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._connected_at = -math.inf
        self._answered: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_MAX)

    def connected(self, asked_at_seconds: float) -> None:
        """A connecting that was begun then has come to its end: new, or anew, the leader knows the session."""
        with self._guard:
            self._connected_at = max(self._connected_at, asked_at_seconds)

    def answered(self, asked_at_seconds: float, answered_at_seconds: float, session_seconds: float) -> None:
        """Something asked for at the first time was answered at the second, whatever the answer was."""
        with self._guard:
            if not self._answered or asked_at_seconds - self._answered[-1][0] >= session_seconds * SPACING:
                self._answered.append((asked_at_seconds, answered_at_seconds))

    def counted_since(self, told_at_seconds: float) -> float:
        """The leader counts from this time or a later one, if our server has reported its sessions at
        `told_at_seconds` or later. Minus infinity when nothing is known."""
        with self._guard:
            told = (
                asked_at
                for asked_at, answered_at in self._answered
                if answered_at <= told_at_seconds  # prove: answered-before-told "answered_at" -> "asked_at"
            )
            return max(self._connected_at, *told, -math.inf)
