"""Two brokers with one store, whose lock can be given to either, and a view of their journal from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.journal.format import END_RECORD
from tandemmq.store.tools.check import check
from tandemmq.store.tools.check_several import check_all
from tandemmq.store.tools.inspect import read_headers
from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX, BrokerProcess, settled, wait_until
from tests.support.acceptance.zombie_locks import Lock
from tests.support.acceptance.zombie_shim import Shim
from tests.support.services.server_process import thread_states

# Small files and frequent checkpoints, so that a successor reclaims its predecessor's files quickly.
STORE_SETTINGS = {
    "store.journal_max_file_length": "64kb",
    "store.checkpoint_interval": "100ms",
    "store.cleanup_interval": "50ms",
}


# With several stores: one for the load, one for each other queue.
SEVERAL_STORES = """
[[store.filtered_persistence_adapters]]
queue = "busy"

[[store.filtered_persistence_adapters]]
per_destination = true
"""


class Pair:
    """``a`` and ``b`` with the directory ``data``. Methods block. The master changes frequently."""

    def __init__(self, data: Path, lock: Lock, library: Path, has_several_stores: bool = False) -> None:
        self.data = data
        self.lock = lock
        self.has_several_stores = has_several_stores
        configuration = data.with_name("tandemmq.toml")
        configuration.write_text(SEVERAL_STORES if has_several_stores else "")
        self.brokers: dict[str, BrokerProcess] = {}
        self.shims: dict[str, Shim] = {}
        for name in ("a", "b"):
            settings = STORE_SETTINGS | lock.settings(name)
            options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
            broker = BrokerProcess(data, name, "--config", str(configuration), *options)
            shim = Shim(library, data.with_name(f"{data.name}-{name}.shim"), data)
            broker.environment = lock.environment() | shim.environment
            self.brokers[name] = broker
            self.shims[name] = shim

    @property
    def ports(self) -> list[int]:
        return [broker.stomp for broker in self.brokers.values()]

    def start(self, seconds: float = WAIT_SECONDS_MAX) -> None:
        first, second = self.brokers.values()
        first.start().wait_role("master", seconds)
        second.start().wait_role("standby", seconds)

    def settled(self, seconds: float = WAIT_SECONDS_MAX) -> tuple[BrokerProcess, BrokerProcess]:
        """Wait for a master and a standby; return both."""
        master, (standby,) = settled(list(self.brokers.values()), seconds)
        return master, standby

    def check(self) -> list[str]:
        """Return the problems that the store checker finds while both brokers run. No client may work."""
        wait_until(self._is_quiet, "nothing is written any more", 30.0)
        return self.check_stopped()

    def check_stopped(self) -> list[str]:
        """The same while no broker runs: also checks the indexes of both."""
        return (check_all if self.has_several_stores else check)(str(self.data)).problems

    def _is_quiet(self) -> bool:
        before = self._written()
        time.sleep(0.3)
        return before == self._written()

    def _written(self) -> list[object]:
        counts = [(broker.status() or {}).get("counts", {}) for broker in self.brokers.values()]
        facts = ("journal_batches_total", "checkpoints_total", "journal_files_reclaimed_total")
        return [journal_files(self.data), *[[count.get(fact) for fact in facts] for count in counts]]

    def set_clocks_right(self) -> None:
        for shim in self.shims.values():
            shim.step_wall_clock(0)
        if self.lock.has_clock:
            self.lock.step_clock(0)

    def stop(self) -> None:
        for shim in self.shims.values():
            shim.let_go()
        for broker in self.brokers.values():
            broker.stop()
        for shim in self.shims.values():
            shim.close()
        self.lock.close()


def stop_all_threads(broker: BrokerProcess, database: Path | None) -> None:
    """Send SIGSTOP, and wait until no thread of the process runs.

    Avoids a stop within a transaction on a SQLite file in ``database``: the process would keep the lock of the file,
    and block all others until it is continued or killed. Other databases do not need this.
    """
    while True:
        _stop_all_threads(broker)
        if database is None or not _has_locked_a_file_in(database, broker.pid):
            return
        broker.kill(signal.SIGCONT)
        time.sleep(0.01)


def _has_locked_a_file_in(directory: Path, pid: int) -> bool:
    inodes = {str(file.stat().st_ino) for file in directory.iterdir()}
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(f[4] == str(pid) and f[5].rpartition(":")[2] in inodes for f in locks if f[1] == "POSIX")


def _stop_all_threads(broker: BrokerProcess) -> None:
    broker.kill(signal.SIGSTOP)
    wait_until(lambda: thread_states(broker.pid) == {"T"}, f"all threads of {broker.name} are stopped")


# ---- the journal, read from outside


def journal_files(data: Path) -> Sequence[int]:
    return JournalFiles(str(data)).list()


class LastFile:
    """The journal file that a stopped or hung broker writes. It is kept open, because its name may be removed."""

    def __init__(self, broker: BrokerProcess) -> None:
        numbers = []
        for link in Path(f"/proc/{broker.pid}/fd").iterdir():
            try:
                number = file_id(os.readlink(link).rpartition("/")[2])
                is_for_writing = int(_flags(broker.pid, link.name), 8) & os.O_ACCMODE == os.O_WRONLY
            except OSError:
                continue
            if number is not None and is_for_writing:
                numbers.append((number, link))
        assert numbers, f"{broker.name} writes a journal file"
        self.number, link = max(numbers)
        self._file = open(link, "rb")  # noqa: SIM115

    def late_bytes(self, end: int) -> int:
        """Return the number of bytes after ``end``, which a deposed broker wrote."""
        self._file.seek(end)
        rest = self._file.read().rstrip(b"\0")
        return 0 if rest == END_RECORD else len(rest)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Fence:
    """The first file of a successor's epoch, and the ends of the earlier files according to the headers."""

    file: int
    ends: Mapping[int, int]


def fence_of(data: Path, successor: str) -> Fence | None:
    """Return the fence; None if its file and all earlier ones are already reclaimed, and their live records copied."""
    headers = read_headers(JournalFiles(str(data)))
    file = max((file for file in headers.headers if headers.first_of_epoch(file)), default=None)
    if file is None:
        return None
    assert headers.headers[file].holder == successor, headers.headers[file]
    return Fence(file, headers.ends)


def _flags(pid: int, descriptor: str) -> str:
    for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("flags:"):
            return line.split()[1]
    return "0"
