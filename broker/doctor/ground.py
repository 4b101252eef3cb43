"""What the checks of two hands stand on."""

from __future__ import annotations

from dataclasses import dataclass

from broker.doctor.hand import Hand, NearHand
from broker.doctor.second import FarHand


@dataclass(frozen=True, slots=True)
class Ground:
    """The hand of this process and that of the second; ``who`` is the second, in words."""

    near: NearHand
    far: FarHand
    who: str

    @property
    def directions(self) -> tuple[tuple[Hand, Hand, str, str], ...]:
        """(one who does, one who watches, and both in words), each way round."""
        return (self.near, self.far, "this process", self.who), (self.far, self.near, self.who, "this process")
