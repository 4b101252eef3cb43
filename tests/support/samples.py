"""Tables of cases. CI runs a sample of them, a proof all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

import pytest

from tests.support.prove import SEED, is_set

#: Set for a mutant, which a single case may detect: no case is left out.
ALL_CASES: Final = "TANDEMMQ_ALL_CASES"


def is_chosen(name: str, share: float) -> bool:
    """Return whether SEED chooses ``name`` for a sample with about this share of all names."""
    return is_set(ALL_CASES) or random.Random(f"{SEED} {name}").random() < share


def sampled(name: str, cases: Iterable[Any], count: int) -> list[Any]:
    """Return parameters: ``count`` of ``cases``, chosen by SEED and ``name``. `make prove` runs the others, too.

    A case that is a tuple has the values of several arguments. A larger ``count`` gives the same cases and more.
    """
    every = list(cases)
    order = list(range(len(every)))
    random.Random(f"{SEED} {name}").shuffle(order)
    chosen = set(order if is_set(ALL_CASES) else order[:count])
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.prove, *([] if number in chosen else [pytest.mark.proof_only])],
        )
        for number, case in enumerate(every)
    ]
