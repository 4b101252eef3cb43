"""HOST:PORT, and connectors' URIs."""

from __future__ import annotations

import pytest

from tandemmq.config.addresses import (
    AMQP,
    MQTT,
    OPENWIRE,
    STOMP,
    WEBSOCKET,
    Address,
    ConnectorOptions,
    address,
    admin,
    connector,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:61613", Address("127.0.0.1", 61613)),
        ("broker-a.example:0", Address("broker-a.example", 0)),
        ("[::1]:61613", Address("::1", 61613)),
    ],
)
def test_an_address_is_read_and_written(text: str, expected: Address) -> None:
    assert address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "61613", ":61613", "h:", "h:x", "h:65536", "h:-1", "::1:61613", "u@h:1", "h h:1"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        address(text)


def test_a_connector_without_options_has_the_defaults() -> None:
    made = connector("stomp://127.0.0.1:61613")
    assert (made.scheme, made.address, made.options) == ("stomp", Address("127.0.0.1", 61613), ConnectorOptions())
    assert made.options.max_frame_size == 100 * 1024 * 1024


def test_every_option_of_a_connector_is_read() -> None:
    uri = (
        "stomp://h:1?wireFormat.maxFrameSize=1mb&wireFormat.maxDataLength=4096&transport.hbGracePeriodMultiplier=1.5"
        "&transport.defaultHeartBeat=10000,5000&transport.connectAttemptTimeout=5s&maximumConnections=7"
    )
    assert connector(uri).options == ConnectorOptions(1 << 20, 4096, 1.5, (10_000, 5_000), 5_000, 7)


def test_every_option_of_an_openwire_connector_is_read() -> None:
    uri = (
        "nio://h:1?wireFormat.maxInactivityDuration=5s&wireFormat.maxInactivityDurationInitalDelay=7"
        "&updateClusterClients=false&rebalanceClusterClients=false&allowLinkStealing=true&wireFormat.maxFrameSize=1kb"
        "&transport.tcpNoDelay=true&wireFormat.tightEncodingEnabled=false"
    )
    assert connector(uri).options == ConnectorOptions(
        max_frame_size=1024, max_inactivity_duration=5_000, max_inactivity_duration_initial_delay=7,
        update_cluster_clients=False, allow_link_stealing=True,
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["mqtt+nio", "ws"])
def test_every_option_of_mqtt_is_read(scheme: str) -> None:
    uri = (
        f"{scheme}://h:1?transport.defaultKeepAlive=1min&transport.activeMQSubscriptionPrefetch=10"
        "&transport.publishDollarTopics=true&allowLinkStealing=false&wireFormat.maxFrameSize=1kb"
        "&transport.subscriptionStrategy=mqtt-default-subscriptions"
    )
    assert connector(uri).options == ConnectorOptions(
        max_frame_size=1024, allow_link_stealing=False, default_keep_alive=60_000, subscription_prefetch=10,
        publish_dollar_topics=True,
    )  # fmt: skip
    usual = connector("mqtt://h:1?transport.activeMQSubscriptionPrefetch=-1")
    assert usual.options == ConnectorOptions()


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", ConnectorOptions()),
        ("needClientAuth=true", ConnectorOptions(client_auth="need")),
        ("transport.needClientAuth=false", ConnectorOptions(client_auth="none")),
        ("wantClientAuth=true", ConnectorOptions(client_auth="want")),
        ("wantClientAuth=true&needClientAuth=true", ConnectorOptions(client_auth="need")),
        ("needClientAuth=true&wantClientAuth=true", ConnectorOptions(client_auth="need")),
        ("transport.enabledProtocols=TLSv1.3", ConnectorOptions(minimum_version="TLSv1.3")),
        ("transport.enabledProtocols=TLSv1.3,TLSv1.2", ConnectorOptions(minimum_version="TLSv1.2")),
        ("tls.certificate=/a&tls.key=b&tls.ca=c", ConnectorOptions(certificate="/a", key="b", ca="c")),
    ],
)
def test_options_of_tls_are_read(query: str, options: ConnectorOptions) -> None:
    assert connector(f"ssl://h:1?{query}").options == options


def test_every_option_of_amqp_is_read() -> None:
    options = connector(
        "amqp://h:1?wireFormat.maxAmqpFrameSize=64kb&wireFormat.idleTimeout=0&maximumConnections=7"
        "&wireFormat.allowNonSaslConnections=false&transport.transformer=jms"
    ).options
    assert not options.allow_non_sasl_connections
    assert (options.max_amqp_frame_size, options.idle_timeout, options.maximum_connections) == (65_536, 0, 7)


@pytest.mark.parametrize(
    ("protocol", "plain", "with_tls"),
    [
        (STOMP, "stomp stomp+nio", "stomp+ssl stomp+nio+ssl"),
        (OPENWIRE, "openwire tcp nio", "ssl openwire+ssl nio+ssl"),
        (MQTT, "mqtt mqtt+nio", "mqtts mqtt+ssl mqtt+nio+ssl"),
        (AMQP, "amqp amqp+nio", "amqp+ssl amqp+nio+ssl"),
        (WEBSOCKET, "ws", "wss"),
    ],
)
def test_activemqs_schemes_say_what_is_spoken(protocol: str, plain: str, with_tls: str) -> None:
    for schemes, is_tls in ((plain, False), (with_tls, True)):
        for scheme in schemes.split():
            made = connector(f"{scheme}://h:1")
            assert (made.scheme, made.protocol, made.is_tls) == (scheme, protocol, is_tls)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("auto+ssl://h:61616", r"auto\+ssl is not in this release"),
        ("openwire://h", "openwire://HOST:PORT"),
        ("auto://h:5672", "auto is not in this release"),
        ("amqp://h:1?wireFormat.maxAmqpFrameSize=511", "512 to 1048576 bytes"),
        ("amqp://h:1?wireFormat.maxAmqpFrameSize=2mb", "512 to 1048576 bytes"),
        ("stomp://h:1?wireFormat.idleTimeout=1", "is only for amqp"),
        ("amqp://h:1?transport.transformer=raw", "transformer=native or jms"),
        ("mqtt://h:1?transport.subscriptionStrategy=mqtt-virtual-topic-subscriptions", "MQTT has shared subscriptions"),
        ("mqtt://h:1?transport.defaultHeartBeat=1,1", "is only for stomp and websocket"),
        ("stomp://h:1?transport.publishDollarTopics=true", "is only for mqtt and websocket"),
        ("mqtt://h:1?transport.defaultKeepAlive=soon", "transport.defaultKeepAlive a time"),
        ("stomp://h:1?allowLinkStealing=true", "is only for openwire and mqtt and amqp and websocket"),
        ("mqtt://h:1?updateClusterClients=true", "is only for openwire and amqp"),
        ("ws://h:1?tls.key=a", "is only for TLS"),
        ("mqtt://h:1?transport.activeMQSubscriptionPrefetch=-2", "transport.activeMQSubscriptionPrefetch"),
        ("stomp://h:1?needClientAuth=true", "needClientAuth is only for TLS"),
        ("stomp://h:1?wireFormat.maxInactivityDuration=1", "maxInactivityDuration is only for openwire"),
        ("tcp://h:1?wireFormat.maxDataLength=1", "maxDataLength is only for stomp and websocket"),
        ("tcp://h:1?wireFormat.cacheEnabled=true", "wireFormat.cacheEnabled=false, nothing else here: messages"),
        ("ssl://h:1?needClientAuth=yes", "true or false"),
        ("ssl://h:1?transport.enabledProtocols=SSLv3,TLSv1.3", "some of TLSv1.2, TLSv1.3"),
        ("ssl://h:1?transport.enabledProtocols=TLSv1.2", "the newest is never left out"),
        ("ssl://h:1?tls.certificate=", "for the option tls.certificate a path"),
        ("http://h:1", "a connector of this release"),
        ("127.0.0.1:61613", "a connector of this release"),
        ("stomp://[::1", "a URI"),
        ("stomp://h", "stomp://HOST:PORT"),
        ("stomp://h:1/path", "only options"),
        ("stomp://h:1?wireFormat.maxFramesize=1", "did you mean wireFormat.maxFrameSize"),
        ("stomp://h:1?xyz=1", "a known option, not xyz"),
        ("stomp://h:1?wireFormat.maxFrameSize=big", "for the option wireFormat.maxFrameSize a size"),
        ("stomp://h:1?wireFormat.maxFrameSize=0", "more than 0"),
        ("stomp://h:1?transport.hbGracePeriodMultiplier=0.5", "at least 1"),
        ("stomp://h:1?transport.hbGracePeriodMultiplier=inf", "at least 1"),
        ("stomp://h:1?transport.defaultHeartBeat=1", "two times in ms"),
    ],
)
def test_an_invalid_connector_is_refused_with_the_expected_form(uri: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        connector(uri)


def test_the_admin_server_has_an_address_or_is_off() -> None:
    assert admin("http://127.0.0.1:8161") == Address("127.0.0.1", 8161)
    assert admin("off") is None


@pytest.mark.parametrize("uri", ["ftp://h:1", "h:1", "http://h", "http://h:1/x", ""])
def test_an_invalid_admin_address_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="http://127"):
        admin(uri)
