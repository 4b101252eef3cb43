"""Clients of MQTT that send too much, too slowly, or leave much behind: tried on a running broker that others use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, Disconnect, PacketType, Publish, Version, Will
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.session import CONNECT_BYTES_MAX
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.dripping import is_let_drip
from tests.support.acceptance.mqtt_wire import Mqtt

MIB = 1 << 20
PACKET_MAX = 2 * MIB
SETTINGS = f"""\
[[connectors]]
uri = "mqtt://127.0.0.1:{{mqtt}}?wireFormat.maxFrameSize={PACKET_MAX}&transport.connectAttemptTimeout=1000"
"""
OLD_AND_NEW = pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
PACKET_TOO_LARGE = 0x95


class Bounded(BrokerProcess):
    """A broker with narrow bounds."""

    def __init__(self, directory: Path) -> None:
        settings = directory / "tandemmq.toml"
        super().__init__(directory / "data", "a", "--config", str(settings))
        self.leaves_stomp_to_settings = True
        self.plain = free_port()
        settings.write_text(SETTINGS.format(mqtt=self.plain))

    @property
    def memory(self) -> int:
        """Return the counted memory."""
        status = self.status()
        assert status is not None
        return int(status["counts"]["memory_used_bytes"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bounded]:
    with serving(Bounded(tmp_path_factory.mktemp("bounded"))) as (broker,):
        yield broker


@pytest.fixture(autouse=True)
def other(broker: Bounded) -> Iterator[None]:
    """A client beside, which notices nothing."""
    with Mqtt(broker.plain) as client:
        assert client.connect("other") == [0]
        yield
        assert client.publish("others") == 0


def head(first: int, length: int) -> bytes:
    """Return the first bytes of a packet of ``length`` bytes."""
    digits = []
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes([first, *digits])


# ---- too much


@OLD_AND_NEW
@pytest.mark.promise("limits-before-login")
@pytest.mark.parametrize("length", [CONNECT_BYTES_MAX + 1, (1 << 28) - 1])
def test_connect_is_short(broker: Bounded, version: Version, length: int) -> None:
    with Mqtt(broker.plain, version) as client:
        client.say(head(0x10, length) + b"\0\4MQTT" + bytes([version]))
        assert client.is_closed()


@pytest.mark.promise("mqtt-conforms")
@pytest.mark.parametrize("said", [b"\x10\xff\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\xc0\x00", b"\xf0" * 1000])
def test_what_is_no_connect_ends_the_connection(broker: Bounded, said: bytes) -> None:
    with Mqtt(broker.plain) as client:
        client.say(said)
        assert client.hear() is None


@OLD_AND_NEW
@pytest.mark.promise("mqtt-conforms", "limits-after-login")
def test_a_packet_is_as_long_as_the_connector_says(broker: Bounded, version: Version) -> None:
    with Mqtt(broker.plain, version) as client:
        assert client.connect("long") == [0]
        assert client.publish("long", b"x" * (PACKET_MAX - 1000)) == 0
        client.say(head(0x30, PACKET_MAX + 1))
        end = client.hear()
        if version is Version.V5:
            assert end is not None
            assert end.codes == [PACKET_TOO_LARGE]
        assert client.is_closed()


def test_a_client_that_acknowledges_nothing_gets_so_many(broker: Bounded) -> None:
    with Mqtt(broker.plain) as silent, Mqtt(broker.plain) as sender:
        assert silent.connect("silent") == [0]
        assert sender.connect("sender") == [0]
        assert silent.subscribe("acknowledged/never", qos=1) == [1]
        for number in range(1_100):
            assert sender.publish("acknowledged/never", b"%d" % number) == 0
        heard = [silent.hear() for _ in range(1_024)]
        ids = {each.packet_id for each in heard if each is not None}
        assert len(ids) == 1_024
        assert silent.subscribe("another", qos=1) == [1]
        assert silent.waiting == []  # nothing more came before
        silent.say(Acknowledgement(PacketType.PUBACK, min(ids), 0, NONE))
        more = silent.hear_of(PacketType.PUBLISH)
        assert more is not None
        assert more.payload == b"1024"


# ---- too slowly


def test_who_drips_before_he_says_who_he_is_has_a_time(broker: Bounded) -> None:
    with Mqtt(broker.plain) as client:
        client.say(head(0x10, 1000))
        assert not is_let_drip(client.socket, b"\0")  # longer than the connector's second


def test_who_falls_silent_within_a_packet_is_hung_up_on(broker: Bounded) -> None:
    with Mqtt(broker.plain) as client:
        assert client.connect("half", keep_alive=1) == [0]
        client.say(head(0x30, 1000) + b"half a packet")
        assert client.is_closed()


# ---- the broker after its clients have left


def test_all_that_clients_had_the_broker_hold_is_given_back(broker: Bounded) -> None:
    _leave_much(broker)
    wait_until(lambda: _is_as_it_was(broker), "the memory of the first round is given back")
    first = broker.memory
    _leave_much(broker)
    assert broker.memory > first + 200_000
    wait_until(lambda: _is_as_it_was(broker) and broker.memory < first + 20_000, "the memory is given back")


CLIENTS = 20


def _leave_much(broker: Bounded) -> None:
    """Sessions with subscriptions, wills, messages and packet ids, of clients that were cut off."""
    for number in range(CLIENTS):
        with Mqtt(broker.plain) as client:
            will = Will("left/will", b"w" * 10_000, 1, True, Properties(will_delay=3_000))
            assert client.connect(f"left-{number}", lasts=True, will=will) == [0]
            assert client.subscribe("left/#", "left/+/0", qos=1) == [1, 1]
            for id in range(1, 200):
                client.say(Publish("left/0", b"x" * 100, 2, number == 0, False, id, NONE))
            while (answer := client.hear_of(PacketType.PUBREC)) is not None and answer.packet_id < 199:
                pass
            assert client.publish(f"left/{number}/0", b"x" * 1_000, retain=True) == 0


def _is_as_it_was(broker: Bounded) -> bool:
    """All sessions are over and nothing is retained: the clients see to it."""
    for number in range(CLIENTS):
        with Mqtt(broker.plain) as client:
            assert client.connect(f"left-{number}") == [0]
            assert client.publish(f"left/{number}/0", b"", retain=True) == 0
            for topic in ("left/0", "left/will"):
                assert client.publish(topic, b"", retain=True) == 0
            client.say(Disconnect(0, NONE))
            assert client.is_closed()
    status = broker.status()
    assert status is not None
    return bool(status["counts"]["mqtt_retained_messages"] == 0)
