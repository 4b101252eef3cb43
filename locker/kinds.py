"""Kinds of lock, by their name in `[locker] type`.

A Python distribution adds a kind with an entry point of the group `tandemmq.lockers`. Its object is a function that
takes a LockRequest and returns a Locker. The names in BUILT_IN cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from tandemmq.locker.contract import Locker, LockRequest, UnknownLocker
from tandemmq.locker.none import Unlocked
from tandemmq.locker.shared_file import SharedFileLocker

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
