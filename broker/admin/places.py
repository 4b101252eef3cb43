"""Places: limit and fair sharing of the connections of the admin server. This module decides;
``broker.admin.connections`` closes connections.

A connection takes one of PLACES places. If all are taken, a new connection takes the place of another one, which is
closed. The candidates are the connections without a login (strangers), first those from addresses that never showed a
login. Of the address with most candidates, the connection that has waited longest for its peer is closed. If that
address does not have more connections than the new connection's address would have, its connection is closed only after
a short silence, unless the new connection's address has shown a login before. If there are no candidates, an idle
connection with a login is closed.

If no connection can be closed, the new one takes one of HEALTH_PLACES. If these are taken, too, the oldest connection
in them is closed at once. A connection in such a place may request the health pages. If it shows a login, it takes a
normal place, and a stranger is closed.

A peer has a limited time to send the head of a request, to send its body, and to read the response. The time that the
broker takes to answer does not count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: Defaults of the settings ``admin.connections_max``, ``request_timeout`` and ``response_timeout``.
PLACES: Final = 64
REQUEST_SECONDS_MAX: Final = 10.0
RESPONSE_SECONDS_MAX: Final = 30.0
#: Additional places for health checks.
HEALTH_PLACES: Final = 64
#: Number of addresses with a login that are remembered; the one whose last login is oldest is forgotten first.
TRUSTED_MAX: Final = 1_000
#: Limit of the bytes of all unread responses together.
WRITTEN_BYTES_MAX: Final = 64 << 20
#: Limit of the time between two requests on one connection.
IDLE_SECONDS_MAX: Final = 30.0
#: A connection is closed to make room for a new one of the same address only after this silence.
SILENT_SECONDS_MIN: Final = 0.25


class State(Enum):
    """Reason of a connection's wait."""

    HEAD = "the head of a request"
    BODY = "the body of a request"
    LOGIN = "the check of its login"
    WORK = "the broker"
    WRITE = "its peer to read a response"
    IDLE = "the next request"


@dataclass(slots=True, eq=False)
class Place:
    """Place of a connection. ``since``: when the present state began, by the clock of ``Places``. ``is_known``: the
    connection has shown a login. ``is_spare``: one of HEALTH_PLACES. ``held``: bytes of the response being written."""

    address: str
    since: float
    is_spare: bool = False
    is_known: bool = False
    state: State = State.HEAD
    held: int = 0

    def enter(self, state: State, now: float) -> None:
        """Enter a state. Its time begins now, unless the place is already in this state."""
        if state is not self.state:
            self.state, self.since = state, now


class Places:
    """Places of one admin server. All times are seconds of one monotonic clock, passed to each call."""

    def __init__(
        self,
        most: int = PLACES,
        request_seconds_max: float = REQUEST_SECONDS_MAX,
        response_seconds_max: float = RESPONSE_SECONDS_MAX,
    ) -> None:
        self.most = most
        self._seconds_max = {
            State.HEAD: request_seconds_max,
            State.BODY: request_seconds_max,
            State.WRITE: response_seconds_max,
            State.IDLE: IDLE_SECONDS_MAX,
        }
        self._taken: dict[Place, None] = {}
        self._trusted: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._taken)

    def take(self, address: str, now: float) -> tuple[Place | None, Place | None]:
        """Return the place of a new connection, and the place of the connection to close for it. None: no place, or
        none to close."""
        taken = [place for place in self._taken if not place.is_spare]
        if len(taken) < self.most:
            return self._new(Place(address, now)), None
        victim = self._victim(taken, address, now, SILENT_SECONDS_MIN)
        if victim is not None:
            return self._new(Place(address, now)), self._release(victim)
        spare = [place for place in self._taken if place.is_spare]
        if len(spare) < HEALTH_PLACES:  # prove: health-checks-have-places
            return self._new(Place(address, now, is_spare=True)), None
        victim = self._victim(spare, address, now, 0.0)  # prove: a-health-check-gets-in "0.0" -> "SILENT_SECONDS_MIN"
        if victim is not None:
            return self._new(Place(address, now, is_spare=True)), self._release(victim)
        return None, None

    def note_login(self, place: Place) -> Place | None:
        """Note a login. If ``place`` was a spare one, it becomes a normal one; then return the place to close, if
        necessary."""
        place.is_known = True
        self._trusted[place.address] = None
        self._trusted.move_to_end(place.address)
        if len(self._trusted) > TRUSTED_MAX:
            self._trusted.popitem(last=False)
        if not place.is_spare:
            return None
        taken = [each for each in self._taken if not each.is_spare]
        if len(taken) < self.most:
            place.is_spare = False
            return None
        closable = [each for each in taken if not each.is_known or each.state is State.IDLE]
        if not closable:
            return None
        place.is_spare = False  # prove: a-login-gets-a-place
        return self._release(min(closable, key=lambda each: (each.is_known, *_order(each))))

    def release(self, place: Place) -> None:
        """Free the place of a closed connection."""
        self._taken.pop(place, None)

    def overdue(self, now: float) -> list[tuple[Place, State]]:
        """Return the places whose peers have exceeded the time for their state, with that state."""
        return [
            (place, place.state)
            for place in self._taken
            if now - place.since > self._seconds_max.get(place.state, float("inf"))  # prove: a-peer-has-a-time
        ]

    def write(self, place: Place, count: int, now: float) -> list[Place]:
        """Note a response of ``count`` bytes to ``place``. If all unread responses together exceed WRITTEN_BYTES_MAX,
        return the places to close: those with the largest responses, strangers first."""
        place.enter(State.WRITE, now)
        place.held = count
        others = [each for each in self._taken if each.state is State.WRITE and each is not place]
        others.sort(key=lambda each: (each.is_known, -each.held))
        left = WRITTEN_BYTES_MAX - count - sum(each.held for each in others)
        victims = []
        for each in others:
            if left >= 0:
                break
            left += each.held
            victims.append(each)
        return victims

    def _victim(self, taken: Iterable[Place], address: str, now: float, silent_seconds: float) -> Place | None:
        """Return the place to close for a new connection of ``address``."""
        strangers: dict[str, list[Place]] = {}
        others: list[Place] = []
        for place in taken:
            if not place.is_known and place.address not in self._trusted:
                strangers.setdefault(place.address, []).append(place)
            elif place.state is State.IDLE or not place.is_known:
                others.append(place)
        count = max(map(len, strangers.values()), default=0)
        largest = [place for places in strangers.values() if len(places) == count for place in places]
        is_trusted = bool(largest) and address in self._trusted
        if is_trusted or count > len(strangers.get(address, ())) + 1:  # prove: places-are-shared-by-address
            return min(largest, key=_order)
        silent = [
            place
            for place in (*largest, *others)
            if place.state is not State.WORK and now - place.since >= silent_seconds
        ]
        return min(silent, key=lambda each: (each.is_known, each.address in self._trusted, each.since), default=None)

    def _new(self, place: Place) -> Place:
        self._taken[place] = None
        return place

    def _release(self, place: Place) -> Place:
        del self._taken[place]
        return place


def _order(place: Place) -> tuple[bool, float]:
    """Return the sort key: places that wait for their peer come first."""
    return place.state is State.WORK, place.since
