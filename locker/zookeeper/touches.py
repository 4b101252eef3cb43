"""Lower bound, by our own clock, of the time from which ZooKeeper's leader counts the silence of a session.

    we        --request-->  our server     touches the session at our server, for any request
    leader    --PING----->  our server     every half tick
    leader    <--PING-----  our server     lists the sessions touched since the last PING: the leader touches them now
    we        --connect-->  our server     reports the session to the leader, which touches it at once

(SessionTrackerImpl, LearnerSessionTracker, Learner.ping, LearnerHandler, Leader.lead and revalidateSession of
apache/zookeeper. A request that our server forwards to the leader, for example a write, does not touch the session at
the leader: PrepRequestProcessor.checkSession only checks it.) If we are connected to the leader itself, each request
touches the session there.

So the leader knows each of our requests that was answered before our server sent its answer to a PING.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Final

#: Least time between two stored requests, as a part of the session's length: 64 requests cover a whole session.
SPACING: Final = 1 / 64
REMEMBERED_MAX: Final = 64


class Touches:
    """Requests that touched one session. Any thread. All times are seconds by the same clock."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._connected_at = -math.inf
        self._answered: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_MAX)

    def connected(self, asked_at_seconds: float) -> None:
        """Note a successful connect that began at this time: the leader has touched the session."""
        with self._guard:
            self._connected_at = max(self._connected_at, asked_at_seconds)

    def answered(self, asked_at_seconds: float, answered_at_seconds: float, session_seconds: float) -> None:
        """Note when a request was sent and when it was answered, with any answer. `session_seconds`: length of the
        session."""
        with self._guard:
            if not self._answered or asked_at_seconds - self._answered[-1][0] >= session_seconds * SPACING:
                self._answered.append((asked_at_seconds, answered_at_seconds))

    def counted_since(self, reported_at_seconds: float) -> float:
        """Return a lower bound of the time from which the leader counts, if our server has sent an answer to a PING at
        `reported_at_seconds` or later. Minus infinity: nothing is known."""
        with self._guard:
            reported = (
                asked_at
                for asked_at, answered_at in self._answered
                if answered_at <= reported_at_seconds  # prove: answered-before-told "answered_at" -> "asked_at"
            )
            return max(self._connected_at, *reported, -math.inf)
