"""Random walks over a port of a running broker: python -m tests.support.fuzz.walks PORT SEED SECONDS SETTINGS

A program, so that the walks take no time of the well-behaved client beside them (``tests.support.fuzz.ports``). Each of
``WALKERS`` threads makes one connection after the other. A conversation knows what its protocol allows next (mostly it
is an actor of ``valid_frames`` or ``valid_packets``); its socket damages, cuts, repeats and swaps some of what it says.
Nothing here judges the broker: a conversation that is confused ends, and the next one begins.

SETTINGS is JSON: the ports by name, ``user`` and ``password`` of a user with few rights, and of a set ``token`` and
``broker``. The output is JSON: how often each thing was done.
"""

from __future__ import annotations

import base64
import json
import random
import re
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import quote

from tandemmq.broker.protocols.mqtt.packets import Connect, Packet, PacketType
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.types import ProducerId
from tandemmq.broker.replication import messages as replicated
from tandemmq.broker.replication.positions import BEFORE_ALL
from tests.support.acceptance.openwire_wire import OpenWire
from tests.support.broker.replication_links import RawPeer, hello_of
from tests.support.broker.websocket_peer import client_frame, request
from tests.support.fuzz import commands
from tests.support.fuzz.any_bytes import mutated
from tests.support.fuzz.books import DONE as ACTED
from tests.support.fuzz.books import SAID, Books, Copy
from tests.support.fuzz.openwire_actor import OpenWireActor
from tests.support.fuzz.stomp_actor import SELECTORS, StompActor
from tests.support.fuzz.stomp_client import Refused, Stomp
from tests.support.fuzz.valid_packets import PacketClient
from tests.support.protocols.mqtt.client_packets import ServerPacket, encode

WALKERS: Final = 4
#: A wait for an answer; what was damaged may never have one.
ANSWER_SECONDS_MAX: Final = 1.0
STEPS_MAX: Final = 60
#: Connections that a walker leaves open and silent.
SILENT_MAX: Final = 5
HARM: Final = 0.03
EDGES: Final = (b"\0", b"\xff", b"\n", b"\r\n", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"999999999999", b"-1")
DONE: Final[Counter[str]] = Counter()
WRONG: Final = "wrong"


class Rough(socket.socket):
    """A socket that does not say all that it is given as it is."""

    dice: random.Random
    is_framed = False
    is_harmed = False
    _said: list[bytes]
    _held: bytes

    @classmethod
    def open(cls, port: int, dice: random.Random) -> Rough:
        made = cls(fileno=socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX).detach())
        made.settimeout(ANSWER_SECONDS_MAX)
        made.dice, made._said, made._held = dice, [b"\0"], b""
        return made

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        self.say(self._roughened(bytes(data)))

    def say(self, data: bytes) -> None:
        """These bytes, sometimes in two pieces."""
        DONE["said"] += 1
        at = self.dice.randrange(len(data)) if data and self.dice.random() < 0.1 else len(data)
        super().sendall(data[:at])
        super().sendall(data[at:])

    def _roughened(self, data: bytes) -> bytes:
        self._said = [*self._said[-20:], data or b"\0"]
        held, self._held = self._held, b""
        if self.dice.random() > HARM:
            return data + held
        self.is_harmed = True
        match self.dice.randrange(5):
            case 0 | 1:
                DONE["damaged"] += 1
                return bytes(mutated(self.dice, data, self._said, lambda dice: dice.choice(EDGES))) + held
            case 2:
                DONE["cut"] += 1
                return data[: self.dice.randrange(len(data) + 1)] + held
            case 3:
                DONE["repeated"] += 1
                return self.dice.choice(self._said) + data + held
            case _:
                DONE["swapped"] += 1
                self._held = data
                return held

    def end(self, how: str) -> None:
        if how == "half":
            self.shutdown(socket.SHUT_WR)
            self.settimeout(0.1)
            while self.recv(1 << 16):
                pass
        elif how == "reset":
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class WebSocketed(Rough):
    """What is given goes in frames of WebSocket, sometimes in several, with control frames between."""

    protocol: str
    _received = b""

    @classmethod
    def shaken(cls, port: int, dice: random.Random, protocol: str) -> WebSocketed:
        made = cls.open(port, dice)
        assert isinstance(made, WebSocketed)
        made.protocol = protocol
        made.sendall_plain(request(more=f"Sec-WebSocket-Protocol: {protocol}\r\n"))
        head = b""
        while b"\r\n\r\n" not in head:
            head += made._more()
        made._received = head.partition(b"\r\n\r\n")[2]
        return made

    def sendall_plain(self, data: bytes) -> None:
        self.say(self._roughened(data))

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        dice, opcode = self.dice, 2 if self.protocol == "mqtt" else self.dice.choice((1, 2))
        data = self._roughened(bytes(data)) if dice.random() < 0.5 else bytes(data)
        parts = [data]
        if len(data) > 1 and dice.random() < 0.2:
            at = dice.randrange(1, len(data))
            parts = [data[:at], data[at:]]
        for number, part in enumerate(parts):
            if dice.random() < 0.1:
                self.sendall_plain(
                    client_frame(dice.choice((8, 9, 9, 9, 10, 10, 3, 11)), b"x" * dice.choice((0, 4, 126)))
                )
            frame = client_frame(opcode if number == 0 else 0, part, is_final=number == len(parts) - 1)
            self.sendall_plain(frame)

    def recv(self, size: int = 0, flags: int = 0) -> bytes:
        """The payload of the next frame that has one; empty at the end."""
        while True:
            if len(self._received) >= 2:
                first, length = self._received[:2]
                at = {126: 4, 127: 10}.get(length, 2)
                if at > 2 and len(self._received) >= at:
                    length = int.from_bytes(self._received[2:at], "big")
                if len(self._received) >= at + length:
                    payload, self._received = self._received[at : at + length], self._received[at + length :]
                    if first & 0x0F == 8:
                        return b""
                    if payload and first & 0x0F in (0, 1, 2):
                        return payload
                    continue
            self._received += self._more()

    def _more(self) -> bytes:
        data = super().recv(1 << 16)
        if not data:
            raise ConnectionError("the broker hung up")
        return data


class Target:
    """Ports by name, and who the walks are."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.ports: dict[str, int] = settings["ports"]
        self.user, self.password = settings.get("user", ""), settings.get("password", "")
        self.token, self.broker = settings.get("token", ""), settings.get("broker", "")

    def login(self, dice: random.Random) -> tuple[str | None, str | None]:
        chance = dice.random()
        if chance < 0.03:
            return dice.choice((WRONG, self.user)), dice.choice(("guess", ""))
        return (None, None) if chance < 0.1 else (self.user, self.password)


class NoBooks(Books):
    """What comes may be of anybody."""

    def of(self, body: str, queue: str) -> Copy | None:
        return None


class Walk(Protocol):
    """A conversation over one connection."""

    rough: Rough

    def step(self, dice: random.Random) -> None: ...


# ---- the protocols


class RoughStomp(Stomp):
    def __init__(self, open: Callable[[], Rough], version: str, **headers: str) -> None:
        self.open_rough = open
        super().__init__(0, version, **headers)

    def _open(self, port: int) -> Rough:
        self.rough = self.open_rough()
        return self.rough


class StompWalk:
    def __init__(self, target: Target, dice: random.Random, open: Callable[[], Rough] | None = None) -> None:
        user, password = target.login(dice)
        client_id = dice.choice((None, None, f"c{dice.randrange(8)}"))
        named = {"login": user, "passcode": password, "client-id": client_id}
        headers = {name: value for name, value in named.items() if value is not None}
        if dice.random() < 0.2:
            headers["heart-beat"] = dice.choice(("0,0", "100,100", "1,1", "9999999,0", "x,y"))
        version = dice.choice(("1.0", "1.1", "1.2"))
        client = RoughStomp(open or (lambda: Rough.open(target.ports["stomp"], dice)), version, **headers)
        self.rough, self._actor = client.rough, StompActor(client, NoBooks(), client_id)

    def step(self, dice: random.Random) -> None:
        self._actor.act(dice)
        if self._actor.is_over:
            raise ConnectionError("it ended")


class OpenWireWalk:
    """The actor, or commands of any kind in the names of the connection, whose answers are read and passed over."""

    _known: commands.Known | None = None

    def __init__(self, target: Target, dice: random.Random) -> None:
        client = OpenWire(target.ports["openwire"])
        client.socket.close()
        client.id = f"ID:fuzz-{dice.randrange(1 << 40)}"
        self.rough = client.socket = Rough.open(target.ports["openwire"], dice)
        user, password = target.login(dice)
        client_id = dice.choice((None, None, f"c{dice.randrange(8)}"))
        client.connect(user, password, **({} if client_id is None else {"client_id": client_id}))
        self._client, self._is_wild = client, dice.random() < 0.4
        self._actor = OpenWireActor(client, NoBooks(), client_id)
        if self._is_wild:
            OpenWireWalk._known = OpenWireWalk._known or commands.commands()
            for number in range(3):
                client.ask(schema.ProducerInfo, producer_id=ProducerId(client.id, number, 1))

    def step(self, dice: random.Random) -> None:
        if not self._is_wild:
            self._actor.act(dice)
            if self._actor.is_over:
                raise ConnectionError("it ended")
            return
        assert self._known is not None, "made with the first one"
        for _ in range(dice.randrange(1, 10)):
            self.rough.sendall(commands.any_command(dice, self._known, self._client.id))
        _pass_over(self.rough)


class MqttWalk(PacketClient):
    def __init__(self, target: Target, dice: random.Random, open: Callable[[], Rough] | None = None) -> None:
        self._target, self._open_rough = target, open or (lambda: Rough.open(target.ports["mqtt"], dice))
        super().__init__(0, dice)

    def _open(self, port: int) -> Rough:
        self.rough = self._open_rough()
        return self.rough

    def _say(self, packet: Packet) -> None:
        if isinstance(packet, Connect):
            user, password = self._target.login(self._dice)
            packet = replace(packet, username=user, password=None if password is None else password.encode())
        self.socket.sendall(encode(packet, self.version))

    def _hear(self, packet: ServerPacket) -> None:
        if packet.type is PacketType.CONNACK and packet.codes != [0]:
            DONE[f"refused: CONNACK {packet.codes}"] += 1
            raise ConnectionError("it is refused")
        super()._hear(packet)

    def step(self, dice: random.Random) -> None:
        self.act()
        self.said.clear()
        self.read(0.01)
        if self.is_hung_up:
            raise ConnectionError("the broker hung up")


def websocket_walk(target: Target, dice: random.Random) -> Walk:
    protocol = dice.choice(("v12.stomp", "v11.stomp", "mqtt", "mqtt"))

    def open() -> Rough:
        return WebSocketed.shaken(target.ports["websocket"], dice, protocol)

    return (MqttWalk if protocol == "mqtt" else StompWalk)(target, dice, open)


class AdminWalk:
    """Requests over one connection: of the pages and of what the document of the API has, and some keys that it does
    not have. Most answers are awaited."""

    _operations: ClassVar[list[tuple[str, str, list[str], list[str]]]] = []  # method, path, keys of query and of body

    def __init__(self, target: Target, dice: random.Random) -> None:
        if not AdminWalk._operations:
            AdminWalk._operations = list(_operations(target.ports["admin"]))
        self.rough = Rough.open(target.ports["admin"], dice)
        user, password = target.login(dice)
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = "" if user is None else f"Authorization: Basic {login}\r\n"
        self._values = {
            **VALUES, "login": (target.user, WRONG), "passcode": (target.password, "guess"), "token": ("x",)
        }  # fmt: skip

    def step(self, dice: random.Random) -> None:
        method, path, query, keys = dice.choice(self._operations)
        path = path.replace("{kind}", dice.choice(("queue", "topic")))
        path = re.sub(r"\{\w+\}", lambda found: dice.choice(NAMES), path)
        said = "&".join(f"{key}={quote(str(value))}" for key, value in self._chosen(dice, query, 0.3).items())
        body = json.dumps(self._chosen(dice, keys, 0.5)).encode() if method != "GET" else b""
        head = (
            f"{method} {path}{'?' if said else ''}{said} HTTP/1.1\r\nHost: localhost\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.rough.sendall(head.encode() + body)
        heard = _pass_over(self.rough, 0.05 if dice.random() < 0.8 else 0)
        for status in re.findall(rb"HTTP/1\.1 (\d\d\d)", heard):
            DONE[f"{'refused' if status >= b'400' else 'answered'}: {status.decode()}"] += 1
        if found := re.search(rb"Set-Cookie: ([^;]+)", heard):
            self._headers = f"Cookie: {found[1].decode()}\r\n"
            if token := re.search(rb'"csrf": ?"([^"]+)"', heard):
                self._headers += f"X-CSRF-Token: {token[1].decode()}\r\n"

    def _chosen(self, dice: random.Random, keys: list[str], chance: float) -> dict[str, Any]:
        able = [*keys, "nothing"] if dice.random() < 0.02 else keys
        return {key: dice.choice(self._values.get(key, ("x", 1, None))) for key in able if dice.random() < chance}


#: In the paths of requests, and what their keys may say.
NAMES: Final = ("s.0", "s.1", "s.2", "auto.0", "auto.1", "A", "GOOD.q", "~.", "a%2Fb", "%00", "1", "2", "c0", "d0")
VALUES: Final[Mapping[str, Sequence[Any]]] = {
    "limit": (1, 10, 1000, 0), "after": (0, 5, 1 << 60), "filter": ("*", "s.?"), "wait": (0, 0.1, 1.0, 31),
    "selector": SELECTORS, "last": (1, 10_000), "before": (-5, 5), "queue": ("s.0", "GOOD.q"), "topic": ("t.0",),
    "dead_letters": ("true", "false"), "slow": ("true", "false"), "kind": ("queue", "topic", 1),
    "name": ("s.0", "s.9", "GOOD.q", ""), "all": (True, True, False, "x"), "to": ("s.1", "s.2", "GOOD.q"),
    "rate": (1, 1000), "ids": ([], ["x"]), "canary": (True, False), "dry_run": (True, False), "canary_wait": (0.1,),
    "consumers": (True, False), "producers": (True, False), "to_kind": ("queue", "topic"),
}  # fmt: skip


def _operations(port: int) -> Iterator[tuple[str, str, list[str], list[str]]]:
    for page in ("status", "metrics", "health", "health/live", "", "nowhere"):
        yield "GET", f"/{page}", [], []
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        peer.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        said = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    for path, methods in json.loads(said.partition(b"\r\n\r\n")[2])["paths"].items():
        for method, operation in methods.items():
            query = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            yield method.upper(), path, query, list(content.get("schema", {}).get("properties", ()))


class ReplicationWalk:
    """A peer that is no member, with the token or without. It asks for no epoch: with the token it might get it."""

    def __init__(self, target: Target, dice: random.Random) -> None:
        token = target.token if dice.random() < 0.7 else WRONG
        hello = hello_of(dice.randrange(1 << 20), life=dice.choice((1, 1, 2, 1 << 62)))
        hello = replace(hello, broker=dice.choice((*[target.broker] * 9, WRONG)))
        address = f"127.0.0.1:{target.ports['replication']}"
        peer = RawPeer(address, hello, token=token.encode(), is_former=dice.random() < 0.1)
        peer.sock.close()
        self.rough = peer.sock = Rough.open(target.ports["replication"], dice)
        self._hello = hello
        if dice.random() < 0.9:
            peer.greet()

    def step(self, dice: random.Random) -> None:
        number, epoch, file = dice.randrange(1 << 10), dice.choice((0, 1)), dice.choice((0, 1, 2, 1 << 31))
        said: list[replicated.Message] = [
            self._hello, replicated.Proof("0" * 64), replicated.Refused("no"), replicated.Challenge("1" * 64),
            replicated.Would(number, "5" * 32, epoch, BEFORE_ALL, 1), replicated.NotLeading(epoch),
            replicated.Follow(number, epoch, None, (), (1, file)), replicated.Status(), replicated.Status(),
            replicated.Bytes(epoch, 1, 0, 0, 100, b"x" * 100), replicated.Sealed(epoch, file, 1 << 20),
            replicated.Skipped(epoch, file), replicated.FinalUpTo(epoch, file, 1 << 20),
            replicated.Alive(epoch, number, 1000), replicated.AliveAnswer(epoch, number),
            replicated.Have(epoch, file, 1 << 20, dice.choice(("memory", "disk")), 1 << 30),
            replicated.Resign(epoch, None), replicated.Fetch(number, "5" * 32, (), file, 0),
            replicated.Piece(number, file, 0, 0, 100, b"x" * 100), replicated.StatusAnswer({"role": "master"}),
        ]  # fmt: skip
        self.rough.sendall(replicated.encode(dice.choice(said)))
        DONE["refused: REFUSED"] += b'"reason"' in _pass_over(self.rough, 0.01)


def _pass_over(peer: Rough, seconds: float = 0.0) -> bytes:
    """What is there, or comes in that time."""
    heard = b""
    while select.select([peer], [], [], seconds)[0]:
        data = peer.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker hung up")
        heard, seconds = heard[-4096:] + data, 0.0
    return heard


WALKS: Final[Mapping[str, Callable[[Target, random.Random], Walk]]] = {
    "stomp": StompWalk,
    "openwire": OpenWireWalk,
    "mqtt": MqttWalk,
    "websocket": websocket_walk,
    "admin": AdminWalk,
    "replication": ReplicationWalk,
}


def walk(make: Callable[[Target, random.Random], Walk], target: Target, dice: random.Random, until: float) -> None:
    """One connection after the other, until then."""
    silent: list[Rough] = []
    while time.monotonic() < until:
        try:
            made = make(target, dice)
        except Exception as error:
            _note("connect", error)
            time.sleep(0.02)
            continue
        DONE["connections"] += 1
        try:
            for _ in range(dice.randrange(STEPS_MAX)):
                made.step(dice)
                DONE["actions"] += 1
                if time.monotonic() >= until:
                    break
            if (how := dice.choice(("close", "reset", "half", "silent"))) == "silent":
                silent.append(made.rough)
            else:
                made.rough.end(how)
        except Exception as error:
            _note("step", error, made.rough.is_harmed)
            made.rough.close()
        if len(silent) > SILENT_MAX:
            silent.pop(0).close()
        SAID.clear()


def _note(where: str, error: Exception, is_harmed: bool = True) -> None:
    """A refusal, or the confusion of a conversation whose words were damaged."""
    is_refusal = isinstance(error, Refused | OSError) or type(error).__name__ == "Refused"
    DONE[f"{'refused' if is_refusal else 'confused' if is_harmed else 'surprised'}: {where} {str(error)[:60]!r}"] += 1


def main(name: str, seed: str, seconds: str, settings: str) -> None:
    target, until = Target(json.loads(settings)), time.monotonic() + float(seconds)
    threads = [
        threading.Thread(target=walk, args=(WALKS[name], target, random.Random(f"{seed}/{name}/{number}"), until))
        for number in range(WALKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(DONE + Counter({f"refused: {what}": times for what, times in ACTED.items() if ": " in what})))


if __name__ == "__main__":
    main(*sys.argv[1:])
