"""Find duplicates among messages that are handed over together. Pure.

Copies of one message for several queues have one id. Once the first is known to be new, the audit is not used again: it
compares ids alone and would take the second for a duplicate. Then a copy is a duplicate if its queue has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination


@dataclass(slots=True, eq=False)
class Copies:
    """Distinguishes duplicates from copies of one message. ``came_before`` is called for the first message of each id,
    ``is_held`` for all others: whether its queue or topic has it from an earlier time."""

    _came_before: Callable[[AddMessage], bool]
    _is_held: Callable[[AddMessage], bool]
    _takers: dict[str, set[Destination]] = field(default_factory=dict)

    def is_duplicate(self, add: AddMessage) -> bool:
        """Return whether ``add``, the next message, came before, and note it in ``add``. False if it is not audited."""
        if not add.is_audited:
            return False
        taken = self._takers.get(add.message.message_id)
        if taken is None:
            add.is_duplicate = self._came_before(add)
            if not add.is_duplicate:
                self._takers[add.message.message_id] = {add.message.destination}
        else:
            destination = add.message.destination
            add.is_duplicate = destination in taken or self._is_held(add)  # prove: a-copy-is-there-once
            taken.add(destination)
        return add.is_duplicate
