"""Run one of mosquitto's broker tests with TandemMQ: ``python mosquitto_suite.py DIRECTORY SCRIPT``.

DIRECTORY is `test/broker` of a checkout of mosquitto. The script is run unchanged; TandemMQ is started instead of
mosquitto. Differences that MQTT 5.0 allows are accepted: properties of CONNACK, a CONNACK with the reason of a refusal,
a reason string, and whether there are subscribers. The exit code is the script's; UNSUITABLE: it sets an option that
TandemMQ does not have.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tandemmq.bench.peers.ports import free_port

Properties = Counter[tuple[int, bytes]]

UNSUITABLE = 77
START_SECONDS_MAX = 60.0
#: Options of its configuration that need no setting of TandemMQ: they are its default, or each script has a separate
#: broker.
INDIFFERENT = {"port", "listener", "allow_anonymous true", "persistence true", "persistence_file", "autosave_interval"}
CONNACK, PUBLISH, PUBACK, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT = 0x20, 0x30, 0x40, 0x70, 0x90, 0xB0, 0xE0
REASON_STRING = 0x1F
#: Success, with and without the information that there are no subscribers, which is optional.
NO_ERRORS = {0x00, 0x10}
RECEIVE_MAXIMUM, TOPIC_ALIAS_MAXIMUM = 0x21, 0x22
# Lengths of the properties of these packets, by identifier; -1: a string, -2: a pair of strings.
LENGTHS = {
    0x01: 1, 0x02: 4, 0x03: -1, 0x08: -1, 0x09: -1, 0x0B: 1, 0x23: 2,
    0x11: 4, 0x12: -1, 0x13: 2, 0x15: -1, 0x16: -1, 0x1A: -1, 0x1C: -1, REASON_STRING: -1, RECEIVE_MAXIMUM: 2,
    TOPIC_ALIAS_MAXIMUM: 2, 0x24: 1, 0x25: 1, 0x26: -2, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1,
}  # fmt: skip


class Broker:
    """The methods of a started process that the scripts use."""

    def __init__(self, port: int, data: str) -> None:
        self.log = Path(f"{data}.log")
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "tandemmq", "run", "--data", data, "--name", "a", "--stomp", "off",
                       "--openwire", "off", "--admin", "off", "--mqtt", f"127.0.0.1:{port}"]  # fmt: skip
            self.process = subprocess.Popen([*command, "--set", "mqtt.sys_interval=0"], stdout=log, stderr=log)
        self.pid = self.process.pid
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self.returncode = self.process.wait(timeout)
        return self.returncode

    def poll(self) -> int | None:
        return self.process.poll()

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        self.wait(timeout)
        return b"", self.log.read_bytes()


class Brokers:
    """Replacement of mosq_test.start_broker. A persistent broker gets the store of the previous one with the same
    file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self.made: list[Broker] = []

    def start(
        self, filename: str, cmd: Any = None, port: int = 0, use_conf: bool = False, expect_fail: bool = False,
        nolog: bool = False,
    ) -> Broker:  # fmt: skip
        lines = Path(filename.replace(".py", ".conf")).read_text().splitlines() if use_conf else []
        options = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
        unknown = [line for line in options if line not in INDIFFERENT and line.split()[0] not in INDIFFERENT]
        if unknown or cmd is not None or expect_fail:
            print("unsuitable:", unknown, cmd)
            sys.stdout.flush()
            os._exit(UNSUITABLE)
        kept = next((line.split()[1] for line in options if line.startswith("persistence_file")), None)
        self._number += 1
        made = Broker(port or 1888, str(self._directory / (kept or str(self._number))))
        self.made.append(made)
        return made


def read_packet(connection: socket.socket) -> bytes:
    """Return one complete packet; empty if there are no more."""
    head = connection.recv(1)
    if not head:
        return b""
    length = shift = 0
    while True:
        byte = connection.recv(1)
        head += byte
        length |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            break
    body = b""
    while len(body) < length:
        piece = connection.recv(length - len(body))
        if not piece:
            break
        body += piece
    return head + body


def split(packets: bytes) -> list[bytes]:
    found = []
    while packets:
        length = shift = 0
        place = 1
        while True:
            byte = packets[place]
            place += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append(packets[: place + length])
        packets = packets[place + length :]
    return found


def properties_of(data: bytes) -> Properties:
    """Return identifiers and values, without order. ``data`` begins with their length in one byte."""
    place, end = 1, 1 + data[0]
    found: Properties = Counter()
    while place < end:
        identifier = data[place]
        place += 1
        start, length = place, LENGTHS[identifier]
        for _ in range(-length):
            place += 2 + int.from_bytes(data[place : place + 2])
        place += max(length, 0)
        found[identifier, data[start:place]] += 1
    return found


def without(properties: Properties, *identifiers: int) -> Properties:
    return Counter({each: times for each, times in properties.items() if each[0] not in identifiers})


def is_as_expected(received: bytes, expected: bytes) -> bool:
    """Return whether a broker of MQTT 5.0 may send this packet instead of the expected one."""
    if received == expected:
        return True
    if not received or received[0] != expected[0]:
        return False
    try:
        return _means(received, expected)
    except (KeyError, IndexError):  # MQTT 3, which has no properties
        return False


def _means(received: bytes, expected: bytes) -> bool:
    kind, body, wanted = received[0] & 0xF0, received[2:], expected[2:]
    if received[1] > 127:
        return False
    if kind == CONNACK and len(wanted) > 2 and len(body) > 2:
        asked = without(properties_of(wanted[2:]), RECEIVE_MAXIMUM, TOPIC_ALIAS_MAXIMUM)
        return body[:2] == wanted[:2] and asked <= properties_of(body[2:])
    if kind == PUBLISH:
        if len(body) != len(wanted):
            return False
        start = 2 + int.from_bytes(body[:2]) + (2 if received[0] & 0x06 else 0)
        end = start + 1 + body[start]
        return (
            body[:start] + body[end:] == wanted[:start] + wanted[end:]
            and body[start] == wanted[start] <= 127
            and properties_of(body[start:]) == properties_of(wanted[start:])
        )
    start = {DISCONNECT: 1, SUBACK: 2, UNSUBACK: 2}.get(kind, 3 if PUBACK <= kind <= PUBCOMP else None)
    if PUBACK <= kind <= PUBCOMP and body[:2] == wanted[:2]:
        codes = {packet[2] if len(packet) > 2 else 0 for packet in (body, wanted)}
        if codes <= NO_ERRORS:
            return True
    if start is None or len(body) <= start:
        return False
    others = without(properties_of(body[start:]), REASON_STRING)
    rest = body[start + 1 + body[start] :]
    return not others and body[:start] + rest in (wanted, wanted[:start] + wanted[start + 1 :])


#: Packets that came before they were expected: there is no order between messages and answers for a client.
_early: WeakKeyDictionary[socket.socket, list[bytes]] = WeakKeyDictionary()


def expect_packet(connection: socket.socket, name: str, expected: bytes) -> bool:
    early = _early.setdefault(connection, [])
    if not expected:
        received = early.pop(0) if early else read_packet(connection)
        if is_refusal(received):
            received = read_packet(connection)
        if received:
            fail(f"{name}: received {received!r}, expected the end")
        return True
    for each in split(expected):
        known = next((packet for packet in early if is_as_expected(packet, each)), None)
        if known is not None:
            early.remove(known)
            continue
        while not is_as_expected(received := read_packet(connection), each):
            if not received or (received[0] & 0xF0 == PUBLISH) == (each[0] & 0xF0 == PUBLISH):
                fail(f"{name}\nreceived {received!r}\nexpected {each!r}")
            early.append(received)
    return True


def is_refusal(packet: bytes) -> bool:
    """Return whether it is a CONNACK of MQTT 5.0 with the reason why the connection ends (4.13.2)."""
    return len(packet) > 3 and packet[0] == CONNACK and packet[3] >= 0x80


def receive_unordered(connection: socket.socket, first: bytes, second: bytes, name: str) -> None:
    expect_packet(connection, name, first + second)


def fail(text: str) -> None:
    print(f"FAIL: {text}")
    raise import_module("mosq_test").TestError


def main(directory: str, script: str) -> None:
    os.chdir(directory)
    sys.path[:0] = [directory, str(Path(directory).parent)]
    sys.argv = [script]
    mosq_test: Any = import_module("mosq_test")
    with tempfile.TemporaryDirectory(prefix="tandemmq-mosquitto-") as data:
        brokers = Brokers(Path(data))
        mosq_test.start_broker = brokers.start
        mosq_test.expect_packet = expect_packet
        mosq_test.receive_unordered = receive_unordered
        mosq_test.get_port = lambda count=1: free_port() if count == 1 else tuple(free_port() for _ in range(count))
        try:
            runpy.run_path(script, run_name="__main__")
        finally:
            for broker in brokers.made:
                broker.kill()
                broker.process.wait()
                log = broker.log.read_text()
                if "Traceback" in log:
                    print(log)
                    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
