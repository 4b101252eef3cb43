"""Budget of the instructions per message of each case: bench/budget.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("budget.toml")


@dataclass(frozen=True, slots=True)
class Budget:
    """``baselines``: by case, the commit whose plain Python it is compared with. ``shares``: by case and side, what the
    side may take as a share of that. ``noise``: a part of the share, beyond it, that may be the noise of the count."""

    noise: float
    baselines: Mapping[str, str]
    shares: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, text: str, known: Container[str]) -> Budget:
        """Return the budget in a TOML text. ValueError if a case is not known, or has two baselines."""
        found = tomllib.loads(text)
        noise = float(found.pop("noise"))
        baselines: dict[str, str] = {}
        shares: dict[str, Mapping[str, float]] = {}
        for commit, cases in found.items():
            for case, of_sides in cases.items():
                if case not in known:
                    raise ValueError(f"the budget names the case {case!r}, which is not known")
                if case in baselines:
                    raise ValueError(f"the budget names the case {case!r} twice")
                baselines[case] = commit
                shares[case] = {side: float(share) for side, share in of_sides.items()}
        return cls(noise, baselines, shares)

    def accepted(self, case: str, side: str) -> float:
        """Return the maximum of ``side`` with the noise, as a share of the baseline. KeyError: it has none."""
        return self.shares[case][side] * (1 + self.noise)

    def beyond(self, ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
        """Return the cases of which a side takes more than is accepted. ``ratios``: by case and side."""
        return [
            case
            for case, of_sides in ratios.items()
            if any(ratio > self.accepted(case, side) for side, ratio in of_sides.items())
        ]
