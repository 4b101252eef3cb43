"""Selectors and users of durable subscriptions that the index does not have, read from their records.

The index keeps a subscription's selector if it is short; an index of an earlier version keeps none, or not the user.
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
    """Set the terms of every subscription of ``state``, which must be exact. Blocking; one read for each unknown one.

    If its record cannot be read, which only happens in a journal that was declared damaged, a subscription stays
    without terms: it takes every message. A surplus message can be acknowledged, one that was skipped is lost.
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
