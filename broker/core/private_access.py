"""Keep clients away from the broker's own queues. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tandemmq.broker.core.access import Access, Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.names import is_private
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination


class PrivateAccess:
    """Apply the rights of ``access``, except for the broker's own queues. Those are for principals with
    ``may_everything``, and for the session that owns one (``Client.private``), which is not checked here.
    ``of_settings``: principals beside users for which the broker acts, such as bridges."""

    def __init__(self, access: Access, of_settings: Iterable[Principal] = ()) -> None:
        self._access = access
        self.connect = access.connect
        self._of_settings: dict[str | None, Principal] = {each.name: each for each in of_settings}

    def identify(self, user: str | None) -> Principal:
        """Return Access.identify of ``user``. A user takes precedence over a principal of the settings with the same
        name."""
        own = self._of_settings.get(user)
        try:
            found = self._access.identify(user)
        except ClientError as error:
            # prove: users-before-bridges " or error.kind is not ErrorKind.SECURITY"
            if own is None or error.kind is not ErrorKind.SECURITY:
                raise
            return own  # prove: bridges-act-later
        # Without users every name means the anonymous user.
        # prove: bridges-are-not-anonymous "found.name == user" -> "True"
        return found if own is None or found.name == user else own

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if is_private(destination) and not principal.may_everything:
            raise refused_private(destination)
        self._access.check(principal, operation, destination)

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        if is_private(destination) and not principal.may_everything:
            return False
        return self._access.may(principal, operation, destination)

    @property
    def has_rights(self) -> bool:
        return self._access.has_rights


def refused_private(destination: Destination) -> ClientError:
    """Make the error of a client that names a queue of the broker's own."""
    return refusal(
        f"{destination} is the broker's own",
        "The broker keeps its own state there. Messages for MQTT clients are sent to topics.",
        ErrorKind.SECURITY,
    )
