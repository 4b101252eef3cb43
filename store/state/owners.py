"""A queue or a durable subscription in the state. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from tandemmq.store.records.commands import subscription_key
from tandemmq.store.records.message import Destination
from tandemmq.store.state import keys

# Fields of an owner that the index keeps, in the order of an OwnerRecord's fields.
_recorded = attrgetter(
    "destination", "client_id", "subscription_name", "record_location", "count", "bytes", "latest_record", "terms"
)


@dataclass(slots=True, eq=False, repr=False)
class OwnerState:
    """A queue or durable subscription, with its numbers of messages and bytes.

    A subscription's record at ``record_location`` is older than all its messages, so it is needed; ``latest_record`` is
    the newest record of the subscription, and ``terms`` its content; None: unknown, the record must be read.
    ``later_records``: of its records in the files after that of ``record_location``, the first in each, in order. An
    owner that has ended counts what must still be reclaimed, which is after ``reclaimed_to``, an order key.
    """

    id: int
    destination: Destination
    client_id: str | None = None
    subscription_name: str | None = None
    record_location: int = 0
    count: int = 0
    bytes: int = 0
    latest_record: int = 0
    terms: keys.Terms | None = None
    later_records: tuple[int, ...] = field(default=(), init=False)
    reclaimed_to: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.latest_record = self.latest_record or self.record_location

    @property
    def key(self) -> str:
        """Name of a durable subscription in KahaDB."""
        assert self.client_id is not None, "a queue has no subscription key"
        assert self.subscription_name is not None, "a queue has no subscription key"
        return subscription_key(self.client_id, self.subscription_name)

    @property
    def subscription_key(self) -> str | None:
        """Name of a durable subscription in KahaDB; None for a queue."""
        return None if self.subscription_name is None else self.key

    def __str__(self) -> str:
        """Return the owner in words."""
        return str(self.destination) if self.subscription_name is None else f"{self.destination} for {self.key}"

    def record(self) -> keys.OwnerRecord:
        return keys.OwnerRecord(*_recorded(self))
