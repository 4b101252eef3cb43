"""Identity of directory users for later actions of the broker: a new look-up in the directory, without a password.

A thread of its own does it, so that logins do not wait for it. Answers are valid for a minute. All else runs on the
loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.principal import Principal
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

#: Validity of an answer, and pause before a directory that did not answer gets another query for the same user.
HOLDS_SECONDS: Final = 60.0
#: Number of users whose answers are cached; the least recently used one is dropped first.
REMEMBERED_MAX: Final = 10_000


def unknown_user(user: str | None) -> ClientError:
    """Make the error of an action whose user does not exist."""
    text = "It has no user, and clients without a name are not served"
    return refusal(text if user is None else f"There is no user {user} any more", kind=ErrorKind.SECURITY)


class Directory(Protocol):
    """Source of users."""

    def named(self, login: str) -> Principal | None:
        """Return the user of that name; None: there is none. Blocks, on any thread. May raise any exception."""


class Identities:
    """Cached users of ``directory``. Call ``close`` at the end."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "tandemmq-identities")
        # (reason without a principal, the principal, end of the validity)
        self._known: OrderedDict[str, tuple[ErrorKind | None, Principal | None, float]] = OrderedDict()
        self._limited = LimitedLog(log)

    def identify(self, user: str) -> Principal:
        """Implement broker.core.access.Access.identify."""
        loop = asyncio.get_running_loop()
        kind, principal, until = self._known.get(user, (ErrorKind.TIMEOUT, None, 0.0))
        if loop.time() >= until:
            kind, principal = ErrorKind.TIMEOUT, None
            self._remember(user, kind, None, float("inf"))
            asked = loop.run_in_executor(self._thread, self._directory.named, user)
            asked.add_done_callback(partial(self._found, user))
        if principal is not None:
            return principal
        if kind is None:
            raise unknown_user(user)
        raise refusal(f"User {user} cannot be looked up now: see the log for the directory of users", kind=kind)

    def know(self, principal: Principal) -> None:
        """Store ``principal``, which the directory has just returned at a login, in place of an earlier answer."""
        self._remember(principal.name, None, principal, asyncio.get_running_loop().time() + HOLDS_SECONDS)

    def _found(self, user: str, future: asyncio.Future[Principal | None]) -> None:
        error = None if future.cancelled() else future.exception()
        until = future.get_loop().time() + HOLDS_SECONDS
        if future.cancelled() or error is not None:
            text = f"user {user!r} cannot be looked up: {error}"
            self._limited.warning("identities", type(error).__name__, text, level=logging.ERROR)
            self._remember(user, ErrorKind.RESOURCE, None, until)
        else:
            self._remember(user, None, future.result(), until)

    def _remember(self, user: str, kind: ErrorKind | None, principal: Principal | None, until: float) -> None:
        self._known[user] = kind, principal, until
        self._known.move_to_end(user)
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Drop all cached answers."""
        self._known.clear()

    def close(self) -> None:
        """Stop the look-ups."""
        self._thread.shutdown(wait=False, cancel_futures=True)
