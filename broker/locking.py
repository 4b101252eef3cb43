"""From what `[locker]` says to a lock: for the broker, and for tools that take the lock or only ask it."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

from config.locker import LockerSettings
from locker.contract import Holder, Locker, LockRequest, LockSettings
from locker.kinds import create


def lock_settings(said: LockerSettings) -> LockSettings:
    """What any kind of lock is told."""
    return LockSettings(
        use_lock=said.use_lock,
        fail_if_locked=said.fail_if_locked,
        lock_acquire_sleep_interval_seconds=said.lock_acquire_sleep_interval / 1000,
        lock_keep_alive_period_seconds=said.lock_keep_alive_period / 1000,
    )


def make_locker(
    said: LockerSettings, directory: str, name: str, *, admin: str | None = None, fail_if_locked: bool | None = None
) -> Locker:
    """A hand on the lock of the store in ``directory`` for who is called ``name``, which holds no blank.

    Raises UnknownLocker and LockSettingsError, worded for the operator.
    """
    settings = lock_settings(said)
    if fail_if_locked is not None:
        settings = replace(settings, fail_if_locked=fail_if_locked)
    holder = Holder(name, pid=os.getpid(), host=socket.gethostname(), admin=admin)
    return create(said.type, LockRequest(directory, holder, settings, said.kind_options()))
