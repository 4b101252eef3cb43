"""Common clients, in each version of MQTT: paho, mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX
from tests.support.acceptance.paho_client import VERSIONS, PahoClient

pytestmark = pytest.mark.promise("mqtt-conforms")

QOS = (0, 1, 2)
each_version = pytest.mark.parametrize("version", VERSIONS)


@each_version
@pytest.mark.parametrize("qos", QOS)
def test_what_is_published_comes_with_its_qos(port: int, name: str, version: str, qos: int) -> None:
    reader, writer = PahoClient(port, f"{name}-r", version), PahoClient(port, f"{name}-w", version)
    assert reader.subscribe(f"{name}/+", 2) == 2

    for number in range(50):
        writer.publish(f"{name}/a", str(number), qos)

    messages = [reader.take() for _ in range(50)]
    assert [message.payload for message in messages] == [b"%d" % number for number in range(50)]
    assert {(message.topic, message.qos, message.retain) for message in messages} == {(f"{name}/a", qos, False)}
    reader.leave()
    writer.leave()


@each_version
@pytest.mark.parametrize("ends", ["leave", "drop"])
def test_a_kept_session_has_what_came_meanwhile(port: int, name: str, version: str, ends: str) -> None:
    reader, writer = PahoClient(port, f"{name}-r", version, is_kept=True), PahoClient(port, f"{name}-w", version)
    assert not reader.session_present
    reader.subscribe(f"{name}/one", 1)
    reader.subscribe(f"{name}/two", 2)
    reader.subscribe(f"{name}/none", 0)
    getattr(reader, ends)()

    for topic, qos in (("one", 1), ("two", 2), ("none", 1)):
        writer.publish(f"{name}/{topic}", topic, qos)
    reader = PahoClient(port, f"{name}-r", version, is_kept=True)

    assert reader.session_present == (version != "3.1")  # which has no word for it
    assert sorted(reader.payloads(2)) == [b"one", b"two"]
    writer.publish(f"{name}/none", "now", 0)
    assert reader.take().payload == b"now"
    reader.unsubscribe(f"{name}/two")
    writer.publish(f"{name}/two", "gone", 2)
    assert reader.is_quiet()
    reader.leave()
    # A clean session is the end of it.
    PahoClient(port, f"{name}-r", version).leave()
    reader = PahoClient(port, f"{name}-r", version, is_kept=True)
    writer.publish(f"{name}/one", "lost", 1)
    assert not reader.session_present
    assert reader.is_quiet()
    reader.leave()
    writer.leave()


def test_what_mqtt_5_says_beside_the_payload_comes_as_it_was(port: int, name: str) -> None:
    client = PahoClient(port, name, "5.0")
    client.subscribe(name, 1)
    user = [("b", "1"), ("a", "2"), ("b", "3")]
    client.publish(
        name, "x", UserProperty=user, ContentType="text/plain", ResponseTopic="a/b", CorrelationData=b"\xff\x00",
        PayloadFormatIndicator=1, MessageExpiryInterval=100,
    )  # fmt: skip

    carried = client.take().properties

    assert carried is not None
    assert carried.UserProperty == user
    assert (carried.ContentType, carried.ResponseTopic, carried.CorrelationData) == ("text/plain", "a/b", b"\xff\x00")
    assert (carried.PayloadFormatIndicator, 98 <= carried.MessageExpiryInterval <= 100) == (1, True)
    client.leave()


@pytest.mark.service
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_what_mosquitto_pub_publishes_mosquitto_sub_prints(
    port: int, name: str, version: str, qos: str, require_service: Callable[[object, str], None]
) -> None:
    require_service(shutil.which("mosquitto_pub"), "no mosquitto_pub (package mosquitto-clients)")
    common = ("-p", str(port), "-V", version, "-q", qos)
    # It prints line by line, also into a pipe, as soon as something does so for it.
    command = ["stdbuf", "-oL", "mosquitto_sub", *common, "-t", f"{name}/#", "-C", "2", "-F", "%t %q %p", "-d"]
    with subprocess.Popen([*command, "-W", str(int(WAIT_SECONDS_MAX))], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        while "SUBACK" not in (line := reader.stdout.readline()):
            assert line, "it subscribes"
        for topic, text in ((f"{name}/a", "one"), (f"{name}/a/b", "two")):
            subprocess.run(["mosquitto_pub", *common, "-t", topic, "-m", text], check=True, timeout=WAIT_SECONDS_MAX)
        lines = [line.strip() for line in reader.stdout if line.startswith(name)]
    assert lines == [f"{name}/a {qos} one", f"{name}/a/b {qos} two"]
