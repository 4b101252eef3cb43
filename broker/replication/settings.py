"""Settings of a replica."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.config.replication import Sync


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Settings of a replica. ``timeout_seconds``: T. ``catch_up_rate``: bytes a second, 0 for no limit. ``scrub_rate``
    and ``scrub_interval``: of the store, in bytes a second and seconds."""

    broker: str
    node: str
    replicas: int
    sync: Sync
    weight: int
    timeout_seconds: float
    catch_up_rate: int
    prefer_weight: bool = False
    has_token: bool = False
    boot_id: str = ""
    version: str = ""
    admin: str | None = None
    connectors: tuple[str, ...] = ()
    scrub_rate: int = 4 << 20
    scrub_interval: float = 3600.0

    @property
    def timeout_milliseconds(self) -> int:
        return round(self.timeout_seconds * 1000)
