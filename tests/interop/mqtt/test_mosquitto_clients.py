"""mosquitto_pub and mosquitto_sub, as they are typed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.support.interop.mqtt_side import COMES_SECONDS, MqttSide

pytestmark = pytest.mark.service

VERSIONS = ("mqttv31", "mqttv311", "mqttv5")


@pytest.fixture(autouse=True)
def _installed(require_service: Callable[[object, str], None]) -> None:
    require_service(shutil.which("mosquitto_pub"), "no mosquitto_pub (package mosquitto-clients)")


def publish(port: int, version: str, topic: str, *options: str) -> None:
    command = ["mosquitto_pub", "-p", str(port), "-V", version, "-t", topic, *options]
    subprocess.run(command, check=True, timeout=COMES_SECONDS)


def subscriber(port: int, version: str, topic: str, *options: str) -> list[str]:
    return ["mosquitto_sub", "-p", str(port), "-V", version, "-t", topic, "-W", str(int(COMES_SECONDS)), *options]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_what_one_publishes_the_other_prints(port: int, name: str, version: str, qos: str) -> None:
    # It prints line by line, also into a pipe, as soon as something does so for it.
    command = ["stdbuf", "-oL", *subscriber(port, version, f"{name}/#", "-q", qos, "-C", "2", "-F", "%t %q %p", "-d")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        while "SUBACK" not in (line := reader.stdout.readline()):
            assert line, "it subscribes"
        publish(port, version, f"{name}/a", "-q", qos, "-m", "one")
        publish(port, version, f"{name}/a/b", "-q", qos, "-m", "two")
        lines = [line.strip() for line in reader.stdout if line.startswith(name)]
    assert lines == [f"{name}/a {qos} one", f"{name}/a/b {qos} two"]


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311"])
def test_a_session_is_kept_for_who_disables_cleaning(port: int, name: str, version: str) -> None:
    options = ("-c", "-i", name, "-q", "1")
    subprocess.run(subscriber(port, version, name, *options, "-E"), check=True)
    publish(port, version, name, "-q", "1", "-m", "while it was away")
    read = subprocess.run(subscriber(port, version, name, *options, "-C", "1"), check=True, capture_output=True)
    assert read.stdout == b"while it was away\n"


def test_properties_of_mqtt_5_are_published(port: int, name: str) -> None:
    client = MqttSide(port, name, "5.0")
    client.subscribe(name, 1)
    properties = ["user-property", "colour", "red"], ["content-type", "text/css"], ["correlation-data", "7"]
    words = [word for each in properties for word in ("-D", "publish", *each)]
    publish(port, "mqttv5", name, "-q", "1", "-m", "x", *words)
    carried = client.take().properties
    assert carried is not None
    assert (carried.UserProperty, carried.ContentType) == ([("colour", "red")], "text/css")
    assert carried.CorrelationData == b"7"
    client.close()
