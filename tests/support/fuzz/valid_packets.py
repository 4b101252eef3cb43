"""A fuzzer with valid MQTT packets in any order.

In each case some clients of all versions, with few client ids, publish, subscribe, acknowledge packets that came or
never came, disconnect normally or abruptly, and return to their sessions; at intervals the broker is killed. Each
request must be answered, the broker's packets must be valid, it must close no connection except after a second
connection with the same client id, another client must be served normally, and the log must have no traceback.
"""

from __future__ import annotations

import random
import select
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
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
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.paho_client import PahoClient
from tests.support.fuzz.books import traceback_of
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode, encode

CLIENTS_MAX = 4
STEPS_MAX = 40
KILL_EVERY = 50
SECONDS_MAX = 30.0
CLIENT_IDS = ("c0", "c1", "c2", "c/#+\u00e9", "")
TOPICS = ("f/0", "f/1", "f/0/deep", "f//empty", "f/a.b", "f/\u00e9,?%2C", "/f", "$f/dollar")
FILTERS = ("f/0", "f/+", "f/#", "#", "+/+", "+", "/+", "f/+/deep", "$share/g/f/#", "$share/h/f/0", "$SYS/#", "f/a.b")
WILD_IDS = (1, 2, 7, 300, 0xFFFF)
OPTIONS = (
    "--set", "store.journal_max_file_length=256kb", "--set", "store.checkpoint_interval=200ms",
    "--set", "store.cleanup_interval=100ms",
)  # fmt: skip
#: The answer to each type of request.
ANSWERS = {
    PacketType.SUBSCRIBE: PacketType.SUBACK, PacketType.UNSUBSCRIBE: PacketType.UNSUBACK,
    PacketType.PUBREL: PacketType.PUBCOMP, PacketType.PINGREQ: PacketType.PINGRESP,
}  # fmt: skip

#: Actions and their results.
DONE: Counter[str] = Counter()


class PacketClient:
    """One connection, to ``port`` or over an open socket. ``owed``: answers that must come, by type and packet id."""

    def __init__(self, port: int | socket.socket, dice: random.Random) -> None:
        self._dice = dice
        self.version = dice.choice(list(Version))
        self.client_id = dice.choice(CLIENT_IDS)
        self.is_over = False  # closed by the client
        self.is_hung_up = False
        self.owed: Counter[tuple[PacketType, int]] = Counter({(PacketType.CONNACK, 0): 1})
        self.trace: list[Packet | ServerPacket] = []
        self._received = b""
        self._to_acknowledge: list[tuple[PacketType, int]] = []
        self._to_release: list[int] = []
        self._ids_in_use: set[int] = set()
        self._expiry = 0
        self._acts: list[Callable[[], None]] = [
            self._publish, self._publish, self._publish, self._subscribe, self._acknowledge, self._acknowledge,
            self._acknowledge, self._release, self._unsubscribe, self._ping, self._acknowledge_anything,
        ]  # fmt: skip
        is_open = isinstance(port, socket.socket)
        self.socket = port if is_open else socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self._connect()

    @property
    def _is_v5(self) -> bool:
        return self.version is Version.V5

    def _say(self, packet: Packet) -> None:
        self.trace.append(packet)
        DONE[f"sent: {type(packet).__name__}"] += 1
        try:
            self.socket.sendall(encode(packet, self.version))
        except OSError:
            self.is_hung_up = True

    def _connect(self) -> None:
        dice, is_v5 = self._dice, self._is_v5
        is_clean = dice.random() < 0.4 or (not self.client_id and not is_v5)
        self._expiry = dice.choice((0, 0, 60, 0xFFFFFFFF)) if is_v5 else 0
        properties = NONE
        if is_v5:
            properties = Properties(
                session_expiry=self._expiry or None,
                receive_maximum=dice.choice((None, 1, 3)),
                topic_alias_maximum=dice.choice((None, 2)),
                maximum_packet_size=dice.choice((None, None, 100)),
            )
        will = None
        if dice.random() < 0.3:
            delay = Properties(will_delay=dice.choice((1, 2))) if is_v5 and dice.random() < 0.5 else NONE
            will = Will(dice.choice(TOPICS), b"will", dice.randrange(3), dice.random() < 0.2, delay)
        client_id = self.client_id
        if not client_id and self.version is Version.V3_1:
            client_id = self.client_id = "c0"  # MQTT 3.1 has no empty ones
        self._say(Connect(self.version, client_id, is_clean, 60, will, None, None, properties))

    def act(self) -> None:
        """Make an action that is allowed now."""
        self._dice.choice(self._acts)()

    def _free_id(self) -> int:
        return next(number for number in range(1, 0xFFFF) if number not in self._ids_in_use)

    def _publish(self) -> None:
        dice = self._dice
        qos = dice.randrange(3)
        packet_id = self._free_id() if qos else 0
        topic, properties = dice.choice(TOPICS), NONE
        if self._is_v5 and dice.random() < 0.3:
            properties = Properties(
                payload_format=1, message_expiry=dice.choice((None, 1, 60)), content_type="text/plain",
                response_topic="f/1", correlation_data=b"\xff", topic_alias=dice.choice((None, 1, 2)),
                user=(("a", "1"), ("a", "2"), ("b", "")),
            )  # fmt: skip
        payload = dice.choice((b"", b"x", b"y" * 200, b"z" * 20_000))
        self._say(Publish(topic, payload, qos, dice.random() < 0.2, False, packet_id, properties))
        if qos:
            self._ids_in_use.add(packet_id)
            self.owed[PacketType.PUBACK if qos == 1 else PacketType.PUBREC, packet_id] += 1

    def _subscribe(self) -> None:
        dice = self._dice
        filters = []
        for topic_filter in dice.sample(FILTERS, dice.choice((1, 1, 3))):
            is_free = self._is_v5 and not topic_filter.startswith("$share")
            filters.append(
                Filter(
                    topic_filter, dice.randrange(3), is_free and dice.random() < 0.3,
                    self._is_v5 and dice.random() < 0.3, dice.randrange(3) if is_free else 0,
                )
            )  # fmt: skip
        ids = Properties(subscription_ids=(dice.choice((1, 300)),)) if self._is_v5 and dice.random() < 0.5 else NONE
        self._ask(PacketType.SUBSCRIBE, lambda number: Subscribe(number, tuple(filters), ids))

    def _unsubscribe(self) -> None:
        filters = tuple(self._dice.sample(FILTERS, self._dice.choice((1, 2))))
        self._ask(PacketType.UNSUBSCRIBE, lambda number: Unsubscribe(number, filters, NONE))

    def _ask(self, type: PacketType, make: Callable[[int], Packet]) -> None:
        packet_id = self._free_id()
        self._ids_in_use.add(packet_id)
        self._say(make(packet_id))
        self.owed[ANSWERS[type], packet_id] += 1

    def _ping(self) -> None:
        self._say(PingRequest())
        self.owed[PacketType.PINGRESP, 0] += 1

    def _acknowledge(self) -> None:
        if self._to_acknowledge:
            kind, packet_id = self._to_acknowledge.pop(0)
            is_error = self._is_v5 and kind is PacketType.PUBREC and self._dice.random() < 0.1
            self._say(Acknowledgement(kind, packet_id, 0x83 if is_error else 0, NONE))

    def _release(self) -> None:
        if self._to_release:
            packet_id = self._to_release.pop(0)
            self._say(Acknowledgement(PacketType.PUBREL, packet_id, 0, NONE))
            self.owed[PacketType.PUBCOMP, packet_id] += 1

    def _acknowledge_anything(self) -> None:
        """Acknowledge a packet id that was never sent, or is already acknowledged."""
        kind = self._dice.choice((PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP))
        packet_id = self._dice.choice(WILD_IDS)
        if kind is PacketType.PUBREL and packet_id in self._ids_in_use:
            return  # the id is in use
        self._say(Acknowledgement(kind, packet_id, 0, NONE))

    # ---- what comes

    def read(self, seconds: float) -> None:
        """Process the packets that are there or come within ``seconds``."""
        if self.is_hung_up or not select.select([self.socket], [], [], seconds)[0]:
            return
        try:
            received = self.socket.recv(1 << 16)
        except OSError:
            received = b""
        self.is_hung_up = not received
        self._received += received
        while (found := decode(self._received, self.version)) is not None:
            packet, self._received = found
            self.trace.append(packet)
            DONE[f"heard: {packet.type.name}"] += 1
            self._hear(packet)

    def _hear(self, packet: ServerPacket) -> None:
        kind, packet_id = packet.type, packet.packet_id
        match kind:
            case PacketType.CONNACK:
                assert packet.codes == [0], f"refused: {packet}"
            case PacketType.PUBLISH:
                if packet_id:
                    kinds = (PacketType.PUBACK, PacketType.PUBREC)
                    self._to_acknowledge.append((kinds[packet.qos - 1], packet_id))
                return
            case PacketType.PUBREL:
                self._to_acknowledge.append((PacketType.PUBCOMP, packet_id))
                return
            case PacketType.PUBREC if self.owed[kind, packet_id]:
                self._to_release.append(packet_id)
            case PacketType.PUBACK | PacketType.PUBCOMP | PacketType.SUBACK | PacketType.UNSUBACK:
                if self.owed[kind, packet_id]:
                    self._ids_in_use.discard(packet_id)
            case PacketType.DISCONNECT:
                DONE[f"closed: {packet.codes[0]:#x}"] += 1
        if self.owed[kind, packet_id] > 1:
            self.owed[kind, packet_id] -= 1
        else:
            del self.owed[kind, packet_id]

    def settle(self) -> None:
        """Wait for all owed answers, unless the connection has ended."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.owed and not self.is_hung_up:
            assert time.monotonic() < deadline, f"never answered: {list(self.owed)}"
            self.read(0.5)

    def leave(self) -> None:
        if self._dice.random() < 0.5 and not self.is_hung_up:
            expiry = 5 if self._is_v5 and self._expiry and self._dice.random() < 0.5 else None
            properties = Properties(session_expiry=expiry) if expiry is not None else NONE
            self._say(Disconnect(self._dice.choice((0, 4)) if self._is_v5 else 0, properties))
        self.close()

    def close(self) -> None:
        self.is_over = True
        self.socket.close()


class Witness:
    """Another client, with a persistent session: it must receive only what it publishes."""

    def __init__(self, port: int, start: int) -> None:
        self._client = PahoClient(port, "witness", is_kept=True)
        self._client.subscribe("served/#", 2)
        self._client.publish("served/it", f"start {start}", 1)
        while self._client.take().payload != b"start %d" % start:
            pass  # a message acknowledged directly before a kill may come again
        self._number = 0

    def is_served(self, qos: int) -> None:
        self._number += 1
        self._client.publish("served/it", str(self._number), qos)
        payload = self._client.take().payload
        assert payload == b"%d" % self._number, f"{payload!r} came, {self._number} was sent"

    def close(self) -> None:
        self._client.leave()


def run(seed: int, cases: int, first: int = 0) -> Counter[str]:
    """Run the cases of ``seed`` from number ``first`` on; return the counts of actions. AssertionError, with the seed
    and the trace: the broker failed."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-packets-") as directory:
        broker = BrokerProcess(Path(directory) / "data", "a", *OPTIONS)
        broker.mqtt = port = free_port()
        broker.start().wait_role("master")
        witness = Witness(port, 0)
        clients: list[PacketClient] = []
        try:
            for case in range(first, first + cases):
                dice = random.Random(f"{seed}/{case}")
                clients = []
                try:
                    _play(port, dice, clients)
                    witness.is_served(dice.randrange(3))
                    assert not (found := traceback_of(broker)), found
                except BaseException as error:
                    for client in clients:
                        error.add_note(f"{client.client_id!r}, {client.version.name}: {client.trace[-60:]}")
                    error.add_note(f"seed {seed}, case {case}")
                    raise
                finally:
                    for client in clients:
                        client.close()
                if case % KILL_EVERY == KILL_EVERY - 1:
                    witness.close()
                    broker.kill()
                    broker.start().wait_role("master")
                    witness = Witness(port, case)
            witness.close()
            assert broker.terminate() == 0, broker.log.read_text()[-4000:]
            report = check(broker.data)
            assert report.is_clean, report.problems
        finally:
            broker.stop()
    return DONE


def _play(port: int, dice: random.Random, clients: list[PacketClient]) -> None:
    for _ in range(dice.randrange(1, STEPS_MAX)):
        there = [client for client in clients if not client.is_over]
        if not there or (len(there) < CLIENTS_MAX and dice.random() < 0.1):
            came = PacketClient(port, dice)
            for client in there:
                if client.client_id == came.client_id and came.client_id:
                    client.is_over = True  # it is taken over
            clients.append(came)
            came.settle()
            continue
        client = dice.choice(there)
        if dice.random() < 0.05:
            client.leave()
            continue
        for _ in range(dice.choice((1, 1, 5))):
            client.act()
        client.read(0)
        assert not client.is_hung_up, "its connection is closed"
    for client in clients:
        if not client.is_over:
            client.settle()
            assert not client.is_hung_up, "its connection is closed"
