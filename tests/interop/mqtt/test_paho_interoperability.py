"""Eclipse Paho's interoperability suite against a real broker: client_test.py (MQTT 3.1.1) and client_test5.py.

TANDEMMQ_PAHO_TESTING names a checkout of github.com/eclipse/paho.mqtt.testing, of this commit:
9d7bb80bb8b9d9cfc0b52f8cb4c1916401281103. No registry has it, so it runs by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.interop import paho_suite
from tests.support.interop.checkouts import checkout

pytestmark = [pytest.mark.service, pytest.mark.timeout(600), pytest.mark.promise("mqtt-conforms")]

SUITE_SECONDS_MAX = 400
#: One topic that nobody may subscribe to; rights name what is allowed.
SETTINGS = "".join(
    f'[[security.authorization]]\ntopic = "{pattern}"\nread = ["*"]\nwrite = ["*"]\nadmin = ["*"]\n'
    for pattern in ("TopicA.>", "Topic.>", "*.TopicA", "client_test5.>")
)
#: Tests that a broker fails which does as the standard has it, and why.
WRONG: dict[str, dict[str, str]] = {
    "client_test": {},
    "client_test5": {
        "test_server_keep_alive": "it wants a broker that lowers a keep alive of 120 seconds to 60",
        "test_subscribe_failure": "it takes no other reason code than 0x80; SUBACK has 0x87, Not authorized (3.9.3)",
        "test_subscribe_identifiers": "it wants one copy for overlapping subscriptions; here each gets one (3.3.4)",
    },
}


@pytest.fixture(scope="module")
def suite() -> Path:
    tests = "tests/interop/mqtt/test_paho_interoperability.py"
    return checkout("TANDEMMQ_PAHO_TESTING", "eclipse/paho.mqtt.testing", tests) / "interoperability"


@pytest.mark.parametrize("module", WRONG)
def test_the_suite_finds_nothing(suite: Path, tmp_path: Path, module: str) -> None:
    settings = tmp_path / "tandemmq.toml"
    settings.write_text(SETTINGS)
    broker = BrokerProcess(tmp_path / "data", "a", "--config", str(settings))
    broker.mqtt = free_port()
    broker.start().wait_role("master")
    try:
        command = [sys.executable, paho_suite.__file__, str(suite), module, str(broker.mqtt)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SUITE_SECONDS_MAX, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    finally:
        broker.stop()
    verdicts = json.loads(done.stdout.splitlines()[-1])
    print(f"{len(verdicts)} tests of {module}")
    failed = {name: text for name, text in verdicts.items() if text is not None}
    assert failed.keys() == WRONG[module].keys(), "\n".join([*failed.values(), done.stdout[-8000:]])
    assert "Traceback" not in broker.log.read_text()
