"""How much of a long proof runs, and from which seed.

TANDEMMQ_PROVE is unset for a small sample, ``full`` for all of it (``make prove``), or a number: so many rounds, kills,
images or seeds. A proof draws its seed and prints it. All other runs, CI among them, have FIXED_SEED, so that a change
is not refused for a fault that it did not make. TANDEMMQ_SEED makes a run the same again.
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
#: Whether this run has the seed that all runs have, and nothing is drawn.
IS_FIXED: Final = not IS_PROOF and not _SAID_SEED
SEED: Final = FIXED_SEED if IS_FIXED else _SAID_SEED or random.SystemRandom().randrange(1, 1 << 32)


def rounds(sample: int, full: int) -> int:
    """How many there are to be: ``sample`` by default, ``full`` of a proof, or the number that was asked for."""
    if not IS_PROOF:
        return sample
    return full if IS_FULL else int(_SAID)
