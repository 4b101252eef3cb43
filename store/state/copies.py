"""Messages that are handed over together, and which of them came before. Pure.

Copies of one message for several queues have one id. Once it is known that it did not come before, the audit, which
compares ids alone and would take the second for a duplicate, is not asked again: a copy is one if its queue has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination


@dataclass(slots=True, eq=False)
class Copies:
    """Tells duplicates from copies of one message. ``came_before`` is asked about the first message of each id,
    ``is_held`` about all others: whether its queue or topic has it, of another time."""

    _came_before: Callable[[AddMessage], bool]
    _is_held: Callable[[AddMessage], bool]
    _takers: dict[str, set[Destination]] = field(default_factory=dict)

    def is_duplicate(self, add: AddMessage) -> bool:
        """Whether ``add``, the next of them, came before; what is not audited never did. ``add`` knows from now on."""
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
