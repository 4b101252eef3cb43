"""The pair of probes that the checks use."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.cli.doctor.local_probe import LocalProbe
from tandemmq.cli.doctor.remote_probe import RemoteProbe


@dataclass(frozen=True, slots=True)
class ProbePair:
    """The probe of this process and that of the other one. ``who`` names the other in words."""

    local: LocalProbe
    remote: RemoteProbe
    who: str

    @property
    def directions(self) -> tuple[tuple[LocalProbe, LocalProbe, str, str], ...]:
        """Both directions: the acting probe, the watching probe, and the names of both."""
        remote = self.remote.as_probe()
        return (self.local, remote, "this process", self.who), (remote, self.local, self.who, "this process")
