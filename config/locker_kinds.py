"""The tables `[locker.zookeeper]` and `[locker.kubernetes]`: what two kinds of lock ask beyond what all ask.

How long a lease is and how often it is renewed stands in `[locker]`, as for every kind.
"""

from __future__ import annotations

from pydantic import Field

from tandemmq.config.section import Path, Section
from tandemmq.config.units import Milliseconds


class KindTable(Section):
    """A table that one kind of lock reads."""

    def options(self) -> dict[str, object]:
        """What the operator said, and the defaults, as plain values; what has neither is left out."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


class ZooKeeperTable(KindTable):
    hosts: str | None = Field(None, min_length=1)
    """The servers: `HOST:PORT,HOST:PORT,…`, with `/CHROOT` at the end if wanted."""
    path: str = Field("/tandemmq/lock", pattern=r"^(/[^/]+)+$")
    """The node under which the brokers of one pair queue. Another pair needs another one."""
    digest: str | None = Field(None, pattern=r"^[^:]+:.+$")
    """`USER:PASSWORD` to prove to the servers; only that user may then touch the nodes. Never shown."""
    connect_timeout: Milliseconds = Field(5_000, ge=100)
    """So long the servers may take to be reached."""


class KubernetesTable(KindTable):
    lease: str = Field("tandemmq", min_length=1)
    """The name of the Lease. Another pair needs another one."""
    namespace: str | None = Field(None, min_length=1)
    """Where the Lease lies. Default: the pod's own."""
    server: str | None = Field(None, pattern=r"^https://[^/]+$")
    """The API server: `https://HOST:PORT`. Default: the pod's own."""
    token_file: Path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    """The bearer token, read again for each request: tokens change every hour."""
    ca_file: Path = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """The certificates that may sign the API server's."""
    request_timeout: Milliseconds = Field(2_000, ge=100)
    """So long an answer may take; never longer than a third of a lease."""
