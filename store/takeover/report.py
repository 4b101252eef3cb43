"""Result of a take-over, for status, logs and tests. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tandemmq.store.takeover.scheduler import ScheduledJobs


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a take-over.

    ``has_index``: db.data was read; otherwise only the journal was used. ``index_damage``: why an existing db.data was
    not used. ``was_closed``: ActiveMQ closed it cleanly. ``openwire_version``: version of ActiveMQ's bodies.
    ``corrected``: kind -> number of differences between ActiveMQ's state and that of the journal alone. ``prepared``:
    keys of the transactions that wait for their outcome. ``set_aside``: new paths of ActiveMQ's index files.
    ``seconds``: duration of ``prepare_takeover``.
    """

    directory: str
    has_index: bool
    index_damage: str | None
    was_closed: bool
    openwire_version: int
    corrected: dict[str, int]
    scheduled: tuple[ScheduledJobs, ...] = ()
    destinations: int = 0
    messages: int = 0
    prepared: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def corrections(self) -> int:
        """Number of differences between ActiveMQ's state and that of the journal alone."""
        return sum(self.corrected.values())

    def lines(self) -> Iterator[str]:
        """Yield the report in sentences."""
        source = "its index and the journal after it" if self.has_index else "the journal alone"
        if self.index_damage is not None:
            yield f"the index of ActiveMQ in {self.directory} cannot be read: {self.index_damage}"
        yield (
            f"took over {self.directory} from ActiveMQ in {self.seconds:.3f} s from {source}: {self.messages} messages "
            f"in {self.destinations} queues and durable subscriptions, bodies in OpenWire {self.openwire_version}"
        )
        if self.corrections:
            counts = ", ".join(f"{count} {kind}" for kind, count in self.corrected.items() if count)
            yield f"corrected in the journal: {counts}"
        if self.prepared:
            yield f"{len(self.prepared)} prepared transactions wait for their outcome: {', '.join(self.prepared)}"
        for jobs in self.scheduled:
            yield (
                f"{jobs.pending} scheduled jobs in {jobs.directory} are not taken over; the directory is not changed"
                + (f"; {jobs.unread} of its records are of another version, or damaged" if jobs.unread else "")
            )
        for path in self.set_aside:
            yield f"ActiveMQ's index file was renamed to {path}"
