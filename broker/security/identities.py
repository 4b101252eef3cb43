"""Users of a directory for whom the broker does something later: the directory is asked again, without a password.

A thread of its own asks, so that logins do not wait for it. Answers hold for a minute. All else on the loop's thread.
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

#: So long an answer holds, and so long a directory that does not answer is not asked again for the same user.
HOLDS_SECONDS: Final = 60.0
#: Users whose answers are remembered; the one that was asked for longest ago is forgotten first.
REMEMBERED_MAX: Final = 10_000


def unknown_user(user: str | None) -> ClientError:
    """What was to be done for that user is not done."""
    text = "No user is known for it, and clients without a name are not served"
    return refusal(text if user is None else f"There is no user {user} any more", kind=ErrorKind.SECURITY)


class Directory(Protocol):
    """Where users are looked up."""

    def named(self, login: str) -> Principal | None:
        """The user of that name; None: there is none. Blocks, on any thread. Raises what it likes."""


class Identities:
    """Those of ``directory``. ``close`` at the end."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "tandemmq-identities")
        # (why there is no principal, the principal, until when that holds)
        self._known: OrderedDict[str, tuple[ErrorKind | None, Principal | None, float]] = OrderedDict()
        self._limited = LimitedLog(log)

    def identify(self, user: str) -> Principal:
        """As broker.core.access.Access says it."""
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
        raise refusal(f"It is not known now who user {user} is: see the log for the directory of users", kind=kind)

    def know(self, principal: Principal) -> None:
        """The directory said so just now, at a login: what it said before does not hold any more."""
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
        """What was found before does not hold any more."""
        self._known.clear()

    def close(self) -> None:
        """Nobody is asked any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
