"""Makes locks from the settings of `[locker]`: for the broker, and for tools that take or only query the lock."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Final

from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.config.locker import OWN_KEYS, LockerSettings
from tandemmq.locker.contract import Holder, Locker, LockRequest, LockSettings
from tandemmq.locker.kinds import create

#: Makes the settings that all kinds of lock share.
LOCK: Final = SettingsCopy(
    LockerSettings,
    LockSettings,
    elsewhere={
        "type": "make_locker",
        "retry_interval": "broker.ha.mastership",
        **dict.fromkeys(OWN_KEYS, "the kind of lock, by LockerSettings.kind_options"),
    },
)


def make_locker(
    options: LockerSettings, directory: str, name: str, *, admin: str | None = None, fail_if_locked: bool | None = None
) -> Locker:
    """Return a handle of the lock of the store in ``directory`` for the broker ``name``, which has no blank.

    Raises UnknownLocker and LockSettingsError, with a text for the operator.
    """
    settings = LOCK(options)
    if fail_if_locked is not None:
        settings = replace(settings, fail_if_locked=fail_if_locked)
    holder = Holder(name, pid=os.getpid(), host=socket.gethostname(), admin=admin)
    return create(options.type, LockRequest(directory, holder, settings, options.kind_options()))
