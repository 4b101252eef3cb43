"""The tables `[locker.zookeeper]` and `[locker.kubernetes]`: settings of two kinds of lock beside those of all kinds.

Length and renewal of a lease are in `[locker]`, as for every kind.
"""

from __future__ import annotations

from pydantic import Field

from tandemmq.config.section import Path, Section
from tandemmq.config.units import Milliseconds


class KindTable(Section):
    """A table that one kind of lock reads."""

    def options(self) -> dict[str, object]:
        """Return the values of the operator and the defaults, as plain values, without those that have neither."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


class ZooKeeperTable(KindTable):
    hosts: str | None = Field(None, min_length=1)
    """The servers: `HOST:PORT,HOST:PORT,…`, optionally with `/CHROOT` at the end."""
    path: str = Field("/tandemmq/lock", pattern=r"^(/[^/]+)+$")
    """Node under which the brokers of one pair queue. Use another one for each pair."""
    digest: str | None = Field(None, pattern=r"^[^:]+:.+$")
    """`USER:PASSWORD` for the servers; then only this user can change the nodes. Never shown."""
    connect_timeout: Milliseconds = Field(5_000, ge=100)
    """Time to reach the servers."""


class KubernetesTable(KindTable):
    lease: str = Field("tandemmq", min_length=1)
    """Name of the Lease. Use another one for each pair."""
    namespace: str | None = Field(None, min_length=1)
    """Namespace of the Lease. Default: that of the pod."""
    server: str | None = Field(None, pattern=r"^https://[^/]+$")
    """The API server: `https://HOST:PORT`. Default: that of the pod."""
    token_file: Path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    """File with the bearer token. It is read for each request, because tokens change every hour."""
    ca_file: Path = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """Certificates that may sign that of the API server."""
    request_timeout: Milliseconds = Field(2_000, ge=100)
    """Time for an answer, at most a third of a lease."""
