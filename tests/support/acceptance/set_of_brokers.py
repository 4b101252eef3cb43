"""A set of brokers, each with a process and a directory, and their own ZooKeeper servers.

All are on loopback, or each on a separate host of a bridge (tests.support.acceptance.bridge), which can drop packets.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tandemmq.bench.peers.ports import free_port
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.tools.check import check
from tests.support.acceptance.bridge import Bridge, Host
from tests.support.acceptance.broker_process import BrokerProcess, wait_master, wait_until
from tests.support.services.zookeeper import ZooKeeperServer, zookeeper
from tests.support.tree import ROOT

#: zk_session_timeout. A machine so busy that processes wait seconds for a CPU needs more: set TANDEMMQ_SESSION_TIMEOUT,
#: in milliseconds.
T_MILLISECONDS = int(os.environ.get("TANDEMMQ_SESSION_TIMEOUT", "500"))
#: Long, because a small machine may run several brokers and other tests: the start of three has taken more than a
#: minute.
SETTLED_SECONDS_MAX = 180.0
#: Longer than the interval between checkpoints.
QUIET_SECONDS = 0.5
STOMP, ADMIN, BIND, OPENWIRE, MQTT = 7001, 7002, 7003, 7004, 7005  # on a separate host
LOCALHOST = "127.0.0.1"
# Small files and frequent checkpoints, so that faults occur at every stage of the store's work.
STORE = {
    "journal_max_file_length": "1mb",
    "checkpoint_interval": "200ms",
    "cleanup_interval": "50ms",
    "scrub_interval": "10s",
}


class MemberProcess(BrokerProcess):
    """One broker of a set. ``node``: its name in the set; ``name``: name of the set."""

    def __init__(self, path: Path, node: str, host: Host | None, directory: Path | None = None) -> None:
        self.path = path
        self.directory = directory or path / "data"
        super().__init__(self.directory, "orders")
        path.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.host = host
        self.log = path / "log"
        if host is not None:
            self.stomp, self.admin = STOMP, ADMIN
        self.bind = BIND if host is not None else free_port()
        self.openwire = OPENWIRE if host is not None else free_port()
        self.mqtt = MQTT if host is not None else free_port()

    @property
    def address(self) -> str:
        return LOCALHOST if self.host is None else self.host.address

    @property
    def admin_url(self) -> str:
        return f"http://{self.address}:{self.admin}"

    def configure(self, zookeeper: str, **replication: object) -> None:
        """Write the settings file."""
        replication = {
            "zk_address": zookeeper,
            "zk_session_timeout": f"{T_MILLISECONDS}ms",
            "bind": f"{self.address}:{self.bind}",
            "hostname": self.address,
            "node": self.node,
            "security_token": "secret",
            **replication,
        }
        tables: dict[str, dict[str, object]] = {
            "broker": {"name": self.name},
            "admin": {"uri": self.admin_url},
            "store": {"directory": str(self.directory), **STORE},
            "security": {"allow_anonymous": "true"},
            "replication": replication,
        }
        text = "".join(
            f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            for table, values in tables.items()
        )
        for scheme, port in (("stomp", self.stomp), ("openwire", self.openwire), ("mqtt", self.mqtt)):
            text += f'[[connectors]]\nuri = "{scheme}://{self.address}:{port}"\n'
        (self.path / "settings.toml").write_text(text)

    def start(self) -> MemberProcess:
        assert self.process is None, "it runs already"
        enter = () if self.host is None else self.host.enter
        command = [*enter, sys.executable, "-m", "tandemmq", "run", "--config", str(self.path / "settings.toml")]
        with open(self.log, "ab") as log:
            environment = {**os.environ, **self.environment}
            self.process = self.popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)
        return self

    def _ask(self, page: str, body: object | None = None, seconds: float = 2.0) -> dict[str, Any] | None:
        headers = {} if body is None else {"Content-Type": "application/json"}
        token = self.directory / "index" / f"{self.name}.admin-token"
        if body is not None and token.exists():
            headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        request = urllib.request.Request(
            f"{self.admin_url}{page}",
            None if body is None else json.dumps(body).encode(),
            headers,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=seconds) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return {"error": error.read().decode(errors="replace")}
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def status(self) -> dict[str, Any] | None:
        return None if self.process is None else self._ask("/status")

    def replication(self) -> dict[str, Any]:
        """Return its status page of replication; empty if it does not answer."""
        return {} if self.process is None else self._ask("/replication") or {}

    def change_voters(self, **change: str) -> dict[str, Any]:
        """Change the voters as `tandemmq replication add` and `remove` do. Returns ``{"error": ...}`` if the change is
        refused."""
        return self._ask("/replication/voters", change, seconds=60.0) or {"error": "no answer"}

    # ---- its disk, while it does not run

    def replace_disk(self) -> None:
        assert self.process is None, "it runs"
        shutil.rmtree(self.directory)

    def lose_promise(self) -> None:
        assert self.process is None, "it runs"
        (self.directory / PROMISE_FILE).unlink()

    def snapshot(self) -> Path:
        """Copy the store of the running broker at one instant, like a snapshot of a virtual machine."""
        self.kill(signal.SIGSTOP)
        snapshot = self._copied()
        self.kill(signal.SIGCONT)
        return snapshot

    def back_up(self) -> Path:
        assert self.process is None, "it runs"
        return self._copied()

    def _copied(self) -> Path:
        backup = self.path / "backup"
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(self.directory, backup)
        return backup

    def restore(self, backup: Path) -> None:
        self.replace_disk()
        shutil.copytree(backup, self.directory)

    def files(self) -> tuple[int, ...]:
        """Return the numbers of the journal files; none if there is no directory yet."""
        with suppress(FileNotFoundError):
            return tuple(JournalFiles(str(self.directory)).list())
        return ()

    def content(self) -> dict[int, bytes]:
        """Return the bytes of each journal file, up to the end of its last valid batch."""
        files = JournalFiles(str(self.directory))
        found = {}
        for file in self.files():
            end = 0
            try:
                for batch in scan(files, file, is_live=True):
                    end = batch.end
                found[file] = Path(files.path(file)).read_bytes()[:end]
            except (JournalMissing, FileNotFoundError):
                continue  # removed in the meantime
        return found


class SetOfBrokers:
    """``members`` with their ``zookeepers``. Methods block. ``stop`` ends all processes. ``directories``: directories
    of nodes whose store is elsewhere; ``replication``: settings in addition to the common ones."""

    def __init__(
        self,
        path: Path,
        replicas: int = 3,
        *,
        zookeepers: Sequence[ZooKeeperServer],
        bridge: Bridge | None = None,
        directories: Mapping[str, Path] = MappingProxyType({}),
        **replication: object,
    ) -> None:
        self.path = path
        self.replicas = replicas
        self.zookeepers = zookeepers
        self.bridge = bridge
        self._replication = {"replicas": replicas, **replication}
        self.members: list[MemberProcess] = []
        for number in range(replicas):
            node = f"n{number}"
            self.add_member(node, directories.get(node))

    def add_member(self, node: str, directory: Path | None = None) -> MemberProcess:
        """Add a member, without starting it."""
        host = None if self.bridge is None else self.bridge.host(len(self.members))
        member = MemberProcess(self.path / node, node, host, directory)
        member.configure(self.zookeeper_address, **self._replication)
        if not self.members:  # forks of one interpreter have the same hash seed, so their sets have the same order
            member.popen = subprocess.Popen
        self.members.append(member)
        return member

    def rename(self, member: MemberProcess, node: str) -> None:
        """Rename a member; takes effect at its next start."""
        member.node = node
        member.configure(self.zookeeper_address, **self._replication)

    @property
    def zookeeper_address(self) -> str:
        return ",".join(server.hosts for server in self.zookeepers)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses of all members for clients."""
        return [(member.address, member.stomp) for member in self.members]

    def start(self) -> MemberProcess:
        for member in self.members:
            member.start()
        return self.settled()[0]

    def others(self, *these: MemberProcess) -> list[MemberProcess]:
        return [member for member in self.members if member not in these]

    def master(self) -> MemberProcess | None:
        """Return the master; None if no member, or more than one, reports this role."""
        found = [member for member in self.members if (member.status() or {}).get("role") == "master"]
        return found[0] if len(found) == 1 else None

    def wait_master(self, among: Sequence[MemberProcess] = ()) -> MemberProcess:
        try:
            return wait_master(among or self.members, SETTLED_SECONDS_MAX)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from error

    def settled(self, among: Sequence[MemberProcess] = ()) -> tuple[MemberProcess, list[MemberProcess]]:
        """Wait until all others follow the master and have all its data. Return the master, and the others."""

        def is_settled() -> tuple[MemberProcess, list[MemberProcess]] | None:
            status = {member.node: member.replication() for member in among or self.members}
            masters = [each for each in among or self.members if status[each.node].get("role") == "master"]
            if len(masters) != 1 or (masters[0].status() or {}).get("role") != "master":
                return None
            end = status[masters[0].node]["position"]
            rest = [each for each in among or self.members if each is not masters[0]]
            follow = all(status[each.node].get("role") == "follower" for each in rest)
            whole = all(status[each.node].get("is_whole") for each in rest)
            near = all(status[each.node]["position"][0] == end[0] for each in rest) if follow else False
            return (masters[0], rest) if follow and whole and near else None

        try:
            found = wait_until(is_settled, "one is master and all others follow", SETTLED_SECONDS_MAX)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from error
        assert isinstance(found, tuple)
        return found

    def _picture(self) -> list[tuple[object, ...]]:
        """Return the position and the files of each member; a member that has not yet started has no files."""
        return [
            (status.get("position"), status.get("final"), member.files())
            for member, status in ((member, member.replication()) for member in self.members)
        ]

    def quiet(self) -> tuple[MemberProcess, list[MemberProcess]]:
        """Like ``settled``, but also wait until nothing is written any more, and all members have the same data and
        know it as final."""

        def is_quiet() -> bool:
            before = self._picture()
            position, final, _ = before[0]
            is_same = isinstance(position, list) and position[1:] == final and all(each == before[0] for each in before)
            if not is_same:
                return False
            time.sleep(QUIET_SECONDS)  # reclaimed files are removed one checkpoint later
            return self._picture() == before

        found = self.settled()
        try:
            wait_until(is_quiet, "all have the same", SETTLED_SECONDS_MAX)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._picture()}\n{self.report()}") from error
        return found

    def problems(self) -> list[str]:
        """Return the problems that the store checker finds in the directories, and the differences between the
        journals. No client may work; if a file still changes, the check is repeated."""
        while True:
            self.quiet()
            before = self._picture()
            found = self._problems()
            if self._picture() == before:
                return found

    def _problems(self) -> list[str]:
        found = [
            f"{member.node}: {problem}" for member in self.members for problem in check(str(member.directory)).problems
        ]
        contents = {member.node: member.content() for member in self.members}
        first, *rest = contents.items()
        for node, content in rest:
            found += [
                f"{node} and {first[0]} differ in db-{file}.log"
                for file in sorted(content.keys() | first[1].keys())
                if content.get(file) != first[1].get(file)
            ]
        return found

    def report(self) -> str:
        """Return the status of each member, for the message of a failed test."""
        return "\n".join(f"{member.node}: {json.dumps(member.replication())}" for member in self.members)

    def restart_the_dead(self) -> None:
        for member in self.members:
            if member.process is None:
                member.start()

    def wake(self) -> None:
        for member in self.members:
            if member.process is not None:
                os.kill(member.pid, signal.SIGCONT)

    def stop(self) -> None:
        for member in self.members:
            member.stop()


@contextmanager
def running_set(path: Path, require_service: Callable[[object, str], None]) -> Iterator[SetOfBrokers]:
    """Run a set of three, with one ZooKeeper server."""
    with zookeeper(require_service) as server:
        whole = SetOfBrokers(path, zookeepers=[server])
        try:
            whole.start()
            yield whole
        finally:
            whole.stop()


def replaced(whole: SetOfBrokers, member: MemberProcess, lost: str) -> None:
    """Replace the voter ``lost`` by the new store id of ``member``, as `tandemmq replication remove` and `add` do."""

    def is_learner() -> bool:
        status = member.replication()
        return status.get("role") == "follower" and bool(status["is_whole"]) and not status["is_voter"]

    wait_until(is_learner, f"{member.node} follows as a learner", SETTLED_SECONDS_MAX)
    store = member.replication()["store"]
    assert store != lost, "it has a new store id"
    _change(whole, lambda master: lost in master.replication()["voters"], remove=lost)
    _change(whole, lambda master: store not in master.replication()["voters"], add=store)
    wait_until(lambda: member.replication().get("is_voter"), f"{member.node} votes", SETTLED_SECONDS_MAX)


def _change(whole: SetOfBrokers, is_needed: Callable[[MemberProcess], bool], **change: str) -> None:
    """Repeat the change until it is made: it is refused while the previous change is not final, or the learner is
    behind."""
    answers: list[object] = []

    def is_done() -> bool:
        master = whole.wait_master()
        if not is_needed(master):
            return True
        answers.append(master.change_voters(**change))
        return "voters" in str(answers[-1])

    try:
        wait_until(is_done, f"{change}", SETTLED_SECONDS_MAX)
    except AssertionError as error:
        raise AssertionError(f"{error}: {answers[-3:]}\n{whole.report()}") from error
