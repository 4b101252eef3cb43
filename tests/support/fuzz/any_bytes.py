"""A parser against bytes that no client sends.

Given any bytes, in any pieces, a parser answers with what it read or with its own error; never with another exception,
and never with more memory or time than the bytes are worth. The cases are what a client sends, changed: bits turned,
pieces cut out, doubled or brought in from elsewhere, numbers replaced by those at the ends of their ranges.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence


def try_all(
    seed: int,
    cases: int,
    make: Callable[[random.Random], tuple[str, Callable[[], int]]],
    refusal: type[Exception],
    reason: Callable[[Exception], str],
) -> Counter[str]:
    """How much was ``read``, and how often what was refused.

    ``make`` gives a case in words, and what reads it, which says how much that was or raises ``refusal``. Raises what
    the parser should not have raised, with the case in a note.
    """
    dice = random.Random(seed)
    outcome: Counter[str] = Counter()
    for case in range(cases):
        shown, read = make(dice)
        try:
            outcome["read"] += read()
        except refusal as error:
            outcome[f"refused: {reason(error)}"] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, case {case}: {shown}")
            raise
    return outcome


def pieces(dice: random.Random, stream: bytes) -> Iterator[bytes]:
    while stream:
        length = dice.choice((1, 7, len(stream)))
        yield stream[:length]
        stream = stream[length:]


def mutated(
    dice: random.Random, sent: bytes, others: Sequence[bytes], edge: Callable[[random.Random], bytes], keeps: int = 0
) -> bytearray:
    """``sent``, changed behind its first ``keeps`` bytes."""
    data = bytearray(sent)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        if len(data) < keeps + 3:
            break
        at = dice.randrange(keeps, len(data))
        match dice.randrange(6):
            case 0:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                data[at] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xC0, 0xFF, dice.randrange(256)))
            case 2:
                number = edge(dice)
                data[at : at + len(number)] = number
            case 3:
                del data[at : at + dice.randrange(1, 20)]
            case 4:
                data[at:at] = data[at : at + dice.randrange(1, 60)] * dice.choice((1, 2, 50))
            case _:
                other = dice.choice(others)
                start = dice.randrange(len(other))
                data[at:at] = other[start : start + dice.randrange(1, 100)]
    return data
