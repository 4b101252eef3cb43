"""Scheduled messages through the engine: who may send them, where they go, and what others see of them meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.test_stomp import Wire
from tests.engine.test_stomp_worlds import errors, messages, send, subscribe


@pytest.fixture
def wire(house: Any) -> Wire:
    wire = Wire(house, 1)
    wire.say("CONNECT\naccept-version:1.2\nclient-id:me\n\n")
    return wire


def delayed(destination: str, body: str = "x", delay: object = 100, **headers: object) -> str:
    frame = send(destination, body, **headers)
    return frame.replace("\n\n", f"\nAMQ_SCHEDULED_DELAY:{delay}\n\n", 1)


def later(house: Any, milliseconds: int) -> None:
    house.turn()
    house.now += milliseconds
    house.engine.tick(house.now)
    house.turn()


@pytest.mark.parametrize("persistent", ["true", "false"])
def test_a_delayed_message_is_stored_and_comes_when_it_is_time(house: Any, wire: Wire, persistent: str) -> None:
    wire.say(subscribe("/queue/a"), delayed("/queue/a", persistent=persistent, receipt="r", colour="red"))
    house.turn()
    heard = wire.heard()
    assert ("RECEIPT" in heard, "MESSAGE" in heard, house.stored()) == (True, False, 1)
    later(house, 99)
    assert wire.heard() == ""
    later(house, 1)
    ((headers, body),) = messages(wire.heard())
    assert (body, headers["destination"], headers["colour"]) == ("x", "/queue/a", "red")
    assert headers["scheduledJobId"] == headers["message-id"]
    house.turn()
    assert house.stored() == 0


def test_it_survives_the_broker(house: Any, wire: Wire) -> None:
    wire.say(delayed("/queue/a", persistent="true"))
    house.fail_over()
    other = Wire(house, 2)
    other.say("CONNECT\naccept-version:1.2\n\n", subscribe("/queue/a"))
    later(house, 50)
    assert messages(other.heard()) == []
    later(house, 50)
    assert len(messages(other.heard())) == 1


def test_it_goes_to_every_part_of_a_composite_and_every_durable_subscriber(house: Any, wire: Wire) -> None:
    wire.say("SUBSCRIBE\nid:0\ndestination:/topic/t\nactivemq.subscriptionName:d\n\n", subscribe("/queue/b", "1"))
    house.turn()
    wire.heard()
    wire.say(delayed("/topic/t,/queue/b,/queue/c", persistent="true"))
    later(house, 100)
    assert {headers["subscription"] for headers, _ in messages(wire.heard())} == {"0", "1"}
    assert house.figures("c")["messages"] == 1
    wire.say("UNSUBSCRIBE\nid:0\nactivemq.subscriptionName:d\n\n")


def test_in_a_transaction_it_waits_for_the_commit(house: Any, wire: Wire) -> None:
    wire.say(subscribe("/queue/a"))
    for end in ("ABORT", "COMMIT"):
        wire.say("BEGIN\ntransaction:t\n\n", delayed("/queue/a", end, transaction="t"), f"{end}\ntransaction:t\n\n")
        later(house, 100)
    assert [body for _, body in messages(wire.heard())] == ["COMMIT"]


@pytest.mark.parametrize("transaction", [False, True])
def test_a_schedule_that_cannot_be_kept_is_refused_at_once(house: Any, wire: Wire, transaction: bool) -> None:
    wire.say("BEGIN\ntransaction:t\n\n")
    headers = {"transaction": "t"} if transaction else {}
    (error,) = errors(wire.say(delayed("/queue/a", delay="soon", **headers)))
    assert "AMQ_SCHEDULED_DELAY" in error


def test_three_frames_do_not_become_a_flood_without_end(house: Any, wire: Wire) -> None:
    everywhere = ",".join(f"/queue/{number}" for number in range(100))
    for _ in range(3):
        endless = "AMQ_SCHEDULED_PERIOD:100\nAMQ_SCHEDULED_REPEAT:-1"
        (error,) = errors(wire.say(delayed(everywhere).replace("AMQ_SCHEDULED_DELAY:100", endless)))
        assert "3600000 messages an hour, without an end" in error
    house.turn()
    assert house.stored() == 0


@pytest.mark.parametrize("is_used", [False, True])
def test_nobody_reaches_what_is_pending_by_its_name(house: Any, wire: Wire, is_used: bool) -> None:
    if is_used:
        wire.say(delayed("/queue/a"))
        house.turn()
    for frame in (subscribe("/queue/ActiveMQ.Scheduler.Pending"), send("/queue/ActiveMQ.Scheduler.Pending")):
        other = Wire(house, 2)
        other.say("CONNECT\naccept-version:1.2\n\n")
        assert errors(other.say(frame)) != []
    later(house, 10)
    assert house.stored() == int(is_used)


def test_no_wildcard_reaches_it_either(house: Any, wire: Wire) -> None:
    wire.say(delayed("/queue/a"))
    house.fail_over()
    other = Wire(house, 2)
    heard = other.say("CONNECT\naccept-version:1.2\n\n", subscribe("/queue/>"))
    house.turn()
    assert messages(heard + other.heard()) == []


def test_what_is_pending_is_shown_and_removed(house: Any, wire: Wire) -> None:
    wire.say(subscribe("/temp-queue/r"), delayed("/queue/a", "one"), delayed("/queue/a", "two"))
    house.turn()

    def ask(action: str, more: str = "") -> None:
        wire.say(
            f"SEND\ndestination:/topic/ActiveMQ.Scheduler.Management\nreply-to:/temp-queue/r\n"
            f"AMQ_SCHEDULER_ACTION:{action}\n{more}\n"
        )
        house.turn()

    ask("BROWSE")
    shown = messages(wire.heard())
    assert [body for _, body in shown] == ["one", "two"]
    job = shown[0][0]["scheduledJobId"].replace(":", "\\c")
    ask("REMOVE", f"scheduledJobId:{job}\n")
    ask("BROWSE")
    assert [body for _, body in messages(wire.heard())] == ["two"]
    ask("REMOVEALL")
    assert house.stored() == 0
