"""Owners of the messages in the journal, for status and metrics: the largest owners by name, and the sum of all
others."""

from __future__ import annotations

from heapq import nlargest
from operator import attrgetter
from typing import Any, Final

from tandemmq.broker.core.slices import Work, pieces
from tandemmq.broker.ha.service import AnyStore
from tandemmq.store.several.stores import SeveralStores
from tandemmq.store.state.owners import OwnerState

#: Number of owners that are named.
OWNERS_MAX: Final = 10
#: Name for the sum of all others. No owner has this name, because names of owners begin with a kind.
OTHERS: Final = "others"

_bytes = attrgetter("bytes")


def journal_figures(store: AnyStore) -> Work[dict[str, Any]]:
    """Return the figures of the journal, in steps. ``files_without_messages`` exist because their records refer to
    other files, or because the file is being written."""
    stores = list(store.members().values()) if isinstance(store, SeveralStores) else [store]
    files = without_messages = live_bytes = owned = 0
    largest: list[OwnerState] = []
    for each in stores:
        for held in pieces(each.file_states()):
            files += len(held)
            without_messages += sum(not file.live for file in held)
            live_bytes += sum(file.live_bytes for file in held)
            yield
        for owners in pieces(each.owner_states()):
            owned += sum(map(_bytes, owners))
            largest = nlargest(OWNERS_MAX, [*largest, *owners], key=_bytes)
            yield
    named = {str(owner): owner.bytes for owner in largest if owner.bytes}
    return {
        "files": files,
        "files_without_messages": without_messages,
        "live_bytes": live_bytes,
        # A message that several subscriptions of a topic hold counts for each of them.
        "owner_bytes": named | {OTHERS: max(0, owned - sum(named.values()))},
    }
