"""Check which users may connect with a client id: its owners, who have state under it.

That state is a durable subscription or the session of an MQTT client. The store keeps the user of each, so an owner
stays the owner after a restart and a failover. State without a user, from ActiveMQ or from before users were set up,
has no owner: its first user becomes the owner. A client id without state is free while no client is connected with it.

If rights are configured, an operator may connect with the client id of another user, by its admin rights. It is a
guest: it uses and deletes the present state, makes no state under that client id, and gives way to an owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tandemmq.broker.core.access import Operation, is_admin
from tandemmq.broker.core.commands import ClientError, Connect, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.private_access import PrivateAccess
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.engine.connection_ids import is_generated
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.store.records.commands import subscription_key


class Sessions(Protocol):
    """The sessions of MQTT clients."""

    def find_user(self, client_id: str, then: Callable[[str | ClientError | None], None]) -> None:
        """Call ``then``, exactly once, with the user of the session that is kept for a client id; None: there is no
        session, or its user is not known; ClientError: it could not be read. At once, if nothing has to be read."""


class ClientIds(Part):
    """Decides about client ids. On the loop. ``sessions`` None: this broker keeps no sessions."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.sessions: Sessions | None = None

    def check(self, principal: Principal, command: Connect, session_user: str | None) -> bool:
        """Return whether ``principal`` is a guest there. Raise ClientError if it may not connect with the client id of
        ``command``. ``session_user``: result of ``Sessions.find_user``."""
        client_id = command.client_id
        assert client_id is not None, "the client gave one"
        if self._settings.client_id_begins_with_user and principal.is_proved:
            self._check_name(principal, command, client_id)
        if self.is_owner(principal, client_id, session_user):
            return False
        durables = self._durables(client_id)
        if session_user is None and all(each.user is None for each in durables):
            return False
        # An MQTT client has its session under its client id.
        # prove: a-guest-has-no-session "command.state is None" -> "True"
        may_come = not principal.is_proved or command.state is None
        # prove: a-client-id-is-its-owners "self._may_use" -> "True or self._may_use"
        if not (may_come and self._may_use(principal, durables, session_user)):
            raise ClientError(
                f"Client id {client_id!r} belongs to another user",
                "That user has a durable subscription or an MQTT session under this client id.",
                kind=ErrorKind.SECURITY,
            )
        return principal.is_proved

    def is_owner(self, principal: Principal, client_id: str, session_user: str | None) -> bool:
        """Return whether ``principal`` has state under that client id."""
        return session_user == principal.name or any(each.user == principal.name for each in self._durables(client_id))

    def _may_use(self, principal: Principal, durables: list[DurableSubscriber], session_user: str | None) -> bool:
        """Return whether a user who owns nothing there may use the client id, as an admin of all its state."""
        may_session = session_user is None or _has_right(self._access, principal, is_admin(self._access, principal))
        return may_session and all(may_use(self._access, principal, each) for each in durables)

    def _durables(self, client_id: str) -> list[DurableSubscriber]:
        durables = self._destinations.durables
        names = self._destinations.durable_names(client_id)
        return [durables[subscription_key(client_id, name)] for name in names]

    def _check_name(self, principal: Principal, command: Connect, client_id: str) -> None:
        """Check that the client id begins with the name of its user, unless a client library or this broker made it."""
        if command.is_client_id_assigned or is_generated(client_id):
            return
        name = principal.name
        # ``ann`` is no beginning of ``anna-1``.
        # prove: a-client-id-begins-with-its-user "not client_id.startswith(name)" -> "False"
        if not client_id.startswith(name) or client_id[len(name) : len(name) + 1].isalnum():
            raise ClientError(
                f"Client id {client_id!r} does not begin with the name of its user, {name}",
                f"For example {name}-1 (security.client_id_begins_with_user).",
                kind=ErrorKind.CLIENT_ID,
            )


def may_use(access: PrivateAccess, principal: Principal, durable: DurableSubscriber) -> bool:
    """Return whether ``principal`` may use a durable subscription: its user, or one with admin rights on its topics."""
    if durable.user is None or durable.user == principal.name:
        return True
    may_all = all(
        access.may(principal, operation, topic)
        for topic in durable.topics
        for operation in (Operation.CREATE, Operation.REMOVE)
    )
    return _has_right(access, principal, may_all)


def _has_right(access: PrivateAccess, principal: Principal, is_allowed: bool) -> bool:
    """Return whether what ``principal`` may do was granted to it. With users and without rights, every user may do
    everything, and is no operator. Without users, no name proves anything."""
    is_granted = access.has_rights or principal.may_everything or not principal.is_proved
    return is_allowed and is_granted  # prove: an-operator-was-granted-it " and is_granted"
