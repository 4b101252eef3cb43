"""Tables of cases of which CI tries a sample, and a proof all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.prove import SEED


def sampled(name: str, cases: Iterable[Any], count: int) -> list[Any]:
    """Parameters: ``count`` of ``cases``, which SEED and ``name`` draw. `make prove` runs the others, too.

    A case that is a tuple has the values of several arguments. A larger ``count`` draws the same ones and more.
    """
    every = list(cases)
    order = list(range(len(every)))
    random.Random(f"{SEED} {name}").shuffle(order)
    chosen = set(order[:count])
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.prove, *([] if number in chosen else [pytest.mark.proof_only])],
        )
        for number, case in enumerate(every)
    ]
