"""Java tests that start a broker of their own process meet one outside of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.bench.outside import suite
from tandemmq.bench.outside.suite import LIBRARIES, TESTING

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
    classes = checkout / suite.KINDS["activemq-jms"].classes
    path = ":".join([*map(str, TESTING), f"{LIBRARIES}/*"])
    subprocess.run(["javac", "-nowarn", "-d", str(classes), "-cp", path, str(source)], check=True)
    directory = tmp_path / "run"
    directory.mkdir()
    outcomes = suite.run("activemq-jms", checkout, [], directory, "tandemmq", "", 1)
    assert {outcome.test: outcome.state for outcome in outcomes} == {
        "testByVm": "passed",
        "testByConnector": "passed",
        "testLooksInside": "n/a",
        "testFails": "failed",
    }
    assert next(outcome.why for outcome in outcomes if outcome.state == "failed").startswith("java.lang.AssertionError")
    assert suite.table(outcomes) == "1 classes, 4 tests: 1 failed, 1 n/a, 2 passed"
