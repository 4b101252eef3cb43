"""Random walks over a port of a running broker: python -m tests.support.fuzz.walks PORT SEED SECONDS SETTINGS

A separate program, so that the walks use no CPU time of the well-behaved client (``tests.support.fuzz.ports``). Each of
``WALKERS`` threads makes one connection after the other. A conversation sends valid data of its protocol (mostly it is
an actor of ``valid_frames`` or ``valid_packets``); its socket damages, cuts, repeats and swaps some of the bytes. The
walks do not check the broker: after an unexpected answer a conversation ends, and the next one begins.

SETTINGS is JSON: the ports by name, ``user`` and ``password`` of a user with few rights, and for a set ``token`` and
``broker``. The output is JSON: the count of each action.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile
from typing import Any, Final
from urllib.parse import quote

from tandemmq.broker.protocols.mqtt.packets import Connect, Packet
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.types import ProducerId
from tandemmq.broker.replication import messages as replicated
from tandemmq.broker.replication.frames import encode as encode_message
from tandemmq.broker.replication.quorum import BEFORE_ALL
from tests.support.acceptance.openwire_wire import OpenWire
from tests.support.broker.replication_links import RawPeer, hello_of
from tests.support.broker.websocket_peer import client_frame, request
from tests.support.fuzz import books, commands
from tests.support.fuzz.amqp_actor import AmqpActor
from tests.support.fuzz.any_bytes import mutated
from tests.support.fuzz.openwire_actor import OpenWireActor
from tests.support.fuzz.stomp_actor import SELECTORS, StompActor
from tests.support.fuzz.stomp_client import Stomp
from tests.support.fuzz.valid_packets import PacketClient
from tests.support.protocols.mqtt.client_packets import encode

WALKERS: Final = 4
#: Timeout for an answer; damaged requests may have none.
ANSWER_SECONDS_MAX: Final = 1.0
STEPS_MAX: Final = 60
#: Connections that a walker leaves open and silent.
SILENT_MAX: Final = 5
#: Share of damaged sends.
HARMED: Final = 0.03
EDGES: Final = (b"\0", b"\xff", b"\n", b"\r\n", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"999999999999", b"-1")
WRONG: Final = "wrong"
DONE: Final[Counter[str]] = Counter()

Step = Callable[[], object]
Walk = Callable[["Target", random.Random, "Rough"], Step]


class Rough(socket.socket):
    """A socket that damages some of the bytes it sends."""

    dice: random.Random
    _sent: Sequence[bytes] = (b"\0",)
    _held = b""

    @classmethod
    def open(cls, port: int, dice: random.Random) -> Rough:
        made = cls(fileno=socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX).detach())
        made.settimeout(ANSWER_SECONDS_MAX)
        made.dice = dice
        return made

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        self.say(bytes(data))

    def say(self, data: bytes) -> None:
        """Send these bytes, damaged or not, in one or two pieces."""
        DONE["sent"] += 1
        self._sent = (*self._sent[-20:], data or b"\0")
        held, self._held = self._held, b""
        data = (self._harmed(data) if self.dice.random() < HARMED else data) + held
        at = self.dice.randrange(len(data)) if data and self.dice.random() < 0.1 else len(data)
        super().sendall(data[:at])
        super().sendall(data[at:])

    def _harmed(self, data: bytes) -> bytes:
        DONE[how := self.dice.choice(("damaged", "damaged", "cut", "repeated", "swapped"))] += 1
        match how:
            case "damaged":
                return bytes(mutated(self.dice, data, self._sent, lambda dice: dice.choice(EDGES)))
            case "cut":
                return data[: self.dice.randrange(len(data) + 1)]
            case "repeated":
                return self.dice.choice(self._sent) + data
        self._held = data
        return b""

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
    """A socket that sends WebSocket frames: sometimes two for one send, sometimes with a control frame in between."""

    _received = b""

    def shake(self, protocol: str) -> None:
        self._opcodes = (2,) if protocol in BINARY else (1, 2)
        self.say(request(more=f"Sec-WebSocket-Protocol: {protocol}\r\n"))
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._more()
        self._received = head.partition(b"\r\n\r\n")[2]

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        dice, opcode = self.dice, self.dice.choice(self._opcodes)
        at = dice.randrange(len(data)) if data and dice.random() < 0.2 else 0
        if at:
            self.say(client_frame(opcode, data[:at], is_final=False))
        if dice.random() < 0.1:
            self.say(client_frame(dice.choice((8, 9, 9, 9, 10, 10, 3)), b"x" * dice.choice((0, 4, 126))))
        self.say(client_frame(0 if at else opcode, data[at:]))

    def recv(self, size: int = 0, flags: int = 0) -> bytes:
        """Return the payload of the next frame with a payload; empty at the end."""
        while True:
            found = re.match(rb"(.)(?:([^\x7e\x7f])|\x7e(..)|\x7f(.{8}))", self._received, re.DOTALL)
            length = int.from_bytes(found[2] or found[3] or found[4], "big") if found else 0
            if found is None or len(self._received) < found.end() + length:
                self._received += self._more()
                continue
            opcode, payload = found[1][0] & 0x0F, self._received[found.end() :][:length]
            self._received = self._received[found.end() + length :]
            if opcode == 8 or (payload and opcode < 3):
                return b"" if opcode == 8 else payload

    def _more(self) -> bytes:
        data = super().recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return data


@dataclass(frozen=True, slots=True)
class Target:
    """The content of SETTINGS."""

    ports: Mapping[str, int]
    user: str = ""
    password: str = ""
    token: str = ""
    broker: str = ""

    def login(self, dice: random.Random) -> tuple[str | None, str | None]:
        """Return a login: mostly the correct one, sometimes a wrong one or none."""
        chance = dice.random()
        if chance < 0.03:
            return dice.choice((WRONG, self.user)), "guess"
        return (None, None) if chance < 0.1 else (self.user, self.password)


# ---- conversations: each function starts one, and returns the function for its next step


class NoBooks(books.Books):
    """Records without checks: a received message may be from any client."""

    def of(self, body: str, queue: str) -> books.Copy | None:
        return None


def stomp(target: Target, dice: random.Random, rough: Rough) -> Step:
    user, password = target.login(dice)
    client_id = dice.choice((None, None, f"c{dice.randrange(8)}"))
    beats = dice.choice((None, None, None, None, "0,0", "100,100", "1,1", "9999999,0", "x,y"))
    login = {"login": user, "passcode": password, "client-id": client_id, "heart-beat": beats}
    headers = {name: value for name, value in login.items() if value is not None}
    client = Stomp(rough, dice.choice(("1.0", "1.1", "1.2")), **headers)
    return partial(_act, StompActor(client, NoBooks(), client_id), dice)


def openwire(target: Target, dice: random.Random, rough: Rough) -> Step:
    """The actor, or commands of any type with ids of the connection, whose answers are discarded."""
    client = OpenWire(rough)
    client.id = f"ID:fuzz-{dice.randrange(1 << 40)}"
    client_id = dice.choice((client.id, client.id, f"c{dice.randrange(8)}"))
    client.connect(*target.login(dice), client_id=client_id)
    if dice.random() < 0.6:
        return partial(_act, OpenWireActor(client, NoBooks(), client_id), dice)
    for number in range(3):
        client.ask(schema.ProducerInfo, producer_id=ProducerId(client.id, number, 1))

    def step() -> None:
        for _ in range(dice.randrange(1, 10)):
            rough.sendall(commands.any_command(dice, _commands(), client.id))
        _pass_over(rough)

    return step


_commands: Final = cache(commands.commands)


def _act(actor: StompActor | OpenWireActor, dice: random.Random) -> None:
    actor.act(dice)
    if actor.is_over:
        raise ConnectionError("the broker closed the connection")


class MqttClient(PacketClient):
    """A client with a login, which may be refused."""

    def __init__(self, rough: Rough, dice: random.Random, target: Target) -> None:
        self._target = target
        super().__init__(rough, dice)

    def _say(self, packet: Packet) -> None:
        if isinstance(packet, Connect):
            user, password = self._target.login(self._dice)
            packet = replace(packet, username=user, password=None if password is None else password.encode())
        self.socket.sendall(encode(packet, self.version))

    def step(self) -> None:
        self.act()
        self.trace.clear()
        self.read(0.01)
        if self.is_hung_up:
            raise ConnectionError("the broker closed the connection")


def mqtt(target: Target, dice: random.Random, rough: Rough) -> Step:
    return MqttClient(rough, dice, target).step


def amqp(target: Target, dice: random.Random, rough: Rough) -> Step:
    return AmqpActor(rough, dice, target.login(dice)).act


#: Subprotocols that have binary frames alone.
BINARY: Final[Mapping[str, Walk]] = {"mqtt": mqtt, "amqp": amqp}


def websocket(target: Target, dice: random.Random, rough: Rough) -> Step:
    assert isinstance(rough, WebSocketed), "these walks open a WebSocketed"
    protocol = dice.choice(("v12.stomp", "v11.stomp", "mqtt", "amqp"))
    rough.shake(protocol)
    return BINARY.get(protocol, stomp)(target, dice, rough)


#: Values for the paths and keys of API requests.
NAMES: Final = ("s.0", "s.1", "s.2", "auto.0", "auto.1", "A", "GOOD.q", "~.", "a%2Fb", "%00", "1", "2", "c0", "d0")
VALUES: Final[Mapping[str, Sequence[Any]]] = {
    "limit": (1, 10, 1000, 0), "after": (0, 5, 1 << 60), "filter": ("*", "s.?"), "wait": (0, 0.1, 1.0, 31),
    "selector": SELECTORS, "last": (1, 10_000), "before": (-5, 5), "queue": ("s.0", "GOOD.q"), "topic": ("t.0",),
    "dead_letters": ("true", "false"), "slow": ("true", "false"), "kind": ("queue", "topic", 1),
    "name": ("s.0", "s.9", "GOOD.q", ""), "all": (True, True, False, "x"), "to": ("s.1", "s.2", "GOOD.q"),
    "rate": (1, 1000), "ids": ([], ["x"]), "canary": (True, False), "dry_run": (True, False), "canary_wait": (0.1,),
    "consumers": (True, False), "producers": (True, False), "to_kind": ("queue", "topic"),
}  # fmt: skip
Operation = tuple[str, str, list[str], list[str]]  # method, path, keys of the query and of the body


@cache
def _operations(port: int) -> list[Operation]:
    """Return the pages, and the operations of the API document."""
    found: list[Operation] = [("GET", f"/{page}", [], []) for page in ("status", "metrics", "health", "", "nowhere")]
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        peer.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    for path, methods in json.loads(answer.partition(b"\r\n\r\n")[2])["paths"].items():
        for method, operation in methods.items():
            query = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            body = list(content.get("schema", {}).get("properties", ()))
            found += [(method.upper(), path, query, body)] * (3 if path.endswith("/resume") else 1)
    return found


def admin(target: Target, dice: random.Random, rough: Rough) -> Step:
    """Requests over one connection, with a login or a session cookie. It waits for most answers."""
    user, password = target.login(dice)
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    who = "" if user is None else f"Authorization: Basic {login}\r\n"
    values = {**VALUES, "login": (target.user, WRONG), "passcode": (target.password, "guess")}

    def chosen(keys: list[str], chance: float) -> dict[str, Any]:
        able = [*keys, "nothing"] if dice.random() < 0.02 else keys
        return {key: dice.choice(values.get(key, ("x", 1, None))) for key in able if dice.random() < chance}

    def step() -> None:
        nonlocal who
        method, path, query, keys = dice.choice(_operations(target.ports["admin"]))
        path = path.replace("{kind}", dice.choice(("queue", "topic")))
        path = re.sub(r"\{\w+\}", lambda found: dice.choice(NAMES), path)
        parameters = "&".join(f"{key}={quote(str(value))}" for key, value in chosen(query, 0.3).items())
        body = json.dumps(chosen(keys, 0.5)) if method != "GET" else ""
        rough.say(
            f"{method} {path}{'?' if parameters else ''}{parameters} HTTP/1.1\r\nHost: localhost\r\n{who}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        heard = _pass_over(rough, 0.05 if dice.random() < 0.8 else 0)
        for status in re.findall(rb"HTTP/1\.1 (\d\d\d)", heard):
            DONE[f"{'refused' if status >= b'400' else 'answered'}: {status.decode()}"] += 1
        if found := re.search(rb'Set-Cookie: ([^;]+).*"csrf": ?"([^"]+)', heard, re.DOTALL):
            who = f"Cookie: {found[1].decode()}\r\nX-CSRF-Token: {found[2].decode()}\r\n"

    return step


def replication(target: Target, dice: random.Random, rough: Rough) -> Step:
    """A peer that is not a member, with or without the token. It does not request an epoch, because with the token it
    could get one."""
    hello = hello_of(dice.randrange(1 << 20), life=dice.choice((1, 1, 2, 1 << 62)))
    hello = replace(hello, broker=dice.choice((*[target.broker] * 9, WRONG)))
    token = target.token if dice.random() < 0.7 else WRONG
    peer = RawPeer(f"127.0.0.1:{target.ports['replication']}", hello, token=token.encode())
    peer.sock.close()
    peer.sock = rough
    if dice.random() < 0.9:
        peer.greet()

    def step() -> None:
        number, epoch, file = dice.randrange(1 << 10), dice.choice((0, 1)), dice.choice((0, 1, 2, 1 << 31))
        messages: list[replicated.Message] = [
            hello, replicated.Proof("0" * 64), replicated.Refused("no"), replicated.Challenge("1" * 64),
            replicated.PreVote(number, "5" * 32, epoch, BEFORE_ALL, 1), replicated.NotLeading(epoch),
            replicated.Follow(number, epoch, None, (), (1, file)), replicated.Status(), replicated.Status(),
            replicated.Bytes(epoch, 1, 0, 0, 100, b"x" * 100), replicated.Sealed(epoch, file, 1 << 20),
            replicated.Skipped(epoch, file), replicated.FinalUpTo(epoch, file, 1 << 20),
            replicated.Alive(epoch, number, 1000), replicated.AliveAnswer(epoch, number),
            replicated.Have(epoch, file, 1 << 20, dice.choice(("memory", "disk")), 1 << 30),
            replicated.Resign(epoch, None), replicated.Fetch(number, "5" * 32, (), file, 0),
            replicated.Piece(number, file, 0, 0, 100, b"x" * 100), replicated.StatusAnswer({"role": "master"}),
        ]  # fmt: skip
        rough.say(encode_message(dice.choice(messages)))
        DONE["refused: REFUSED"] += b'"reason"' in _pass_over(rough, 0.01)

    return step


def _pass_over(peer: Rough, seconds: float = 0.0) -> bytes:
    """Discard the data that arrives within ``seconds``. Return the last bytes of it."""
    heard = b""
    while select.select([peer], [], [], seconds)[0]:
        if not (data := peer.recv(1 << 16)):
            raise ConnectionError("the broker closed the connection")
        heard, seconds = heard[-4096:] + data, 0.0
    return heard


WALKS: Final = {each.__name__: each for each in (stomp, openwire, mqtt, amqp, websocket, admin, replication)}


# ---- the walk


def walk(name: str, target: Target, dice: random.Random, until: float) -> None:
    """Make one connection after the other, until the time ``until``."""
    silent: list[Rough] = []
    kind = WebSocketed if name == "websocket" else Rough
    while time.monotonic() < until:
        try:
            rough = kind.open(target.ports[name], dice)
        except OSError:
            DONE["not connected"] += 1
            time.sleep(0.1)
            continue
        DONE["connections"] += 1
        try:
            step = WALKS[name](target, dice, rough)
            for _ in takewhile(lambda _: time.monotonic() < until, range(dice.randrange(STEPS_MAX))):
                step()
                DONE["actions"] += 1
            if (how := dice.choice(("close", "reset", "half", "silent"))) != "silent":
                rough.end(how)
            else:
                silent.append(rough)
        except Exception as error:  # a refusal, the end of a connection, or an unexpected answer after damage
            is_refusal = type(error).__name__ == "Refused" or str(error).startswith("refused")
            DONE[f"{'refused' if is_refusal else 'ended'}: {type(error).__name__} {str(error)[:40]!r}"] += 1
            rough.close()
        books.TRACE.clear()
        if len(silent) > SILENT_MAX:
            silent.pop(0).close()


def main(name: str, seed: str, seconds: str, settings: str) -> None:
    target, until = Target(**json.loads(settings)), time.monotonic() + float(seconds)
    threads = [
        threading.Thread(target=walk, args=(name, target, random.Random(f"{seed}/{name}/{number}"), until))
        for number in range(WALKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(DONE + Counter({f"refused: {what}": times for what, times in books.DONE.items() if ": " in what})))


if __name__ == "__main__":
    main(*sys.argv[1:])
