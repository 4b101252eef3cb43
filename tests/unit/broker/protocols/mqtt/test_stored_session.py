"""The broker is killed after each operation that a session submits to the store, and again during the recovery.

The next master finds the operations that were stored until then. No confirmed message is lost, and a message of QoS 2
arrives exactly once.
"""

# proves: id-of-a-lost-message-is-released, id-of-another-is-not-given, message-ends-with-its-release
# proves: packet-id-with-its-message, record-ends-when-it-is-back, retained-in-their-order, retained-position-is-kept
# proves: former-record-ends-last, one-pubrec-counts, release-waits-for-its-record, session-record-is-replaced-at-once

from __future__ import annotations

import pytest

from tandemmq.broker.core.slices import at_once
from tests.support.broker.mortal_store import Mortal, crashes
from tests.support.broker.mqtt_device import TOPIC, Device
from tests.support.broker.mqtt_wire import MqttWire, NotedHooks
from tests.unit.broker.protocols.mqtt.test_subscribe import retained

FILTERS = pytest.mark.parametrize("topic_filter", [TOPIC, f"$share/g/{TOPIC}", f"{TOPIC}/#"])
RETAINED = [("r1", 2), ("r2", 1), ("r3", 2), ("r4", 0)]  # at topics below
MESSAGES = [("a", 2), ("b", 1), ("c", 2), ("d", 2)]
# Number of operations in a life without crashes, and a few more, so that the last crash is after its end.
OPERATIONS_MAX = 60
AGAIN_MAX = 14


def hooks() -> NotedHooks:
    made = NotedHooks()
    made.messages = [retained(f"{TOPIC}/{payload}", payload, qos) for payload, qos in RETAINED]
    return made


def check(device: Device, topic_filter: str) -> None:
    assert device.is_done
    assert device.confirmed == {payload for payload, _ in MESSAGES}
    for payload, qos in MESSAGES:
        assert device.got[payload] == 1 or (qos == 1 and device.got[payload] > 1), (payload, device.got)
    for payload, qos in RETAINED if topic_filter.endswith("#") else ():
        assert device.got[payload] <= device.asked or qos == 1, (payload, device.got)
        assert device.got[payload] >= 1 or qos == 0, (payload, device.got)
    assert not device.seen


@FILTERS
def test_a_life_without_crashes_is_shorter_than_the_last_crash(harness, topic_filter):
    before = harness.store.handed_over
    noted = hooks()
    device = Device(lambda: MqttWire(harness, noted), MESSAGES, topic_filter=topic_filter)
    device.live()
    check(device, topic_filter)
    assert harness.store.handed_over - before <= OPERATIONS_MAX
    assert harness.stored() == 2  # the session and its subscription


@FILTERS
def test_the_promises_hold_at_every_crash_of_the_broker(make_harness, topic_filter):
    for first, second, is_told in crashes(OPERATIONS_MAX, AGAIN_MAX, 120):
        harness = make_harness()
        noted = hooks()
        device = Device(
            lambda harness=harness, noted=noted: MqttWire(harness, noted), MESSAGES, topic_filter=topic_filter
        )
        for left in (first, second):
            mortal = Mortal(harness, left, is_told=is_told)
            device.live()
            mortal.end()
            harness.fail_over(is_sudden=True)
        device.live()
        try:
            check(device, topic_filter)
            assert harness.stored() == 2
        except AssertionError as error:
            raise AssertionError(f"crash behind {first} and {second} operations, told: {is_told}: {error}") from error


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_kills_a_device_is_a_dead_letter(make_harness, qos):
    """DUP and the count go on with the next master; then its session goes on with other messages."""
    harness = make_harness(maximum_redeliveries=3)
    hooks = NotedHooks()

    def come(client_id, **options):
        wire = MqttWire(harness, hooks)
        wire.connect(client_id, **options)
        return wire

    wire = come("me", clean=False)
    wire.subscribe("t", qos=qos)
    wire.vanish()
    come("writer").publish("t", b"poison", qos=1)
    seen = []
    for life in range(5):
        wire = come("me", clean=False)
        harness.wait(1)
        seen += [each.dup for each in (*wire.rest, *wire.heard()) if each.payload == b"poison"]
        wire.vanish()
        if life == 1:
            harness.fail_over()
    assert seen == [False, True, True, True]
    come("writer").publish("t", b"good", qos=1)
    wire = come("me", clean=False)
    assert [(each.payload, each.dup) for each in wire.rest if each.payload is not None] == [(b"good", False)]
    assert [each["messages"] for each in harness_queues(harness) if each["name"].startswith("ActiveMQ.DLQ")] == [1]


def harness_queues(harness):
    return at_once(harness.engine.statistics())["queues"]
