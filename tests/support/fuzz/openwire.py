"""The decoder against bytes that no client sends: ``python -m tests.support.fuzz.openwire [--seed N] [--cases N]``.

Given any bytes, the cutter and the codec answer with commands or with a WireError; never with another exception, and
never with more memory or time than the bytes are worth. A command that was read can be written, unless the format has
no room for it, and is then read as the same.

The cases are frames of the vectors, changed: bits turned, pieces cut out, doubled or brought in from other frames,
numbers replaced by those at the ends of their ranges.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tandemmq.broker.protocols.openwire.codec import WireFormat
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.frames import FrameCutter
from tandemmq.broker.protocols.openwire.schema import Command, WireFormatInfo
from tandemmq.broker.protocols.openwire.types import VERSION_MAX
from tandemmq.broker.protocols.openwire.wireformat import negotiate, our_info
from tests.support.protocols.openwire.vectors import vectors

FRAME_BYTES_MAX = 1 << 20
EDGES = [0, 1, -1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, -0x8000, 0x7FFFFFFF, -0x80000000, 0x10000, 31, 32, 63, 64, 255]
OURS = our_info(max_frame_size=FRAME_BYTES_MAX, provider_version="0")


class Outcome(NamedTuple):
    commands: int
    refusals: Counter[str]
    slowest_seconds: float


def run(seed: int, cases: int) -> Outcome:
    """Raises what the decoder should not have raised, with the case in a note."""
    dice = random.Random(seed)
    samples = [(vector.wire_format, frame) for vector in vectors() for frame in vector.frames if len(frame) < 4096]
    frames = [frame for _, frame in samples]
    commands, slowest = 0, 0.0
    refusals: Counter[str] = Counter()
    for case in range(cases):
        make, frame = dice.choice(samples)
        wire = make() if dice.random() < 0.9 else any_format(dice)
        stream = mutated(dice, frame, frames)
        began = time.process_time()
        try:
            commands += feed(dice, wire, stream)
        except WireError as error:
            refusals[str(error).partition(" ")[0]] += 1
        except BaseException as error:
            error.add_note(
                f"seed {seed}, case {case}: {wire.version=} {wire.is_tight=} {wire.is_cached=} {stream.hex()}"
            )
            raise
        slowest = max(slowest, time.process_time() - began)
    return Outcome(commands, refusals, slowest)


def any_format(dice: random.Random) -> WireFormat:
    return WireFormat(
        dice.randint(1, VERSION_MAX),
        is_tight=dice.random() < 0.5,
        is_cached=dice.random() < 0.5,
        has_stack_traces=dice.random() < 0.5,
        cache_size=dice.choice((1, 2, 100, 1024)),
    )


def feed(dice: random.Random, wire: WireFormat, stream: bytes) -> int:
    """How many commands the stream held; raises WireError where it stops being OpenWire."""
    cutter = FrameCutter(FRAME_BYTES_MAX)
    commands = 0
    while stream:
        length = dice.choice((1, 7, len(stream)))
        cutter.feed(stream[:length])
        stream = stream[length:]
        while (frame := cutter.next_frame()) is not None:
            look(wire, wire.decode(frame))
            commands += 1
    return commands


def look(wire: WireFormat, command: Command) -> None:
    """What was read can be shown, and written and read again as the same."""
    repr(command)
    if isinstance(command, WireFormatInfo):
        negotiate(OURS, command)
    twin = WireFormat(
        wire.version, is_tight=wire.is_tight, is_cached=wire.is_cached, has_stack_traces=wire.has_stack_traces
    )
    assert twin.decode(twin.encode(command)) == command, "written and read again, it is another"


def mutated(dice: random.Random, frame: bytes, others: Sequence[bytes]) -> bytes:
    data = bytearray(frame)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        if len(data) < 6:
            break
        at = dice.randrange(4, len(data))
        match dice.randrange(7):
            case 0:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                data[at] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xC0, 0xFF, dice.randrange(256)))
            case 2:
                layout = dice.choice((">h", ">i", ">q"))
                width = struct.calcsize(layout)
                if at + width <= len(data):
                    bits = 8 * width
                    edge = (dice.choice(EDGES) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
                    struct.pack_into(layout, data, at, edge)
            case 3:
                del data[at : at + dice.randrange(1, 20)]
            case 4:
                stop = at + dice.randrange(1, 60)
                data[at:at] = data[at:stop] * dice.choice((1, 2, 50))
            case 5:
                other = dice.choice(others)
                start = dice.randrange(len(other))
                data[at:at] = other[start : start + dice.randrange(1, 100)]
            case _:
                data[4] = dice.randrange(256)
    # Mostly a size that fits, so that what is behind it is looked at.
    if dice.random() < 0.95 and len(data) >= 4:
        struct.pack_into(">i", data, 0, len(data) - 4)
    return bytes(data)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--cases", type=int, default=100_000)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.cases} cases")
    outcome = run(options.seed, options.cases)
    print(f"{outcome.commands} commands, slowest case {outcome.slowest_seconds * 1000:.1f} ms; refused:")
    for what, count in outcome.refusals.most_common(12):
        print(f"  {count:8} {what} ...")
    return 0


if __name__ == "__main__":
    sys.exit(main())
