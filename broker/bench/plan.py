"""What to measure: the shape of a load."""

from dataclasses import dataclass

from broker.bench.connection import Endpoint

# Below this many receipts outstanding a client is taken to wait for each.
BULK_WINDOW = 50
BULK_TURN_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One run. Either ``count`` messages in all, or sending for ``warmup_seconds + seconds``.

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
    prefetch: int = 1000
    processes: int = 1
    destination: str = "/queue/bench"
    expected: int = 0
    checks_order: bool = False
    server_pid: int | None = None
    admin_url: str | None = None
    stall_seconds: float = 30.0
    turn_seconds: float | None = None

    @property
    def least_turn_seconds(self) -> float:
        """How long a turn of the driver's loop lasts at least, so that it reads in bulk.

        A broker that writes frame by frame would wake a Python client for each; on a small machine the client
        would then take from the broker what is to be measured. With few messages under way a pause would be
        what is measured: then there is none.
        """
        if self.turn_seconds is not None:
            return self.turn_seconds
        return BULK_TURN_SECONDS if self.window >= BULK_WINDOW else 0.0

    def queue(self, number: int) -> str:
        """The destination of the producer or consumer with this number."""
        return f"{self.destination}.{number % self.queues}"

    def quota(self, producer: int) -> int | None:
        """How many of ``count`` this producer sends; None without a count."""
        if self.count is None:
            return None
        return self.count // self.producers + (1 if producer < self.count % self.producers else 0)
