"""Select the clients that get an advisory, and its content: it reveals no more than the receiver may read.

If rights are configured, a client gets an advisory about a destination if its user may read that destination, and one
about a connection if the connection belongs to its own user. The user must be able to read every part of a composite
destination, and all that a pattern matches, because the advisory contains the whole name. Selectors and client ids are
left out, unless the user has the right ``network`` there. An admin gets everything. The right to read the advisory
topic is required as well.

Temporary destinations have no rights of their own. A client hears of one if its user owns it, if the client was given
its name as the address of a reply, or if its user has the right ``network`` for the advisory topic.
"""

from __future__ import annotations

from dataclasses import replace

from tandemmq.broker.core.access import Operation, is_admin
from tandemmq.broker.core.advisor import ConnectionFact, ConsumerFact, DurableFact, Fact, MasterFact
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.memory import TOLD_BYTES, Kind
from tandemmq.broker.core.names import ADVISORY_TOPICS, split
from tandemmq.broker.core.private_access import PrivateAccess
from tandemmq.store.records.message import Destination, DestinationKind

# Maximum number of temporary destinations that a client is recorded to know by name.
TOLD_MAX = 1_000
# The right ``network`` for one of these topics covers all temporary destinations of that kind.
_TEMPORARY_TOPICS = {
    DestinationKind.TEMP_QUEUE: Destination(DestinationKind.TOPIC, f"{ADVISORY_TOPICS}TempQueue"),
    DestinationKind.TEMP_TOPIC: Destination(DestinationKind.TOPIC, f"{ADVISORY_TOPICS}TempTopic"),
}


class AdvisoryRights:
    """Records the owner of each temporary destination, and the clients that were given its name. On the loop.
    ``are_there``: False if no rights are configured; then every client gets everything, without a check here."""

    def __init__(self, access: PrivateAccess) -> None:
        self.are_there = access.has_rights
        self._access = access
        self.owners: dict[Destination, Client] = {}  # of temporary ones
        # Clients and the names that they were given, in both directions.
        self.told: dict[Client, dict[Destination, None]] = {}
        self.knowing: dict[Destination, set[Client]] = {}

    def shown(self, client: Client, fact: Fact) -> Fact | None:
        """Return what ``client`` gets of ``fact``: the same object, one with less in it, or None."""
        if not self.may_hear(client, fact):
            return None  # prove: advisories-of-what-may-be-read "None" -> "fact"
        return fact if self._may_see_all(client, fact) else without_details(fact)

    def may_hear(self, client: Client, fact: Fact) -> bool:
        """Return whether ``client`` gets that advisory."""
        if not self.are_there or isinstance(fact, MasterFact):
            return True
        if isinstance(fact, ConnectionFact):
            return fact.user == client.principal.name or self._is_admin(client)
        if fact.destination is None:  # a producer without a destination
            return self._is_admin(client)
        # prove: all-parts-may-be-read "_parts(fact.destination)" -> "(fact.destination,)"
        return all(self._may_hear_of(client, part) for part in _parts(fact.destination))

    def _may_hear_of(self, client: Client, part: Destination) -> bool:
        if part.kind > DestinationKind.TOPIC:
            return self.may_know(client, part)
        # prove: a-pattern-may-be-read-as-a-whole "READ_ALL" -> "READ"
        return self._access.may(client.principal, Operation.READ_ALL, part) or self._is_admin(client)

    def _may_see_all(self, client: Client, fact: Fact) -> bool:
        """Return whether ``client``, which may hear of ``fact``, may see its selectors and client ids."""
        if not (self.are_there and isinstance(fact, ConsumerFact | DurableFact)):
            return True
        parts = [_TEMPORARY_TOPICS.get(part.kind, part) for part in _parts(fact.destination)]
        return all(self._access.may(client.principal, Operation.NETWORK, part) for part in parts) or self._is_admin(
            client
        )

    def _is_admin(self, client: Client) -> bool:
        return is_admin(self._access, client.principal)

    # ---- temporary destinations

    def may_know(self, client: Client, temporary: Destination) -> bool:
        """Return whether ``client`` hears of that temporary destination."""
        owner = self.owners.get(temporary)
        if owner is not None and owner.principal.name == client.principal.name:
            return True
        if client in self.knowing.get(temporary, ()):
            return True
        of = _TEMPORARY_TOPICS[temporary.kind]
        return self._access.may(client.principal, Operation.NETWORK, of) or self._is_admin(client)

    def give(self, client: Client, temporary: Destination) -> None:
        """Record that ``client`` is given the name of a temporary destination."""
        told = self.told.setdefault(client, {})
        told[temporary] = None
        self.knowing.setdefault(temporary, set()).add(client)
        client.holder.add(Kind.STATE, TOLD_BYTES)
        if len(told) > TOLD_MAX:
            self._forget(client, next(iter(told)))

    def left(self, client: Client) -> None:
        """Forget the names that a client was given, when it is gone."""
        for temporary in list(self.told.get(client, ())):
            self._forget(client, temporary)

    def ended(self, destination: Destination) -> None:
        """Forget a destination that has ended, temporary or not."""
        if self.owners.pop(destination, None) is not None:
            for client in list(self.knowing.get(destination, ())):
                self._forget(client, destination)

    def _forget(self, client: Client, temporary: Destination) -> None:
        """Forget that ``client`` was given that name."""
        told, knowing = self.told[client], self.knowing[temporary]
        client.holder.add(Kind.STATE, -TOLD_BYTES)
        del told[temporary]
        knowing.discard(client)
        if not told:
            del self.told[client]
        if not knowing:
            del self.knowing[temporary]


def _parts(destination: Destination) -> tuple[Destination, ...]:
    """Return the parts of a destination. A client was let in with this name, so it can be split."""
    return split(destination) if "," in destination.name else (destination,)


def without_details(fact: Fact) -> Fact:
    """Return ``fact`` without selectors and client ids."""
    if isinstance(fact, ConsumerFact):
        # prove: selectors-are-not-for-all "selector=None" -> "selector=fact.selector"
        return replace(fact, selector=None, client_id=None)
    return replace(fact, client_id="") if isinstance(fact, DurableFact) else fact
