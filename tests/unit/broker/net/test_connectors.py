"""What a connector's options become."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from tandemmq.broker.net.connectors import make_connector, url_of
from tandemmq.broker.net.server import Connector
from tandemmq.broker.net.transport import DEFAULT_LIMITS
from tandemmq.broker.protocols.openwire.handshake import Greeting
from tandemmq.broker.protocols.openwire.wireformat import our_info
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.stomp.frames import Limits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.config.load import load
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
    """What holds with a client that asks for more than any setting allows."""
    theirs = our_info(max_frame_size=1 << 30, provider_version="", inactivity_ms=DAY_MS, initial_delay_ms=DAY_MS)
    terms = greeting.agree(theirs)
    return terms.send_interval_ms, terms.receive_interval_ms, terms.initial_delay_ms


@pytest.mark.parametrize("uri", ["stomp://127.0.0.1:0", "openwire://127.0.0.1:0"])
def test_without_options_a_connector_has_the_usual_bounds(uri: str) -> None:
    found = connector(uri)
    assert found.limits == DEFAULT_LIMITS
    assert found.connections_max == Connector._field_defaults["connections_max"]


def test_without_options_a_stomp_session_has_the_usual_bounds() -> None:
    options = session_options(connector("stomp://127.0.0.1:0").make_session)
    usual = inspect.signature(StompSession).parameters
    assert options["limits"] == Limits()
    assert options["default_heart_beat"] == usual["default_heart_beat"].default


def test_without_options_an_openwire_client_is_told_the_usual_bounds() -> None:
    found, usual = greeting("openwire://127.0.0.1:0"), Greeting("a", "ID:a", "tcp://a:1")
    assert intervals(found) == intervals(usual)
    assert (found.frame_bytes_max, found.steals_links) == (usual.frame_bytes_max, usual.steals_links)


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
