"""Keeps clients away from the queues that are the broker's own. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tandemmq.broker.core.access import Access, Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.names import is_private
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination


class PrivateAccess:
    """As ``access``, but whatever rights it gives, for the broker's own queues they do not count: those are for who may
    everything, and for the session that one belongs to (``Client.private``), of whom nothing is asked here.
    ``of_settings``: for whom the broker acts beside users, such as bridges."""

    def __init__(self, access: Access, of_settings: Iterable[Principal] = ()) -> None:
        self._access = access
        self.connect = access.connect
        self._of_settings: dict[str | None, Principal] = {each.name: each for each in of_settings}

    def identify(self, user: str | None) -> Principal:
        """As Access.identify. A user of the same name is meant before what is of the settings."""
        own = self._of_settings.get(user)
        try:
            found = self._access.identify(user)
        except ClientError as error:
            # prove: users-before-bridges " or error.kind is not ErrorKind.SECURITY"
            if own is None or error.kind is not ErrorKind.SECURITY:
                raise
            return own  # prove: bridges-act-later
        # Without users every name is that of the anonymous user.
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
    """Somebody names a queue of the broker's own."""
    return refusal(
        f"{destination} is the broker's own",
        "It keeps there what it has to know itself. Messages for MQTT clients are sent to topics.",
        ErrorKind.SECURITY,
    )
