"""Exchange between STOMP and JMS clients: temporary destinations, maps, browsers, numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, AddDestination, ClientError, Nack, ProtocolFailure, Send, Subscribe
from tandemmq.broker.core.numbers import java_text
from tandemmq.broker.protocols.stomp.destinations import NAMES_MAX, TEMPORARY_MAX, DestinationNames, write_destination
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.properties import Float, Long, Short, encode_properties
from tests.support.protocols.commands import one
from tests.support.protocols.stomp_peer import StompPeer

QUEUE = DestinationKind.QUEUE
TEMP_QUEUE = DestinationKind.TEMP_QUEUE


def message(body: bytes = b"", kind: BodyKind = BodyKind.TEXT, **fields: Any) -> Message:
    return Message(fields.pop("destination", Destination(QUEUE, "a")), "ID:x:1:1:1", body, kind, **fields)


class TestTemporaryDestinations:
    def test_one_is_made_before_its_first_use_and_once(self) -> None:
        client = StompPeer()
        made, subscribed = client.say("SUBSCRIBE\nid:0\ndestination:/temp-queue/r\n\n")
        (sent,) = client.say("SEND\ndestination:/queue/a\nreply-to:/temp-queue/r\n\n")
        other, to_topic = client.say("SEND\ndestination:/temp-topic/r\n\n")

        assert isinstance(made, AddDestination)
        assert isinstance(subscribed, Subscribe)
        assert isinstance(sent, Send)
        found = made.destination, subscribed.destination, sent.message.reply_to
        assert found == (Destination(TEMP_QUEUE, "ID:a-1-1-secret:1"),) * 3
        assert isinstance(other, AddDestination)
        assert isinstance(to_topic, Send)
        found = other.destination, to_topic.message.destination
        assert found == (Destination(DestinationKind.TEMP_TOPIC, "ID:a-1-1-secret:2"),) * 2

    def test_its_owner_knows_it_by_its_name_and_a_replier_by_the_brokers(self) -> None:
        asker, replier = StompPeer(), StompPeer(id="ID:b-1-1")
        asker.say("SUBSCRIBE\nid:0\ndestination:/temp-queue/r\n\n")
        replier.subscribe()
        question = one(Send, asker.say("SEND\ndestination:/queue/a\nreply-to:/temp-queue/r\ncorrelation-id:7\n\n"))

        seen, _ = replier.sees(question.message)
        assert seen["reply-to"] == "/remote-temp-queue/ID:a-1-1-secret:1"
        reply_to = seen["reply-to"].replace(":", "\\c")
        answer = one(Send, replier.say(f"SEND\ndestination:{reply_to}\ncorrelation-id:{seen['correlation-id']}\n\n"))
        seen, _ = asker.sees(answer.message)
        assert (seen["destination"], seen["correlation-id"]) == ("/temp-queue/r", "7")

    def test_an_encoding_for_the_owner_of_a_temporary_name_is_not_shared(self) -> None:
        owner, other = StompPeer(), StompPeer(id="ID:b-1-1")
        for client in (owner, other):
            client.subscribe()
        (_, sent) = owner.say("SEND\ndestination:/queue/a\nreply-to:/temp-queue/r\n\n")
        assert isinstance(sent, Send)
        seen = [client.sees(sent.message)[0]["reply-to"] for client in (owner, other, owner)]
        assert seen == ["/temp-queue/r", "/remote-temp-queue/ID:a-1-1-secret:1", "/temp-queue/r"]

    def test_a_refused_frame_may_have_made_one(self) -> None:
        made, refused = StompPeer().say("SEND\ndestination:/temp-queue/r\npriority:high\n\n")
        assert isinstance(made, AddDestination)
        assert isinstance(refused, ProtocolFailure)

    def test_their_number_has_a_bound(self) -> None:
        names = DestinationNames("c", lambda: "secret")
        for number in range(TEMPORARY_MAX):
            names.read(f"/temp-queue/{number}")
        with pytest.raises(ClientError, match="of this connection") as refusal:
            names.read("/temp-queue/more")
        assert not refusal.value.is_fatal

    def test_other_names_are_forgotten_and_these_are_not(self) -> None:
        names = DestinationNames("c", lambda: "secret")
        mine = names.read("/temp-queue/mine")
        for number in range(NAMES_MAX + 1):
            names.read(f"/queue/{number}")
        assert names.read("/temp-queue/mine") == mine
        assert names.created == [mine]


@pytest.mark.parametrize(
    ("text", "destination", "written"),
    [
        ("/queue/a,/topic/b", Destination(QUEUE, "a,topic://b"), "/queue/a,/topic/b"),
        ("/topic/a, b", Destination(DestinationKind.TOPIC, "a,queue://b"), "/topic/a,/queue/b"),
        ("a,b", Destination(QUEUE, "a,b"), "/queue/a,/queue/b"),
        ("/topic/a.>", Destination(DestinationKind.TOPIC, "a.>"), "/topic/a.>"),
    ],
)
def test_composites_and_wildcards_stay_in_the_name(text: str, destination: Destination, written: str) -> None:
    names = DestinationNames("c", lambda: "secret")
    assert names.read(text) == destination
    assert write_destination(destination) == written
    assert names.read(written) == destination


class TestMaps:
    MAP = encode_properties({"name": "Dejan", "age": 30})
    XML = (
        b"<map>\n  <entry>\n    <string>name</string>\n    <string>Dejan</string>\n  </entry>\n"
        b"  <entry>\n    <string>age</string>\n    <int>30</int>\n  </entry>\n</map>"
    )
    JSON = b'{"map":{"entry":[{"string":["name","Dejan"]},{"string":"age","int":30}]}}'

    @pytest.mark.parametrize(
        ("asked", "told", "body"),
        [
            ("jms-map-xml", "jms-map-xml", XML),
            ("jms-xml", "jms-map-xml", XML),
            ("jms-map-json", "jms-map-json", JSON),
            ("jms-json", "jms-map-json", JSON),
            ("unknown", "unknown", b""),
        ],
    )
    def test_a_map_has_the_form_that_the_subscription_requests(self, asked: str, told: str, body: bytes) -> None:
        client = StompPeer()
        client.subscribe(f"transformation:{asked}")
        seen, came = client.sees(message(self.MAP, BodyKind.MAP, properties={"transformation": "no", "colour": "red"}))
        assert (came, seen["content-length"]) == (body, str(len(body)))
        assert (seen["transformation"], seen["colour"]) == (told, "red")

    def test_subscriptions_that_differ_share_nothing(self) -> None:
        client = StompPeer()
        client.subscribe("transformation:jms-map-xml")
        client.subscribe(id="1")
        shared = message(self.MAP, BodyKind.MAP)
        assert [client.sees(shared, id=id)[1] for id in "0101"] == [self.XML, b"", self.XML, b""]

    def test_a_text_is_not_changed_and_bytes_are_not_even_marked(self) -> None:
        client = StompPeer()
        client.subscribe("transformation:jms-map-xml")
        seen, body = client.sees(message(b"hi"))
        assert (seen["transformation"], body) == ("jms-map-xml", b"hi")
        seen, body = client.sees(message(b"hi", BodyKind.BYTES))
        assert ("transformation" in seen, body) == (False, b"hi")

    def test_an_object_is_never_read(self) -> None:
        client = StompPeer()
        client.subscribe("transformation:jms-object-json")
        seen, body = client.sees(message(b"\xac\xed\0\5java", BodyKind.OBJECT))
        assert (body, seen["transformation-error"]) == (b"", "Java objects are not read here")

    def test_a_damaged_map_comes_empty_with_the_reason(self) -> None:
        client = StompPeer()
        client.subscribe("transformation:jms-map-json")
        seen, body = client.sees(message(self.MAP[:-1], BodyKind.MAP))
        assert (body, "truncated" in seen["transformation-error"]) == (b"", True)


class TestBrowser:
    SUBSCRIBE = "SUBSCRIBE\nid:0\ndestination:/queue/a\nbrowser:true\nack:client-individual\n\n"

    def test_its_end_is_a_message_that_says_so(self) -> None:
        client = StompPeer()
        client.say(self.SUBSCRIBE)
        client.session.nothing("0")
        end = {"subscription": "0", "destination": "/queue/a", "message-id": "0", "browser": "end"}
        assert client.heard() == [(end | {"content-length": "0"}, b"")]

    def test_a_late_end_is_not_written(self) -> None:
        client = StompPeer()
        client.session.nothing("0")
        assert client.heard() == []

    @pytest.mark.parametrize(
        ("version", "name"), [("1.2", "id:1-1"), ("1.1", "subscription:0\nmessage-id:ID\\cx\\c1\\c1\\c1")]
    )
    def test_it_refuses_nothing(self, version: str, name: str) -> None:
        client = StompPeer(version)
        client.say(self.SUBSCRIBE)
        client.session.deliver("0", 1, message(), 0, AckMode.INDIVIDUAL)
        refused = one(ProtocolFailure, client.say(f"NACK\n{name}\n\n"))
        assert "is a browser" in refused.error.message
        assert not refused.error.is_fatal

    def test_a_consumer_under_the_id_of_a_refused_browser_may(self) -> None:
        client = StompPeer()
        client.say(self.SUBSCRIBE)
        error = ClientError("no", is_fatal=False)
        error.refused_id = "0"
        client.session.fail(error)
        client.say(self.SUBSCRIBE.replace("true", "false"))
        client.session.deliver("0", 1, message(), 0, AckMode.INDIVIDUAL)
        one(Nack, client.say("NACK\nid:2-1\n\n"))


@pytest.mark.parametrize(
    "text",
    [
        "0.0",
        "-0.0",
        "1.0",
        "100.0",
        "9999999.0",
        "1.0E7",
        "1.5E10",
        "0.001",
        "1.0E-4",
        "-1.25E-7",
        "1.7976931348623157E308",
        "NaN",
        "-Infinity",
    ],
)
def test_numbers_are_written_as_java_does(text: str) -> None:
    assert java_text(float(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (Short(-3), "-3"),
        (Long(1 << 40), "1099511627776"),
        (Float(0.10000000149011612), "0.1"),
        (Float(3.4028234663852886e38), "3.4028235E38"),
    ],
)
def test_values_of_other_types_are_written_as_java_does(value: float, text: str) -> None:
    assert java_text(value) == text
