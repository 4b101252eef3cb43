"""Effects of a connector's options."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tandemmq.broker.mqtt.clients import MqttClients
from tandemmq.broker.net.connectors import AdvertisedAddresses, MemberConnectors, make_connector, url_of, urls_of
from tandemmq.broker.net.origins import KnownHosts
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import DEFAULT_LIMITS
from tandemmq.broker.protocols.amqp.opening import AmqpLimits
from tandemmq.broker.protocols.amqp.session import AmqpSession
from tandemmq.broker.protocols.mqtt.session import MqttLimits
from tandemmq.broker.protocols.openwire.wireformat import Greeting, our_info
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.stomp.frames import Limits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.config.addresses import AMQP, OPENWIRE, WEBSOCKET
from tandemmq.config.load import load
from tandemmq.config.mqtt import MqttSettings, WebSocketSettings
from tandemmq.config.settings import BrokerSettings, ConnectorSettings

DAY_MS = 24 * 3_600_000


def connector(uri: str) -> Connector:
    settings, broker = ConnectorSettings(uri=uri), BrokerSettings(name="a")
    return make_connector(settings, broker, "tcp://a:1", lambda: 1000, itertools.count(1), None, 10.0)


def session_options(made: Callable[[str], Session]) -> dict[str, Any]:
    return cast("partial[Session]", made).keywords


def greeting(uri: str) -> Greeting:
    found = session_options(connector(uri).make_session)["greeting"]
    assert isinstance(found, Greeting)
    return found


def intervals(greeting: Greeting) -> tuple[int, ...]:
    """Return the intervals for a client that requests more than any setting allows."""
    theirs = our_info(max_frame_size=1 << 30, provider_version="", inactivity_ms=DAY_MS, initial_delay_ms=DAY_MS)
    terms = greeting.agree(theirs)
    return terms.send_interval_ms, terms.receive_interval_ms, terms.initial_delay_ms


def test_without_options_a_connector_has_the_usual_bounds() -> None:
    for uri in ("stomp://127.0.0.1:0", "openwire://127.0.0.1:0"):
        found = connector(uri)
        assert found.limits == DEFAULT_LIMITS
        assert found.connections_max == Connector._field_defaults["connections_max"]
    options = session_options(connector("stomp://127.0.0.1:0").make_session)
    usual = {field.name: field.default for field in fields(StompSession)}  # also of a compiled class
    assert (options["limits"], options["default_heart_beat"]) == (Limits(), usual["default_heart_beat"])
    told, known = greeting("openwire://127.0.0.1:0"), Greeting("a", "ID:a", "tcp://a:1")
    assert intervals(told) == intervals(known)
    assert (told.frame_bytes_max, told.steals_links) == (known.frame_bytes_max, known.steals_links)


def test_the_options_of_a_stomp_connector_reach_its_connections() -> None:
    found = connector(
        "stomp://127.0.0.1:0?transport.connectAttemptTimeout=7s&transport.hbGracePeriodMultiplier=3"
        "&maximumConnections=5&wireFormat.maxFrameSize=1mb&transport.defaultHeartBeat=1,2"
    )
    assert (found.limits.connect_seconds_max, found.limits.heart_beat_grace, found.connections_max) == (7.0, 3.0, 5)
    options = session_options(found.make_session)
    assert (options["limits"].frame_bytes_max, options["default_heart_beat"]) == (1 << 20, "1,2")


def test_the_options_of_an_openwire_connector_reach_its_connections() -> None:
    found = greeting(
        "openwire://127.0.0.1:0?wireFormat.maxInactivityDuration=9s&wireFormat.maxInactivityDurationInitialDelay=4s"
        "&wireFormat.maxFrameSize=1mb&allowLinkStealing=true"
    )
    assert intervals(found) == (3_000, 9_000, 4_000)
    assert (found.frame_bytes_max, found.steals_links) == (1 << 20, True)


def test_advisories_name_the_broker_by_one_address() -> None:
    assert url_of(load(None, {}, ())) == "tcp://127.0.0.1:61616"


def test_clients_are_told_where_they_reach_it_and_never_an_address_of_all_interfaces(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(
        '[[connectors]]\nuri = "stomp://0.0.0.0:61613"\n'
        '[[connectors]]\nuri = "ssl://127.0.0.1:61617"\nadvertised = "mq.example.org:443"\n'
    )
    settings = load(str(tmp_path / "settings.toml"), {}, ())
    assert url_of(settings) == "ssl://mq.example.org:443"
    assert urls_of(settings) == [f"stomp://{socket.gethostname()}:61613", "ssl://mq.example.org:443"]


async def test_a_status_names_the_port_that_the_system_chose_unless_another_is_advertised() -> None:
    def made(uri: str, advertised: str | None = None) -> Connector:
        settings = ConnectorSettings(uri=uri, advertised=advertised)
        return make_connector(
            settings, BrokerSettings(name="a"), "", lambda: 0, itertools.count(), None, 1.0, hostname="one"
        )

    server = Server([made("stomp://0.0.0.0:0"), made("stomp+nio://127.0.0.1:0", "mq:99"), made("tcp://127.0.0.1:0")])
    server.bind()
    try:
        ports = [port for _, _, port in server.addresses]
        assert [str(address) for _, address in server.advertised_addresses] == [
            f"one:{ports[0]}",
            "mq:99",
            f"127.0.0.1:{ports[2]}",
        ]
    finally:
        server.unbind()


def test_a_websocket_has_the_bounds_of_its_connector_and_the_sites_of_its_table() -> None:
    settings = ConnectorSettings(
        uri="ws://0.0.0.0:61614?wireFormat.maxFrameSize=1mb&maximumConnections=7", advertised="mq.example.org:80"
    )
    table = WebSocketSettings(allowed_origins=("https://shop.example",), handshake_timeout=2_000, ping_interval=0)
    found = make_connector(
        settings, BrokerSettings(name="a"), "", lambda: 0, itertools.count(1), None, 10.0, websocket=table
    )
    options = found.websocket
    assert options is not None
    assert found.connections_max == 7
    assert (options.message_bytes_max, options.handshake_seconds_max, options.ping_seconds) == (1 << 31, 2.0, 0.0)
    assert set(options.subprotocols) >= {"v12.stomp", "v11.stomp", "v10.stomp", "stomp", None}
    assert options.origins.may("https://shop.example", "elsewhere.example")
    assert options.origins.may("http://mq.example.org", "mq.example.org:80")
    assert not options.origins.may("http://other.example", "mq.example.org:80")
    assert connector("stomp://127.0.0.1:0").websocket is None


@pytest.mark.parametrize("scheme", ["amqp", "ws"])
def test_options_of_amqp_reach_its_sessions(scheme: str) -> None:
    uris = ("tcp://one:1", "amqp://one:2", "amqps://one:3", "amqpws://one:4")

    def limits_of(options: str) -> AmqpLimits:
        settings, broker = (
            ConnectorSettings(uri=f"{scheme}://h:1{options}"),
            BrokerSettings(name="a", failover_uris=uris),
        )
        found = make_connector(settings, broker, "", lambda: 0, itertools.count(1), None, 10.0)
        make_session = found.make_session
        if found.websocket is not None:
            make_session = found.websocket.subprotocols["amqp"].make_session
        session = make_session("ID:a-1-1")
        assert isinstance(session, AmqpSession)
        return session.limits

    limits = limits_of("?wireFormat.maxFrameSize=7mb&wireFormat.maxAmqpFrameSize=64kb&wireFormat.idleTimeout=9000")
    assert (limits.container_id, limits.message_bytes_max, limits.frame_bytes_max) == ("a", 7 << 20, 64 << 10)
    assert (limits.idle_ms, limits.allows_no_sasl, limits.steals_links) == (9_000, True, False)
    assert limits.failover_uris == [f"{'amqp' if scheme == 'amqp' else 'amqpws'}://one:{2 if scheme == 'amqp' else 4}"]
    other = limits_of("?wireFormat.allowNonSaslConnections=false&allowLinkStealing=true&updateClusterClients=false")
    assert (other.allows_no_sasl, other.steals_links, other.failover_uris) == (False, True, ())


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_options_of_mqtt_reach_its_sessions(scheme: str) -> None:
    settings = ConnectorSettings(
        uri=f"{scheme}://127.0.0.1:0?transport.defaultKeepAlive=1min&transport.activeMQSubscriptionPrefetch=7"
        "&transport.publishDollarTopics=true&allowLinkStealing=false&wireFormat.maxFrameSize=1kb"
    )
    hooks = MqttClients("a", 1, 1, 0)
    mqtt = MqttSettings(max_session_expiry_interval=5_000, receive_maximum=9, topic_alias_maximum=3)
    found = make_connector(
        settings, BrokerSettings(name="a"), "", lambda: 0, itertools.count(1), None, 10.0, mqtt=(mqtt, hooks)
    )
    make_session, limits = found.make_session, found.limits
    if found.websocket is not None:
        make_session, limits = found.websocket.subprotocols["mqttv3.1"][:2]
    assert session_options(make_session)["limits"] == MqttLimits(
        1024, 9, 3, 5, default_keep_alive=60, prefetch=7, takes_dollar_topics=True, steals_client_id=False
    )
    assert limits.heart_beat_grace == 1.5


# ---- the addresses of all brokers that clients get, and their changes


A, B, C = "aa", "bb", "cc"


def member(host: str, *connectors: str) -> MemberConnectors:
    return MemberConnectors(host, connectors or (f"stomp://{host}:61613", f"openwire://{host}:61616"))


def test_addresses_set_by_the_operator_stay() -> None:
    advertised = AdvertisedAddresses(["tcp://said:1"])
    assert not advertised.update([A, B], {A: member("one"), B: member("two")})
    for is_tls in (False, True):
        assert advertised.of(OPENWIRE, is_tls=is_tls) == ["tcp://said:1"]


def test_members_are_told_with_the_scheme_that_clients_use() -> None:
    advertised = AdvertisedAddresses([])
    plain, tls = (advertised.of(OPENWIRE, is_tls=is_tls) for is_tls in (False, True))
    assert advertised.update(
        [A, B], {A: member("one"), B: member("two", "nio://two:1", "openwire+ssl://two:2", "nio+ssl://two:3")}
    )
    assert plain == ["tcp://one:61616", "tcp://two:1"]
    assert tls == ["ssl://two:2", "ssl://two:3"]


def test_members_are_told_to_clients_of_their_protocol() -> None:
    advertised = AdvertisedAddresses([])
    connectors = ("amqp://{}:1", "amqp+ssl://{}:2", "ws://{}:3", "wss://{}:4", "stomp://{}:5")
    members = {each: member(host, *(uri.format(host) for uri in connectors)) for each, host in ((A, "one"), (B, "two"))}
    assert not advertised.update([A, B], members), "clients of OpenWire learn nothing"
    for kind, is_tls, scheme, port in (
        (AMQP, False, "amqp", 1),
        (AMQP, True, "amqps", 2),
        (WEBSOCKET, False, "amqpws", 3),
        (WEBSOCKET, True, "amqpwss", 4),
    ):
        assert advertised.of(kind, is_tls=is_tls) == [f"{scheme}://{host}:{port}" for host in ("one", "two")]
    assert advertised.of(OPENWIRE, is_tls=False) == []
    for uri in ("openwire://two:6", "openwire+ssl://two:7"):
        members[B] = member("two", *members[B].connectors, uri)
        assert advertised.update([A, B], members)


def test_an_absent_voter_keeps_its_addresses_and_a_learner_has_none() -> None:
    advertised = AdvertisedAddresses([])
    assert advertised.update([A, B, C], {A: member("one"), B: member("two"), C: member("three")})
    assert not advertised.update([A, B, C], {A: member("one")})
    assert advertised.of(OPENWIRE, is_tls=False) == ["tcp://one:61616", "tcp://two:61616", "tcp://three:61616"]
    assert advertised.update([A, B], {A: member("one"), B: member("two"), C: member("three")})
    assert advertised.of(OPENWIRE, is_tls=False) == ["tcp://one:61616", "tcp://two:61616"]


def test_a_moved_member_is_advertised_again() -> None:
    advertised = AdvertisedAddresses([])
    advertised.update([A, B], {A: member("one"), B: member("two")})
    assert advertised.update([A, B], {B: member("elsewhere")})
    assert advertised.of(OPENWIRE, is_tls=False) == ["tcp://one:61616", "tcp://elsewhere:61616"]


def test_one_alone_tells_nothing() -> None:
    advertised = AdvertisedAddresses([])
    assert not advertised.update([A], {A: member("one")})
    assert advertised.of(OPENWIRE, is_tls=False) == []


def test_loopback_is_told_on_loopback_only() -> None:
    advertised = AdvertisedAddresses([])
    local = "openwire://127.0.0.1:61616"
    advertised.update([A, B], {A: member("one", local), B: member("two")})
    assert advertised.of(OPENWIRE, is_tls=False) == ["tcp://two:61616"]
    advertised.update([A, B], {A: member("127.0.0.1", local), B: member("127.0.0.1", "openwire://127.0.0.1:61617")})
    assert advertised.of(OPENWIRE, is_tls=False) == ["tcp://127.0.0.1:61616", "tcp://127.0.0.1:61617"]


# ---- names by which a broker is known, of headers as clients send them


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:61614", "[::1]:61614", "LOCALHOST:1", "broker-a", "mq.example.org", "10.0.0.1"]
)
def test_addresses_and_own_names_are_known(host: str) -> None:
    assert KnownHosts(["MQ.example.org"]).knows(host)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:61614", "", ":1", "[::1", "127.0.0.1.evil.example"])
def test_other_names_are_not(host: str) -> None:
    assert not KnownHosts(["mq.example.org"]).knows(host)


def test_this_machine_is_known() -> None:
    assert KnownHosts().knows(socket.gethostname())
