"""mosquitto_pub and mosquitto_sub, as they are typed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.support.interop.mqtt_side import COMES_SECONDS

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
