"""Topic names and filters, their destinations, and the names of durable subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.names import is_wildcard, split
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason
from tandemmq.broker.protocols.mqtt.topics import (
    check_filter,
    check_topic,
    destination_of,
    durable_name,
    gathering,
    matches,
    share_of,
    topic_of,
)
from tandemmq.store.records.message import DestinationKind

BLANKS = "".join(map(chr, range(33)))
# Characters that the mapping treats specially, and their codes, whole and in pieces.
PIECES = ["%", "25", "2C", "20", "00", "3F", "%25", "%2C", "%20", "%3f", ",", "?", " ", "\x01", *"/.+*#>aß"]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)

NAMES = [
    ("sport/tennis/player1", "sport.tennis.player1"),
    ("/finance", ".finance"),
    ("a//b", "a..b"),
    ("sport/+/player1", "sport.*.player1"),
    ("sport/tennis/#", "sport.tennis.>"),
    ("#", ">"),
    ("a.b", "a/b"),
    ("a*b>c", "a+b#c"),
    ("10%", "10%"),
    ("10%2", "10%2"),
    ("a,b?c", "a%2Cb%3Fc"),
    ("a%2Cb", "a%252Cb"),
    ("a%252Cb", "a%25252Cb"),
    ("a%2cb", "a%2cb"),
    (" a b ", "%20a b%20"),
    ("  ", "%20%20"),
    (" ", "%20"),
    ("%20", "%2520"),
    ("a%20b", "a%20b"),
    ("\ta\r", "%09a%0D"),
    ("Größe/€", "Größe.€"),
]


@pytest.mark.parametrize(("topic", "name"), NAMES)
def test_a_topic_has_a_name_and_the_name_that_topic(topic: str, name: str) -> None:
    assert destination_of(topic) == (DestinationKind.TOPIC, name)
    assert topic_of(name) == topic


@given(TEXTS)
def test_no_two_topics_share_a_name_and_no_name_has_a_meaning_of_its_own(topic: str) -> None:
    destination = destination_of(topic)
    assert topic_of(destination.name) == topic
    if len(destination.name) < 80:
        assert split(destination) == (destination,)


@given(TEXTS)
def test_no_two_names_share_a_topic(text: str) -> None:
    name = text.replace(",", "").replace("?", "").strip(BLANKS) or "x"
    assert destination_of(topic_of(name)).name == name


@given(TEXTS)
def test_a_topic_name_is_no_wildcard_and_a_wildcard_filter_is_one(text: str) -> None:
    try:
        check_filter(text)
    except MqttError:
        return
    has_wildcard = "+" in text or "#" in text
    assert is_wildcard(destination_of(text).name) is has_wildcard
    if not has_wildcard:
        check_topic(text)


@pytest.mark.parametrize("topic", ["", "a/+", "+", "#", "a#b", "a\0b"])
def test_a_topic_name_has_a_character_and_no_wildcard(topic: str) -> None:
    with pytest.raises(MqttError) as caught:
        check_topic(topic)
    assert caught.value.reason is Reason.TOPIC_NAME_INVALID


FILTERS = [
    "#",
    "+",
    "/",
    "//",
    "+/+",
    "/+",
    "+/#",
    "sport/#",
    "sport/tennis/+",
    "+/tennis/#",
    "a b",
    "$SYS/#",
    "$share",
]
NO_FILTERS = ["", "sport/tennis#", "sport/tennis/#/ranking", "#/", "##", "sport+", "+a/b", "a/b+/c", "++", "a\0"]


@pytest.mark.parametrize("text", FILTERS)
def test_a_filter_is_taken(text: str) -> None:
    check_filter(text)
    assert share_of(text) is None


@pytest.mark.parametrize("text", NO_FILTERS)
def test_a_wildcard_is_a_whole_level_and_the_hash_the_last(text: str) -> None:
    for check in (check_filter, lambda text: share_of(f"$share/group/{text}")):
        with pytest.raises(MqttError) as caught:
            check(text)
        assert caught.value.reason is Reason.TOPIC_FILTER_INVALID


def test_a_shared_subscription_has_a_group_and_a_filter() -> None:
    assert share_of("$share/consumer1/sport/tennis/+") == ("consumer1", "sport/tennis/+")
    assert share_of("$share/g//finance") == ("g", "/finance")


@pytest.mark.parametrize("text", ["$share/", "$share/g", "$share/g/", "$share//a", "$share/g+/a", "$share/#/a"])
def test_a_malformed_shared_subscription_is_refused(text: str) -> None:
    with pytest.raises(MqttError) as caught:
        share_of(text)
    assert caught.value.reason is Reason.TOPIC_FILTER_INVALID


PLAYER = "sport/tennis/player1"
MATCHES = [
    (f"{PLAYER}/#", [PLAYER, f"{PLAYER}/ranking", f"{PLAYER}/score/wimbledon"], []),
    ("sport/#", ["sport"], []),
    ("sport/tennis/#", [], ["sport", "sport/golf/player1"]),
    ("sport/tennis/+", [PLAYER], [f"{PLAYER}/ranking"]),
    ("sport/+", ["sport/"], ["sport"]),
    ("+/+", ["/finance"], []),
    ("/+", ["/finance"], []),
    ("+", [], ["/finance"]),
    ("#", ["/finance"], ["$SYS/monitor/Clients"]),
    ("+/monitor/Clients", [], ["$SYS/monitor/Clients"]),
    ("$SYS/#", ["$SYS/monitor/Clients"], []),
    ("$SYS/monitor/+", ["$SYS/monitor/Clients"], []),
    ("a/$b/#", ["a/$b/c"], []),
    ("ACCOUNTS", ["ACCOUNTS"], ["Accounts"]),
    ("/finance", [], ["finance"]),
    ("finance/", [], ["finance"]),
]


@pytest.mark.parametrize(("topic_filter", "matched", "others"), MATCHES)
def test_a_filter_matches(topic_filter: str, matched: list[str], others: list[str]) -> None:
    check_filter(topic_filter)
    for topic in (*matched, *others):
        check_topic(topic)
        assert matches(topic_filter, topic) is (topic in matched), topic


# ---- names of durable subscriptions, as ActiveMQ gives them


@pytest.mark.parametrize("topic_filter", ["a", "a/+/b", "#", "a:b", "a b"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_name_tells_its_filter_and_its_qos(topic_filter: str, qos: int) -> None:
    name = durable_name(qos, topic_filter)
    assert gathering([name]) == {topic_filter: (name, qos)}


def test_names_as_activemq_gives_them() -> None:
    assert (durable_name(1, "a/b"), durable_name(2, "a/#")) == ("AT_LEAST_ONCE:a/b", "EXACTLY_ONCE:a/#")


@pytest.mark.parametrize(
    "name", ["", "mine", "AT_LEAST_ONCE", "AT_LEAST_ONCE:", "AT_MOST_ONCE:a", "AT_LEAST_ONCE:a/#/b", "EXACTLY_ONCE:a+"]
)
def test_other_names_are_of_other_clients(name: str) -> None:
    assert gathering([name]) == {}


def test_of_two_for_one_filter_the_higher_qos_counts() -> None:
    names = ["AT_LEAST_ONCE:a", "EXACTLY_ONCE:a"]
    assert gathering(names) == gathering(names[::-1]) == {"a": ("EXACTLY_ONCE:a", 2)}
