"""Places at the admin server: which connections get one, which are closed for a new one, and which are overdue, by the
test's clock."""

# proves: health-checks-have-places, a-peer-has-a-time, places-are-shared-by-address, a-health-check-gets-in
# proves: a-login-gets-a-place

from __future__ import annotations

import itertools

import pytest

from tandemmq.broker.admin.connections import address_of
from tandemmq.broker.admin.places import (
    HEALTH_PLACES,
    IDLE_SECONDS_MAX,
    SILENT_SECONDS_MIN,
    WRITTEN_BYTES_MAX,
    Place,
    Places,
    State,
)
from tandemmq.broker.admin.server import ACCEPTED_MAX

ATTACKER, OTHER = "192.0.2.1", "192.0.2.2"
SILENT = SILENT_SECONDS_MIN


def full(count: int = 4, state: State = State.BODY, *, is_known: bool = False) -> tuple[Places, list[Place]]:
    """Return places that ATTACKER has all taken, one after the other, at the times 0, 1, ..."""
    places = Places(count, 10.0, 20.0)
    taken = []
    for number in range(count):
        place, victim = places.take(ATTACKER, float(number))
        assert place is not None
        assert victim is None
        place.enter(state, float(number))
        place.is_known = is_known
        taken.append(place)
    return places, taken


@pytest.mark.parametrize(
    ("address", "state", "is_known", "after", "victim", "is_spare"),
    [
        # The newcomer has fewer than the attacker: it has a place at once.
        (OTHER, State.BODY, False, 0, 0, False),
        (OTHER, State.WORK, False, 0, 0, False),
        # It has as many: the silent ones make room, what the broker works for does not.
        (ATTACKER, State.BODY, False, SILENT, 0, False),
        (ATTACKER, State.BODY, False, -3, None, True),
        (ATTACKER, State.WORK, False, 99, None, True),
        # Who has logged in is closed only when it idles.
        (OTHER, State.IDLE, True, SILENT, 0, False),
        (OTHER, State.BODY, True, 99, None, True),
        (OTHER, State.WORK, True, 99, None, True),
    ],
)
def test_a_newcomer_gets_a_place(
    address: str, state: State, is_known: bool, after: float, victim: int | None, is_spare: bool
) -> None:
    places, taken = full(state=state, is_known=is_known)
    place, closed = places.take(address, 3.0 + after)
    assert closed is (None if victim is None else taken[victim])
    assert place is not None
    assert place.is_spare is is_spare
    assert len(places) == 5 if closed is None else 4


def test_of_the_largest_address_those_that_wait_for_their_peer_are_closed_first() -> None:
    places, taken = full()
    taken[0].enter(State.WORK, 3.0)
    taken[1].is_known = True
    closed = [places.take(f"192.0.2.{number}", 3.0)[1] for number in (10, 11)]
    assert closed == [taken[2], taken[3]]
    assert places.take("192.0.2.12", 3.0)[1] is None, "no address has more than another"


def test_health_checks_have_places_of_their_own() -> None:
    places, _ = full()
    spare = [places.take(ATTACKER, 0.0)[0] for _ in range(HEALTH_PLACES)]
    assert all(place is not None and place.is_spare for place in spare)
    for place in spare:
        assert place is not None
        place.enter(State.WORK, 0.0)
    assert places.take(ATTACKER, 0.0) == (None, None)


def test_a_health_check_gets_in_while_very_many_addresses_connect_again_and_again() -> None:
    """No time goes by. Its request is read before more connections are accepted than there are spare places: accepted,
    connected, read, begun are three turns of the loop."""
    places = Places(4)
    addresses = (f"2001:db8:{number:x}::" for number in itertools.count())
    for _ in range(4 + 3 * HEALTH_PLACES):
        assert places.take(next(addresses), 0.0)[0] is not None
    check, _ = places.take(OTHER, 0.0)
    assert check is not None
    closed = [places.take(next(addresses), 0.0)[1] for _ in range(3 * ACCEPTED_MAX)]
    assert check not in closed
    check.enter(State.WORK, 0.0)
    closed = [places.take(next(addresses), 0.0)[1] for _ in range(2 * HEALTH_PLACES)]
    assert check not in closed


def test_a_request_with_a_login_replaces_one_whose_login_is_being_checked() -> None:
    """Guesses from 100 addresses took all places."""
    places = Places(2)
    guesses = [places.take(f"192.0.2.{number}", 0.0)[0] for number in (10, 11)]
    for guess in guesses:
        assert guess is not None
        guess.enter(State.LOGIN, 0.0)
    operator, closed = places.take(OTHER, 0.0)
    assert operator is not None
    assert (operator.is_spare, closed) == (True, None)
    assert places.note_login(operator) is guesses[0]
    assert not operator.is_spare
    operator.enter(State.LOGIN, 0.0)
    again, closed = places.take(OTHER, 0.0)
    assert again is not None
    assert (again.is_spare, closed) == (False, guesses[1]), "a login was shown from there before: at once"
    third, closed = places.take("192.0.2.12", SILENT)
    assert third is not None
    assert (third.is_spare, closed) == (False, again), "only the other one has shown a login itself"
    assert places.note_login(third) is None
    last, _ = places.take("192.0.2.13", SILENT)
    assert last is not None
    assert (last.is_spare, places.note_login(last), last.is_spare) == (True, None, True), "all are known and busy"


def test_another_address_gets_one_of_the_spare_places_of_an_attacker() -> None:
    places, taken = full(is_known=True)
    spare = [places.take(ATTACKER, 0.0)[0] for _ in range(HEALTH_PLACES)]
    place, closed = places.take(OTHER, 0.0)
    assert place is not None
    assert (place.is_spare, closed) == (True, spare[0])
    assert len(places) == len(taken) + HEALTH_PLACES


@pytest.mark.parametrize(
    ("state", "seconds_max"),
    [
        (State.HEAD, 10.0),
        (State.BODY, 10.0),
        (State.WRITE, 20.0),
        (State.IDLE, IDLE_SECONDS_MAX),
        (State.WORK, None),
    ],
)
def test_the_peers_time_is_limited_and_the_brokers_own_work_is_not(state: State, seconds_max: float | None) -> None:
    places, (place,) = full(1, state)
    place.enter(state, 5.0)  # again: the time goes on
    if seconds_max is None:
        assert places.overdue(1e9) == []
        return
    assert places.overdue(seconds_max) == []
    assert places.overdue(seconds_max + 0.1) == [(place, state)]
    places.release(place)
    assert places.overdue(1e9) == []


def test_unread_output_of_all_peers_together_is_bounded() -> None:
    places, taken = full(4, State.WORK)
    taken[0].is_known = True
    part = WRITTEN_BYTES_MAX // 3
    assert [places.write(place, part - number, 9.0) for number, place in enumerate(taken[:3])] == [[], [], []]
    assert places.write(taken[3], part, 9.0) == [taken[1]], "the largest without a login"
    assert places.write(taken[3], WRITTEN_BYTES_MAX, 9.0) == [taken[1], taken[2], taken[0]]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("?:", "?:"),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(host: str, address: str) -> None:
    assert address_of(host) == address
