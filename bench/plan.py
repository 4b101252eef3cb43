"""What to measure: the shape of a load."""

from dataclasses import dataclass

from tandemmq.bench.connection import Endpoint

# Below this many receipts outstanding a client is taken to wait for each.
BULK_WINDOW = 50
BULK_TURN_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One run. Either ``count`` messages in all, or sending for ``warmup_seconds + seconds``.

    ``transaction``: so many persistent messages to a transaction; 0 for none.
    ``rate``: so many messages a second of all producers, at fixed moments, however long their receipts take; latencies
    count from the moment at which a message was due. None: as many as ``window`` allows.
    ``expected``: messages that lie in the queues already and are to be received beside what is sent.
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
        """How long a turn of the driver's loop lasts at least, so that it reads in bulk.

        A broker that writes frame by frame would wake a Python client for each; on a small machine the client
        would then take from the broker what is to be measured. With few messages under way a pause would be
        what is measured: then there is none.
        """
        if self.turn_seconds is not None:
            return self.turn_seconds
        if self.rate is not None:
            return 0.0
        return BULK_TURN_SECONDS if self.window >= BULK_WINDOW else 0.0

    def due(self, producer: int, sequence: int) -> float:
        """When, in seconds from the start, this producer is to send that message. With a ``rate`` alone."""
        assert self.rate is not None, "without a rate nothing is due"
        return (sequence * self.producers + producer) / self.rate

    def queue(self, number: int) -> str:
        """The destination of the producer or consumer with this number."""
        return f"{self.destination}.{number % self.queues}"

    def quota(self, producer: int) -> int | None:
        """How many of ``count`` this producer sends; None without a count."""
        if self.count is None:
            return None
        return self.count // self.producers + (1 if producer < self.count % self.producers else 0)
