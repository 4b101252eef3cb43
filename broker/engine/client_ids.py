"""Which users may connect with a client id: its owners, who have state under it.

That state is a durable subscription or the session of an MQTT client. The store keeps the user of each, so an owner
stays the owner after a restart and a failover. State without a user, from ActiveMQ or from before users were set up,
makes no owner: it becomes its first user's. A client id without state is free, as long as no client is connected by it.
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
from tandemmq.broker.engine.refusals import may
from tandemmq.broker.engine.shared import Part, Shared
from tandemmq.store.records.commands import subscription_key


class Sessions(Protocol):
    """The sessions of MQTT clients."""

    def find_user(self, client_id: str, then: Callable[[str | ClientError | None], None]) -> None:
        """Call ``then``, exactly once, with the user of the session that is kept for a client id; None: there is no
        session, or no user is known. A ClientError: that could not be read. At once, if nothing has to be read."""


class ClientIds(Part):
    """Decides about client ids. On the loop. ``sessions`` None: this broker knows no sessions."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.sessions: Sessions | None = None

    def check(self, principal: Principal, command: Connect, session_user: str | None) -> None:
        """Raise ClientError if ``principal`` may not connect with the client id of ``command``. ``session_user``: as
        ``Sessions.find_user`` says it."""
        client_id = command.client_id
        assert client_id is not None, "the client gave one"
        if self._settings.client_id_begins_with_user and principal.is_proved:
            self._check_name(principal, command, client_id)
        if self.is_owner(principal, client_id, session_user):
            return
        # prove: a-client-id-is-its-owners "self._may_use" -> "True or self._may_use"
        if not self._may_use(principal, client_id, session_user):
            raise ClientError(
                f"Client id {client_id!r} belongs to another user",
                "That user has a durable subscription or an MQTT session under this client id.",
                kind=ErrorKind.SECURITY,
            )

    def is_owner(self, principal: Principal, client_id: str, session_user: str | None) -> bool:
        """Whether ``principal`` has state under that client id."""
        return session_user == principal.name or any(each.user == principal.name for each in self._durables(client_id))

    def _may_use(self, principal: Principal, client_id: str, session_user: str | None) -> bool:
        """Whether that is for one who owns nothing there: nobody does, or an admin of all of it comes."""
        if session_user is not None and not is_admin(self._access.check, principal):
            return False
        return all(may_use(self._access, principal, each) for each in self._durables(client_id))

    def _durables(self, client_id: str) -> list[DurableSubscriber]:
        durables = self._destinations.durables
        names = self._destinations.durable_names(client_id)
        return [durables[subscription_key(client_id, name)] for name in names]

    def _check_name(self, principal: Principal, command: Connect, client_id: str) -> None:
        """What no user chose is nobody's name: a client library, or this broker, made it."""
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
    """Whether a durable subscription is for ``principal``: its user, or one with admin rights on its topics."""
    if durable.user is None or durable.user == principal.name:
        return True
    return all(
        may(access, principal, operation, topic)
        for topic in durable.topics
        for operation in (Operation.CREATE, Operation.REMOVE)
    )
