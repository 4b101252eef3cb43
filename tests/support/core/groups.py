"""Queries of tests about message groups."""

from __future__ import annotations

from tandemmq.broker.core.queue.groups import Groups


def owned(groups: Groups) -> set[str]:
    """Return the groups that have an owner."""
    return {name for name, group in groups._groups.items() if group.owner in groups._owned}
