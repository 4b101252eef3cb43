"""What durable subscriptions asked for, where the index does not say: it is read from their records.

The index keeps a subscription's selector as long as it is short; one that an earlier version wrote keeps none.
"""

from __future__ import annotations

import logging

from journal.errors import JournalError
from journal.files import JournalFiles
from journal.reader import JournalReader
from store.records.commands import Subscription, decode
from store.records.errors import RecordDamaged
from store.state import State

log = logging.getLogger(__name__)


def describe_subscriptions(state: State, files: JournalFiles) -> None:
    """Make known the terms of every subscription of ``state``, which is exact. Blocking; a read for each unknown one.

    One whose record cannot be read, which only happens in a journal that was declared damaged, is left without terms:
    it takes every message, for one too many can be acknowledged, and one that was passed over is gone.
    """
    unknown = [owner for owner in state.owners.values() if owner.subscription_name is not None and owner.terms is None]
    if not unknown:
        return
    reader = JournalReader(files)
    try:
        for owner in unknown:
            try:
                command = decode(reader.read(owner.latest_record))
            except (JournalError, RecordDamaged) as reason:
                log.error("the record of subscription %s is not read, it takes every message: %s", owner.key, reason)
                continue
            if isinstance(command, Subscription) and command.info is not None:
                state.describe(owner.id, command.info)
            else:
                log.error("subscription %s takes every message: another record stands at its place", owner.key)
    finally:
        reader.close()
