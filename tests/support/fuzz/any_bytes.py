"""A fuzzer for parsers, with bytes that no client sends.

For any bytes, in any pieces, a parser must return the result or raise its own error; no other exception, and no memory
or time out of proportion to the bytes. The cases are changed bytes of a client: bits are inverted, pieces removed,
duplicated or inserted from elsewhere, numbers replaced by the limits of their ranges.
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
    """Return the amount that was ``read``, and the count of each refusal.

    ``make``: returns a case as text, and a function that reads it, which returns the amount or raises ``refusal``. Any
    other exception of the parser is raised, with the case in a note.
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
    """Return ``sent``, changed after its first ``keeps`` bytes."""
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
