"""A server that a comparison starts, measures and stops; and TandemMQ, started as an operator starts it: ``tandemmq
run``, default settings.

A server writes only to its own directory, listens only on free loopback ports, and ``stop`` leaves no process behind:
each server is the leader of a separate session.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from tandemmq.bench.driver.stomp import BenchError, Endpoint, connect
from tandemmq.bench.peers.ports import free_port

START_TIMEOUT_SECONDS = 60.0
CATCH_UP_SECONDS_MAX = 300.0
STOP_TIMEOUT_SECONDS = 20.0
ANSWER_SECONDS_MAX = 2.0
# Time for a Java broker to start and find the lock taken.
STANDBY_SECONDS = 4.0
HOST = "127.0.0.1"
TREE = Path(__file__).resolve().parents[2]


class PeerMissing(Exception):
    """The program is not installed; the message names the missing file."""


class Server(ABC):
    """A broker process. Use as a context manager: entering starts it and waits until it answers STOMP."""

    name: str
    stop_signal = signal.SIGTERM
    popen: ClassVar[type[subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-")) if directory is None else directory
        self._owns_directory = directory is None
        self.port = free_port()
        self.ports: Mapping[str, int] = {"stomp": self.port}
        """By protocol: jms (OpenWire), stomp, mqtt, amqp, nats."""
        self.admin_url: str | None = None
        self.start_timeout_seconds = START_TIMEOUT_SECONDS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(HOST, self.port)

    @property
    def pid(self) -> int:
        """Process whose CPU and memory count, with its children."""
        assert self._process is not None, "a server has a pid only while it runs"
        return self._process.pid

    @abstractmethod
    def start(self) -> None:
        """Start the process; need not wait until it is ready."""

    def kill(self) -> None:
        """End the process as a crash does: kill -9."""
        assert self._process is not None, "only a running server can be killed"
        _signal_session(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def status(self) -> dict[str, Any]:
        """Return the broker's own status, if it has one."""
        assert self.admin_url is not None, f"{self.name} has no admin API"
        with urllib.request.urlopen(f"{self.admin_url}/status", timeout=10.0) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stop(self) -> None:
        """End the process and its children."""
        if self._process is None:
            return
        _signal_session(self._process.pid, self.stop_signal)
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        _signal_session(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_until_it_serves()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Stop the server, and remove its directory if this object created it."""
        self.stop()
        if self._owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def await_standby(self, has_caught_up: bool = False) -> None:
        """Return when this server, which shares another server's store, is its standby; with ``has_caught_up``, when it
        has also read the store."""
        if self.admin_url is None:
            time.sleep(STANDBY_SECONDS)  # it has no status
            return

        status: dict[str, Any] = {}

        def stands_by() -> bool:
            self._demand_it_runs()
            nonlocal status
            status = self.status()
            return status.get("role") == "standby" and (
                not has_caught_up or (status.get("standby") or {}).get("has_caught_up") is True
            )

        def late() -> BenchError:
            return BenchError(f"{self.name} is not a standby within {seconds:g} s: {status}\n{self.output()}")

        seconds = CATCH_UP_SECONDS_MAX if has_caught_up else START_TIMEOUT_SECONDS
        wait_until(stands_by, seconds, late, pause_seconds=0.05)

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, user: str | None = None
    ) -> None:
        """Run the server's program in a new session, with its output in ``<directory>/output.log``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "output.log").open("ab") as output:
            self._process = self.popen(
                command,
                cwd=self.directory,
                user=user,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        """Return the end of the server's output, for an error report."""
        try:
            return (self.directory / "output.log").read_text(errors="replace")[-2000:]
        except OSError:
            return ""

    def wait_until_it_serves(self) -> None:
        """Return when the server answers. BenchError when it does not in time."""
        problem: Exception | None = None

        def is_over() -> bool:
            nonlocal problem
            self._demand_it_runs()
            try:
                self.ask()
            except (OSError, BenchError) as error:
                problem = error
                return False
            return True

        def late() -> BenchError:
            seconds = self.start_timeout_seconds
            return BenchError(f"{self.name} does not answer within {seconds:g} s ({problem}):\n{self.output()}")

        wait_until(is_over, self.start_timeout_seconds, late, pause_seconds=0.02)

    def _demand_it_runs(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise BenchError(f"{self.name} ended with {self._process.returncode}:\n{self.output()}")

    def ask(self) -> None:
        """Check that it serves. OSError or BenchError: not yet."""
        connect(self.endpoint, timeout_seconds=ANSWER_SECONDS_MAX).close()


class Connected(Server):
    """A server that serves when each of its ports accepts a connection."""

    def ask(self) -> None:
        for port in self.ports.values():
            socket.create_connection((HOST, port), ANSWER_SECONDS_MAX).close()


@contextmanager
def running_pair(master: Server, standby: Server, *, has_caught_up: bool = False) -> Iterator[list[Server]]:
    """Run two servers on one store: the first is the master, the second its standby."""
    with ExitStack() as running:
        running.callback(standby.discard)
        running.enter_context(master)
        standby.start()
        standby.await_standby(has_caught_up)
        yield [master, standby]


def wait_until(is_so: Callable[[], bool], seconds: float, late: Callable[[], BenchError], pause_seconds: float) -> None:
    """Poll the condition; OSError and ValueError mean: not yet. Raises the result of ``late`` when time is up."""
    until = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except (OSError, ValueError):
            pass  # not up yet
        if time.monotonic() > until:
            raise late()
        time.sleep(pause_seconds)


def _signal_session(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        pass


class TandemMQ(Server):
    """A broker of this tree or of another ``tree``, in this Python or another; two brokers on one ``data`` directory
    are a pair. ``tree`` None: the package that is installed in ``python``."""

    name = "tandemmq"

    def __init__(
        self,
        directory: Path | None = None,
        data: Path | None = None,
        broker: str = "bench",
        settings: Sequence[str] = (),
        tree: Path | None = TREE,
        python: str = sys.executable,
    ) -> None:
        super().__init__(directory)
        self._data = data or self.directory / "data"
        self._broker = broker
        self._tree = tree
        self._python = python
        self._settings = [word for setting in settings for word in ("--set", setting)]
        self._admin = f"{HOST}:{free_port()}"
        self.admin_url = f"http://{self._admin}"
        self.stomp_port = self.port
        self.openwire = "off"
        self.environment: Mapping[str, str] = {}  # in addition to its own

    def listen_to(self, protocol: str) -> int:
        """Add a listener, mqtt or amqp, and return its port. Call it before ``start``."""
        port = free_port()
        self._settings += [f"--{protocol}", f"{HOST}:{port}"]
        return port

    def listen_to_tls(self) -> int:
        """Add a STOMP listener with TLS and return its port. Call it before ``start``. Needs openssl."""
        port, certificate, key = free_port(), self.directory / "tls.pem", self.directory / "tls.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=bench", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        settings = self.directory / "settings.toml"
        tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
        settings.write_text(f'[[connectors]]\nuri = "stomp+ssl://{HOST}:{port}"\n{tls}')
        self._settings += ["--config", str(settings)]
        return port

    def start(self) -> None:
        options = {
            "--data": str(self._data),
            "--name": self._broker,
            "--openwire": self.openwire,
            "--stomp": f"{HOST}:{self.stomp_port}",
            "--admin": self._admin,
        }
        command = [self._python, "-m", "tandemmq", "run", *(word for each in options.items() for word in each)]
        self.spawn([*command, *self._settings], {"PYTHONPATH": str(self._tree or ""), **self.environment})


class Measured(Connected, TandemMQ):
    """A broker that listens for STOMP, JMS and ``protocols``, which a tree of an older commit may not know."""

    def __init__(
        self, tree: Path | None = TREE, python: str = sys.executable, protocols: Sequence[str] = ("mqtt", "amqp")
    ) -> None:
        super().__init__(tree=tree, python=python)
        self.ports = {"stomp": self.port, "jms": free_port()}
        self.ports |= {protocol: self.listen_to(protocol) for protocol in protocols}
        self.openwire = f"{HOST}:{self.ports['jms']}"
