"""Look-up of directory users without a password. The broker needs it for later actions in the name of a user.

The look-ups run on a separate thread, so that logins do not wait for them. Answers are valid for a minute. All methods
run on the loop.
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

#: Validity of an answer. If the directory did not answer, also the pause before the next query for the same user.
HOLDS_SECONDS: Final = 60.0
#: Number of users whose answers are cached; the least recently used one is dropped first.
REMEMBERED_MAX: Final = 10_000


def unknown_user(user: str | None) -> ClientError:
    """Return the error for an action whose user does not exist."""
    text = "The action has no user, and anonymous clients are not permitted"
    return refusal(text if user is None else f"User {user} no longer exists", kind=ErrorKind.SECURITY)


class Directory(Protocol):
    """Source of users, for example LDAP."""

    def named(self, login: str) -> Principal | None:
        """Return the user with that name; None: there is no such user. Blocks; any thread except the loop's. May raise
        any exception."""


class Identities:
    """Cache of the users of ``directory``. Call ``close`` at the end."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "tandemmq-identities")
        # (kind of the error if there is no principal, the principal, end of the validity on the loop's clock)
        self._known: OrderedDict[str, tuple[ErrorKind | None, Principal | None, float]] = OrderedDict()
        self._limited = LimitedLog(log)

    def identify(self, user: str) -> Principal:
        """Implement broker.core.access.Access.identify."""
        loop = asyncio.get_running_loop()
        kind, principal, until = self._known.get(user, (ErrorKind.TIMEOUT, None, 0.0))
        if loop.time() >= until:
            kind, principal = ErrorKind.TIMEOUT, None
            self._remember(user, kind, None, float("inf"))
            lookup = loop.run_in_executor(self._thread, self._directory.named, user)
            lookup.add_done_callback(partial(self._found, user))
        if principal is not None:
            return principal
        if kind is None:
            raise unknown_user(user)
        raise refusal(f"User {user} cannot be looked up now: the log has the error of the user directory", kind=kind)

    def cache(self, principal: Principal) -> None:
        """Cache ``principal``, which the directory has just returned for a login. It replaces an earlier answer."""
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
