"""Taking over a directory that ActiveMQ wrote: the journal is made to say what only db.data said.

    activemq_view       what ActiveMQ would deliver: db.data, and the journal behind its last update
    difference, order   how the journal alone differs from that
    records             what has to stand in the journal, so that replay alone gives the same
    report, scheduler   what was found and done

:func:`prepare_takeover` is called at a promotion, when the journal was read to its end and nothing of the new epoch is
written yet; it only reads. Its records come right behind the new epoch's header. Then ``finish`` sets ActiveMQ's index
aside and writes the minimal one, so that either broker may be started from there on (safety.md 6).
"""

from tandemmq.store.takeover.report import Report
from tandemmq.store.takeover.take_over import Takeover, prepare_takeover

__all__ = ["Report", "Takeover", "prepare_takeover"]
