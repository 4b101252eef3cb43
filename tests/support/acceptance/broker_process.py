"""Brokers as processes: start, query, kill, restart."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.admin.token import read_token
from tandemmq.store.tools.check import check
from tests.support import forked
from tests.support.tree import ROOT

# Long, because even an immediate answer comes late when many tests run at the same time; only a failing test waits so
# long.
WAIT_SECONDS_MAX = 60.0


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS_MAX) -> Any:
    """Return the first true result of ``condition``. Fails with the text ``what`` if there is none in time."""
    began = time.monotonic()
    while True:
        answer = condition()
        if answer:
            return answer
        waited = time.monotonic() - began
        assert waited < seconds, f"not in {seconds} s: {what}"
        time.sleep(min(max(0.02, waited / 20), 0.1))  # each query also uses CPU time of the process that answers


def tandemmq(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command `tandemmq` with these arguments."""
    return forked.run([sys.executable, "-m", "tandemmq", *words], cwd=ROOT, timeout=120)


class BrokerProcess:
    """``tandemmq run`` with a data directory, on free ports that stay the same after a restart."""

    def __init__(self, data: Path | str, name: str, *options: str) -> None:
        self.data = str(data)
        self.name = name
        self.options = options
        self.stomp = free_port()
        self.admin = free_port()
        self.log = Path(f"{self.data}-{name}.log")
        self.process: subprocess.Popen[bytes] | None = None
        self.openwire: int | None = None  # port, if there is an OpenWire listener
        self.mqtt: int | None = None  # port, if there is an MQTT listener
        self.leaves_stomp_to_settings = False
        self.environment: dict[str, str] = {}  # in addition to the test's environment
        self.runs_under: tuple[str, ...] = ()  # prefix of the command, which replaces itself by the rest with exec
        self.popen: type[subprocess.Popen[bytes]] = forked.Popen

    def start(self) -> BrokerProcess:
        assert self.process is None, "it runs already"
        command = [
            *self.runs_under, sys.executable, "-m", "tandemmq", "run", "--data", self.data, "--name", self.name,
            "--admin", f"127.0.0.1:{self.admin}", *self.options,
        ]  # fmt: skip
        if not self.leaves_stomp_to_settings:
            openwire = "off" if self.openwire is None else f"127.0.0.1:{self.openwire}"
            command += ["--openwire", openwire, "--stomp", f"127.0.0.1:{self.stomp}"]
        if self.mqtt is not None:
            command += ["--mqtt", f"127.0.0.1:{self.mqtt}"]
        with open(self.log, "ab") as log:
            environment = {**os.environ, **self.environment}
            self.process = self.popen(command, stderr=log, stdout=log, cwd=ROOT, env=environment)
        return self

    @property
    def url(self) -> str:
        return f"stomp://127.0.0.1:{self.stomp}"

    @property
    def authorization(self) -> dict[str, str]:
        """Return the header with the admin token, which requests with an effect need."""
        token = Path(self.data, "index", f"{self.name}.admin-token").read_text().strip()
        return {"Authorization": f"Bearer {token}"}

    @property
    def pid(self) -> int:
        assert self.process is not None, "it runs"
        return self.process.pid

    def status(self) -> dict[str, Any] | None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}/status")
        with suppress(OSError):
            if (token := read_token(f"{self.data}/index/{self.name}.admin-token")) is not None:
                request.headers["Authorization"] = f"Bearer {token}"
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                found = json.loads(answer.read())
                assert isinstance(found, dict)
                return found
        except (urllib.error.URLError, OSError):
            return None

    def wait_role(self, role: str, seconds: float = WAIT_SECONDS_MAX) -> dict[str, Any]:
        def has_role() -> dict[str, Any] | None:
            assert self.process is not None, "it runs"
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log.read_text()}"
            status = self.status()
            return status if status is not None and status["role"] == role else None

        found = wait_until(has_role, f"{self.name} is {role}", seconds)
        assert isinstance(found, dict)
        return found

    def wait_log(self, text: str, times: int = 1) -> None:
        """Wait until ``text`` is in the log. A separate thread of the broker writes the log, so the line may come after
        the answer."""
        wait_until(lambda: self.log.read_text().count(text) >= times, f"the log of {self.name} says {text!r}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.wait()

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = WAIT_SECONDS_MAX) -> int:
        assert self.process is not None, "it runs"
        if self.process.poll() is None:  # Popen.wait polls only every 50 ms
            ended = select.poll()
            descriptor = os.pidfd_open(self.process.pid)
            ended.register(descriptor, select.POLLIN)
            is_in_time = ended.poll(seconds * 1000)
            os.close(descriptor)
            assert is_in_time, f"{self.name} did not end in {seconds} s"
        code = self.process.wait()
        self.process = None
        return code

    def stop(self) -> None:
        """End the process in any state."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
            self.process.wait()
            self.process = None


class MqttBroker(BrokerProcess):
    """A broker with an MQTT listener on the port ``mqtt``, which stays the same after a restart."""

    def __init__(self, data: Path, name: str, *options: str) -> None:
        super().__init__(data, name, *options)
        self.mqtt: int = free_port()


class WebSocketBroker(BrokerProcess):
    """A broker with a WebSocket listener on a port that stays the same after a restart."""

    def __init__(self, data: Path, name: str, *options: str) -> None:
        self.websocket = free_port()
        super().__init__(data, name, "--ws", f"127.0.0.1:{self.websocket}", *options)

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.websocket}"


AnyBroker = TypeVar("AnyBroker", bound=BrokerProcess)


def settled(brokers: Sequence[AnyBroker], seconds: float = WAIT_SECONDS_MAX) -> tuple[AnyBroker, list[AnyBroker]]:
    """Wait until one broker is master and all others are standbys. Return the master, and the others."""

    def one_master() -> tuple[AnyBroker, list[AnyBroker]] | None:
        roles = [(broker.status() or {}).get("role") for broker in brokers]
        if Counter(roles) != {"master": 1, "standby": len(brokers) - 1}:
            return None
        master = brokers[roles.index("master")]
        return master, [broker for broker in brokers if broker is not master]

    found: tuple[AnyBroker, list[AnyBroker]] = wait_until(one_master, "one is master and all others stand by", seconds)
    return found


def wait_master(brokers: Sequence[AnyBroker], seconds: float = WAIT_SECONDS_MAX) -> AnyBroker:
    """Return the broker that becomes master first."""

    def master() -> AnyBroker | None:
        return next((each for each in brokers if (each.status() or {}).get("role") == "master"), None)

    found: AnyBroker = wait_until(master, "one of them is master", seconds)
    return found


@contextmanager
def serving(*brokers: AnyBroker) -> Iterator[tuple[AnyBroker, ...]]:
    """Run these brokers: the first as master, the others as standbys. Checks at the end that the brokers that still run
    exit with 0, and that the store is in order."""
    try:
        for broker in brokers:
            broker.start()
            broker.wait_role("master" if broker is brokers[0] else "standby")
        yield brokers
        for broker in reversed(brokers):
            assert broker.process is None or broker.terminate() == 0, broker.log.read_text()
    finally:
        for broker in brokers:
            broker.stop()
    report = check(brokers[0].data)
    assert report.is_clean, report.problems


@contextmanager
def starting(data: Path, kind: type[AnyBroker]) -> Iterator[Callable[..., AnyBroker]]:
    """Yield a function that starts brokers with one data directory, by name and options. At the end all are stopped,
    and the store is checked."""
    made: list[AnyBroker] = []

    def start(name: str, *options: str, popen: type[subprocess.Popen[bytes]] = forked.Popen) -> AnyBroker:
        made.append(kind(data, name, *options))
        made[-1].popen = popen
        made[-1].start()
        return made[-1]

    yield start
    for broker in made:
        broker.stop()
    report = check(str(data))
    assert report.is_clean, report.problems
