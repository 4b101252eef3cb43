"""Search for duplicates among messages that are submitted together. Pure.

Copies of one message for several queues have the same id. The caller searches the audit only for the first copy: the
audit compares only ids, so it would find the second copy to be a duplicate. A later copy is a duplicate if its queue
has the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination


@dataclass(slots=True, eq=False)
class Copies:
    """Distinguishes duplicates from copies of one message. The first function returns whether the first message with an
    id is a duplicate. The second function is called for later messages with the same id, and returns whether their
    queue or topic had the message before."""

    _is_known: Callable[[AddMessage], bool]
    _is_held: Callable[[AddMessage], bool]
    _destinations: dict[str, set[Destination]] = field(default_factory=dict)

    def is_duplicate(self, add: AddMessage) -> bool:
        """Return whether ``add``, the next message, is a duplicate, and set ``add.is_duplicate``. False if it is not
        audited."""
        if not add.is_audited:
            return False
        taken = self._destinations.get(add.message.message_id)
        if taken is None:
            add.is_duplicate = self._is_known(add)
            if not add.is_duplicate:
                self._destinations[add.message.message_id] = {add.message.destination}
        else:
            destination = add.message.destination
            add.is_duplicate = destination in taken or self._is_held(add)  # prove: a-copy-is-there-once
            taken.add(destination)
        return add.is_duplicate
