"""mosquitto's own broker tests, where they can be pointed at another broker, and Eclipse Paho's interoperability suite.

Of mosquitto's those that need none of its settings, plug-ins or passwords, and no TLS, bridges or other programs.
TANDEMMQ_MOSQUITTO names a checkout of github.com/eclipse/mosquitto, or its unpacked source package of Debian, which CI
takes. The lists are those of commit fb9b1153924ae0e2dfb3bcb4266ee5bb49a5c515; a script that a version does not have yet
is skipped. TANDEMMQ_PAHO_TESTING names a checkout of github.com/eclipse/paho.mqtt.testing, of commit
9d7bb80bb8b9d9cfc0b52f8cb4c1916401281103: no registry has it. Without a checkout the tests run by hand.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.interop import mosquitto_suite, paho_suite
from tests.support.interop.checkouts import checkout
from tests.support.prove import rounds
from tests.support.tree import ROOT

pytestmark = [pytest.mark.service, pytest.mark.promise("mqtt-conforms")]


SCRIPT_SECONDS_MAX = 400
SCRIPTS = [
    "01-connect-disconnect-v5", "01-connect-take-over", "01-connect-windows-line-endings", "02-shared-qos0-v5",
    "02-subhier-crash", "02-subpub-qos0-retain-as-publish", "02-subpub-qos0-subscription-id",
    "02-subpub-qos0-topic-alias", "02-subpub-qos0-topic-alias-unknown", "02-subpub-qos1",
    "02-subpub-qos1-message-expiry-retain", "02-subpub-qos1-message-expiry-will", "02-subpub-qos1-nolocal",
    "02-subpub-qos2", "02-subpub-qos2-1322", "02-subpub-qos2-pubrec-error", "02-subpub-recover-subscriptions",
    "02-subscribe-dollar-v5", "02-subscribe-invalid-utf8", "02-subscribe-persistence-flipflop",
    "03-pattern-matching", "03-publish-b2c-disconnect-qos1", "03-publish-b2c-disconnect-qos2",
    "03-publish-b2c-qos1-len", "03-publish-b2c-qos2-len", "03-publish-c2b-disconnect-qos2",
    "03-publish-c2b-qos2-len", "03-publish-dollar", "03-publish-invalid-utf8", "03-publish-qos1",
    "03-publish-qos1-no-subscribers-v5", "03-publish-qos2", "04-retain-clear-multiple", "04-retain-qos0",
    "04-retain-qos0-clear", "04-retain-qos0-fresh", "04-retain-qos0-repeated", "04-retain-qos1-qos0",
    "05-clean-session-qos1", "05-session-expiry-v5", "07-will-delay-invalid-573191", "07-will-delay-reconnect",
    "07-will-disconnect-with-will", "07-will-delay-session-expiry2", "07-will-delay-session-expiry",
    "07-will-delay-recover", "07-will-invalid-utf8", "07-will-no-flag", "07-will-null", "07-will-null-topic",
    "07-will-properties", "07-will-qos0", "07-will-reconnect-1273", "09-auth-bad-method",
    "11-persistent-subscription", "11-persistent-subscription-v5", "11-pub-props", "11-subscription-id",
    "12-prop-response-topic", "12-prop-response-topic-correlation-data", "12-prop-subpub-content-type",
    "12-prop-subpub-payload-format",
]  # fmt: skip
#: Scripts that a broker fails which does as the standards have it, or as docs/mqtt.md says, and why.
WRONG = {
    "01-connect-575314": "a client identifier of 65,000 characters: a name has 512 bytes at most",
    "02-subpub-qos0-long-topic": "a topic of 65,000 characters: a name has 512 bytes at most",
    "02-subpub-qos1-message-expiry": "it wants a packet identifier to be used up by a message that expired",
    "02-subscribe-long-topic": "a filter of 65,535 levels is refused by SUBACK, as too long; it wants the end",
    "03-publish-dollar-v5": "messages to $ topics are confirmed and go nowhere, as in ActiveMQ; it wants 0x87",
    "03-publish-long-topic": "a topic of 65,535 levels is refused by PUBACK, as too long; it wants the end",
    "03-publish-qos2-dup": "a packet identifier in use is that message again, whatever it holds; it wants the end",
    "07-will-control": "$CONTROL is a topic of mosquitto's",
    "07-will-delay": "the session ends with the connection, and so does the delay of the will (MQTT 5.0, 3.1.3.2.2)",
    "07-will-takeover": "a connection that is taken over ends without DISCONNECT: its will is published (3.1.4)",
    "11-message-expiry": "it wants a packet identifier to be used up by a message that expired",
    "11-persistent-subscription-no-local": "it wants packet identifiers to go on where they were before a restart",
    "12-prop-assigned-client-identifier": "it wants an identifier of 41 characters",
    "12-prop-maximum-packet-size-publish-qos1": "its second message has 21 bytes, and the client takes 20",
    "12-prop-maximum-packet-size-publish-qos2": "as above",
    "13-malformed-subscribe-v5": "packet identifier 0 is 0x82 here, a protocol error; it wants 0x81",
    "13-malformed-unsubscribe-v5": "as above",
}
HERE = "tests/interop/mqtt/test_suites.py"
#: Each takes some seconds: so many of all run by default.
SAMPLE = rounds(6, len(SCRIPTS) + len(WRONG))


def sampled(scripts: Collection[str]) -> list[object]:
    """Parameters: the scripts of the sample run, and the others with TANDEMMQ_PROVE."""
    chosen = random.Random(SAMPLE).sample([*SCRIPTS, *WRONG], min(SAMPLE, len(SCRIPTS) + len(WRONG)))
    is_left_out = pytest.mark.skip(reason="not in the sample: TANDEMMQ_PROVE is not set")
    return [pytest.param(script, marks=() if script in chosen else is_left_out) for script in scripts]


@pytest.fixture(scope="module")
def mosquitto() -> Path:
    return checkout("TANDEMMQ_MOSQUITTO", "eclipse/mosquitto", HERE) / "test" / "broker"


@pytest.mark.thorough
@pytest.mark.prove
@pytest.mark.timeout(450)
@pytest.mark.parametrize("script", sampled(SCRIPTS))
def test_the_script_finds_nothing(mosquitto: Path, script: str) -> None:
    done = _run(mosquitto, script)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


@pytest.mark.thorough
@pytest.mark.prove
@pytest.mark.timeout(450)
@pytest.mark.parametrize("script", sampled(WRONG))
def test_the_script_finds_what_is_known(mosquitto: Path, script: str) -> None:
    assert _run(mosquitto, script).returncode == 1, WRONG[script]


def _run(mosquitto: Path, script: str) -> subprocess.CompletedProcess[str]:
    if not (mosquitto / f"{script}.py").exists():
        pytest.skip(f"this version of mosquitto has no test {script}")
    if b"0xed" in (mosquitto / f"{script}.py").read_bytes():
        pytest.skip("this version's test sends a payload format of 237, which MQTT 5.0 does not allow")
    command = [sys.executable, mosquitto_suite.__file__, str(mosquitto), f"{script}.py"]
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SCRIPT_SECONDS_MAX, env={**os.environ, **environment}
    )


PAHO_SECONDS_MAX = 400
#: One topic to which no client may subscribe; rights name the permitted topics.
RIGHTS = "".join(
    f'[[security.authorization]]\ntopic = "{pattern}"\nread = ["*"]\nwrite = ["*"]\nadmin = ["*"]\n'
    for pattern in ("TopicA.>", "Topic.>", "*.TopicA", "client_test5.>")
)
#: Tests that a broker fails which does as the standard has it, and why.
PAHO_WRONG: dict[str, dict[str, str]] = {
    "client_test": {},
    "client_test5": {
        "test_server_keep_alive": "it wants a broker that lowers a keep alive of 120 seconds to 60",
        "test_subscribe_failure": "it takes no other reason code than 0x80; SUBACK has 0x87, Not authorized (3.9.3)",
        "test_subscribe_identifiers": "it wants one copy for overlapping subscriptions; here each gets one (3.3.4)",
    },
}


@pytest.fixture(scope="module")
def paho() -> Path:
    return checkout("TANDEMMQ_PAHO_TESTING", "eclipse/paho.mqtt.testing", HERE) / "interoperability"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", PAHO_WRONG)
def test_pahos_suite_finds_nothing(paho: Path, tmp_path: Path, module: str) -> None:
    settings = tmp_path / "tandemmq.toml"
    settings.write_text(RIGHTS)
    broker = BrokerProcess(tmp_path / "data", "a", "--config", str(settings))
    broker.mqtt = free_port()
    with serving(broker):
        command = [sys.executable, paho_suite.__file__, str(paho), module, str(broker.mqtt)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PAHO_SECONDS_MAX, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    verdicts = json.loads(done.stdout.splitlines()[-1])
    print(f"{len(verdicts)} tests of {module}")
    failed = {name: text for name, text in verdicts.items() if text is not None}
    assert failed.keys() == PAHO_WRONG[module].keys(), "\n".join([*failed.values(), done.stdout[-8000:]])
    assert "Traceback" not in broker.log.read_text()
