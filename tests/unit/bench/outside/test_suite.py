"""Java tests that start a broker of their own process meet one outside of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.bench import suites
from tandemmq.bench.outside.brokers import NoSetting, write_settings
from tandemmq.bench.suites import LIBRARIES, TESTING
from tandemmq.cli.config import load_settings
from tandemmq.config.settings import Settings

OWN_TEST = """\
package own;

import javax.jms.*;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.broker.BrokerService;
import org.junit.*;

public class OwnTest {
    private String take(String url) throws Exception {
        Connection connection = new ActiveMQConnectionFactory(url).createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue("own");
        session.createProducer(queue).send(session.createTextMessage("body"));
        TextMessage message = (TextMessage) session.createConsumer(queue).receive(10000);
        connection.close();
        return message.getText();
    }

    @Test public void testByVm() throws Exception {
        Assert.assertEquals("body", take("vm://localhost?broker.persistent=false"));
    }

    @Test public void testByConnector() throws Exception {
        BrokerService broker = new BrokerService();
        String url = broker.addConnector("tcp://0.0.0.0:0").getPublishableConnectString();
        broker.start();
        Assert.assertEquals("body", take(url));
        broker.stop();
    }

    @Test public void testLooksInside() throws Exception {
        BrokerService broker = new BrokerService();
        broker.start();
        try {
            broker.getBroker();
        } catch (Exception swallowed) {
        } finally {
            broker.stop();
        }
    }

    @Test public void testFails() {
        Assert.fail("as it should");
    }
}
"""


@pytest.mark.timeout(180)
def test_each_outcome_is_told(tmp_path: Path, require_service: Callable[[object, str], None]) -> None:
    require_service(shutil.which("javac"), "no JDK: javac is not in the path")
    require_service((LIBRARIES / "activemq-broker.jar").exists(), f"no ActiveMQ in {LIBRARIES}")
    require_service(TESTING[0].exists(), f"no JUnit: {TESTING[0]} is not there")
    source, checkout = tmp_path / "OwnTest.java", tmp_path / "checkout"
    source.write_text(OWN_TEST)
    classes = checkout / suites.KINDS["activemq-jms"].classes
    path = ":".join([*map(str, TESTING), f"{LIBRARIES}/*"])
    subprocess.run(["javac", "-nowarn", "-d", str(classes), "-cp", path, str(source)], check=True)
    directory = tmp_path / "run"
    directory.mkdir()
    outcomes = suites.run("activemq-jms", checkout, [], directory, "tandemmq", "", 1)
    assert {outcome.test: outcome.state for outcome in outcomes} == {
        "testByVm": "passed",
        "testByConnector": "passed",
        "testLooksInside": "n/a",
        "testFails": "failed",
    }
    assert next(outcome.why for outcome in outcomes if outcome.state == "failed").startswith("java.lang.AssertionError")
    assert suites.table(outcomes) == "1 classes, 4 tests: 1 failed, 1 n/a, 2 passed"


# ---- What Java's tests configured of ActiveMQ's broker becomes a settings file


POLICIES = "org.apache.activemq.broker.region.policy."
FACTS: dict[str, Any] = {
    "name": "localhost", "repeats": 1000, "userIds": True, "destinations": [], "policies": [],
    "connectors": ["tcp://127.0.0.1:1", "stomp://127.0.0.1:2?transport.soLinger=0&transport.defaultHeartBeat=5,5"],
}  # fmt: skip


def settings(directory: Path, **facts: Any) -> Settings:
    return load_settings(str(write_settings({**FACTS, **facts}, directory)))


def test_connectors_keep_what_a_client_may_see_of_their_options(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert [connector.scheme for connector in found.connectors] == ["tcp", "stomp"]
    assert found.connectors[1].uri == "stomp://127.0.0.1:2?transport.defaultHeartBeat=5,5"
    assert found.broker.populate_jmsx_user_id


def test_dead_letters_are_activemqs_unless_a_policy_says_otherwise(tmp_path: Path) -> None:
    letters = {"class": f"{POLICIES}IndividualDeadLetterStrategy", "queuePrefix": "Test."}
    own = {"destination": "queue://A.>", "queuePrefetch": 3, "useCache": False, "deadLetterStrategy": letters}
    found = {entry.subject: entry for entry in settings(tmp_path, policies=[own]).destinations}
    assert found["queue", "A.>"].queue_prefetch == 3
    assert found["queue", "A.>"].dead_letter_strategy.queue_prefix == "Test."
    assert found["queue", ">"].dead_letter_strategy.type == "shared"
    assert found["topic", ">"].dead_letter_strategy.type == "shared"


def test_the_default_entry_holds_for_temporary_destinations_too(tmp_path: Path) -> None:
    found = settings(tmp_path, policies=[{"memoryLimit": 5}]).destinations
    assert {entry.subject[0]: entry.memory_limit for entry in found} == {
        "queue": 5, "topic": 5, "temp_queue": 5, "temp_topic": 5,
    }  # fmt: skip


def test_users_and_rights(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        users=[{"name": "system", "password": "manager", "groups": ["admins"]}],
        rights=[{"destination": "queue://USERS.>", "read": ["users"], "write": ["users"], "admin": []}],
    ).security
    assert found.users_file is not None
    assert found.allow_anonymous == "false"
    assert found.authorization[0].subject == ("queue", "USERS.>")


@pytest.mark.parametrize(
    "facts",
    [
        {"connectors": ["ssl://127.0.0.1:1"]},
        {"memory": 1 << 20},
        {"destinations": ["queue://a"]},
        {"policies": [{"dispatchPolicy": {"class": f"{POLICIES}StrictOrderDispatchPolicy"}}]},
        {"policies": [{"slowConsumerStrategy": {"class": f"{POLICIES}Other"}}]},
    ],
)
def test_what_no_setting_says_is_named(tmp_path: Path, facts: dict[str, Any]) -> None:
    with pytest.raises(NoSetting):
        settings(tmp_path, **facts)
