"""Keeps clients away from the queues that are the broker's own. Pure."""

from __future__ import annotations

from tandemmq.broker.core.access import Access, Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.names import is_private
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination


class PrivateAccess:
    """As ``access``, but whatever rights it gives, for the broker's own queues they do not count: those are for who may
    everything, and for the session that one belongs to (``Client.private``), of whom nothing is asked here."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.connect = access.connect
        # Who is of the settings, by name, of this term.
        self._of_settings: dict[str | None, Principal] = {}

    def know(self, principal: Principal) -> None:
        """It is of the settings."""
        self._of_settings[principal.name] = principal

    def identify(self, user: str | None) -> Principal:
        """As Access.identify. A user of the same name is meant before what is of the settings."""
        try:
            return self._access.identify(user)
        except ClientError:
            if user not in self._of_settings:
                raise
            return self._of_settings[user]  # prove: bridges-act-later

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
