"""Kinds of lock as the brokers of a pair are told of them, and as a test gives them away or cuts them off."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.acceptance.zombie_locker import KIND, install
from tests.support.acceptance.zombie_shim import Shim
from tests.support.services.proxy import Proxy, Way

KEEP_ALIVE = "150ms"
# Short, so that rounds are; long enough for a machine that has much to do.
LEASE = "1s"
# Of a session of ZooKeeper less is proved than of a lease.
SESSION = "2s"


class Lock:
    """What is common to all."""

    ends_with_connection = False  # free for others as soon as the connection of its holder is cut
    has_clock = False  # a clock of its own, that can be stepped
    directory: Path | None = None  # where it lies, if that is not the store's

    def settings(self, broker: str) -> dict[str, str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def give(self, zombie: str, successor: str) -> None:
        """Let the successor have it, and the zombie believe that it has it still. Of a lease: nothing, time does it."""

    def give_back(self, successor: str, zombie: str) -> None:
        """Let the zombie have it when the successor is gone. Most kinds do that by themselves."""

    def give_to_both(self) -> None:
        """Whoever asks has it."""
        raise NotImplementedError

    def set_way(self, broker: str, way: Way) -> None:
        """How this broker reaches it."""
        raise NotImplementedError

    def step_clock(self, seconds: float) -> None:
        """Set the clock by which it goes so far off the true time, where it has one of its own."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class FileLock(Lock):
    """`shared-file`; somebody deletes the file, or puts another in its place."""

    def __init__(self, data: Path) -> None:
        self._file = data / "lock"
        self._times = 0

    def settings(self, broker: str) -> dict[str, str]:
        return {"locker.type": "shared-file", "locker.lock_keep_alive_period": KEEP_ALIVE}

    def give(self, zombie: str, successor: str) -> None:
        self._times += 1
        if self._times % 2:
            self._file.unlink()
        else:
            other = self._file.with_name("another-lock")
            other.write_bytes(b"")
            os.replace(other, self._file)


class GrantedLock(Lock):
    """A kind that another distribution brings: granted to whom the test says, without telling who had it before."""

    def __init__(self, place: Path, first: str) -> None:
        self._grants = place / "grants"
        self._grants.mkdir(parents=True)
        (self._grants / first).touch()
        self._site = place / "site"
        self._site.mkdir()
        install(self._site)

    def settings(self, broker: str) -> dict[str, str]:
        return {
            "locker.type": KIND,
            "locker.options.grants": str(self._grants),
            "locker.lock_keep_alive_period": KEEP_ALIVE,
        }

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self._site)}

    def give(self, zombie: str, successor: str) -> None:
        (self._grants / successor).touch()
        (self._grants / zombie).unlink()

    def give_to_both(self) -> None:
        for broker in ("a", "b"):
            (self._grants / broker).touch()

    def give_back(self, successor: str, zombie: str) -> None:
        self.give(successor, zombie)


class SqliteLease(Lock):
    """`lease-database` in a file: it goes by the clock of the broker that asks."""

    def __init__(self, place: Path) -> None:
        self.directory = place / "database"
        self.directory.mkdir()

    def settings(self, broker: str) -> dict[str, str]:
        return database_settings("lease-database", f"sqlite:///{self.directory}/lock.db")


class RemoteLock(Lock):
    """On a server, over a way for each broker."""

    def __init__(self, port: int) -> None:
        self._ways = {broker: Proxy(port) for broker in ("a", "b")}

    def port_for(self, broker: str) -> int:
        return self._ways[broker].port

    def set_way(self, broker: str, way: Way) -> None:
        self._ways[broker].set(way)

    def close(self) -> None:
        for way in self._ways.values():
            way.close()


class DatabaseLock(RemoteLock):
    """`lease-database` or `database`."""

    has_clock = True

    def __init__(self, kind: str, port: int, url: Callable[[int], str], clock: Shim) -> None:
        super().__init__(port)
        self.ends_with_connection = kind == "database"
        self._kind = kind
        self._url = url
        self._clock = clock

    def settings(self, broker: str) -> dict[str, str]:
        return database_settings(self._kind, self._url(self.port_for(broker)))

    def step_clock(self, seconds: float) -> None:
        self._clock.step_wall_clock(seconds)


class ZooKeeperLock(RemoteLock):
    """`zookeeper`, whose servers go by a clock that nobody can set."""

    def settings(self, broker: str) -> dict[str, str]:
        return {
            "locker.type": "zookeeper",
            "locker.zookeeper.hosts": f"127.0.0.1:{self.port_for(broker)}",
            "locker.lock_acquire_sleep_interval": SESSION,
            "locker.lock_keep_alive_period": KEEP_ALIVE,
        }


def database_settings(kind: str, url: str) -> dict[str, str]:
    settings = {"locker.type": kind, "locker.data_source": url, "locker.lock_keep_alive_period": KEEP_ALIVE}
    if kind == "lease-database":
        settings["locker.lock_acquire_sleep_interval"] = LEASE
    return settings
