"""Kinds of lock, by their name in `[locker] type`.

A Python distribution adds a kind with an entry point of the group `tandemmq.lockers`. Its object is a function that
takes a LockRequest and returns a Locker. The names in BUILT_IN cannot be replaced.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockRequest, Proof, UnknownLocker
from tandemmq.locker.shared_file import SharedFileLocker


class Unlocked(Locker):
    """Locker without a lock: the first poll succeeds, and ownership never ends."""

    kind = "none"

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._holder: Holder | None = None

    @property
    def where(self) -> str:
        return f"no lock (use_lock = false) on {self.request.directory}"

    @property
    def unsafe(self) -> str | None:
        return "use_lock is false: nothing prevents a second master"

    def try_acquire(self) -> bool:
        self._holder = replace(self.request.holder, since_ms=time.time_ns() // 1_000_000)
        self._proof = Proof(self.clock.now(), math.inf)
        return True

    def keep_alive(self) -> bool:
        return self._holder is not None

    def announce(self, epoch: int, admin: str | None = None) -> None:
        holder = self._holder or self.request.holder
        self._holder = replace(holder, epoch=epoch, admin=admin or holder.admin)

    def release(self) -> None:
        self._holder, self._proof = None, NO_PROOF

    def holder(self) -> Holder | None:
        return self._holder


ENTRY_POINT_GROUP: Final = "tandemmq.lockers"

Factory = Callable[[LockRequest], Locker]


def _lazy(module: str, name: str) -> Factory:
    """Return a factory that imports its module at the first call, because a broker uses only one kind."""

    def build(request: LockRequest) -> Locker:
        try:
            factory: Factory = getattr(import_module(f"tandemmq.locker.{module}"), name)
        except ModuleNotFoundError as error:
            if error.name != "sqlalchemy":
                raise
            raise UnknownLocker(
                f"a lock in a database needs SQLAlchemy, and a driver ({error}): pip install 'tandemmq[postgres]', or "
                f"'tandemmq[mysql]', or 'tandemmq[sqlite]'"
            ) from error
        return factory(request)

    return build


BUILT_IN: Final[dict[str, Factory]] = {
    SharedFileLocker.kind: SharedFileLocker,
    "memory": _lazy("memory", "MemoryLocker"),
    "zookeeper": _lazy("zookeeper.locker", "ZooKeeperLocker"),
    "kubernetes-lease": _lazy("kubernetes.lease", "KubernetesLeaseLocker"),
    "database": _lazy("sql.kinds", "database_locker"),
    "lease-database": _lazy("sql.kinds", "lease_database_locker"),
}


def names() -> list[str]:
    """Return the names of all installed kinds, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def create(kind: str, request: LockRequest) -> Locker:
    """Return a locker of this kind, or Unlocked if use_lock is false. Raises UnknownLocker, or LockSettingsError."""
    build = factory(kind)
    return build(request) if request.settings.use_lock else Unlocked(request)


def factory(kind: str) -> Factory:
    """Return the factory of this kind. Raises UnknownLocker."""
    if kind in BUILT_IN:
        return BUILT_IN[kind]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=kind):
        try:
            loaded: Factory = point.load()
        except Exception as error:  # a third-party module may raise any error; the text names the module
            raise UnknownLocker(f"locker type {kind!r} ({point.value}) cannot be loaded: {error}") from error
        return loaded
    near = get_close_matches(kind, names(), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UnknownLocker(f"locker type {kind!r} is unknown; the known types are {', '.join(names())}{hint}")
