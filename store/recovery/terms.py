"""Terms of durable subscriptions (selector, noLocal, pattern, user) that the index does not have, read from their
records.

The index has the selector of a subscription if it is short. An index of an earlier version has no selectors, or no
users.
"""

from __future__ import annotations

import logging
from contextlib import closing

from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.reader import JournalReader
from tandemmq.store.records.commands import Subscription, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.hints import user_in
from tandemmq.store.state.state import State

log = logging.getLogger(__name__)


def describe_subscriptions(state: State, files: JournalFiles) -> None:
    """Set the missing terms of all subscriptions of ``state``, which must include all records. Blocks for one read for
    each subscription without terms.

    A record may be unreadable if damage was accepted. Then the subscription has no selector and gets every message: a
    client can acknowledge a surplus message, but a message that was skipped would be lost.
    """
    unknown = [owner for owner in state.owners.values() if owner.subscription_name is not None and owner.terms is None]
    if not unknown:
        return
    with closing(JournalReader(files)) as reader:
        for owner in unknown:
            try:
                payload = reader.read(owner.latest_record)
                command = decode(payload)
                user = user_in(payload)
            except (JournalError, RecordDamaged) as reason:
                log.error(
                    "subscription %s gets every message, because its record cannot be read: %s", owner.key, reason
                )
                continue
            if isinstance(command, Subscription) and command.info is not None:
                state.describe(owner.id, command.info, user)
            else:
                log.error("subscription %s gets every message: another record is at its location", owner.key)
