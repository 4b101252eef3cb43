"""Plan of a load."""

from dataclasses import dataclass

from tandemmq.bench.driver.stomp import Endpoint

# With fewer receipts outstanding, a client is considered to wait for each.
BULK_WINDOW = 50
BULK_TURN_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Plan of one run: either ``count`` messages in total, or sending for ``warmup_seconds + seconds``.

    ``transaction``: persistent messages in a transaction; 0 for none.
    ``rate``: messages a second of all producers, at fixed moments, however long their receipts take; latencies
    count from the moment at which a message was due. None: as many as ``window`` allows.
    ``expected``: messages that are in the queues already and are to be received in addition to those sent.
    """

    endpoint: Endpoint
    producers: int = 4
    consumers: int = 4
    queues: int = 4
    body_bytes: int = 1024
    window: int = 200
    count: int | None = None
    seconds: float = 10.0
    warmup_seconds: float = 2.0
    acknowledgement: str = "client-individual"
    is_persistent: bool = True
    transaction: int = 0
    prefetch: int = 1000
    processes: int = 1
    destination: str = "/queue/bench"
    expected: int = 0
    checks_order: bool = False
    server_pid: int | None = None
    admin_url: str | None = None
    stall_seconds: float = 30.0
    turn_seconds: float | None = None
    rate: float | None = None

    @property
    def least_turn_seconds(self) -> float:
        """Least length of a turn of the driver's loop, so that it reads in bulk.

        A broker that writes frame by frame would wake a Python client for each; on a small machine the client would
        then take CPU from the broker that is measured. With few messages under way, a pause would itself be measured:
        then there is none.
        """
        if self.turn_seconds is not None:
            return self.turn_seconds
        if self.rate is not None:
            return 0.0
        return BULK_TURN_SECONDS if self.window >= BULK_WINDOW else 0.0

    def due(self, producer: int, sequence: int) -> float:
        """Return when, in seconds from the start, this producer is to send that message. Only with a ``rate``."""
        assert self.rate is not None, "without a rate nothing is due"
        return (sequence * self.producers + producer) / self.rate

    def queue(self, number: int) -> str:
        """Return the destination of the producer or consumer with this number."""
        return f"{self.destination}.{number % self.queues}"

    def quota(self, producer: int) -> int | None:
        """Return how many of ``count`` this producer sends; None without a count."""
        if self.count is None:
            return None
        return self.count // self.producers + (1 if producer < self.count % self.producers else 0)
