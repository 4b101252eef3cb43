"""Logins and rights of MQTT clients, on a running broker over real sockets, beside STOMP."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import aiomqtt
import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt.packets import Connect, Publish, Version
from tandemmq.broker.protocols.mqtt.properties import NONE
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.openwire_wire import OpenWire, Refused
from tests.support.acceptance.stomp_wire import Wire
from tests.support.security.authority import Authority
from tests.support.security.passwords import cheap

SETTINGS = """\
[[connectors]]
uri = "stomp://127.0.0.1:{stomp}"
[[connectors]]
uri = "openwire://127.0.0.1:{openwire}"
[[connectors]]
uri = "mqtt://127.0.0.1:{mqtt}"
[[connectors]]
uri = "mqtts://127.0.0.1:{mqtts}?needClientAuth=true"
[[connectors]]
uri = "wss://127.0.0.1:{wss}?needClientAuth=true"

[tls]
certificate = "{certificate}"
ca = "{ca}"

[security]
users_file = "{users}"
failed_logins_max = 5
failed_login_delay = 100

[[security.authorization]]
topic = "ORDERS.>"
write = ["shops"]
admin = ["shops", "eu"]
[[security.authorization]]
topic = "ORDERS.EU"
read = ["eu"]
[[security.authorization]]
topic = "OPEN.>"
read = ["*"]
write = ["*"]
admin = ["*"]
[[security.authorization]]
topic = "NEWS.>"
read = ["*"]
write = ["*"]
admin = ["shops"]
[[security.authorization]]
topic = "$SYS.>"
read = ["shops"]
admin = ["shops"]
[[security.authorization]]
queue = ">"
read = ["shops"]
write = ["shops"]
"""
GROUPS = {"alice": "shops", "bob": "eu", "eve": ""}
VERSIONS = (Version.V3_1, Version.V3_1_1, Version.V5)
NOT_AUTHORIZED, FAILURE = 0x87, 0x80


class Secured(BrokerProcess):
    """A broker with users: alice of the shops, bob who reads what is for the EU, eve, and "orders" with a
    certificate."""

    def __init__(self, directory: Path) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        super().__init__(directory / "data", "a", "--config", str(settings))
        self.leaves_stomp_to_settings = True
        self.openwire, self.mqtts, self.wss = free_port(), free_port(), free_port()
        self.plain = free_port()
        self.authority = Authority(directory, "root")
        lines = [f"{name}:{cheap(name + ' secret')}:{groups}:\n" for name, groups in GROUPS.items()]
        users.write_text("".join([*lines, "orders:!:shops:CN=orders,O=Example\n"]))
        users.chmod(0o600)
        settings.write_text(
            SETTINGS.format(
                stomp=self.stomp, openwire=self.openwire, mqtt=self.plain, mqtts=self.mqtts, wss=self.wss, users=users,
                certificate=self.authority.certificate("broker"), ca=self.authority.root,
            )
        )  # fmt: skip

    def login(self, name: str, client_id: str = "", *, version: Version = Version.V5, lasts: bool = False) -> Mqtt:
        client = Mqtt(self.plain, version)
        assert client.connect(client_id or f"{name}-alone", name, f"{name} secret", lasts=lasts) == [0]
        return client

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.root))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[object, str], None]
) -> Iterator[Secured]:
    require_program(shutil.which("openssl"), "no openssl in the path")
    with serving(Secured(tmp_path_factory.mktemp("secured"))) as (broker,):
        yield broker


# ---- logins


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wrong_password_is_refused_and_what_follows_is_not_done(broker: Secured, version: Version) -> None:
    with broker.login("alice", "watcher") as watcher:
        # Wrong passwords count by address.
        with Mqtt(broker.plain, version, source=f"127.0.9.{version}") as client:
            assert watcher.subscribe("OPEN/refused") == [0]
            connect = Connect(version, "guesser", True, 0, None, "alice", b"guess", NONE)
            client.say(connect, Publish("OPEN/refused", b"guessed", 0, False, False, 0, NONE))
            answer = client.hear()
            assert answer is not None
            assert answer.codes == [0x86 if version is Version.V5 else 4]
            assert client.is_closed()
        with broker.login("eve") as eve:
            eve.publish("OPEN/refused", b"the only one")
        heard = watcher.hear()
        assert heard is not None
        assert heard.payload == b"the only one"


def test_a_certificate_is_a_user(broker: Secured) -> None:
    with Mqtt(broker.mqtts, tls=broker.context(broker.authority.certificate("orders"))) as client:
        assert client.connect("till") == [0]
        assert client.publish("ORDERS/EU") == 0
        assert client.subscribe("ORDERS/EU") == [NOT_AUTHORIZED]
    with Mqtt(broker.mqtts, tls=broker.context(broker.authority.certificate("nobody"))) as client:
        assert client.connect("till") == [0]  # from this machine: anonymous
        assert client.publish("ORDERS/EU") == NOT_AUTHORIZED


def test_without_a_certificate_of_the_authority_there_is_no_connection(broker: Secured) -> None:
    stranger = Authority(broker.authority.directory, "stranger").certificate("orders", at="stranger-orders")
    for certificate in (None, stranger):
        assert not _is_welcome(broker, certificate)
    assert _is_welcome(broker, broker.authority.certificate("orders"))


def _is_welcome(broker: Secured, certificate: Path | None) -> bool:
    try:
        with Mqtt(broker.mqtts, tls=broker.context(certificate)) as client:
            client.say(Connect(Version.V5, "till", True, 0, None, None, None, NONE))
            return client.hear() is not None
    except (ssl.SSLError, ConnectionError):
        return False


async def test_a_certificate_is_a_user_by_websocket_too(broker: Secured) -> None:
    context = broker.context(broker.authority.certificate("orders"))
    async with aiomqtt.Client(
        "127.0.0.1", broker.wss, transport="websockets", tls_context=context, protocol=aiomqtt.ProtocolVersion.V5,
        timeout=20,
    ) as client:  # fmt: skip
        await client.subscribe("OPEN/#", qos=1)
        await client.publish("OPEN/by-websocket", b"x", qos=1)
        assert (await anext(aiter(client.messages))).payload == b"x"
        (code,) = await client.subscribe("ORDERS/EU")
        assert code.value == NOT_AUTHORIZED


# ---- rights of a user


@pytest.mark.promise("rights")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_publishing_takes_the_right(broker: Secured, version: Version, qos: int, retain: bool) -> None:
    with broker.login("bob", f"reader-{version}-{qos}-{retain}") as bob, broker.login("alice", "shop") as alice:
        assert bob.subscribe("ORDERS/EU") == [0]
        with broker.login("eve", "eve", version=version) as eve:
            answer = eve.publish("ORDERS/EU", b"forged", qos=qos, retain=retain)
            if version is not Version.V5:
                assert eve.is_closed()
            elif qos:
                assert answer == NOT_AUTHORIZED
                assert eve.publish("OPEN/still", qos=qos, id=2) == 0  # the connection goes on
        assert alice.publish("ORDERS/EU", b"true", qos=qos) == 0
        while True:
            heard = bob.hear()
            assert heard is not None
            assert heard.payload != b"forged"
            if heard.payload == b"true":
                break


@pytest.mark.promise("rights")
def test_a_wildcard_gives_what_may_be_read(broker: Secured) -> None:
    with broker.login("alice", "shop") as alice:
        for topic in ("ORDERS/US", "ORDERS/EU", "OPEN/r"):
            assert alice.publish(topic, f"kept {topic}".encode(), retain=True) == 0
        clients = {}
        for name, lasts in (("bob", False), ("bob", True), ("eve", False), ("eve", True)):
            clients[name, lasts] = client = broker.login(name, f"{name}-{lasts}", lasts=lasts)
            codes = client.subscribe("#", "$share/all/ORDERS/#", qos=1)
            assert codes[0] == 1
            assert codes[1] == (1 if name == "bob" else NOT_AUTHORIZED)
        for topic in ("ORDERS/US", "ORDERS/LATER", "ORDERS/EU", "OPEN/last"):
            assert alice.publish(topic, topic.encode()) == 0
        for (name, _), client in clients.items():
            payloads = set()
            while b"OPEN/last" not in payloads or b"kept OPEN/r" not in payloads:
                heard = client.hear()
                assert heard is not None
                payloads.add(heard.payload)
            of_orders = {each for each in payloads if b"ORDERS" in each}
            assert of_orders <= ({b"ORDERS/EU", b"kept ORDERS/EU"} if name == "bob" else set())
            client.socket.close()
        for topic in ("ORDERS/US", "ORDERS/EU", "OPEN/r"):
            alice.publish(topic, b"", retain=True)


def test_what_is_forged_below_sys_goes_nowhere(broker: Secured) -> None:
    with broker.login("alice", "operator") as alice, broker.login("eve") as eve:
        assert alice.subscribe("$SYS/broker/version", "OPEN/#") == [0, 0]
        for qos in (0, 1, 2):
            for retain in (False, True):
                assert (
                    eve.publish("$SYS/broker/version", b"forged", qos=qos, retain=retain, id=qos * 2 + retain + 1) == 0
                )
        eve.publish("OPEN/end", b"end")
        assert alice.subscribe("$SYS/broker/version") == [0]  # what is retained comes again
        heard = [alice.hear() for _ in range(3)]
        assert all(each is not None and each.payload != b"forged" for each in heard)


# ---- objects of another user


@pytest.mark.promise("ids-have-owners")
def test_a_client_id_that_is_in_use_is_its_users(broker: Secured) -> None:
    with broker.login("alice", "till-1", lasts=True) as alice, Mqtt(broker.plain) as eve:
        for lasts in (False, True):
            with Mqtt(broker.plain) as eve:
                assert eve.connect("till-1", "eve", "eve secret", lasts=lasts) == [NOT_AUTHORIZED]
                assert eve.is_closed()
        assert alice.publish("OPEN/till") == 0
    client = OpenWire(broker.openwire)
    with broker.login("alice", "till-1", lasts=True) as alice:
        with pytest.raises(Refused, match="till-1"):
            client.connect("eve", "eve secret", client_id="till-1")
        assert alice.publish("OPEN/till") == 0


def test_a_session_is_its_users_after_a_crash(broker: Secured) -> None:
    with broker.login("alice", "till-2", lasts=True) as alice:
        assert alice.subscribe("OPEN/for-till-2", qos=1) == [1]
    with broker.login("bob") as bob:
        assert bob.publish("OPEN/for-till-2", b"for alice") == 0
    broker.kill()
    broker.start().wait_role("master")
    for lasts in (True, False):
        with Mqtt(broker.plain) as eve:
            assert eve.connect("till-2", "eve", "eve secret", lasts=lasts) == [NOT_AUTHORIZED]
            assert eve.is_closed()
    with broker.login("alice", "till-2", lasts=True) as alice:
        assert alice.session_present
        heard = alice.hear()
        assert heard is not None
        assert heard.payload == b"for alice"


@pytest.mark.promise("ids-have-owners")
@pytest.mark.parametrize("way", ["mqtt", "websocket", "stomp", "openwire"])
async def test_the_client_id_of_a_session_is_its_users_in_every_protocol(broker: Secured, way: str) -> None:
    """The rule holds after a crash, too; alice connects while eve tries."""
    client_id = f"till-by-{way}"
    with broker.login("alice", client_id, lasts=True) as alice:
        assert alice.subscribe(f"NEWS/{client_id}", qos=1) == [1]
    for is_restarted in (False, True):
        if is_restarted:
            broker.kill()
            broker.start().wait_role("master")
        assert "belongs to another user" in await refusal(broker, way, client_id)
        with broker.login("alice", client_id, lasts=True) as alice, broker.login("bob") as bob:
            assert bob.publish(f"NEWS/{client_id}", b"still") == 0
            heard = alice.hear()
            assert heard is not None
            assert heard.payload == b"still"
    with pytest.raises((Refused, ConnectionError)):
        OpenWire(broker.openwire).connect("eve", "eve secret", client_id="$share")


async def refusal(broker: Secured, way: str, client_id: str) -> str:
    """Return the refusal for eve with that client id."""
    if way == "stomp":
        with pytest.raises(ConnectionError) as refused:
            await Wire.open(broker.stomp, login="eve", passcode="eve secret", **{"client-id": client_id})
        return str(refused.value)
    if way == "openwire":
        with pytest.raises(Refused) as said:
            OpenWire(broker.openwire).connect("eve", "eve secret", client_id=client_id)
        return str(said.value)
    if way == "websocket":
        context = broker.context(broker.authority.certificate("orders"))
        with pytest.raises(aiomqtt.MqttError, match="Not authorized") as failed:
            async with aiomqtt.Client(
                "127.0.0.1", broker.wss, transport="websockets", tls_context=context, identifier=client_id,
                protocol=aiomqtt.ProtocolVersion.V5, timeout=20,
            ):  # fmt: skip
                pass
        return f"belongs to another user ({failed.value})"
    with Mqtt(broker.plain) as eve:
        assert eve.connect(client_id, "eve", "eve secret") == [NOT_AUTHORIZED]
        assert eve.is_closed()
    return "belongs to another user"
