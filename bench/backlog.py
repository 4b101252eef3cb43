"""A queue that grows without consumers, then is drained.

It shows whether sending slows down as the queue gets longer, what the queue costs in memory, and that every message is
delivered once, in the order sent.
"""

from dataclasses import dataclass, replace

from tandemmq.bench.load import LoadResult, run_load
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.statistics import rate_of_share

# Rates at the start and at the end are taken over this share of all messages.
EDGE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class BacklogResult:
    """Result of a backlog; rates are messages a second."""

    fill: LoadResult
    drain: LoadResult
    sent_per_second_at_start: float
    sent_per_second_at_end: float

    @property
    def is_complete(self) -> bool:
        """Return whether every message was delivered once, and in the order of its producer."""
        order = self.drain.order
        assert order is not None, "a drain always checks the order"
        return order.seen == self.fill.confirmed and order.skipped == 0 and order.late == 0

    def figures(self) -> dict[str, object]:
        """Return all figures, for a program."""
        return {
            "messages": self.fill.confirmed,
            "sent_per_second_at_start": round(self.sent_per_second_at_start, 1),
            "sent_per_second_at_end": round(self.sent_per_second_at_end, 1),
            "end_to_start": round(self.sent_per_second_at_end / self.sent_per_second_at_start, 3)
            if self.sent_per_second_at_start
            else None,
            "is_complete": self.is_complete,
            "fill": self.fill.figures(),
            "drain": self.drain.figures(),
        }


def run_backlog(plan: LoadPlan) -> BacklogResult:
    """Fill with ``plan.count`` messages, then drain with one consumer a queue. Raises BenchError."""
    assert plan.count is not None, "a backlog has a fixed number of messages"
    fill = run_load(replace(plan, consumers=0))
    drain = run_load(
        replace(plan, producers=0, consumers=plan.queues, count=0, expected=fill.confirmed, checks_order=True)
    )
    return BacklogResult(
        fill,
        drain,
        rate_of_share(fill.samples, 0.0, EDGE_SHARE, "confirmed"),
        rate_of_share(fill.samples, 1 - EDGE_SHARE, 1.0, "confirmed"),
    )
