"""Messages that are handed over together, and which of them came before. Pure.

Copies of one message for several queues have one id. Once it is known that it did not come before, the audit, which
compares ids alone and would take the second for a duplicate, is not asked again: a copy is one if its queue has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandemmq.store.operations import AddMessage


@dataclass(slots=True, eq=False)
class Copies:
    """Tells duplicates from copies of one message. ``came_before`` is asked about the first message of each id,
    ``is_held`` about all others: whether its queue has it, of another time."""

    _came_before: Callable[[AddMessage], bool]
    _is_held: Callable[[AddMessage], bool]
    _takers: dict[str, set[int]] = field(default_factory=dict)

    def is_duplicate(self, add: AddMessage) -> bool:
        """Whether ``add``, the next of them, came before; what is not audited never did. ``add`` knows from now on."""
        if not add.is_audited:
            return False
        taken = self._takers.get(add.message.message_id)
        if taken is None:
            add.is_duplicate = self._came_before(add)
            if not add.is_duplicate:
                self._takers[add.message.message_id] = set(add.owners)
        else:
            add.is_duplicate = add.owners[0] in taken or self._is_held(add)  # prove: a-copy-is-there-once
            taken.update(add.owners)
        return add.is_duplicate
