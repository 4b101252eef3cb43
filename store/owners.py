"""A queue or a durable subscription, as the state knows it. Pure."""

from __future__ import annotations

from store import keys
from store.records.commands import subscription_key
from store.records.message import Destination


class OwnerState:
    """A queue or durable subscription, and how much it holds.

    A subscription's record at ``record_location`` is older than all it holds, so it is needed; ``latest_record`` says
    what the subscription is now, and ``terms`` what it says; None: that is not known, the record has to be read.
    ``later_records``: of its records in the files behind that of ``record_location``, the first in each, in order.
    One that has ended counts what is still to be reclaimed, which stands behind ``reclaimed_to``, an order key.
    """

    __slots__ = (
        "bytes",
        "client_id",
        "count",
        "destination",
        "id",
        "later_records",
        "latest_record",
        "reclaimed_to",
        "record_location",
        "subscription_name",
        "terms",
    )

    def __init__(
        self,
        id: int,
        destination: Destination,
        client_id: str | None = None,
        subscription_name: str | None = None,
        record_location: int = 0,
        count: int = 0,
        bytes: int = 0,
        latest_record: int = 0,
        terms: keys.Terms | None = None,
    ) -> None:
        self.id = id
        self.destination = destination
        self.client_id = client_id
        self.subscription_name = subscription_name
        self.record_location = record_location
        self.latest_record = latest_record or record_location
        self.later_records: tuple[int, ...] = ()
        self.terms = terms
        self.reclaimed_to = 0
        self.count = count
        self.bytes = bytes

    @property
    def key(self) -> str:
        """A durable subscription's name in KahaDB."""
        assert self.client_id is not None, "a queue has no subscription key"
        assert self.subscription_name is not None, "a queue has no subscription key"
        return subscription_key(self.client_id, self.subscription_name)

    def record(self) -> keys.OwnerRecord:
        return keys.OwnerRecord(
            self.destination,
            self.client_id,
            self.subscription_name,
            self.record_location,
            self.count,
            self.bytes,
            self.latest_record,
            self.terms,
        )
