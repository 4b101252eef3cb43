"""Lock types: their settings for the brokers of a pair, and how a test gives them away or cuts them off."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.acceptance.zombie_locker import KIND, install
from tests.support.acceptance.zombie_shim import Shim
from tests.support.services.proxy import Proxy, Way

KEEP_ALIVE = "150ms"
# Short, so that rounds are short, but long enough for a busy machine.
LEASE = "1s"
# Longer for ZooKeeper: a session proves less than a lease.
SESSION = "2s"


class Lock:
    """Base class of the lock types."""

    ends_with_connection = False  # the lock is released when the connection of its holder is cut
    has_clock = False  # it has a clock, which can be stepped
    directory: Path | None = None  # its directory, if not the store's

    def settings(self, broker: str) -> dict[str, str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def give(self, zombie: str, successor: str) -> None:
        """Give the lock to the successor while the zombie still has a valid proof. A lease expires by itself."""

    def give_back(self, successor: str, zombie: str) -> None:
        """Give the lock to the zombie when the successor has ended. Most types do this by themselves."""

    def give_to_both(self) -> None:
        """Grant the lock to every broker that asks."""
        raise NotImplementedError

    def set_way(self, broker: str, way: Way) -> None:
        """Set the way by which this broker reaches the lock."""
        raise NotImplementedError

    def step_clock(self, seconds: float) -> None:
        """Set the lock's clock, if it has one, to this difference from the true time."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class FileLock(Lock):
    """`shared-file`; the test deletes or replaces the file."""

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
    """A type from another distribution: the test grants it, and the former holder is not informed."""

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
    """`lease-database` in a file, which uses the clock of the broker that asks."""

    def __init__(self, place: Path) -> None:
        self.directory = place / "database"
        self.directory.mkdir()

    def settings(self, broker: str) -> dict[str, str]:
        return database_settings("lease-database", f"sqlite:///{self.directory}/lock.db")


class RemoteLock(Lock):
    """A lock on a server, with a separate way for each broker."""

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
    """`zookeeper`, whose servers use a clock that cannot be set."""

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
