"""kill -9 of the master of a pair, and of a set, under JMS load: clients continue, and their records are consistent.

TANDEMMQ_PROVE sets the number of kills in each mode. With TANDEMMQ_PROVE=full a pair of ActiveMQ has the same rounds;
it loses messages in some runs.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.interop.jms.jvm import Jvm, class_path
from tests.support.interop.jms.load import Load
from tests.support.interop.jms.peers import Pair, TandemMQ
from tests.support.prove import IS_PROOF, SEED, rounds
from tests.support.replication.process_fixtures import three as three
from tests.support.replication.process_fixtures import whole as whole

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(1200),
    pytest.mark.promise("clients-go-on", "jms-works-unmodified"),
]


KILLS = rounds(1, 20)
PROMPT = "jms.redeliveryPolicy.initialRedeliveryDelay=0&jms.sendAcksAsync=false"


@pytest.fixture(params=["activemq", "tandemmq"] if IS_PROOF else ["tandemmq"])
def pair(request: pytest.FixtureRequest, classes: Path, tmp_path: Path) -> Iterator[Pair]:
    """Run one master and one standby over one directory; the store of TandemMQ is checked at the end."""
    pair = Pair(request.param, tmp_path / "data", classes)
    yield pair
    pair.close()
    if request.param == "tandemmq":
        report = check(str(tmp_path / "data"))
        assert report.is_clean, report.problems


@pytest.mark.parametrize("mode", ["AUTO", "CLIENT", "DUPS_OK", "INDIVIDUAL", "TRANSACTED"])
def test_nothing_is_lost_and_nothing_is_there_twice(
    pair: Pair, classes: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    chance = random.Random(SEED)
    load = Load(classes, pair.url(PROMPT), "JMS.FAILOVER", mode)
    try:
        for _ in range(KILLS):
            load.send_more(chance.randint(100, 600))
            pair.kill_master()
            load.send_more(200)
            pair.restore()
        books = load.books()
    finally:
        load.close()
    record_property("sent", len(books.sent))
    print(f"{mode}: {KILLS} kills, {len(books.sent)} confirmed, {len(books.received)} received, "
          f"{len(books.doubtful)} commits of sends and {len(books.undecided)} receipts in doubt")  # fmt: skip
    assert books.problems() == []
    assert len(books.sent) >= 300


def test_subscriptions_and_temporary_queues_are_replayed(pair: Pair, classes: Path) -> None:
    jvm = Jvm(classes)
    try:
        connection = jvm.connect(pair.url(PROMPT), clientId="replayed")
        session = connection.session()
        durable = session.durable("topic://JMS.T", "news", selector="colour = 'red'")
        reply_to = session.temporary_queue()
        answers = session.consumer(reply_to)
        listener = connection.session().listener("queue://JMS.Q")
        pair.kill_master()
        session.send("topic://JMS.T", "blue", properties={"colour": "blue"})
        session.send("topic://JMS.T", "red", properties={"colour": "red"})
        session.send(reply_to, "answer")
        session.send("queue://JMS.Q", "heard")
        assert durable.receive().body == "red"
        assert answers.receive().body == "answer"
        assert [message["body"] for message in listener.heard(1)] == ["heard"]
        connection.close()
    finally:
        jvm.close()


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_prepared_transaction_is_decided_at_the_standby(pair: Pair, classes: Path, verb: str) -> None:
    jvm = Jvm(classes)
    try:
        plain = jvm.connect(pair.url(PROMPT)).session()
        plain.send("queue://JMS.IN", "taken")
        session = jvm.connect(pair.url(PROMPT), xa=True).session("XA")
        session.xa("start", "xid")
        consumer = session.consumer("queue://JMS.IN")
        assert consumer.receive().body == "taken"
        session.send("queue://JMS.OUT", "given")
        session.xa("end", "xid")
        session.xa("prepare", "xid")
        pair.kill_master()
        deciding = jvm.connect(pair.url(PROMPT), xa=True).session("XA")
        assert deciding.xa("recover") == ["xid"]
        out = plain.consumer("queue://JMS.OUT")
        assert out.take() is None
        consumer.close()
        deciding.xa(verb, "xid")
        done = verb == "commit"
        assert out.rest() == (["given"] if done else [])
        assert plain.consumer("queue://JMS.IN").rest() == ([] if done else ["taken"])
        assert deciding.xa("recover") == []
    finally:
        jvm.close()


def test_a_client_that_knows_one_broker_is_told_of_the_other(jvm: Jvm, tmp_path: Path) -> None:
    ports = (free_port(), free_port())
    told = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
    options = ("--set", f"broker.failover_uris={told}")
    master = TandemMQ(tmp_path / "data", *options, broker="a", port=ports[0])
    master.wait()
    standby = TandemMQ(tmp_path / "data", *options, broker="b", port=ports[1])
    try:
        standby.wait_standby()
        url = f"failover:(tcp://127.0.0.1:{ports[0]})?maxReconnectDelay=100"
        connection = jvm.connect(url)
        session = connection.session()
        session.send("queue://TOLD", "before")
        master.close()
        session.send("queue://TOLD", "after")
        assert session.consumer("queue://TOLD").bodies(2) == ["before", "after"]
        connection.close()
    finally:
        standby.close()
        master.close()


PROGRAM = Path(__file__).parents[3] / "examples" / "clients" / "java" / "Pair.java"
QUEUE = "JMS.EXAMPLE"
COUNT = 2000
BEFORE_THE_KILL = 50
PATIENCE_SECONDS = 60


def test_the_example_loses_nothing_when_the_master_dies(classes: Path, jvm: Jvm, tmp_path: Path) -> None:
    pair = Pair("tandemmq", tmp_path / "data", classes)
    addresses = pair.url().partition("(")[2].partition(")")[0]
    program = ["java", "-cp", class_path(classes), str(PROGRAM)]
    arguments = [addresses, QUEUE, str(COUNT)]
    receiver = subprocess.Popen([*program, "receive", *arguments], stdout=subprocess.PIPE, text=True)
    sender = subprocess.Popen([*program, "send", *arguments])
    try:
        assert receiver.stdout is not None
        lines = [receiver.stdout.readline().strip() for _ in range(BEFORE_THE_KILL)]
        assert sender.poll() is None, "it is still at it"
        pair.kill_master()
        assert sender.wait(PATIENCE_SECONDS) == 0
        lines += receiver.stdout.read().splitlines()
        assert receiver.wait(PATIENCE_SECONDS) == 0
        left = jvm.connect(pair.url()).session().consumer(f"queue://{QUEUE}").take()
    finally:
        for process in (sender, receiver):
            process.kill()
            process.wait()
        pair.close()
    assert lines == [f"order {number}" for number in range(1, COUNT + 1)]
    assert left is None, "no message was stored twice"


PROMPT_OF_A_SET = (
    "initialReconnectDelay=20&maxReconnectDelay=100&jms.redeliveryPolicy.initialRedeliveryDelay=0"
    "&jms.sendAcksAsync=false"
)


def failover(*ports: int | None) -> str:
    return f"failover:({','.join(f'tcp://127.0.0.1:{port}' for port in ports)})?{PROMPT_OF_A_SET}"


@pytest.mark.promise("quorum-keeps-confirmed")
@pytest.mark.parametrize("mode", ["CLIENT", "TRANSACTED"])
def test_a_set_loses_nothing_and_has_nothing_twice(three: SetOfBrokers, classes: Path, mode: str) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    chance = random.Random(SEED)
    load = Load(classes, failover(*(node.openwire for node in three.members)), f"JMS.SET.{mode}", mode)
    try:
        for _ in range(KILLS):
            load.send_more(chance.randint(50, 300))
            dead = three.wait_master()
            dead.kill()
            three.wait_master(three.others(dead))
            load.send_more(100)
            dead.start()
            # Near enough to be elected: the others go on writing.
            wait_until(lambda: dead.replication().get("role") == "follower", f"{dead.node} is back")  # noqa: B023
        books = load.books()
    finally:
        load.close()
    assert books.problems() == []
    assert len(books.sent) >= 150


@pytest.mark.promise("quorum-keeps-confirmed")
def test_a_client_that_knows_one_member_is_told_of_all(three: SetOfBrokers, jvm: Jvm) -> None:
    """The setting broker.failover_uris is absent."""
    master = three.settled()[0]
    connection = jvm.connect(failover(master.openwire))
    session = connection.session()
    session.send("queue://TOLD", "before")
    master.kill()
    session.send("queue://TOLD", "after")
    assert session.consumer("queue://TOLD").bodies(2) == ["before", "after"]
    connection.close()
