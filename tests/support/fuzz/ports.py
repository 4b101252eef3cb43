"""Random walks over the ports of a real broker, beside a well-behaved client, for as long as wanted, in parts.

    python -m tests.support.fuzz ports [--seed N] [--ports stomp,openwire,...] [--seconds 1800] [--first PART]

All named ports are those of one broker, and are walked at the same time (``tests.support.fuzz.walks``); ``replication``
is a port of a set of three, which has a run of its own. A part of 60 s has a seed of its own, of (seed, part), so that
``--first`` goes on where a run ended. After each part the destinations that the walks made are deleted.

A run fails when the broker ends, changes its epoch, or logs an error of its own, when the well-behaved client loses a
message or its connection, or when the checker finds something in the store at the end.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tandemmq.bench.connection import Endpoint, connect, error_text
from tandemmq.bench.frames import command_frame, header_of
from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.security.passwords import make
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.services.zookeeper import ZooKeeperServer
from tests.support.tree import ROOT

PORTS: Final = ("stomp", "openwire", "mqtt", "websocket", "admin", "replication")
PART_SECONDS: Final = 60.0
RECEIPTS_PER_SECOND: Final = 100
#: An answer that does not come within this time never comes.
PATIENCE_SECONDS: Final = 60.0
MIB: Final = 1 << 20
#: Of point 4 of bounded work: counted and used memory differ by no more than this part, or these bytes.
PART_MAX, BYTES_MAX = 0.2, 8 * MIB
GOOD: Final = "/queue/GOOD.q"
SETTINGS: Final = """\
[broker]
memory_limit = "64mb"
user_connections_max = 200
user_destinations_max = 2000

[store]
journal_max_file_length = "4mb"
checkpoint_interval = "1s"
cleanup_interval = "500ms"

[admin]
operators = ["few"]

[security]
users_file = "{users}"
failed_login_delay = 100
failed_logins_max = 100
{rights}
"""
RIGHTS: Final = {
    "good": ("queue GOOD.>",),
    "few": ("queue s.>", "queue auto.>", "queue A", "queue B", "queue Consumer.>", "topic t.>", "topic VirtualTopic.>",
            "topic f.>", "topic served.>", "topic A"),
}  # fmt: skip
_RIGHT: Final = '[[security.authorization]]\n{0} = "{1}"\nread = ["{2}"]\nwrite = ["{2}"]\nadmin = ["{2}"]\n'


class GoodClient:
    """100 persistent messages a second to itself, each with a receipt, consumed and acknowledged. ``waited``: how long
    each receipt took, in seconds, from the moment at which its message was due."""

    def __init__(self, port: int, **login: str) -> None:
        self._peer = connect(Endpoint("127.0.0.1", port, **login))
        self._peer.settimeout(PATIENCE_SECONDS)
        self.waited: list[float] = []
        self.sent = 0
        self.confirmed: set[int] = set()
        self.received: Counter[int] = Counter()
        self.failure: BaseException | None = None
        self._due: dict[int, float] = {}
        self._is_over = threading.Event()
        self._subscribe()
        self._threads = [threading.Thread(target=self._guarded, args=(each,)) for each in (self._send, self._read)]
        for thread in self._threads:
            thread.start()

    def _subscribe(self) -> None:
        headers = [("id", "0"), ("destination", GOOD), ("ack", "client-individual"), ("receipt", "s")]
        self._peer.sendall(command_frame("SUBSCRIBE", headers))

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.failure = self.failure or error
            self._is_over.set()

    def _send(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(max(0.0, began + self.sent / RECEIPTS_PER_SECOND - time.monotonic())):
            self._due[self.sent] = began + self.sent / RECEIPTS_PER_SECOND
            headers = [
                ("destination", GOOD),
                ("persistent", "true"),
                ("receipt", f"{self.sent}"),
                ("n", f"{self.sent}"),
            ]
            self.sent += 1
            self._peer.sendall(command_frame("SEND", headers))

    def _read(self) -> None:
        rest, heard_at = b"", time.monotonic()
        while not (self._is_over.is_set() and self.is_settled):
            if not select.select([self._peer], [], [], 0.1)[0]:
                assert time.monotonic() - heard_at < PATIENCE_SECONDS, "nothing comes for the well-behaved client"
                continue
            heard_at = time.monotonic()
            data = self._peer.recv(1 << 16)
            assert data, "the broker hung up on the well-behaved client"
            *frames, rest = (rest + data).split(b"\0")
            for frame in frames:
                self._take(frame.lstrip(b"\r\n"))

    def _take(self, frame: bytes) -> None:
        assert not frame.startswith(b"ERROR"), error_text(frame)
        if frame.startswith(b"MESSAGE"):
            self.received[int(header_of(frame, b"n") or -1)] += 1
            self._peer.sendall(command_frame("ACK", [("id", (header_of(frame, b"ack") or b"").decode())]))
        elif (receipt := (header_of(frame, b"receipt-id") or b"").decode()).isdecimal():
            self.confirmed.add(int(receipt))
            self.waited.append(time.monotonic() - self._due.pop(int(receipt)))

    @property
    def is_settled(self) -> bool:
        """All that was sent was confirmed, and received once."""
        return len(self.confirmed) == self.sent == len(self.received) == self.received.total()

    def check(self) -> None:
        assert self.failure is None, f"the well-behaved client: {self.failure!r}"

    def end(self) -> None:
        """When all that was sent was confirmed and received. AssertionError: something is missing."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_SECONDS)
        self._peer.close()
        self.check()
        assert self.is_settled, f"{self.sent} sent, {len(self.confirmed)} confirmed, {len(self.received)} received"


class Walked(BrokerProcess):
    """A broker with all ports, a small memory, and users: good, and eve of few rights."""

    def __init__(self, directory: Path) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        self.websocket = free_port()
        super().__init__(directory / "data", "a", "--config", str(settings), "--ws", f"127.0.0.1:{self.websocket}")
        self.openwire, self.mqtt = free_port(), free_port()
        users.write_text(f"good:{make('good')}:good:\neve:{make('eve')}:few:\n")
        users.chmod(0o600)
        rights = "".join(
            _RIGHT.format(*subject.split(), group) for group, subjects in RIGHTS.items() for subject in subjects
        )
        settings.write_text(SETTINGS.format(users=users, rights=rights))

    @property
    def ports(self) -> dict[str, int | None]:
        names = ("stomp", "openwire", "mqtt", "websocket", "admin")
        return {name: getattr(self, name) for name in names}

    def delete_all(self) -> None:
        """The destinations that the walks made."""
        for kind in ("queue", "topic"):
            url = f"http://127.0.0.1:{self.admin}/api/v1/destinations/{kind}"
            with urllib.request.urlopen(
                urllib.request.Request(f"{url}?limit=1000", headers=self.authorization)
            ) as said:
                names = [each["name"] for each in json.loads(said.read())["items"]]
            for name in names:
                if not name.startswith(("GOOD.", "ActiveMQ.Advisory.")):
                    gone = urllib.request.Request(
                        f"{url}/{quote(name, safe='')}", headers=self.authorization, method="DELETE"
                    )
                    try:
                        urllib.request.urlopen(gone, timeout=PATIENCE_SECONDS).close()
                    except urllib.error.HTTPError as error:
                        error.close()  # somebody uses it, or has deleted it


@contextmanager
def _broker(directory: Path) -> Iterator[tuple[BrokerProcess, dict[str, Any], dict[str, str]]]:
    """One that runs, what the walks are told of it, and the login of the well-behaved client."""
    broker = Walked(directory)
    try:
        broker.start().wait_role("master")
        yield broker, {"ports": broker.ports, "user": "eve", "password": "eve"}, {"login": "good", "passcode": "good"}
        broker.delete_all()
        assert broker.terminate() == 0, broker.log.read_text()[-4000:]
    finally:
        broker.stop()
    report = check(broker.data)
    assert report.is_clean, report.problems


@contextmanager
def _set(directory: Path) -> Iterator[tuple[BrokerProcess, dict[str, Any], dict[str, str]]]:
    """A set of three, of which a follower is walked over."""
    zookeeper = ZooKeeperServer()
    try:
        zookeeper.start()
        whole = SetOfBrokers(directory, zookeepers=[zookeeper])
        try:
            master = whole.start()
            ports = {"replication": whole.others(master)[0].bind}
            yield master, {"ports": ports, "token": "secret", "broker": master.name}, {}
            problems = whole.problems()
            assert not problems, problems
        finally:
            whole.stop()
    finally:
        zookeeper.remove()


def run(
    seed: int, ports: Sequence[str] = PORTS, seconds: float = 1800.0, first: int = 0, part_seconds: float = PART_SECONDS
) -> Counter[str]:
    """What the walks did, from part ``first`` on. AssertionError when the broker did not do as it should."""
    done: Counter[str] = Counter()
    parts = range(first, -int(-seconds // part_seconds))
    for names, world in ((PORTS[:-1], _broker), (PORTS[-1:], _set)):
        if chosen := [port for port in ports if port in names]:
            with (
                tempfile.TemporaryDirectory(prefix="tandemmq-ports-") as directory,
                world(Path(directory)) as (broker, told, login),
            ):
                done += _parts(broker, told, login, seed, chosen, parts, part_seconds)
    return done


def _parts(
    broker: BrokerProcess, told: dict[str, Any], login: dict[str, str], seed: int, ports: list[str], parts: range,
    part_seconds: float,
) -> Counter[str]:  # fmt: skip
    done: Counter[str] = Counter()
    good = GoodClient(broker.stomp, **login)
    time.sleep(min(5.0, part_seconds / 4))  # what is made once is made by now
    at_rest = _figures(broker)
    try:
        for part in parts:
            begins = len(good.waited)
            said = _walked(told, f"{seed}/{part}", ports, part_seconds)
            waited = sorted(good.waited[begins:]) or [float("inf")]
            now = _figures(broker)
            used, counted = now["rss"] - at_rest["rss"], now["counted"] - at_rest["counted"]
            is_near = abs(used - counted) <= max(BYTES_MAX, PART_MAX * used)
            for port in ports:
                actions = said[port]["actions"]
                refused = sum(times for what, times in said[port].items() if what.startswith("refused"))
                print(
                    f"{port:<11} part {part:3} {actions:7} actions {refused:6} refused; receipts: longest "
                    f"{waited[-1] * 1000:.0f} ms, 95 % {waited[len(waited) * 95 // 100] * 1000:.0f} ms; memory: "
                    f"{counted / MIB:.1f} MiB counted, {used / MIB:.1f} MiB used{'' if is_near else ' (differs)'}; "
                    f"epoch {now['epoch']}",
                    flush=True,
                )
                done += Counter({f"{port}: {what}": times for what, times in said[port].items()})
            assert now["epoch"] == at_rest["epoch"], f"seed {seed}, part {part}: epoch {now['epoch']}"
            assert not (found := error_of(broker.log.read_text())), f"seed {seed}, part {part}: {found}"
            good.check()
            if isinstance(broker, Walked):
                broker.delete_all()
    finally:
        good.end()
    return done


def _walked(told: dict[str, Any], seed: str, ports: list[str], seconds: float) -> dict[str, Counter[str]]:
    """What each walk says that it did."""
    # Clients have other machines in real life: the broker and the well-behaved client come first.
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.support.fuzz.walks"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    walks = {
        port: subprocess.Popen(
            [*command, port, seed, f"{seconds}", json.dumps(told)], env=environment, cwd=ROOT, stdout=subprocess.PIPE
        )
        for port in ports
    }
    try:
        return {
            port: Counter(json.loads(walk.communicate(timeout=2 * PATIENCE_SECONDS + seconds)[0]))
            for port, walk in walks.items()
        }
    finally:
        for walk in walks.values():
            walk.kill()
            walk.wait()


def _figures(broker: BrokerProcess) -> dict[str, int]:
    """Epoch, counted and used memory (RSS) of the broker, in bytes."""
    status = broker.wait_role("master")
    text = Path(f"/proc/{broker.pid}/status").read_text()
    rss = next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS"))
    return {"epoch": status["epoch"], "counted": status["counts"]["memory_used_bytes"], "rss": rss}


def error_of(log: str) -> str:
    """The first error of the broker's own in its log; empty: there is none."""
    at = min((found for word in ("Traceback", ERROR_OF_BROKER) if (found := log.find(word)) >= 0), default=-1)
    return "" if at < 0 else log[max(0, at - 500) :][:6000]
