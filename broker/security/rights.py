"""Rights of groups on destinations, by patterns. Pure.

The rights of all matching patterns are added (as in DefaultAuthorizationMap): no entry revokes the grant of another.
Without any entry, every client that may connect has all rights. With at least one entry, only granted operations are
permitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.core.access import Operation, is_for_everybody, refused_operation, reported_destination
from tandemmq.broker.core.names import Pattern, is_wildcard
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination, DestinationKind

EVERYBODY: Final = "*"
#: Number of cached answers; beyond it the cache is cleared.
REMEMBERED_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of groups on the destinations of one kind that match a pattern. ``network``: groups of other brokers."""

    kind: DestinationKind
    pattern: str
    read: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()
    admin: frozenset[str] = frozenset()
    network: frozenset[str] = frozenset()

    def groups(self, operation: Operation) -> frozenset[str]:
        if operation in (Operation.READ, Operation.READ_ALL):
            return self.read
        if operation is Operation.NETWORK:
            return self.network
        return self.write if operation is Operation.WRITE else self.admin


class Rights:
    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._grants = tuple((grant.kind, Pattern(grant.pattern), grant) for grant in grants)
        self._remembered: dict[tuple[frozenset[str], Operation, Destination], bool] = {}

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        """Implement `broker.core.access.Access`."""
        if not self.may(principal, operation, destination):
            raise refused_operation(principal, operation, destination)

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        """Implement `broker.core.access.Access`."""
        if not self._grants or principal.may_everything:
            return True
        key = (principal.groups, operation, destination)
        may = self._remembered.get(key)
        if may is None:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            may = self._remembered[key] = self._may(*key)
        return may

    @property
    def has_rights(self) -> bool:
        """Implement `broker.core.access.Access`."""
        return bool(self._grants)

    def _may(self, groups: frozenset[str], operation: Operation, destination: Destination) -> bool:
        if is_for_everybody(operation, destination) or self._is_granted(groups, operation, destination):
            return True
        of = reported_destination(destination) if operation is Operation.READ else None
        return of is not None and self._is_granted(groups, Operation.READ, of)

    def _is_granted(self, groups: frozenset[str], operation: Operation, destination: Destination) -> bool:
        kind, name = destination
        asked = Pattern(name) if is_wildcard(name) else None
        for of, pattern, grant in self._grants:
            if asked is None:
                is_meant = pattern.matches(name)
            elif operation is Operation.READ:
                # A subscription to a pattern is refused only if the client may read none of its destinations. Each
                # matching destination is checked later.
                is_meant = pattern.meets(asked)
            else:
                is_meant = pattern.covers(asked)  # prove: a-right-to-all-covers-all "covers(asked)" -> "matches(name)"
            if of is kind and is_meant:
                granted = grant.groups(operation)
                if EVERYBODY in granted or not granted.isdisjoint(groups):
                    return True
        return False
