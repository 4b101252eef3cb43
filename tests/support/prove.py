"""Settings for long proofs: the number of rounds, and the seed.

TANDEMMQ_PROVE: unset for a small sample, ``full`` for the whole proof (``make prove``), or the number of rounds, kills,
images or seeds. In CI and with TANDEMMQ_THOROUGH the sample is larger than in the default run. A proof has a random
seed, which it prints. All other runs, including CI, have FIXED_SEED, so that a change is not refused because of a fault
that it did not cause. TANDEMMQ_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
from typing import Final

_SAID: Final = os.environ.get("TANDEMMQ_PROVE", "")
IS_PROOF: Final = _SAID not in ("", "0")
IS_FULL: Final = _SAID == "full"
FIXED_SEED: Final = 20261128
_SAID_SEED = int(os.environ.get("TANDEMMQ_SEED", "0"))
#: Whether this run has the fixed seed.
IS_FIXED: Final = not IS_PROOF and not _SAID_SEED
SEED: Final = FIXED_SEED if IS_FIXED else _SAID_SEED or random.SystemRandom().randrange(1, 1 << 32)
THOROUGH: Final = "TANDEMMQ_THOROUGH"
REQUIRE_SERVICES: Final = "TANDEMMQ_REQUIRE_SERVICES"


def is_set(name: str) -> bool:
    """Return whether this variable of the environment is set to a true value."""
    return os.environ.get(name, "").lower() not in ("", "0", "false")


#: True in CI, and for a user who wants all tests; a proof runs its own tests completely.
IS_THOROUGH: Final = IS_PROOF or any(map(is_set, ("CI", THOROUGH, REQUIRE_SERVICES)))


def rounds(sample: int, full: int, *, quick: int | None = None) -> int:
    """Return the number of rounds: ``full`` in a proof, or the requested number; otherwise ``sample``, or ``quick`` in
    the default run."""
    if not IS_PROOF:
        return sample if quick is None or IS_THOROUGH else quick
    return full if IS_FULL else int(_SAID)
