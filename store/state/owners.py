"""A queue or a durable subscription, as the state knows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from tandemmq.store.records.commands import subscription_key
from tandemmq.store.records.message import Destination
from tandemmq.store.state import keys

# What the index keeps of an owner, in the order of an OwnerRecord's fields.
_recorded = attrgetter(
    "destination", "client_id", "subscription_name", "record_location", "count", "bytes", "latest_record", "terms"
)


@dataclass(slots=True, eq=False, repr=False)
class OwnerState:
    """A queue or durable subscription, and how much it holds.

    A subscription's record at ``record_location`` is older than all it holds, so it is needed; ``latest_record`` is the
    newest record of the subscription, and ``terms`` its content; None: that is not known, the record has to be read.
    ``later_records``: of its records in the files behind that of ``record_location``, the first in each, in order. One
    that has ended counts what is still to be reclaimed, which stands behind ``reclaimed_to``, an order key.
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
        """A durable subscription's name in KahaDB."""
        assert self.client_id is not None, "a queue has no subscription key"
        assert self.subscription_name is not None, "a queue has no subscription key"
        return subscription_key(self.client_id, self.subscription_name)

    @property
    def subscription_key(self) -> str | None:
        """The same; None: it is a queue."""
        return None if self.subscription_name is None else self.key

    def __str__(self) -> str:
        """In words."""
        return str(self.destination) if self.subscription_name is None else f"{self.destination} for {self.key}"

    def record(self) -> keys.OwnerRecord:
        return keys.OwnerRecord(*_recorded(self))
