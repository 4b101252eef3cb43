"""All kinds of bodies and properties, from JMS to JMS, and between JMS and STOMP."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsConnection, JmsSession
from tests.support.interop.jms.peers import TRANSFORMING, Peer
from tests.support.interop.jms.stomp_side import StompSide

pytestmark = [pytest.mark.service, pytest.mark.promise("jms-works-unmodified", "protocols-meet")]

BODIES = {
    "text": "grüße, 世界 \u0000 end",
    "bytes": base64.b64encode(bytes(range(256))).decode(),
    "map": {
        "string": "s", "int": 1, "long": {"long": 1 << 40}, "short": {"short": -2}, "byte": {"byte": -3},
        "bool": True, "double": 1.5, "float": {"float": 2.5}, "char": {"char": "ä"}, "bytes": {"bytes": "AAEC"},
    },
    "stream": ["s", 1, {"long": 1 << 40}, {"short": -2}, {"byte": -3}, False, 1.5, {"float": 2.5}, {"bytes": "AAEC"}],
    "object": "a string that Java serializes",
}  # fmt: skip
PROPERTIES = {
    "string": "grün", "int": 1, "long": {"long": -(1 << 40)}, "short": {"short": -2}, "byte": {"byte": -3},
    "bool": True, "double": 1.5, "float": {"float": 2.5},
}  # fmt: skip


@pytest.fixture
def stomp(broker: Peer) -> Iterator[StompSide]:
    side = StompSide(broker.stomp)
    yield side
    side.close()


@pytest.fixture
def transforming(broker: Peer, require_service: Callable[[object, str], None]) -> Peer:
    """ActiveMQ needs XStream and Jettison for it."""
    require_service(broker.name != "activemq" or all(jar.exists() for jar in TRANSFORMING), f"no {TRANSFORMING}")
    return broker


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    ("persistent", "options"), [(True, ""), (False, ""), (True, "jms.useCompression=true")], ids=str
)
def test_a_body_arrives_as_it_was(connect: Connect, queue: str, kind: str, persistent: bool, options: str) -> None:
    session = connect(options).session()
    session.send(
        queue, BODIES[kind], kind=kind, properties=PROPERTIES, persistent=persistent, priority=7,
        replyTo="queue://reply.here", correlation="c-1", type="order", ttl=100_000,
    )  # fmt: skip
    message = session.consumer(queue).receive()
    assert (message["kind"], message["body"], message["compressed"]) == (kind, BODIES[kind], bool(options))
    assert message.properties == PROPERTIES
    assert (message["persistent"], message["priority"], message["type"]) == (persistent, 7, "order")
    assert (message["replyTo"], message["correlation"]) == ("queue://reply.here", "c-1")
    assert message["expiration"] - message["timestamp"] == 100_000


@pytest.mark.parametrize("kind", ["text", "message"])
def test_a_message_may_have_no_body(session: JmsSession, queue: str, kind: str) -> None:
    session.send(queue, None, kind=kind)
    message = session.consumer(queue).receive()
    assert (message["kind"], message.body) == (kind, None)


def test_text_from_stomp_is_a_text_message(connection: JmsConnection, queue: str, name: str, stomp: StompSide) -> None:
    consumer = connection.session().consumer(queue)
    stomp.send(
        f"/queue/{name}", "grüße", persistent="true", priority="7", correlation_id="c-1", type="order",
        reply_to="/queue/reply.here", colour="red", content_type="text/plain",
    )  # fmt: skip
    message = consumer.receive()
    assert (message["kind"], message.body) == ("text", "grüße")
    assert (message["persistent"], message["priority"]) == (True, 7)
    assert (message["correlation"], message["type"]) == ("c-1", "order")
    assert message["replyTo"] == "queue://reply.here"
    assert message.properties["colour"] == "red"
    assert message.properties["content-type"] == "text/plain"


def test_bytes_from_stomp_are_a_bytes_message(
    connection: JmsConnection, queue: str, name: str, stomp: StompSide
) -> None:
    stomp.send(f"/queue/{name}", bytes(range(256)))
    message = connection.session().consumer(queue).receive()
    assert (message["kind"], message.body, message["persistent"]) == ("bytes", bytes(range(256)), False)


def test_a_jms_selector_chooses_among_messages_from_stomp(
    connection: JmsConnection, queue: str, name: str, stomp: StompSide
) -> None:
    consumer = connection.session().consumer(queue, selector="colour = 'red' AND JMSPriority > 5")
    stomp.send(f"/queue/{name}", "no", colour="red", priority="3")
    stomp.send(f"/queue/{name}", "no", colour="blue", priority="8")
    stomp.send(f"/queue/{name}", "yes", colour="red", priority="8")
    assert consumer.receive().body == "yes"


def test_a_text_message_for_stomp(connection: JmsConnection, queue: str, name: str, stomp: StompSide) -> None:
    [message_id] = connection.session().send(
        queue, "grüße", properties=PROPERTIES, priority=7, correlation="c-1", type="order",
        replyTo="queue://reply.here",
    )  # fmt: skip
    stomp.subscribe(f"/queue/{name}")
    frame = stomp.read()
    assert (frame.command, frame.body.decode()) == ("MESSAGE", "grüße")
    headers = frame.headers
    assert headers["destination"] == f"/queue/{name}"
    assert headers["message-id"] == message_id
    assert (headers["priority"], headers["persistent"]) == ("7", "true")
    assert (headers["correlation-id"], headers["type"]) == ("c-1", "order")
    assert headers["reply-to"] == "/queue/reply.here"
    assert (headers["string"], headers["int"], headers["short"], headers["byte"]) == ("grün", "1", "-2", "-3")
    assert headers["long"] == str(-(1 << 40))
    assert (headers["bool"], headers["double"], headers["float"]) == ("true", "1.5", "2.5")


def test_a_bytes_message_for_stomp_has_its_length(
    connection: JmsConnection, queue: str, name: str, stomp: StompSide
) -> None:
    connection.session().send(queue, bytes(range(256)), kind="bytes")
    stomp.subscribe(f"/queue/{name}")
    frame = stomp.read()
    assert (frame.body, frame.headers["content-length"]) == (bytes(range(256)), "256")


def test_request_from_jms_and_reply_from_stomp(session: JmsSession, queue: str, name: str, stomp: StompSide) -> None:
    reply_to = session.temporary_queue()
    answers = session.consumer(reply_to)
    stomp.subscribe(f"/queue/{name}")
    [message_id] = session.send(queue, "question", replyTo=reply_to)
    request = stomp.read()
    assert request.headers["reply-to"].startswith("/remote-temp-queue/")
    stomp.send(request.headers["reply-to"], "answer", correlation_id=request.headers["message-id"])
    answer = answers.receive()
    assert (answer.body, answer["correlation"]) == ("answer", message_id)


def test_request_from_stomp_and_reply_from_jms(session: JmsSession, queue: str, name: str, stomp: StompSide) -> None:
    requests = session.consumer(queue)
    stomp.subscribe("/temp-queue/answers")
    stomp.send(f"/queue/{name}", "question", reply_to="/temp-queue/answers")
    request = requests.receive()
    assert request["replyTo"].startswith("temp-queue://")
    session.send(request["replyTo"], "answer", correlation="c-1")
    answer = stomp.read()
    assert (answer.body, answer.headers["correlation-id"]) == (b"answer", "c-1")


@pytest.mark.parametrize("kind", ["map", "stream", "object"])
def test_a_body_that_stomp_cannot_have_is_empty(
    connection: JmsConnection, broker: Peer, queue: str, name: str, stomp: StompSide, kind: str
) -> None:
    connection.session().send(queue, BODIES[kind], kind=kind, properties={"n": 1})
    stomp.subscribe(f"/queue/{name}")
    frame = stomp.read()
    if kind == "map" and frame.body:
        # TandemMQ sends it as JSON by default
        assert broker.name == "tandemmq"
    else:
        assert frame.body == b""
    assert frame.headers["n"] == "1"


def test_a_map_for_stomp_by_transformation(
    connection: JmsConnection, transforming: Peer, queue: str, name: str, stomp: StompSide
) -> None:
    connection.session().send(queue, {"name": "Dejan", "size": 3}, kind="map")
    stomp.subscribe(f"/queue/{name}", transformation="jms-map-json")
    frame = stomp.read()
    assert frame.headers["transformation"] == "jms-map-json"
    [entries] = json.loads(frame.body)["map"].values()
    assert {"string": ["name", "Dejan"]} in entries
    assert {"string": "size", "int": 3} in entries


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("jms-map-json", '{"map":{"entry":[{"string":["name","Dejan"]},{"string":"size","int":3}]}}'),
        (
            "jms-map-xml",
            "<map><entry><string>name</string><string>Dejan</string></entry>"
            "<entry><string>size</string><int>3</int></entry></map>",
        ),
    ],
)
def test_a_map_from_stomp_by_transformation(
    connection: JmsConnection, transforming: Peer, queue: str, name: str, stomp: StompSide, form: str, body: str
) -> None:
    stomp.send(f"/queue/{name}", body, transformation=form)
    message = connection.session().consumer(queue).receive()
    assert (message["kind"], message["body"]) == ("map", {"name": "Dejan", "size": 3})
