"""Any packets that a client may send, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Authentication,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
TOPICS = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20)
FILTERS = st.lists(st.sampled_from(["a", "", "+", "ß", "$b"]), min_size=2, max_size=5).map("/".join) | st.sampled_from(
    ["#", "a/#", "+/#"]
)
SHARED = st.builds("$share/{}/{}".format, st.sampled_from("gh"), FILTERS)
BYTES = st.binary(max_size=300)
IDS = st.integers(1, 0xFFFF)
QOS = st.integers(0, 2)
FLAGS = st.integers(0, 1)
SECONDS = st.integers(0, 0xFFFFFFFF)
USER = st.lists(st.tuples(TEXTS, TEXTS), max_size=4).map(tuple)
_MESSAGE = {
    "payload_format": st.none() | FLAGS,
    "message_expiry": st.none() | SECONDS,
    "content_type": st.none() | TEXTS,
    "response_topic": st.none() | TOPICS,
    "correlation_data": st.none() | BYTES,
    "user": USER,
}
_REASON_STRING = st.none() | TEXTS


def packets(version: Version) -> st.SearchStrategy[Packet]:
    """What may follow CONNECT."""
    is_5 = version is Version.V5
    of_acknowledgement = _properties(version, reason_string=_REASON_STRING, user=USER)
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        st.builds(
            Acknowledgement,
            st.sampled_from([PacketType.PUBACK, PacketType.PUBREC]),
            IDS,
            st.sampled_from([0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99] if is_5 else [0]),
            of_acknowledgement,
        ),
        st.builds(
            Acknowledgement,
            st.sampled_from([PacketType.PUBREL, PacketType.PUBCOMP]),
            IDS,
            st.sampled_from([0, 0x92] if is_5 else [0]),
            of_acknowledgement,
        ),
        st.builds(
            Subscribe,
            IDS,
            st.lists(_filter(version), min_size=1, max_size=4).map(tuple),
            _properties(version, subscription_ids=st.just(()) | st.tuples(st.integers(1, (1 << 28) - 1)), user=USER),
        ),
        st.builds(
            Unsubscribe,
            IDS,
            st.lists(FILTERS | SHARED, min_size=1, max_size=4).map(tuple),
            _properties(version, user=USER),
        ),
        st.just(PingRequest()),
        st.builds(
            Disconnect,
            st.sampled_from([0, 4, 0x80, 0x81, 0x99] if is_5 else [0]),
            _properties(version, session_expiry=st.none() | SECONDS, reason_string=_REASON_STRING, user=USER),
        ),
    ]
    if is_5:
        kinds.append(
            st.builds(
                Authentication,
                st.sampled_from([0x18, 0x19]),
                st.builds(
                    Properties,
                    authentication_method=TEXTS,
                    authentication_data=st.none() | BYTES,
                    reason_string=_REASON_STRING,
                    user=USER,
                ),
            )
        )
    return st.one_of(kinds)


@st.composite
def connects(draw: st.DrawFn, version: Version) -> Connect:
    is_5 = version is Version.V5
    username = draw(st.none() | TEXTS)
    method = draw(st.none() | TEXTS)
    client_id = draw(TEXTS)
    will = st.builds(
        Will, TOPICS, BYTES, QOS, st.booleans(), _properties(version, **_MESSAGE, will_delay=st.none() | SECONDS)
    )
    return Connect(
        version,
        client_id if is_5 or client_id else "c",
        draw(st.booleans()),
        draw(st.integers(0, 0xFFFF)),
        draw(st.none() | will),
        username,
        draw(st.none() | BYTES) if is_5 or username is not None else None,
        draw(
            _properties(
                version,
                session_expiry=st.none() | SECONDS,
                authentication_method=st.just(method),
                authentication_data=st.none() if method is None else st.none() | BYTES,
                request_problem_information=st.none() | FLAGS,
                request_response_information=st.none() | FLAGS,
                receive_maximum=st.none() | IDS,
                topic_alias_maximum=st.none() | st.integers(0, 0xFFFF),
                maximum_packet_size=st.none() | st.integers(1, 0xFFFFFFFF),
                user=USER,
            )
        ),
    )


@st.composite
def publishes(draw: st.DrawFn, version: Version) -> Publish:
    qos = draw(QOS)
    properties = draw(_properties(version, **_MESSAGE, topic_alias=st.none() | IDS))
    has_alias = properties.topic_alias is not None
    return Publish(
        draw(st.just("") | TOPICS if has_alias else TOPICS),
        draw(BYTES),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos else False,
        draw(IDS) if qos else 0,
        properties,
    )


def _filter(version: Version) -> st.SearchStrategy[Filter]:
    if version is not Version.V5:
        return st.builds(Filter, FILTERS | SHARED, QOS, st.just(False), st.just(False), st.just(0))
    handling = st.integers(0, 2)
    return st.builds(Filter, FILTERS, QOS, st.booleans(), st.booleans(), handling) | st.builds(
        Filter, SHARED, QOS, st.just(False), st.booleans(), handling
    )


def _properties(version: Version, **values: st.SearchStrategy[object]) -> st.SearchStrategy[Properties]:
    if version is not Version.V5:
        return st.just(NONE)
    return st.just(NONE) | st.builds(Properties, **values)
