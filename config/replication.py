"""The table [replication]: a set of brokers, each with a separate store. Without the table there is no set.

Names are those of ActiveMQ's Replicated LevelDB Store, in snake_case. `config.replication_conflicts` has the settings
that exclude a set, `config.leveldb_properties` the treatment of the LevelDB store's own properties.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tandemmq.config import addresses
from tandemmq.config.addresses import Address
from tandemmq.config.section import BytesOrUnlimited, Count, Milliseconds, Path, Section

LOCAL_MEM: Final = "local_mem"
LOCAL_DISK: Final = "local_disk"
REMOTE_MEM: Final = "remote_mem"
REMOTE_DISK: Final = "remote_disk"
#: Words that mean two other words.
QUORUM: Final = {"quorum_mem": (LOCAL_MEM, REMOTE_MEM), "quorum_disk": (LOCAL_DISK, REMOTE_DISK)}
SYNC_WORDS: Final = (LOCAL_MEM, LOCAL_DISK, REMOTE_MEM, REMOTE_DISK, *QUORUM)
EXPECTED_SYNC: Final = f"some of {', '.join(SYNC_WORDS)}, with commas between them"
EXPECTED_BIND: Final = '"HOST:PORT", "tcp://HOST:PORT" or "ssl://HOST:PORT"; port 0 is any that is free'
EXPECTED_SERVERS: Final = '"HOST:PORT,HOST:PORT,…", the ZooKeeper servers'
REPLICAS_MAX: Final = 9
WEIGHT_MAX: Final = 1_000_000

_TCP: Final = "tcp://"
_SSL: Final = "ssl://"
_SERVER: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_CHROOT: Final = re.compile(r"(/[^/\s,]+)*")
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f]*:[0-9A-Fa-f:.]{1,44}")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Sync:
    """Places that must have an update before it is confirmed: the master's disk, and the other nodes of a quorum."""

    local_disk: bool
    remote: Literal["none", "memory", "disk"]


def sync_of(text: str) -> Sync:
    """Parse the words of ActiveMQ's `sync`, separated by commas; of two for one side the stronger applies. Raises
    ValueError with the expected form."""
    given = [word.strip().lower() for word in text.split(",")]
    if not set(given) <= set(SYNC_WORDS):
        raise ValueError(EXPECTED_SYNC)
    words = {each for word in given for each in QUORUM.get(word, (word,))}
    return Sync(
        local_disk=LOCAL_DISK in words,
        remote="disk" if REMOTE_DISK in words else "memory" if REMOTE_MEM in words else "none",
    )


def bind_address(text: str) -> Address:
    """Parse HOST:PORT, also with "tcp://" in front, as in ActiveMQ. Raises ValueError with the expected form."""
    try:
        return addresses.address(text.removeprefix(_TCP).removeprefix(_SSL))
    except ValueError as error:
        raise ValueError(EXPECTED_BIND) from error


def _sync(text: str) -> str:
    sync_of(text)
    return text


def _bind(text: str) -> str:
    bind_address(text)
    return text


def _servers(text: str) -> str:
    servers, slash, chroot = text.partition("/")
    if not all(_SERVER.fullmatch(server.strip()) for server in servers.split(",")):
        raise ValueError(EXPECTED_SERVERS)
    if not _CHROOT.fullmatch(slash + chroot):
        raise ValueError(f"{EXPECTED_SERVERS}; with /CHROOT at the end if wanted")
    return text


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("the name or address of this host, without a port")
    return text


def _node(text: str) -> str:
    if not _NODE.fullmatch(text):
        raise ValueError("a name of letters, digits, '.', '_' and '-', at most 100, that begins with a letter or digit")
    return text


class ReplicationSettings(Section):
    replicas: Count = Field(3, ge=1, le=REPLICAS_MAX)
    """Number of nodes when the set is founded; more than half of its voters must run. Change it later with `tandemmq
    replication add` and `remove`."""
    security_token: str = ""
    """Secret that all nodes share. Without it, any node can join. Never sent, never shown."""
    security_token_file: Path | None = None
    """File with this secret."""
    zk_address: Annotated[str, AfterValidator(_servers)] = "127.0.0.1:2181"
    """The ZooKeeper servers: `HOST:PORT,HOST:PORT,…`."""
    zk_password: str = ""
    """Password of the user `tandemmq`; then only this user can change the set's nodes in ZooKeeper. Never shown."""
    zk_password_file: Path | None = None
    """File with this password."""
    zk_path: str = Field("/default", pattern="^(/[^/]+)+$")
    """Path of the set's entries in ZooKeeper, below the broker's name. Sets whose brokers have different names can
    share it."""
    zk_session_timeout: Milliseconds = Field(2000, ge=100, le=600000)
    """Silence after which a node counts as dead: for ZooKeeper, which can grant a longer time, and for the other nodes,
    which then elect a new master."""
    sync: Annotated[str, AfterValidator(_sync)] = "quorum_disk"
    """Place that an update must reach before it is confirmed: `local_mem`, `local_disk`, `remote_mem`, `remote_disk`,
    `quorum_mem`, `quorum_disk`, or several with commas; the stronger applies. `local_*`: the master. `remote_*`: the
    other nodes of a quorum. `quorum_*`: both."""
    bind: Annotated[str, AfterValidator(_bind)] = "0.0.0.0:61619"
    """Address where this node listens for the others: `HOST:PORT` or `tcp://HOST:PORT`; `ssl://HOST:PORT` encrypts with
    [tls]. Port 0: any free port."""
    hostname: Annotated[str, AfterValidator(_host)] | None = None
    """Name or address of this node for the others. Default: the host name of the system."""
    weight: Count = Field(1, le=WEIGHT_MAX)
    """Among nodes with the same journal, the one with the highest weight becomes master."""
    node: Annotated[str, AfterValidator(_node)] | None = None
    """Display name of this node, unique in the set. A node is identified by its disk, not by this name. Default:
    `hostname`."""
    catch_up_rate: BytesOrUnlimited = 0
    """Maximum bytes sent in a second to a node that catches up; 0: as fast as receipts allow."""
    prefer_weight: bool = False
    """Hand over to a node of higher weight that has caught up. False: a master stays until it stops."""

    @model_validator(mode="after")
    def _secrets_are_set_once(self) -> Self:
        for key in ("security_token", "zk_password"):
            if getattr(self, key) and getattr(self, f"{key}_file") is not None:
                raise ValueError(f"{key} or {key}_file, not both")
        return self

    @property
    def sync_parts(self) -> Sync:
        return sync_of(self.sync)

    @property
    def is_tls(self) -> bool:
        """True if links are encrypted, by [tls]."""
        return self.bind.startswith(_SSL)

    @property
    def bind_address(self) -> Address:
        return bind_address(self.bind)

    @property
    def advertised_hostname(self) -> str:
        """Name by which the other nodes reach this node."""
        return self.hostname or socket.getfqdn()

    @property
    def node_name(self) -> str:
        return self.node or self.advertised_hostname
