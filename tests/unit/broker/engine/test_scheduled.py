"""Scheduled messages through the engine: rights to send them, their destinations, and their visibility before."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core import slices
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.engine import scheduler
from tandemmq.broker.engine.scheduler import FIRING_MAX
from tandemmq.store.operations import Page
from tests.unit.broker.engine.test_stomp import Wire, errors, messages, send, subscribe

ALL_OF_A = "SUBSCRIBE\nid:0\ndestination:/queue/a\nactivemq.prefetchSize:5000\n\n"
pytestmark = pytest.mark.promise("scheduled-in-time")


@pytest.fixture
def wire(harness: Any) -> Wire:
    return Wire(harness, 1).connect("me")


def delayed(destination: str, body: str = "x", delay: object = 100, **headers: object) -> str:
    frame = send(destination, body, **headers)
    return frame.replace("\n\n", f"\nAMQ_SCHEDULED_DELAY:{delay}\n\n", 1)


def later(harness: Any, milliseconds: int) -> None:
    harness.turn()
    harness.tick(harness.now + milliseconds)


@pytest.mark.parametrize("persistent", ["true", "false"])
def test_a_delayed_message_is_stored_and_comes_when_it_is_time(harness: Any, wire: Wire, persistent: str) -> None:
    heard = wire.ask(subscribe("/queue/a"), delayed("/queue/a", persistent=persistent, receipt="r", colour="red"))
    assert ("RECEIPT" in heard, "MESSAGE" in heard, harness.stored()) == (True, False, 1)
    later(harness, 99)
    assert wire.heard() == ""
    later(harness, 1)
    ((headers, body),) = messages(wire.heard())
    assert (body, headers["destination"], headers["colour"]) == ("x", "/queue/a", "red")
    assert headers["scheduledJobId"] == headers["message-id"]
    harness.turn()
    assert harness.stored() == 0


def test_it_survives_the_broker(harness: Any, wire: Wire) -> None:
    wire.say(delayed("/queue/a", persistent="true"))
    harness.fail_over()
    other = Wire(harness, 2).connect()
    other.say(subscribe("/queue/a"))
    later(harness, 50)
    assert messages(other.heard()) == []
    later(harness, 50)
    assert len(messages(other.heard())) == 1


def test_it_goes_to_every_part_of_a_composite_and_every_durable_subscriber(harness: Any, wire: Wire) -> None:
    wire.ask("SUBSCRIBE\nid:0\ndestination:/topic/t\nactivemq.subscriptionName:d\n\n", subscribe("/queue/b", "1"))
    wire.say(delayed("/topic/t,/queue/b,/queue/c", persistent="true"))
    later(harness, 100)
    assert {headers["subscription"] for headers, _ in messages(wire.heard())} == {"0", "1"}
    assert harness.figures("c")["messages"] == 1
    wire.say("UNSUBSCRIBE\nid:0\nactivemq.subscriptionName:d\n\n")


def test_in_a_transaction_it_waits_for_the_commit(harness: Any, wire: Wire) -> None:
    wire.say(subscribe("/queue/a"))
    for end in ("ABORT", "COMMIT"):
        wire.say("BEGIN\ntransaction:t\n\n", delayed("/queue/a", end, transaction="t"), f"{end}\ntransaction:t\n\n")
        later(harness, 100)
    assert [body for _, body in messages(wire.heard())] == ["COMMIT"]


@pytest.mark.parametrize("transaction", [False, True])
def test_a_schedule_that_cannot_be_kept_is_refused_at_once(harness: Any, wire: Wire, transaction: bool) -> None:
    wire.say("BEGIN\ntransaction:t\n\n")
    headers = {"transaction": "t"} if transaction else {}
    (error,) = errors(wire.say(delayed("/queue/a", delay="soon", **headers)))
    assert "AMQ_SCHEDULED_DELAY" in error


def test_three_frames_do_not_become_a_flood_without_end(harness: Any, wire: Wire) -> None:
    everywhere = ",".join(f"/queue/{number}" for number in range(100))
    for _ in range(3):
        endless = "AMQ_SCHEDULED_PERIOD:100\nAMQ_SCHEDULED_REPEAT:-1"
        (error,) = errors(wire.say(delayed(everywhere).replace("AMQ_SCHEDULED_DELAY:100", endless)))
        assert "3600000 messages an hour, without an end" in error
    harness.turn()
    assert harness.stored() == 0


@pytest.mark.parametrize("is_used", [False, True])
def test_the_queue_of_pending_messages_is_not_reachable_by_its_name(harness: Any, wire: Wire, is_used: bool) -> None:
    if is_used:
        wire.ask(delayed("/queue/a"))
    for frame in (subscribe("/queue/ActiveMQ.Scheduler.Pending"), send("/queue/ActiveMQ.Scheduler.Pending")):
        other = Wire(harness, 2).connect()
        assert errors(other.say(frame)) != []
    later(harness, 10)
    assert harness.stored() == int(is_used)


def test_no_wildcard_reaches_it_either(harness: Any, wire: Wire) -> None:
    wire.say(delayed("/queue/a"))
    harness.fail_over()
    other = Wire(harness, 2).connect()
    assert messages(other.ask(subscribe("/queue/>"))) == []


def test_pending_messages_are_shown_and_removed(harness: Any, wire: Wire) -> None:
    wire.ask(subscribe("/temp-queue/r"), delayed("/queue/a", "one"), delayed("/queue/a", "two"))

    def ask(action: str, more: str = "") -> None:
        wire.say(
            f"SEND\ndestination:/topic/ActiveMQ.Scheduler.Management\nreply-to:/temp-queue/r\n"
            f"AMQ_SCHEDULER_ACTION:{action}\n{more}\n"
        )
        harness.turn()

    ask("BROWSE")
    shown = messages(wire.heard())
    assert [body for _, body in shown] == ["one", "two"]
    job = shown[0][0]["scheduledJobId"].replace(":", "\\c")
    ask("REMOVE", f"scheduledJobId:{job}\n")
    ask("BROWSE")
    assert [body for _, body in messages(wire.heard())] == ["two"]
    ask("REMOVEALL")
    assert harness.stored() == 0


def test_very_many_that_are_due_at_once_come_in_batches_and_steps(harness: Any, wire: Wire) -> None:
    count = 3 * FIRING_MAX // 2
    for number in range(count):
        wire.say(delayed("/queue/a", str(number)))
    harness.turn()
    wire.say(ALL_OF_A)
    turns: list[int] = []  # how many operations the store had to do in each
    apply_turn = harness.store._apply_turn

    def apply() -> Any:
        operations = apply_turn()
        turns.append(len(operations))
        return operations

    harness.store._apply_turn = apply
    harness.store.appended = appended = []
    harness.now += 100
    harness.engine.tick(harness.now)
    asked = len(harness.later)
    most = 0
    while harness.calls:
        sent = harness.engine._arrivals.scheduler.sent
        harness.turn(1)
        most = max(most, harness.engine._arrivals.scheduler.sent - sent)
        assert len(harness.later) == asked, "nobody comes again and again to look"
    assert len(messages(wire.heard())) == count
    pages = [each for each in appended if isinstance(each, Page) and each.keys is not None]
    assert [len(page.messages) for page in pages] == [FIRING_MAX, count - FIRING_MAX]
    assert 0 < most <= ITEMS // 8 + 1
    assert max(turns) <= FIRING_MAX
    assert (harness.counts["scheduled"], harness.stored()) == (0, 0)


def test_those_that_are_due_come_in_the_order_of_their_times(harness: Any, wire: Wire) -> None:
    for number in range(20):
        wire.say(delayed("/queue/a", str(number), delay=1000 - 10 * number))
    harness.turn()
    wire.say(ALL_OF_A)
    later(harness, 1000)
    assert [body for _, body in messages(wire.heard())] == [str(number) for number in reversed(range(20))]


def test_a_message_without_room_in_a_page_is_sent_later(
    harness: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "PAGE_BYTES", 3_000)
    for number in range(20):
        wire.say(delayed("/queue/a", str(number) + "x" * 1000))
    harness.turn()
    wire.say(ALL_OF_A)
    later(harness, 100)
    assert [body.rstrip("x") for _, body in messages(wire.heard())] == [str(number) for number in range(20)]
    assert harness.counts["scheduled"] == 0


def test_a_message_with_an_error_of_the_broker_does_not_delay_the_others(
    harness: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for body in ("first", "second", "third"):
        wire.say(delayed("/queue/a", body))
    harness.turn()
    wire.say(ALL_OF_A)
    made = scheduler.occurrence

    def fail(waiting: Any, *of: Any) -> Any:
        if waiting.body == b"second":
            raise RuntimeError("of the second")
        return made(waiting, *of)

    monkeypatch.setattr(scheduler, "occurrence", fail)
    later(harness, 100)
    assert [body for _, body in messages(wire.heard())] == ["first", "third"]
    assert "of the second" in caplog.text
    caplog.clear()
    monkeypatch.undo()
    later(harness, scheduler.PUT_OFF_MS)
    assert [body for _, body in messages(wire.heard())] == ["second"]


def test_to_very_many_queues_it_goes_in_steps(harness: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "ITEMS", 8)
    for number in range(40):
        wire.say(send(f"/queue/Consumer.{number}.VirtualTopic.t", "own"))
    wire.ask(delayed("/topic/VirtualTopic.t", persistent="true"))
    harness.now += 100
    harness.engine.tick(harness.now)
    steps = 0
    while harness.calls:
        steps += len(harness.works) > 0
        harness.turn(1)
    assert steps >= 40 // 8
    assert [harness.figures(f"Consumer.{number}.VirtualTopic.t")["messages"] for number in range(40)] == [2] * 40


def test_how_often_a_message_may_come_is_a_setting(make_harness: Any) -> None:
    harness = make_harness(max_scheduler_repeat_allowed=2_000)
    client = harness.client()
    for repeat in (2_000, 2_001):
        properties = {"AMQ_SCHEDULED_DELAY": 5, "AMQ_SCHEDULED_PERIOD": 1, "AMQ_SCHEDULED_REPEAT": repeat}
        client.send("x", persistent=False, properties=properties)
    harness.turn()
    assert len(client.errors) == 1
    assert "2001" in client.errors[0]
    assert harness.counts["scheduled"] == 1
