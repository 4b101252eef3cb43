"""Take over a directory that ActiveMQ wrote: write into the journal the facts that only db.data had.

    activemq_view       the messages that ActiveMQ would deliver: db.data, and the journal after its last update
    difference, order   the difference between the journal alone and that view
    records             the records that the journal needs, so that replay alone gives the same
    report, scheduler   the result of a take-over

:func:`prepare_takeover` is called at a promotion, after the journal was read to its end and before anything of the new
epoch is written; it only reads. Its records come directly after the new epoch's header. Then ``finish`` sets ActiveMQ's
index aside and writes the minimal one, so that from there on either broker may be started (safety.md 6).
"""

from tandemmq.store.takeover.report import Report
from tandemmq.store.takeover.take_over import Takeover, prepare_takeover

__all__ = ["Report", "Takeover", "prepare_takeover"]
