"""How much dearer than its baseline each case may be: bench/budget.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("budget.toml")


@dataclass(frozen=True, slots=True)
class Budget:
    """Accepted ratios of candidate to baseline."""

    default: float
    cases: Mapping[str, float]

    @classmethod
    def read(cls, text: str, known: Container[str]) -> Budget:
        """From TOML. ValueError when it is none, or names a case that is not known."""
        found = tomllib.loads(text)
        cases = {name: float(ratio) for name, ratio in found.get("cases", {}).items()}
        for name in cases:
            if name not in known:
                raise ValueError(f"the budget names the case {name!r}, which is not known")
        return cls(float(found["default"]), cases)

    def accepted(self, case: str) -> float:
        return self.cases.get(case, self.default)

    def beyond(self, ratios: Mapping[str, float | None]) -> list[str]:
        """The cases whose ratio is more than is accepted; one without a ratio is not."""
        return [case for case, ratio in ratios.items() if ratio is not None and ratio > self.accepted(case)]
