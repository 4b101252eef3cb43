"""Owners of ids: which users may have a client id or a connection id."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tandemmq.broker.core.access import Operation, PrivateAccess, is_admin
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.engine.part import Part
from tandemmq.store.records.commands import subscription_key
from tandemmq.store.records.connection_owners import CONNECTIONS_MAX, ConnectionUsers
from tandemmq.store.records.message import Destination

# Format of IdGenerator, of ActiveMQ and of its clients in other languages.
_NUMBERED = re.compile(r"(.+-\d+-\d{10,}-\d+):\d+")


class ClientIds(Part):
    """Decides which users may connect with a client id: its owners, who have state under it.

    That state is a durable or shared subscription, or the session of an MQTT client. The store keeps the user of each,
    so an owner stays the owner after a restart and a failover. State without a user, from ActiveMQ or from before users
    were set up, has no owner: its first user becomes the owner. A client id without state is free while no client is
    connected with it.

    If rights are configured, an operator may connect with the client id of another user, by its admin rights. It is a
    guest: it uses and deletes the present state, makes no state under that client id, and gives way to an owner."""

    def check(
        self,
        principal: Principal,
        client_id: str,
        session_user: str | None,
        *,
        has_session: bool = False,
        is_assigned: bool = False,
    ) -> bool:
        """Return whether ``principal`` is a guest there. Raise ClientError if it may not have that client id.
        ``session_user``: result of ``Sessions.find_user``; ``has_session``: the client is one of MQTT; ``is_assigned``:
        the broker chose the client id."""
        if self._settings.client_id_begins_with_user and principal.is_proved and not is_assigned:
            self._check_name(principal, client_id)
        if self.is_owner(principal, client_id, session_user):
            return False
        if session_user is None and not self._users(client_id):
            return False
        # An MQTT client has its session under its client id.
        # prove: a-guest-has-no-session "not has_session" -> "True"
        may_come = not principal.is_proved or not has_session
        has_more = session_user is not None or any(each.user for each in self._destinations.holdings.of(client_id))
        # prove: a-client-id-is-its-owners "self._may_use" -> "True or self._may_use"
        if not (may_come and self._may_use(principal, client_id, has_more=has_more)):
            raise ClientError(
                f"Client id {client_id!r} belongs to another user",
                "That user has a durable subscription or an MQTT session under this client id.",
                kind=ErrorKind.SECURITY,
            )
        return principal.is_proved

    def is_owner(self, principal: Principal, client_id: str, session_user: str | None) -> bool:
        """Return whether ``principal`` has state under that client id."""
        return session_user == principal.name or principal.name in self._users(client_id)

    def _users(self, client_id: str) -> Collection[str]:
        """Return the users who have durable or shared subscriptions under that client id."""
        return self._destinations.users.of(client_id)

    def _may_use(self, principal: Principal, client_id: str, *, has_more: bool) -> bool:
        """Return whether a user who owns nothing there may use the client id, as an admin of all its state.
        ``has_more``: that is more than durable subscriptions."""
        may_more = not has_more or _has_right(self._access, principal, is_admin(self._access, principal))
        if not may_more:
            return False
        durables = self._destinations.durables
        for name in self._destinations.durable_names(client_id):
            if not may_use(self._access, principal, durables[subscription_key(client_id, name)]):
                return False
        return True

    def _check_name(self, principal: Principal, client_id: str) -> None:
        """Check that the client id begins with the name of its user, unless a client library made it."""
        if is_generated(client_id):
            return
        name = principal.name
        # ``ann`` must not count as a beginning of ``anna-1``.
        # prove: a-client-id-begins-with-its-user "not client_id.startswith(name)" -> "False"
        if not client_id.startswith(name) or client_id[len(name) : len(name) + 1].isalnum():
            raise ClientError(
                f"Client id {client_id!r} does not begin with the name of its user, {name}",
                f"For example {name}-1 (security.client_id_begins_with_user).",
                kind=ErrorKind.CLIENT_ID,
            )


def may_use(access: PrivateAccess, principal: Principal, durable: DurableSubscriber) -> bool:
    """Return whether ``principal`` may use a durable subscription: its user, or one with admin rights on its topics."""
    is_its = durable.user is None or durable.user == principal.name
    return is_its or administers(access, principal, durable.topics)


def administers(access: PrivateAccess, principal: Principal, topics: Iterable[Destination]) -> bool:
    """Return whether ``principal`` was granted to create and delete these topics."""
    may_all = all(
        access.may(principal, operation, topic)
        for topic in topics
        for operation in (Operation.CREATE, Operation.REMOVE)
    )
    return _has_right(access, principal, may_all)


def _has_right(access: PrivateAccess, principal: Principal, is_allowed: bool) -> bool:
    """Return whether the permission of ``principal`` (``is_allowed``) was granted to it. With users and without rights,
    every user may do everything, but is not an operator. Without users, names prove nothing."""
    is_granted = access.has_rights or principal.may_everything or not principal.is_proved
    return is_allowed and is_granted  # prove: an-operator-was-granted-it " and is_granted"


@dataclass(slots=True)
class _Member:
    """User of a program: number of its connection ids in the program, and its last address."""

    ids: int = 0
    address: str | None = None


class ConnectionIds:
    """Records which user may have a connection id: its user, and for a new id of a program a user of that program.

    Java's clients number their connections, ``ID:<host>-<port>-<time>-<n>:1``, ``:2`` and so on, and the ids of their
    messages show the last number. A client that sees one could take the next, and lock that program out. So the part
    before the number is a program, which belongs to the users who have connection ids of it. It may connect for several
    users: a new user of it must come from the same address as one of the others. After a failover the address of a user
    is not known until the user connects. ``pairs``: (connection id, user) of the store, ``limit`` of them."""

    __slots__ = ("_programs", "_users")

    def __init__(self, pairs: Iterable[tuple[str, str]], *, limit: int = CONNECTIONS_MAX) -> None:
        self._users = ConnectionUsers(limit=limit)
        self._programs: dict[str, dict[str, _Member]] = {}
        for id, user in pairs:
            self.take(id, user, None)

    def is_refused(self, id: str, user: str, address: str) -> bool:
        """Return whether ``user``, who connects from ``address``, may not have that id."""
        owner = self._users.user(id)
        if owner is not None:
            return owner != user
        members = self._programs.get(_program_of(id) or "", {})
        addresses = {member.address for member in members.values()} - {None}
        return bool(addresses) and user not in members and address not in addresses

    def take(self, id: str, user: str, address: str | None) -> bool:
        """Record that the id belongs to ``user``, who connects from ``address``. Return whether that was known."""
        is_known = self._users.user(id) == user
        if not is_known:
            self._count(id, user, 1)
        for forgotten in self._users.know([(id, user)]):
            self._count(*forgotten, -1)
        program = _program_of(id)
        if program in self._programs and user in self._programs[program]:
            self._programs[program][user].address = address
        return is_known

    def _count(self, id: str, user: str, more: int) -> None:
        program = _program_of(id)
        if program is None:
            return
        members = self._programs.setdefault(program, {})
        member = members.setdefault(user, _Member())
        member.ids += more
        if not member.ids:
            del members[user]
        if not members:
            del self._programs[program]


def is_generated(id: str) -> bool:
    """Return whether a client library made that id, also as a client id."""
    return _program_of(id) is not None


def _program_of(connection_id: str) -> str | None:
    found = _NUMBERED.fullmatch(connection_id)
    return None if found is None else found[1]
