"""Random walks over the ports of a broker process, together with a well-behaved client, for any time, in parts.

    python -m tests.support.fuzz ports [--seed N] [--ports stomp,openwire,...] [--seconds 1800] [--first PART]

All named ports belong to one broker and are tested at the same time (``tests.support.fuzz.walks``). Exception:
``replication`` is a port of a set of three, which has a separate run. Each part of 60 s has its own seed, of (seed,
part), so that ``--first`` continues where a run ended. After each part the destinations of the walks are deleted.

A run fails if the broker ends, changes its epoch, or logs a traceback, if the well-behaved client loses a message or
its connection, or if the checker finds a problem in the store at the end. It prints times and memory; memory is the
increase since a short walk over all ports and its cleanup.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from tandemmq.bench.driver.stomp import Endpoint, command_frame, connect, error_text, header_of
from tandemmq.bench.growth import resident
from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.security.users import make
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.fuzz.books import traceback_of
from tests.support.services.zookeeper import ZooKeeperServer
from tests.support.tree import ROOT

PORTS: Final = ("stomp", "openwire", "mqtt", "amqp", "websocket", "admin", "replication")
PART_SECONDS: Final = 60.0
WARM_UP_SECONDS: Final = 20.0
RECEIPTS_PER_SECOND: Final = 100
#: Time limit for each answer.
PATIENCE_SECONDS: Final = 60.0
MIB: Final = 1 << 20
#: Maximum difference between counted and used memory: this share, or this number of bytes.
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
[mqtt]
max_session_expiry_interval = "30s"
[admin]
operators = ["few"]
[security]
users_file = "{users}"
failed_login_delay = 100
failed_logins_max = 100
"""
RIGHT: Final = """\
[[security.authorization]]
{1} = "{2}"
read = ["{0}"]
write = ["{0}"]
admin = ["{0}"]
"""
RIGHTS: Final = (
    "good queue GOOD.>", "few queue s.>", "few queue auto.>", "few queue A", "few queue B", "few queue Consumer.>",
    "few topic t.>", "few topic VirtualTopic.>", "few topic f.>", "few topic A",
)  # fmt: skip


class GoodClient:
    """A client that sends 100 persistent messages a second to itself, each with a receipt, and consumes and
    acknowledges them. ``waited``: seconds from the time at which each message was due to its receipt. ``failure``: the
    reason why it cannot continue."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.waited: list[float] = []
        self.sent = 0
        self.received: Counter[int] = Counter()
        self.failure: BaseException | None = None
        self._peer = connect(endpoint)
        self._peer.settimeout(PATIENCE_SECONDS)
        headers = [("id", "0"), ("destination", GOOD), ("ack", "client-individual")]
        self._peer.sendall(command_frame("SUBSCRIBE", headers))
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in (self._send, self._read)]
        for thread in self._threads:
            thread.start()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failure = self.failure or error
            self._is_over.set()

    def _due(self, number: int) -> float:
        return self._began + number / RECEIPTS_PER_SECOND

    def _send(self) -> None:
        while not self._is_over.wait(max(0.0, self._due(self.sent) - time.monotonic())):
            number = f"{self.sent}"
            headers = [("destination", GOOD), ("persistent", "true"), ("receipt", number), ("n", number)]
            self._peer.sendall(command_frame("SEND", headers))
            self.sent += 1

    def _read(self) -> None:
        rest, heard_at = b"", time.monotonic()
        while not (self._is_over.is_set() and self.is_settled):
            if not select.select([self._peer], [], [], 0.1)[0]:
                assert time.monotonic() - heard_at < PATIENCE_SECONDS, "nothing comes"
                continue
            data, heard_at = self._peer.recv(1 << 16), time.monotonic()
            assert data, "the broker closed the connection"
            *frames, rest = (rest + data).split(b"\0")
            for frame in frames:
                self._take(frame.lstrip(b"\r\n"))

    def _take(self, frame: bytes) -> None:
        if frame.startswith(b"MESSAGE"):
            self.received[int(header_of(frame, b"n") or -1)] += 1
            self._peer.sendall(command_frame("ACK", [("id", (header_of(frame, b"ack") or b"").decode())]))
        elif frame:
            assert frame.startswith(b"RECEIPT"), error_text(frame)
            number = int(header_of(frame, b"receipt-id") or -1)
            assert number == len(self.waited), f"receipt {number} came, {len(self.waited)} was due"
            self.waited.append(time.monotonic() - self._due(number))

    @property
    def is_settled(self) -> bool:
        """Return whether all sent messages are confirmed, and received once."""
        return len(self.waited) == self.sent == len(self.received) == self.received.total()

    def check(self) -> None:
        if self.failure is not None:
            raise AssertionError("the well-behaved client cannot continue") from self.failure

    def end(self) -> None:
        """Wait until all sent messages are confirmed and received. AssertionError: a message is missing."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_SECONDS)
        self._peer.close()
        print(f"{self.sent} sent, {len(self.waited)} confirmed, {self.received.total()} received", flush=True)
        self.check()
        assert self.is_settled, "the well-behaved client lost a message, or got one twice"


class Walked(BrokerProcess):
    """A broker with all ports, a small memory limit, and two users: good, and eve with few rights."""

    def __init__(self, directory: Path) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        self.websocket, self.amqp = free_port(), free_port()
        more = "--ws", f"127.0.0.1:{self.websocket}", "--amqp", f"127.0.0.1:{self.amqp}"
        super().__init__(directory / "data", "a", "--config", str(settings), *more)
        self.openwire, self.mqtt = free_port(), free_port()
        users.write_text(f"good:{make('good')}:good:\neve:{make('eve')}:few:\n")
        users.chmod(0o600)
        rights = (RIGHT.format(*right.split()) for right in RIGHTS)
        settings.write_text(SETTINGS.format(users=users) + "".join(rights))

    def delete_all(self) -> None:
        """Delete the objects of the walks: the first page of each list. Objects in use stay."""
        for what in ("subscriptions", "destinations/queue", "destinations/topic"):
            with self._asked(f"{what}?limit=1000") as answer:
                rows = json.loads(answer.read())["items"]
            for row in rows:
                names = [row[key] for key in ("client_id", "name") if key in row]
                if not names[-1].startswith(("GOOD.", "ActiveMQ.Advisory.")):
                    with suppress(urllib.error.HTTPError):
                        self._asked(f"{what}/{'/'.join(quote(name, '') for name in names)}", "DELETE").close()

    def _asked(self, path: str, method: str = "GET") -> Any:
        url = f"http://127.0.0.1:{self.admin}/api/v1/{path}"
        request = urllib.request.Request(url, headers=self.authorization, method=method)
        return urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)


class World(NamedTuple):
    """Running brokers, the master first, and the settings of the walks for them."""

    brokers: Sequence[BrokerProcess]
    settings: dict[str, Any]
    good: Endpoint


@contextmanager
def broker_alone(directory: Path) -> Iterator[World]:
    broker = Walked(directory)
    try:
        broker.start().wait_role("master")
        settings = {"ports": {name: getattr(broker, name) for name in PORTS[:-1]}, "user": "eve", "password": "eve"}
        yield World([broker], settings, Endpoint("127.0.0.1", broker.stomp, "good", "good"))
        assert broker.terminate() == 0, broker.log.read_text()[-4000:]
    finally:
        broker.stop()
    report = check(broker.data)
    assert report.is_clean, report.problems


@contextmanager
def set_of_three(directory: Path) -> Iterator[World]:
    """Run a set of three. The walks use the port of a follower."""
    zookeeper = ZooKeeperServer()
    try:
        zookeeper.start()
        # No node fails here: on a busy machine, the default of the tests, 500 ms, is too short to prove each node.
        whole = SetOfBrokers(directory, zookeepers=[zookeeper], zk_session_timeout="3s")
        try:
            master = whole.start()
            follower, other = whole.others(master)
            settings = {"ports": {"replication": follower.bind}, "token": "secret", "broker": master.name}
            yield World([master, follower, other], settings, Endpoint("127.0.0.1", master.stomp))
            problems = whole.problems()
            assert not problems, problems
        finally:
            whole.stop()
    finally:
        zookeeper.remove()


def run(
    seed: int, ports: Sequence[str] = PORTS, seconds: float = 1800, first: int = 0, part_seconds: float = PART_SECONDS
) -> Counter[str]:
    """Walk from part ``first`` on. Return what the walks did, as counts. AssertionError when the broker fails."""
    done: Counter[str] = Counter()
    for make_world, names in ((broker_alone, PORTS[:-1]), (set_of_three, PORTS[-1:])):
        if chosen := [port for port in ports if port in names]:
            with tempfile.TemporaryDirectory(prefix="tandemmq-ports-") as name, make_world(Path(name)) as world:
                good = GoodClient(world.good)
                _warm_up(world, seed, chosen, min(WARM_UP_SECONDS, part_seconds / 2))
                at_rest = _figures(world.brokers[0])
                print(f"at rest: {at_rest[1] / MIB:.1f} MiB counted, {at_rest[2] / MIB:.1f} MiB used", flush=True)
                try:
                    for part in range(first, -int(-seconds // part_seconds)):
                        done += _part(world, good, at_rest, f"{seed}/{part}", chosen, part_seconds)
                finally:
                    good.end()
    return done


def _warm_up(world: World, seed: int, ports: Sequence[str], seconds: float) -> None:
    """Let the broker create the objects that it creates only once: modules, tables, caches of names."""
    _walked(world.settings, f"{seed}/warm-up", ports, seconds)
    broker = world.brokers[0]
    if isinstance(broker, Walked):
        broker.delete_all()


def _part(
    world: World, good: GoodClient, at_rest: tuple[int, int, int], seed: str, ports: Sequence[str], seconds: float
) -> Counter[str]:
    broker, done, begins = world.brokers[0], Counter[str](), len(good.waited)
    counts = _walked(world.settings, seed, ports, seconds)
    waited = [each * 1000 for each in sorted(good.waited[begins:])] or [float("inf")]
    epoch, counted, used = (now - before for now, before in zip(_figures(broker), at_rest, strict=True))
    is_near = abs(used - counted) <= max(BYTES_MAX, PART_MAX * used)
    for port in ports:
        refused = sum(times for what, times in counts[port].items() if what.startswith("refused"))
        print(
            f"{port:<11} {seed} {counts[port]['actions']:6} actions {refused:5} refused; receipts: longest "
            f"{waited[-1]:.0f} ms, 95 % {waited[len(waited) * 95 // 100]:.0f} ms; memory: {counted / MIB:.1f} MiB "
            f"counted, {used / MIB:.1f} MiB used{'' if is_near else ' (differs)'}; epoch {at_rest[0] + epoch}",
            flush=True,
        )
        done += Counter({f"{port}: {what}": times for what, times in counts[port].items()})
    good.check()
    assert epoch == 0, f"part {seed}: the epoch grew by {epoch}"
    for each in world.brokers:
        assert not (found := traceback_of(each)), f"part {seed}: {found}"
    if isinstance(broker, Walked):
        broker.delete_all()
    return done


def _walked(settings: dict[str, Any], seed: str, ports: Sequence[str], seconds: float) -> dict[str, Counter[str]]:
    """Return the actions that each walk reports."""
    # In production clients run on other machines, so the broker and the well-behaved client have priority.
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.support.fuzz.walks"]
    environment, words = {**os.environ, "PYTHONPATH": str(ROOT)}, (seed, f"{seconds}", json.dumps(settings))
    walks = {
        port: subprocess.Popen([*command, port, *words], env=environment, cwd=ROOT, stdout=subprocess.PIPE)
        for port in ports
    }
    try:
        return {
            port: Counter(json.loads(walk.communicate(timeout=seconds + 2 * PATIENCE_SECONDS)[0]))
            for port, walk in walks.items()
        }
    finally:
        for walk in walks.values():
            walk.kill()
            walk.wait()


def _figures(broker: BrokerProcess) -> tuple[int, int, int]:
    """Return the epoch, and counted and used memory of the master in bytes."""
    status = broker.wait_role("master")
    return status["epoch"], status["counts"]["memory_used_bytes"], resident(broker.pid)
