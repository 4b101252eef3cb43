"""Owner in the state: a queue or a durable subscription. Pure."""

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
    """Queue or durable subscription, with the numbers of its messages and bytes.

    record_location  location of the oldest needed record of a subscription, which is before all its messages
    latest_record    location of its newest record
    later_records    locations of the first record in each file after that of ``record_location``, ascending
    terms            content of the newest record; None: unknown, the record must be read
    reclaimed_to     for an ended owner: order key up to which its entries were removed; ``count`` and ``bytes`` are
                     those of the rest
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
        """Return a text that describes the owner."""
        return str(self.destination) if self.subscription_name is None else f"{self.destination} for {self.key}"

    def record(self) -> keys.OwnerRecord:
        return keys.OwnerRecord(*_recorded(self))
