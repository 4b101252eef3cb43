"""A member of a set, built from its settings: its network, its directory, its promise file, its replica."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import tandemmq
from tandemmq.broker.replication.peers import write_known
from tandemmq.broker.replication.promise import PromiseFile
from tandemmq.broker.replication.replica import Replica
from tandemmq.broker.replication.state import ReplicaSettings
from tandemmq.broker.replication.tcp import TcpNetwork, TcpSettings, Tls
from tandemmq.broker.replication.zookeeper import ZooKeeperDirectory, ZooKeeperPlace
from tandemmq.broker.settings.replication import security_token, zk_password
from tandemmq.config.replication import ReplicationSettings, Sync
from tandemmq.journal.files import JournalFiles
from tandemmq.store.settings import StoreSettings
from tandemmq.store.threads import OS_THREADS

#: If `sync` does not wait for the master's disk, the disk is still synced this often, so that the final place advances.
SYNC_SECONDS = 0.1
#: Interval at which a follower asks its volume for the free bytes, and reports them to the master.
FREE_SECONDS = 0.5


def make_replica(
    options: ReplicationSettings,
    directory: str,
    broker: str,
    *,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None,
    connectors: Sequence[str],
    admin: str | None,
    record: Callable[..., object],
    scrub_rate: int,
    scrub_interval: float,
) -> Replica:
    """Make the replica of the store in ``directory``. Nothing starts and the volume is not touched: ``Replica.open``
    does both, and raises PromiseFileInUse when another process runs there. ``tls``: contexts for incoming and for
    outgoing links; None: links are not encrypted. Raises SettingsError for a secret that cannot be read.
    """
    bind = options.bind_address
    timeout_seconds = options.zk_session_timeout / 1000
    return Replica(
        JournalFiles(directory),
        partial(PromiseFile, directory, options.node_name),
        ReplicaSettings(
            broker,
            options.node_name,
            options.replicas,
            options.sync_parts,
            options.weight,
            timeout_seconds,
            options.catch_up_rate,
            options.prefer_weight,
            bool(security_token(options)),
            _boot_id(),
            tandemmq.__version__,
            admin,
            tuple(connectors),
            scrub_rate,
            scrub_interval,
        ),
        network=TcpNetwork(
            TcpSettings(
                bind.host,
                bind.port,
                options.told_hostname,
                security_token(options).encode(),
                None if tls is None else Tls(*tls),
            )
        ),
        members=ZooKeeperDirectory(
            ZooKeeperPlace(options.zk_address, options.zk_path, broker, timeout_seconds, zk_password(options))
        ),
        threads=OS_THREADS,
        free_bytes=_FreeBytes(directory).now,
        record=record,
        remember=write_known(directory),
    )


def set_settings(settings: StoreSettings, sync: Sync) -> StoreSettings:
    """Return the settings of a store whose set waits for disks as ``sync`` says."""
    if sync.local_disk:
        return settings
    return replace(settings, journal_disk_sync_strategy="periodic", journal_disk_sync_interval=SYNC_SECONDS)


def _boot_id() -> str:
    """Return the id of this boot of the host (proc(5)). If it is unknown, each start counts as one after a power
    loss."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.urandom(16).hex()


class _FreeBytes:
    """Free bytes of a volume, read at most once in FREE_SECONDS. One thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._asked_at = float("-inf")
        self._free = 0

    def now(self) -> int:
        now = OS_THREADS.monotonic()
        if now - self._asked_at >= FREE_SECONDS:
            self._asked_at = now
            status = os.statvfs(self._directory)
            self._free = status.f_bavail * status.f_frsize
        return self._free
