"""What durable subscriptions asked for, and whose they are, where the index does not say: their records are read.

The index keeps a subscription's selector as long as it is short; one that an earlier version wrote keeps none, or not
the user.
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
    """Make known the terms of every subscription of ``state``, which is exact. Blocking; a read for each unknown one.

    One whose record cannot be read, which only happens in a journal that was declared damaged, is left without terms:
    it takes every message, for one too many can be acknowledged, and one that was passed over is gone.
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
                log.error("the record of subscription %s is not read, it takes every message: %s", owner.key, reason)
                continue
            if isinstance(command, Subscription) and command.info is not None:
                state.describe(owner.id, command.info, user)
            else:
                log.error("subscription %s takes every message: another record stands at its place", owner.key)
