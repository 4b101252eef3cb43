"""Two rings become one timeline and outages, whatever the clocks show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.admin.events import Event, Moment
from tandemmq.cli.failover_timeline import Outage, Reading, merge, outages

pytestmark = pytest.mark.promise("failover-is-explained")

HERE = Moment(2_000_000_000, 5_000.0, "here")


class Host:
    """A machine with separate clocks; ``steps`` are changes of its wall clock, in seconds."""

    def __init__(self, boot_id: str = "here", boot_offset: float = 0.0, wall_offset: float = 0.0) -> None:
        self.boot_id = boot_id
        self.boot_offset = boot_offset
        self.wall_offset = wall_offset

    def at(self, time: float) -> Moment:
        """``time`` in seconds of the boot clock here."""
        wall = HERE.wall_ms / 1000 + time - HERE.boot_seconds + self.wall_offset
        return Moment(int(wall * 1000), time + self.boot_offset, self.boot_id)

    def event(self, time: float, kind: str, epoch: int = 0, **facts: Any) -> Event:
        for name in ("refused_at_boot", "last_receipt_boot_seconds"):
            if facts.get(name) is not None:
                facts[name] += self.boot_offset
        return Event(self.at(time), kind, epoch, facts)

    def reading(self, name: str, events: list[Event]) -> Reading:
        """Return a reading as of a running broker a moment ago."""
        return Reading(name, f"http://{name}", events, self.at(4_999.9), 4_999.85, 4_999.95)


def first_term(host: Host) -> list[Event]:
    return [
        host.event(4_000.0, "started"),
        host.event(4_000.1, "lock-taken", waited_seconds=0.0, refused_at_boot=None),
        host.event(4_000.2, "fenced", 3),
        host.event(4_000.3, "store-open", 3),
        host.event(4_000.4, "listening", 3),
        host.event(4_000.4, "master", 3),
    ]


def take_over(host: Host, refused_at: float | None = 4_500.1) -> list[Event]:
    return [
        host.event(4_001.0, "standby"),
        host.event(4_500.3, "lock-taken", waited_seconds=499.3, refused_at_boot=refused_at),
        host.event(4_500.31, "fenced", 5),
        host.event(4_500.33, "replayed", 5, records=7),
        host.event(4_500.38, "store-open", 5),
        host.event(4_500.40, "listening", 5),
        host.event(4_500.40, "master", 5),
        host.event(4_500.7, "first-client", 5),
        host.event(4_500.8, "first-receipt", 5),
    ]


def the_outage(*readings: Reading) -> Outage:
    happenings, _ = merge(readings, HERE)
    (outage,) = outages(happenings)
    return outage


def killed(host: Host) -> list[Event]:
    """The term of a master, to its end."""
    return [*first_term(host), host.event(4_500.0, "fell-silent", 3, pid=1, last_receipt_boot_seconds=4_499.9)]


PHASES = {
    "detect": 0.1, "lock": 0.2, "fence": 0.01, "replay": 0.02, "load": 0.05, "listen": 0.02, "first client": 0.3,
    "first receipt": 0.1,
}  # fmt: skip


def test_an_outage_is_split_into_its_phases_and_their_sum_is_the_whole() -> None:
    a, b = Host(), Host()
    outage = the_outage(Reading("a", "file", killed(a)), b.reading("b", take_over(b)))
    assert (outage.former, outage.former_epoch, outage.successor, outage.epoch) == ("a", 3, "b", 5)
    assert (outage.phases, outage.began) == (pytest.approx(PHASES), pytest.approx(4_500.0))
    assert (outage.seconds, outage.seconds_until_receipt) == (pytest.approx(0.4), pytest.approx(0.8))
    assert (outage.last_receipt, outage.first_receipt) == (pytest.approx(4_499.9), pytest.approx(4_500.8))
    assert outage.cause == "a ended unexpectedly: killed, crashed, or its machine went down"
    assert [h.event.kind for h in outage.happenings] == [
        "fell-silent", "lock-taken", "fenced", "replayed", "store-open", "listening", "master", "first-client",
        "first-receipt",
    ]  # fmt: skip


@pytest.mark.parametrize("step", [-3_600.0, 0.0, 3_600.0])
@pytest.mark.parametrize("boot_offset", [-4_000.0, 77.7])
def test_wall_clocks_that_are_wrong_by_an_hour_move_nothing(step: float, boot_offset: float) -> None:
    a, b = Host("host-a", boot_offset, step), Host("host-b", -boot_offset, -step / 2)
    # The former master lives again and answers: its boot is the same.
    outage = the_outage(
        a.reading("a", [*first_term(a), a.event(4_500.0, "lost", 3, trouble="PROOF_EXPIRED", reason="nobody answers")]),
        b.reading("b", take_over(b)),
    )
    assert outage.phases == pytest.approx(PHASES)
    assert outage.cause == "a gave up: PROOF_EXPIRED – nobody answers"
    assert all(happening.is_certain for happening in outage.happenings)


def test_a_wall_clock_that_was_stepped_in_between_moves_nothing_either() -> None:
    a, b = Host("host-a", 10.0), Host("host-b", 20.0)
    before = take_over(b)
    stepped = [*before[:3], *(replace(e, at=replace(e.at, wall_ms=e.at.wall_ms - 3_600_000)) for e in before[3:])]
    outage = the_outage(
        a.reading("a", [*first_term(a), a.event(4_500.0, "cut", 3, reason="hung")]), b.reading("b", stepped)
    )
    assert outage.phases == pytest.approx(PHASES)


def test_the_ring_of_a_dead_machine_is_placed_by_its_wall_clock_and_said_to_be() -> None:
    a, b = Host("dead", -3_000.0), Host("host-b", 20.0)
    happenings, notes = merge([Reading("a", "file", killed(a)), b.reading("b", take_over(b))], HERE)
    (outage,) = outages(happenings)
    assert outage.phases == pytest.approx(PHASES, abs=0.002)
    assert not outage.happenings[0].is_certain
    assert "7 events of a are placed by its wall clock" in notes[0]


def test_a_wall_clock_that_differs_is_noted() -> None:
    a = Host("host-a", 0.0, 3_600.0)
    _, notes = merge([a.reading("a", first_term(a))], HERE)
    assert notes == ["the wall clock of a differs from the one here by +3600.000 s"]


def test_of_a_handover_the_release_of_the_lock_is_known() -> None:
    a, b = Host(), Host()
    ends = [
        a.event(4_499.0, "handover-asked", 3, reason="SIGTERM"),
        a.event(4_500.0, "draining", 3),
        a.event(4_500.1, "drained", 3),
        a.event(4_500.15, "store-closed", 3),
        a.event(4_500.2, "lock-released", 3),
        a.event(4_500.25, "ended", 3),
    ]
    outage = the_outage(a.reading("a", [*first_term(a), *ends]), b.reading("b", take_over(b)))
    assert outage.phases == pytest.approx(PHASES | {"detect": 0.2, "lock": 0.1})
    assert outage.cause == "a handed over: SIGTERM"
    assert outage.began == pytest.approx(4_500.0), "clients were served until then"
    assert outage.happenings[0].event.kind == "handover-asked"


def test_of_a_set_the_election_ends_the_detection_and_the_third_ring_is_told() -> None:
    a, b, c = Host(), Host(), Host()
    successor = [*take_over(b), b.event(4_500.25, "elected", 5, by=["b", "c"])]
    follower = [c.event(4_001.0, "following", 3, master="a"), c.event(4_500.45, "following", 5, master="b")]
    outage = the_outage(
        a.reading("a", killed(a)),
        b.reading("b", sorted(successor, key=lambda event: event.at.boot_seconds)),
        c.reading("c", follower),
    )
    assert outage.phases["detect"] == pytest.approx(0.25)
    assert (outage.phases["lock"], outage.seconds) == (pytest.approx(0.05), pytest.approx(0.4))
    found = [(each.broker, each.event.kind) for each in outage.happenings]
    assert [each for each in found if each[1] in ("elected", "following")] == [("b", "elected"), ("c", "following")]


def test_a_zombie_is_known_by_its_gap() -> None:
    a, b = Host(), Host()
    gap = [
        a.event(4_510.0, "lost", 3, trouble="DEPOSED", reason="db-5.log is there"),
        a.event(4_500.0, "stalled", 3, seconds=10.0, last_receipt_boot_seconds=4_499.95),
    ]
    outage = the_outage(a.reading("a", [*first_term(a), *gap]), b.reading("b", take_over(b)))
    assert (outage.phases, outage.last_receipt) == (pytest.approx(PHASES), pytest.approx(4_499.95))
    assert outage.cause == "a showed no life for 10.0 s: stopped, suspended, or hung"


def test_a_short_stall_long_before_is_not_the_cause() -> None:
    a, b = Host(), Host()
    stalled = a.event(4_200.0, "stalled", 3, seconds=1.5)
    outage = the_outage(a.reading("a", [*first_term(a), stalled, killed(a)[-1]]), b.reading("b", take_over(b)))
    assert outage.began == pytest.approx(4_500.0)


def test_a_lock_granted_twice_is_reported_as_that() -> None:
    a, b = Host(), Host()
    late = [a.event(4_500.35, "lost", 3, trouble="DEPOSED", reason="db-5.log is there")]
    outage = the_outage(a.reading("a", [*first_term(a), *late]), b.reading("b", take_over(b)))
    assert outage.cause == (
        "a was still master when b got the lock, and was fenced off; it gave up when DEPOSED – db-5.log is there"
    )
    assert outage.began == pytest.approx(4_500.31), "the fence ended its rule"
    assert outage.phases == pytest.approx(PHASES | {"detect": 0.0, "lock": 0.0, "fence": 0.0})


def test_a_broker_that_follows_itself_was_restarted() -> None:
    a = Host()
    events = [*killed(a), a.event(4_500.2, "started"), *take_over(a)[1:]]
    outage = the_outage(a.reading("a", events))
    assert (outage.former, outage.successor) == ("a", "a")
    assert outage.cause.endswith("and was started again")


def test_a_handover_without_a_successor_is_reported_as_that() -> None:
    a = Host()
    ends = [
        a.event(4_499.5, "handover-asked", 3, reason="asked for"),
        a.event(4_500.0, "draining", 3),
        a.event(4_500.1, "lock-released", 3),
    ]
    outage = the_outage(a.reading("a", [*first_term(a), *ends, *take_over(a, refused_at=None)[1:]]))
    assert outage.cause == "a handed over: asked for, and no other broker took the lock"
    assert outage.phases == pytest.approx(PHASES)


def test_without_the_ring_of_the_former_master_the_rest_is_told() -> None:
    b = Host()
    outage = the_outage(b.reading("b", take_over(b)))
    assert outage.former is None
    assert outage.phases == pytest.approx(PHASES | {"detect": 0.0})
    assert "are missing" in outage.cause


def test_a_master_in_between_whose_ring_is_missing_is_not_passed_over() -> None:
    a = Host()
    events = [
        *first_term(a),
        a.event(4_100.0, "handover-asked", 3),
        a.event(4_100.2, "lock-released", 3),
        a.event(4_100.3, "standby", 3, holder=None),
        a.event(4_101.0, "standby", 3, holder="b"),
        *take_over(a)[1:],
    ]
    outage = the_outage(a.reading("a", events))
    assert outage.former is None
    assert outage.cause.startswith("the events of b are missing")
    assert outage.began == pytest.approx(4_500.1)


def test_a_step_without_an_event_is_part_of_the_next() -> None:
    a, b = Host(), Host()
    sparse = [event for event in take_over(b) if event.kind not in ("fenced", "replayed", "first-client")]
    outage = the_outage(a.reading("a", killed(a)), b.reading("b", sparse))
    assert outage.phases == pytest.approx(
        PHASES | {"fence": None, "replay": None, "first client": None, "load": 0.08, "first receipt": 0.4}
    )
    assert outage.seconds_until_receipt == pytest.approx(0.8)


def test_a_failed_promotion_is_part_of_the_outage() -> None:
    a, b = Host(), Host()
    failed = [
        b.event(4_500.05, "lock-taken", refused_at_boot=4_499.9),
        b.event(4_500.06, "demoted", trouble="NO_SPACE", reason="full"),
    ]
    events = [*failed, *take_over(b)[1:]]
    outage = the_outage(a.reading("a", killed(a)), b.reading("b", events))
    assert (outage.began, outage.seconds) == (pytest.approx(4_500.0), pytest.approx(0.4))
    assert "demoted" in [happening.event.kind for happening in outage.happenings]


def test_a_first_start_is_no_outage() -> None:
    a = Host()
    happenings, _ = merge([a.reading("a", first_term(a))], HERE)
    assert outages(happenings) == []
