"""Plan of a load: its parameters."""

from dataclasses import dataclass

from tandemmq.bench.driver.stomp import Endpoint

# Minimum window at which receipts are read in bulk. With a smaller window, a client waits for each receipt.
BULK_WINDOW = 50
BULK_TURN_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Plan of one run: either ``count`` messages in total, or sending for ``warmup_seconds + seconds``.

    ``transaction``: number of persistent messages in a transaction; 0: no transactions. ``rate``: messages per second
    of all producers, sent at fixed moments, independent of receipts; latencies count from the moment at which a message
    was due. None: as many as ``window`` permits. ``expected``: number of messages that are already in the queues, and
    are received in addition to the sent ones.
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
        """Minimum length of a turn of the driver's loop, so that it reads in bulk.

        A broker that writes each frame separately would wake a Python client for each frame. On a small machine, the
        client would then take CPU from the broker that is measured. With few unconfirmed messages, a pause would be
        part of the measured time, so the minimum is 0.
        """
        if self.turn_seconds is not None:
            return self.turn_seconds
        if self.rate is not None:
            return 0.0
        return BULK_TURN_SECONDS if self.window >= BULK_WINDOW else 0.0

    def due(self, producer: int, sequence: int) -> float:
        """Return the time, in seconds from the start, at which the message ``sequence`` of this producer is due. Only
        with a ``rate``."""
        assert self.rate is not None, "without a rate nothing is due"
        return (sequence * self.producers + producer) / self.rate

    def queue(self, number: int) -> str:
        """Return the destination of the producer or consumer with this number."""
        return f"{self.destination}.{number % self.queues}"

    def quota(self, producer: int) -> int | None:
        """Return how many of the ``count`` messages this producer sends; None without ``count``."""
        if self.count is None:
            return None
        return self.count // self.producers + (1 if producer < self.count % self.producers else 0)
