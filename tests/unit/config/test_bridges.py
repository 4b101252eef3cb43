"""[[bridges]]: what they may say, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.config.bridges import meet
from tandemmq.config.errors import SettingsError
from tandemmq.config.settings import Settings
from tandemmq.config.show import show

Read = Callable[[str], Settings]


BRIDGE = """
[[bridges]]
name = "factory"
addresses = "mqtt://127.0.0.1:1883, mqtts://[::1]:8883"
"""
TOPIC = """
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
        + TOPIC.format("a/+/#", "both")
        + 'qos = 2\nlocal_prefix = "here/"\nremote_prefix = "there/"\n'
    )
    (bridge,) = settings.bridges
    assert [(str(address), is_tls) for address, is_tls in bridge.told_addresses] == [
        ("127.0.0.1:1883", False),
        ("[::1]:8883", True),
    ]
    assert (bridge.keep_alive, bridge.restart_timeout, bridge.restart_timeout_max) == (30_000, 2_000, 60_000)
    (topic,) = bridge.topics
    assert (topic.local, topic.remote, topic.is_in, topic.is_out) == ("here/a/+/#", "there/a/+/#", True, True)
    assert read(show(settings)).bridges == settings.bridges


def test_without_a_client_id_the_name_gives_one(read: Read) -> None:
    assert read(BRIDGE + TOPIC.format("#", "out")).bridges[0].told_client_id == "tandemmq-factory"


def test_a_password_is_not_shown(read: Read) -> None:
    settings = read(BRIDGE + 'username = "anna"\npassword = "hunter2"\n' + TOPIC.format("#", "out"))
    assert settings.bridges[0].password == "hunter2"
    assert "hunter2" not in show(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BRIDGE, "topics"),
        (BRIDGE.replace("mqtt:", "stomp:") + TOPIC.format("#", "out"), "mqtt://HOST:PORT"),
        (BRIDGE.replace(":1883", "") + TOPIC.format("#", "out"), "mqtt://HOST:PORT"),
        (BRIDGE.replace("factory", "a b") + TOPIC.format("#", "out"), "name"),
        (BRIDGE + TOPIC.format("a/#/b", "out"), "a topic filter"),
        (BRIDGE + TOPIC.format("$share/g/a", "in"), "a topic filter"),
        (BRIDGE + TOPIC.format("#", "away"), "direction"),
        (BRIDGE + TOPIC.format("#", "out") + 'local_prefix = "a/+/"\n', r"without \+ and #"),
        (BRIDGE + 'password = "x"\n' + TOPIC.format("#", "out"), "a username"),
        (BRIDGE + 'username = "a"\npassword = "x"\npassword_file = "y"\n' + TOPIC.format("#", "out"), "not both"),
        (BRIDGE + "bridge_mode = true\n" + TOPIC.format("#", "out"), "bridge_mode"),
        (BRIDGE + TOPIC.format("a/#", "out") + TOPIC.format("a/+", "out"), "go twice"),
        (BRIDGE + TOPIC.format("a/#", "in") + TOPIC.format("a", "both"), "come twice"),
        (BRIDGE + 'protocol_version = "3.1.1"\n' + TOPIC.format("a/#", "both"), "no loop"),
        (2 * (BRIDGE + TOPIC.format("#", "out")), "different names"),
    ],
)
def test_what_cannot_be_is_refused(read: Read, text: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        read(text)


def test_of_one_direction_with_mqtt_3_1_1_nothing_comes_back(read: Read) -> None:
    text = BRIDGE + 'protocol_version = "3.1.1"\n' + TOPIC.format("a/#", "out") + TOPIC.format("b/#", "in")
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
