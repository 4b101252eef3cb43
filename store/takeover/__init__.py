"""Take-over of a directory that ActiveMQ wrote: writes into the journal the facts that only ActiveMQ's index (db.data)
has.

    activemq_view       the messages that ActiveMQ would deliver, from db.data and the journal after its last update
    difference, order   the difference between the journal alone and that view
    records             the records that remove the difference, so that a replay of the journal alone gives that view
    report, scheduler   the result of a take-over

:func:`prepare_takeover` is called at a promotion, after the journal was read to its end and before the new epoch is
written; it only reads. The records come directly after the header of the new epoch. Then ``finish`` sets ActiveMQ's
index aside and writes a minimal index. After that, either broker may be started (safety.md 6).
"""

from tandemmq.store.takeover.report import Report
from tandemmq.store.takeover.take_over import Takeover, prepare_takeover

__all__ = ["Report", "Takeover", "prepare_takeover"]
