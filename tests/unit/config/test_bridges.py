"""[[bridges]]: valid settings, and refused settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.broker.settings.engine import virtual_destinations
from tandemmq.config.bridges import meet
from tandemmq.config.errors import SettingsError
from tandemmq.config.settings import Settings
from tandemmq.config.show import show
from tandemmq.store.records.message import Destination, DestinationKind

Read = Callable[[str], Settings]


BRIDGE = """
[[bridges]]
name = "factory"
addresses = "mqtt://127.0.0.1:1883, mqtts://[::1]:8883"
"""
A_TOPIC = """
[[bridges.topics]]
pattern = "{}"
direction = "{}"
"""


def test_every_key_is_read(read: Read) -> None:
    settings = read(
        BRIDGE
        + 'client_id = "me"\nusername = "anna"\npassword_file = "secret"\n'
        + 'tls = {ca = "ca.pem", certificate = "c.pem"}\n'
        + 'protocol_version = "3.1.1"\nbridge_mode = true\nkeep_alive = "30s"\nmax_inflight_messages = 7\n'
        + 'restart_timeout = "2s"\nrestart_timeout_max = "1min"\n'
        + A_TOPIC.format("a/+/#", "both")
        + 'qos = 2\nlocal_prefix = "here/"\nremote_prefix = "there/"\n'
    )
    (bridge,) = settings.bridges
    assert [(str(address), is_tls) for address, is_tls in bridge.parsed_addresses] == [
        ("127.0.0.1:1883", False),
        ("[::1]:8883", True),
    ]
    assert (bridge.keep_alive, bridge.restart_timeout, bridge.restart_timeout_max) == (30_000, 2_000, 60_000)
    (topic,) = bridge.topics
    assert (topic.local, topic.remote, topic.is_in, topic.is_out) == ("here/a/+/#", "there/a/+/#", True, True)
    assert read(show(settings)).bridges == settings.bridges


def test_without_a_client_id_the_name_gives_one(read: Read) -> None:
    assert read(BRIDGE + A_TOPIC.format("#", "out")).bridges[0].used_client_id == "tandemmq-factory"


def test_a_password_is_not_shown(read: Read) -> None:
    settings = read(BRIDGE + 'username = "anna"\npassword = "hunter2"\n' + A_TOPIC.format("#", "out"))
    assert settings.bridges[0].password == "hunter2"
    assert "hunter2" not in show(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BRIDGE, "topics"),
        (BRIDGE.replace("mqtt:", "stomp:") + A_TOPIC.format("#", "out"), "mqtt://HOST:PORT"),
        (BRIDGE.replace(":1883", "") + A_TOPIC.format("#", "out"), "mqtt://HOST:PORT"),
        (BRIDGE.replace("factory", "a b") + A_TOPIC.format("#", "out"), "name"),
        (BRIDGE + A_TOPIC.format("a/#/b", "out"), "a topic filter"),
        (BRIDGE + A_TOPIC.format("$share/g/a", "in"), "a topic filter"),
        (BRIDGE + A_TOPIC.format("#", "away"), "direction"),
        (BRIDGE + A_TOPIC.format("#", "out") + 'local_prefix = "a/+/"\n', r"without \+ and #"),
        (BRIDGE + 'password = "x"\n' + A_TOPIC.format("#", "out"), "a username"),
        (BRIDGE + 'username = "a"\npassword = "x"\npassword_file = "y"\n' + A_TOPIC.format("#", "out"), "not both"),
        (BRIDGE + "bridge_mode = true\n" + A_TOPIC.format("#", "out"), "bridge_mode"),
        (BRIDGE + A_TOPIC.format("a/#", "out") + A_TOPIC.format("a/+", "out"), "each outgoing topic once"),
        (BRIDGE + A_TOPIC.format("a/#", "in") + A_TOPIC.format("a", "both"), "each incoming topic once"),
        (BRIDGE + 'protocol_version = "3.1.1"\n' + A_TOPIC.format("a/#", "both"), "no loop"),
        (2 * (BRIDGE + A_TOPIC.format("#", "out")), "different names"),
    ],
)
def test_an_impossible_bridge_is_refused(read: Read, text: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        read(text)


def test_of_one_direction_with_mqtt_3_1_1_nothing_comes_back(read: Read) -> None:
    text = BRIDGE + 'protocol_version = "3.1.1"\n' + A_TOPIC.format("a/#", "out") + A_TOPIC.format("b/#", "in")
    assert len(read(text).bridges[0].topics) == 2


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("+/b", "a/+", True),
        ("+/b", "a/c", False),
        ("#", "x/y", True),
        ("a/b/#", "a/c/#", False),
    ],
)
def test_filters_meet_where_a_topic_matches_both(one: str, other: str, expected: bool) -> None:
    assert meet(one, other) is meet(other, one) is expected


# ---- [[virtual_destinations]]: what they may say, what is refused, and what becomes of it


QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


EVERYTHING = """
[[virtual_destinations]]
composite_queue = "A.>"
forward_only = false
send_when_not_matched = true
forward_to = [{queue = "B", selector = "colour = 'red'"}, {topic = "C"}]
[[virtual_destinations]]
composite_topic = "A.>"
[[virtual_destinations.forward_to]]
queue = "B"
[[virtual_destinations]]
mirrored_queue = "M"
postfix = ".mirror"
[[virtual_destinations]]
virtual_topic = ">"
prefix = "Queues.*."
selector_aware = true
"""


def test_every_table_becomes_what_it_says(read: Read) -> None:
    settings = read(EVERYTHING)
    assert read(show(settings)).virtual_destinations == settings.virtual_destinations
    virtual = virtual_destinations(settings.virtual_destinations)
    composite, _, _ = virtual.of(Destination(QUEUE, "A.1"))
    assert composite is not None
    assert (composite.forward_only, composite.send_when_not_matched) == (False, True)
    assert [each.destination for each in composite.forward_to] == [Destination(QUEUE, "B"), Destination(TOPIC, "C")]
    selectors = [None if each.selector is None else each.selector.text for each in composite.forward_to]
    assert selectors == ["colour = 'red'", None]
    composite, _, is_virtual = virtual.of(Destination(TOPIC, "A.1"))
    assert composite is not None
    assert is_virtual
    _, mirrored, _ = virtual.of(Destination(QUEUE, "M"))
    assert mirrored is not None
    assert mirrored.topic("M").name == "VirtualTopic.Mirror.M.mirror"
    (rule,) = virtual.virtual_topics
    assert (rule.pattern, rule.prefix, rule.postfix, rule.is_selector_aware) == (">", "Queues.*.", "", True)


def test_without_a_table_topics_are_virtual_as_in_activemq(read: Read) -> None:
    (rule,) = virtual_destinations(read("").virtual_destinations).virtual_topics
    assert (rule.pattern, rule.prefix, rule.postfix, rule.is_selector_aware) == (
        "VirtualTopic.>", "Consumer.*.", "", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("", "one of composite_queue, composite_topic, mirrored_queue and virtual_topic"),
        ('composite_queue = "A"', "forward_to with composite destinations"),
        ('mirrored_queue = "A"\nforward_to = [{queue = "B"}]', "forward_to with composite destinations"),
        ('composite_queue = "A"\nforward_to = [{queue = "B", topic = "C"}]', "one of queue and topic"),
        ('composite_queue = "A"\nforward_to = [{queue = "B.>"}]', "the name of one destination"),
        ('mirrored_queue = "A"\nprefix = "*."', "name one topic"),
        ('virtual_topic = "A"\nprefix = ""', "a destination cannot forward to itself"),
        ('virtual_topic = "A"\n[[virtual_destinations]]\nvirtual_topic = "A"', "occurs twice"),
    ],
)
def test_an_invalid_table_is_refused_by_its_name(read: Read, table: str, told: str) -> None:
    with pytest.raises(SettingsError, match="virtual_destinations") as refused:
        read(f"[[virtual_destinations]]\n{table}\n")
    assert told in str(refused.value)


def test_a_selector_that_is_none_is_refused_by_its_key(read: Read) -> None:
    settings = read('[[virtual_destinations]]\ncomposite_queue = "A"\nforward_to = [{queue = "B", selector = "a ="}]')
    with pytest.raises(SettingsError) as refused:
        virtual_destinations(settings.virtual_destinations)
    assert str(refused.value).startswith("virtual_destinations[0].forward_to[0].selector")
